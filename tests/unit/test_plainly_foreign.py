"""The quick word on what is forwarded, and the pipeline's careful one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.deciding import pipeline_of
from nacosdns import config
from nacosdns.core import dnswire
from nacosdns.core.book import Book
from nacosdns.core.pipeline import Forward

if TYPE_CHECKING:
    from nacosdns.core.pipeline import Pipeline

NAMES = [
    "www.example.org",
    "a.nacos",
    "nacos",
    "canary.nacosdns.invalid",
    "invalid",
    "orders",
    ".",
    "10-0-0-1.addr.nacos",
]
OPTS = [b"", b"\0\0\x29\x04\xd0\0\0\0\0\0\0", b"\0\0\x29\x04\xd0\0\1\0\0\0\0"]
CLIENTS = [b"\x7f\0\0\1", b"\xcb\0\x71\1"]


def make(*, bare_names: bool) -> Pipeline:
    configuration = config.Config(zones=(config.ZoneSection(name="nacos.", bare_names=bare_names),))
    return pipeline_of(configuration, Book())


PIPELINES = [make(bare_names=bare_names) for bare_names in (False, True)]


@settings(max_examples=500)
@given(
    st.sampled_from(PIPELINES),
    st.sampled_from(NAMES),
    st.sampled_from([1, 28, 251, 252, 255]),
    st.sampled_from([1, 3]),
    st.sampled_from(OPTS),
    st.sampled_from(CLIENTS),
)
def test_what_is_plainly_foreign_is_forwarded_by_the_stages_too(
    pipeline: Pipeline, name: str, kind: int, klass: int, opt: bytes, client: bytes
) -> None:
    question = dnswire.text_name(name) + kind.to_bytes(2) + klass.to_bytes(2)
    query = dnswire.parse_query(b"\0\1\1\0\0\1\0\0\0\0\0" + bytes((bool(opt),)) + question + opt, client=client)

    assert not pipeline.is_plainly_foreign(query) or pipeline.decide(query, 1.0, 1.0) == Forward()


def test_a_common_query_is_plainly_foreign() -> None:
    query = dnswire.parse_query(b"\0\1\1\0\0\1\0\0\0\0\0\0\3www\7example\3org\0\0\1\0\1", client=CLIENTS[0])

    assert all(pipeline.is_plainly_foreign(query) for pipeline in PIPELINES)
