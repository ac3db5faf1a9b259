"""What `ask` and `cache flush` say of words that name nothing."""

from __future__ import annotations

import re

import pytest

from nacosdns.errors import UsageError
from nacosdns.front_control import parse_question


def test_a_type_that_is_none_is_answered_by_those_that_records_can_have() -> None:
    with pytest.raises(UsageError, match="is not a record type") as caught:
        parse_question("orders.nacos", "NOSUCH")
    offered = re.findall(r"[A-Z]+", str(caught.value).partition("use ")[2])

    assert {"A", "AAAA", "SRV", "TXT", "HTTPS", "ANY"} <= set(offered)
    assert not {"OPT", "AXFR", "IXFR"} & set(offered)


@pytest.mark.parametrize(("word", "number"), [("a", 1), ("TYPE65280", 65280), ("opt", 41)])
def test_any_type_may_be_asked_for(word: str, number: int) -> None:
    assert parse_question("orders.nacos", word).type == number
