"""What commands print for people."""

from __future__ import annotations

import pytest

from nacosdns import report


def test_cached_answers_tell_stale_ones_and_flags_apart() -> None:
    row = {"name": "a.example.", "type": "A", "rcode": "NOERROR", "age_s": 70.0, "ttl_s": 60}
    rows = [
        row | {"left_s": 30.0, "dnssec_ok": False, "checking_disabled": False},
        row | {"left_s": -10.0, "dnssec_ok": True, "checking_disabled": True},
    ]
    fresh, stale = (line.split() for line in report.cached(rows).splitlines()[1:])

    assert "stale" not in fresh
    assert "DO" not in fresh
    assert {"stale", "DO", "CD"} <= set(stale)


@pytest.mark.parametrize(
    ("services", "externals", "let_go"), [([], [0, 0], False), (["orders"], [0, 0], True), ([], [0, 1], True)]
)
def test_a_flush_that_found_nothing_says_so(services: list[str], externals: list[int], *, let_go: bool) -> None:
    answer = {
        "keeper": {"name": "orders.nacos", "services": services},
        "fronts": {str(slot): {"name": "orders.nacos", "externals": count} for slot, count in enumerate(externals)},
    }

    assert report.let_go(answer) == let_go
    assert report.flushed(answer).startswith("nothing to flush") != let_go
