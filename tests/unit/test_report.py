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


def test_a_flush_says_in_words_what_ended() -> None:
    services = ["public/DEFAULT_GROUP/orders", "public/DEFAULT_GROUP/Orders", "public/DEFAULT_GROUP/old"]
    keeper = {
        "name": "orders",
        "services": services,
        "ended": dict(zip(services, ("empty", "none", "none"), strict=True)),
        "forgotten": services[2:],
    }
    said = report.flushed({"keeper": keeper, "fronts": {"0": {"externals": 0}, "1": {"externals": 2}}}).splitlines()

    assert len(said) == 4
    assert said[0].startswith(f"{services[0]}: its protection (empty) ended")
    assert said[1].startswith(f"{services[1]}: it was not protected")
    assert said[2].startswith(f"{services[2]}: forgotten")
    assert said[3] == "front 1 forgot 2 kept answers of outside names"


def test_a_static_service_is_not_called_unconfirmed() -> None:
    service = {"namespace": "public", "group": "G", "service": "s", "source": "static", "instances": []}
    said = report.ask({"name": "s.nacos.", "type": "A", "rcode": "NOERROR", "service": service})

    assert "never" not in said
    assert "from the configuration" in said
