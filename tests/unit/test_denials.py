"""The SOA of a denial stands above the name that it denies, whatever name that is, so that resolvers keep the denial."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.deciding import pipeline_of
from fakes.wire import AA, edns, query, read
from nacosdns import config
from nacosdns.core import dnswire
from nacosdns.core.book import Book
from nacosdns.core.composing import Reply
from nacosdns.core.dnsname import text_name
from nacosdns.core.frames import Known, Names, encode
from nacosdns.core.model import Instance, ServiceKey, Snapshot
from nacosdns.core.naming import ZONE_BYTES_MAX

if TYPE_CHECKING:
    from fakes.wire import Read
    from nacosdns.core.pipeline import Pipeline

GROUP = ("public", "DEFAULT_GROUP")
LONG_BARE = "x" * 63 + "." + "y" * 63 + "." + "z" * 63 + "." + "w" * 44 + ".db.example.com"
MIXED = "éжλאβ"
LONG_ZONE = ".".join([MIXED] * 11)
LONG_ZONE_ASKED = ".".join(["xn--" + MIXED.encode("punycode").decode("ascii")] * 11)
SERVICES = {
    "orders": [Instance("10.0.0.1", 80)],
    "orders.db.example.com": [Instance("10.0.0.2", 80)],
    LONG_BARE: [Instance("10.0.0.3", 80)],
    "odd": [Instance("not a host..name", 80)],
}


def make() -> Pipeline:
    zones = (
        config.ZoneSection(name="nacos.", bare_names=True, bare_allow=("single-label", "*.db.example.com")),
        config.ZoneSection(name="de.nacos."),
        config.ZoneSection(name="例.nacos."),
        config.ZoneSection(name="xn--fsq."),
        config.ZoneSection(name=LONG_ZONE),
    )
    book = Book()
    for number, (service, instances) in enumerate(SERVICES.items(), 1):
        key = ServiceKey(*GROUP, service)
        book.update(Known(key, number, msgspec.Raw(encode(Snapshot(key, tuple(instances), number, live=True)))))
    settings = config.Config(zones=zones, policy=config.PolicySection(negative_ttl_s=9))
    return pipeline_of(settings, book, judges=False)


PIPELINE = make()


def decided(packet: bytes) -> Read | None:
    """The reply, None when there is none without asking somebody."""
    outcome = PIPELINE.decide(dnswire.parse_query(packet), 1.0, 1.0)
    return read(outcome.packet) if isinstance(outcome, Reply) else None


def reply(packet: bytes) -> Read:
    made = decided(packet)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("name", "kind", "owner"),
    [
        ("orders.nacos", 28, "nacos."),
        ("nosuch.nowhere.ns.de.nacos", 1, "de.nacos."),
        ("group.例.nacos", 1, "\\228\\190\\139.nacos."),
        ("group.xn--fsq.nacos", 1, "xn--fsq.nacos."),
        ("group.xn--fsq", 1, "xn--fsq."),
        ("group.例", 1, "\\228\\190\\139."),
        ("orders", 28, "orders."),
        ("orders.db.example.com", 28, "orders.db.example.com."),
        ("orders", 15, "orders."),
        (LONG_BARE, 28, LONG_BARE + "."),
        ("canary.nacosdns.invalid", 28, "canary.nacosdns.invalid."),
    ],
)
def test_the_owner_is_the_zone_as_it_was_asked_or_the_bare_name_itself(name: str, kind: int, owner: str) -> None:
    """docs/answers.md 5.7, 5.10."""
    made = reply(query(name, kind))

    assert (made.soa, made.ttls, made.counts) == (owner, {9}, (0, 1, 0))
    assert made.flags & AA


@pytest.mark.parametrize("name", ["nacos", "xn--fsq", "例", "orders", "orders.db.example.com", LONG_BARE])
def test_who_is_the_owner_of_a_soa_has_it(name: str) -> None:
    """docs/answers.md 5.8, 5.10."""
    made = reply(query(name, 6))

    assert made.message.answer[0].name.to_wire() == text_name(name)
    assert reply(query(name, 65)).soa == made.message.answer[0].name.to_text()


def test_a_bare_name_that_is_listed_and_has_gone_is_denied_by_itself() -> None:
    """docs/answers.md 5.10."""
    pipeline = make()
    pipeline.listed(Names(*GROUP, ("gone",), 0.0))
    pipeline.missed((ServiceKey(*GROUP, "gone"),), 1.0)
    outcome = pipeline.decide(dnswire.parse_query(query("gone")), 1.0, 1.0)

    assert isinstance(outcome, Reply)
    assert (read(outcome.packet).rcode, read(outcome.packet).soa) == ("NXDOMAIN", "gone.")


def test_targets_of_a_bare_name_lie_in_the_zone() -> None:
    """docs/answers.md 5.2."""
    assert reply(query("orders", 33)).data == ["0 1 80 10-0-0-1.addr.nacos."]


def test_a_service_that_is_neither_address_nor_host_name_is_a_failure_and_not_authoritative() -> None:
    """docs/answers.md 2.3."""
    made = reply(query("odd.nacos"))

    assert (made.rcode, made.flags & AA, made.counts) == ("SERVFAIL", 0, (0, 0, 0))


labels = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=63),
        st.sampled_from(
            [b"orders", b"_tcp", b"group", b"cluster", b"ns", b"addr", b"de", b"xn--fsq", b"db", b"a\5nacos"]
        ),
    ),
    max_size=4,
)
ENDS = [
    "nacos",
    "NACOS",
    "de.nacos",
    "例.nacos",
    "xn--fsq.nacos",
    "xn--fsq",
    "例",
    "db.example.com",
    ".",
    LONG_ZONE,
    f"addr.{LONG_ZONE_ASKED}",
]


@settings(max_examples=500)
@given(labels, st.sampled_from(ENDS), st.sampled_from([1, 2, 6, 28, 33, 65, 255]), st.booleans())
def test_no_denial_has_a_soa_that_is_not_above_its_name(
    before: list[bytes], end: str, kind: int, has_opt: bool
) -> None:
    """docs/answers.md 5.7, 4.5."""
    wire = b"".join(bytes((len(label),)) + label for label in before) + text_name(end)
    if len(wire) > 255:
        return
    made = decided(edns(wire, kind) if has_opt else query(wire, kind))
    if made is None or not made.flags & AA or made.counts[0]:
        return

    asked = made.message.question[0].name
    (soa,) = made.message.authority
    assert asked.is_subdomain(soa.name)
    assert len(made.packet) <= 512


def test_a_zone_that_leaves_no_room_as_it_is_asked_has_its_targets_as_it_is_written() -> None:
    """docs/answers.md 5.2."""
    name = f"orders.{LONG_ZONE_ASKED}"

    assert len(text_name(LONG_ZONE)) < ZONE_BYTES_MAX < len(text_name(LONG_ZONE_ASKED))
    assert reply(query(name, 33)).message.answer[0][0].target.to_wire() == text_name(f"10-0-0-1.addr.{LONG_ZONE}")
    assert reply(query(name, 28)).soa == f"{name}."
