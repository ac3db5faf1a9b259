"""Addresses of resolvers, what is ourselves (S65), health and order (S67, S70)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core.resolvers import VERDICT_S, Endpoint, Health, Ours, Resolvers, ours, parse_endpoint
from nacosdns.errors import UpstreamError

GOOD = [
    ("192.0.2.53", "192.0.2.53", 53),
    ("192.0.2.53:5353", "192.0.2.53", 5353),
    ("2001:DB8::53", "2001:db8::53", 53),
    ("2001:db8:0:0::53", "2001:db8::53", 53),
    ("[2001:db8::53]", "2001:db8::53", 53),
    ("[2001:db8::53]:5353", "2001:db8::53", 5353),
    ("fe80::1%ens3", "fe80::1%ens3", 53),
    ("[fe80::1%lo]:5353", "fe80::1%lo", 5353),
    ("::ffff:192.0.2.1", "192.0.2.1", 53),
    (" 192.0.2.53 ", "192.0.2.53", 53),
]
BAD = [
    "",
    "localhost",
    "192.0.2",
    "192.0.2.53:",
    "192.0.2.53:0",
    "192.0.2.53:65536",
    "192.0.2.53:x",
    "[::1",
    "[::1]:",
    "1:2",
    "fe80::1%",
    "192.0.2.53:٣",
    "tls://192.0.2.53",
    "[::1]5353",
]


@pytest.mark.parametrize(("text", "host", "port"), GOOD)
def test_an_address_is_read_in_every_usual_spelling(text: str, host: str, port: int) -> None:
    assert parse_endpoint(text) == Endpoint(host, port)


@pytest.mark.parametrize(("text", "host", "port"), GOOD)
def test_the_spelling_we_give_is_read_back_as_the_same(text: str, host: str, port: int) -> None:
    assert parse_endpoint(str(parse_endpoint(text))) == Endpoint(host, port)


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_address_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        parse_endpoint(text)

    assert repr(text) in str(caught.value)


@given(text=st.text(max_size=30))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        endpoint = parse_endpoint(text)
    except UpstreamError:
        return

    assert 0 < endpoint.port < 65536


OWNERSHIP = [
    (["127.0.0.1:53"], "127.0.0.1", True),
    (["127.0.0.1:53"], "127.0.0.1:5353", False),
    (["127.0.0.1:53"], "127.0.0.53", False),
    (["[::1]:53"], "::1", True),
    (["0.0.0.0:53"], "192.0.2.7", True),
    (["0.0.0.0:53"], "192.0.2.8", False),
    (["0.0.0.0:53"], "127.0.0.53", True),
    (["0.0.0.0:53"], "127.0.0.53:5353", False),
    (["[::]:53"], "192.0.2.7", True),
    (["[::]:53"], "fe80::1%eth0", True),
    (["[::]:53"], "2001:db8::1", False),
    (["0.0.0.0:1053"], "192.0.2.7", False),
    (["127.0.0.1:53"], "::ffff:127.0.0.1", True),
]


@pytest.mark.parametrize(("listen", "address", "expected"), OWNERSHIP)
def test_s65_what_reaches_ourselves_is_known(listen: list[str], address: str, expected: bool) -> None:
    own = ours(listen, ["127.0.0.1", "192.0.2.7", "fe80::1"])

    assert (parse_endpoint(address) in own) is expected


@pytest.mark.parametrize(("address", "listen"), [("0.0.0.0", "127.0.0.1:53"), ("::", "[::1]:53")])
def test_s65_the_unspecified_address_is_the_loopback_that_the_kernel_makes_of_it(address: str, listen: str) -> None:
    group = make_group(address, own=ours([listen], []))

    assert list(group) == []


def make_group(*addresses: str, own: Ours | None = None) -> Resolvers:
    group = Resolvers(Random(5))
    group.replace(addresses, own or Ours(), 0.0)
    return group


def order(group: Resolvers, now: float) -> list[int]:
    return [member.place for member in group.order(now)]


def test_the_configured_order_holds_among_equals_and_doubles_count_once() -> None:
    group = make_group("192.0.2.1", "192.0.2.2:53", "192.0.2.1:53", "nonsense")

    assert [member.address for member in group.order(0.0)] == ["192.0.2.1:53", "192.0.2.2:53"]
    assert [address for address, _ in group.refused] == ["nonsense"]


def test_who_is_doubted_comes_last_and_is_probed_at_once() -> None:
    group = make_group("192.0.2.1", "192.0.2.2")
    first = next(iter(group))
    group.order(1.0)
    first.missed(1.0, 1.5, "no answer", probe=False)
    one_miss = order(group, 1.5)
    first.missed(2.0, 2.5, "no answer", probe=False)

    assert (one_miss, order(group, 2.5)) == ([0, 1], [1, 0])
    assert group.take_probes(2.5) == [first]
    assert group.take_probes(2.5) == []


def test_only_an_unanswered_probe_puts_a_resolver_down_and_any_answer_ends_it() -> None:
    group = make_group("192.0.2.1")
    (member,) = group
    for now in (1.0, 2.0, 3.0, 4.0):
        member.missed(now, now + 0.5, "no answer", probe=False)
    doubted = member.health
    member.missed(5.0, 5.5, "no answer", probe=True)
    down, nobody = member.health, group.order(6.0)
    member.answered(6.0, 6.1, b"question", probe=True)

    assert (doubted, down, nobody, member.health) == (Health.DOUBTED, Health.DOWN, (), Health.UP)


def test_a_verdict_is_believed_for_a_few_seconds_only() -> None:
    group = make_group("192.0.2.1")
    (member,) = group
    for now in (1.0, 2.0, 3.0):
        member.missed(now, now + 0.5, "no answer", probe=True)

    assert order(group, 3.5 + VERDICT_S - 0.1) == []
    assert order(group, 3.5 + VERDICT_S + 0.1) == [0]


def test_who_asks_us_back_stays_out_whatever_else_it_answers() -> None:
    group = make_group("192.0.2.1")
    (member,) = group
    member.looped(1.0)
    member.answered(0.9, 1.1, b"question", probe=False)
    still = (member.health, group.order(1.2))
    member.checked(0.5, 1.3)
    looped_since = member.health
    member.checked(61.0, 61.1)

    assert still == (Health.LOOP, ())
    assert (looped_since, member.health) == (Health.LOOP, Health.UP)


def test_a_miss_of_a_try_sent_before_the_last_reply_says_nothing() -> None:
    group = make_group("192.0.2.1")
    (member,) = group
    member.answered(1.0, 2.0, b"question", probe=False)
    for sent_at in (0.5, 1.5, 1.9):
        member.missed(sent_at, 2.5, "no answer", probe=False)

    assert (member.health, member.misses) == (Health.UP, 0)


def test_who_answers_only_with_errors_is_doubted_but_never_down() -> None:
    group = make_group("192.0.2.1", "192.0.2.2")
    first = next(iter(group))
    for now in range(20):
        first.erred(float(now), "REFUSED")

    assert first.health is Health.DOUBTED
    assert order(group, 20.0) == [1, 0]


def test_patience_follows_the_measured_latency_within_bounds() -> None:
    group = make_group("192.0.2.1")
    (member,) = group
    unknown = member.patience_s(first=True)
    for now in range(50):
        member.answered(now, now + 0.002, b"question", probe=False)
    quick = member.patience_s(first=True)
    for now in range(50, 100):
        member.answered(now, now + 0.9, b"question", probe=False)

    assert (unknown, quick) == (0.5, 0.3)
    assert (member.patience_s(first=True), member.patience_s(first=False)) == (0.7, pytest.approx(1.0, abs=0.1))


def test_nobody_is_probed_when_nobody_asks() -> None:
    group = make_group("192.0.2.1")
    (member,) = group
    group.take_loop_checks(0.0)
    for now in (1.0, 2.0):
        member.missed(now, now + 0.5, "no answer", probe=False)
    checks = group.take_loop_checks(100.0)

    assert checks == [member]
    assert group.take_probes(100.0) == []
    assert group.next_due() == float("inf")
