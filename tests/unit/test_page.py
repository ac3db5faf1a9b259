"""Pages rotate by weight, fit what the client takes, and share what they have in common."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count as counter
from typing import TYPE_CHECKING

import dnslib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core import dnsrecord, dnswire
from nacosdns.core.balance import Hash, Member, Random, RoundRobin, Weighted
from nacosdns.core.dnsname import text_name
from nacosdns.core.dnsrecord import owner_pointed
from nacosdns.core.page import WINDOW, WINDOW_S, Page, Shape, shape_of

if TYPE_CHECKING:
    from nacosdns.core.model import Query

CLOCK = counter()
SERVICE = "public\0DEFAULT_GROUP\0orders"
NAME = text_name("orders.nacos")


def query(*, payload: int = 0, tcp: bool = False, name: bytes = NAME, kind: int = 1) -> Query:
    packet = b"\0\7\1\0\0\1\0\0\0\0\0" + (b"\1" if payload else b"\0") + name + kind.to_bytes(2, "big") + b"\0\1"
    if payload:
        packet += b"\0\0\x29" + payload.to_bytes(2, "big") + bytes(6)
    return dnswire.parse_query(packet, over_tcp=tcp)


def page(
    count: int, *, take: int = 0, weights: list[float] | None = None, kind: type = Weighted, srv: bool = False
) -> Page:
    members = tuple(Member(f"m{n}", (weights or [1.0] * count)[n]) for n in range(count))
    addresses = [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(count)]
    records = [dnsrecord.address_record(NAME, 1, address) for address in addresses]
    glue: tuple[bytes, ...] = (b"",) * count
    if srv:
        targets = [text_name(f"t{n}.addr.nacos") for n in range(count)]
        records = [dnsrecord.srv(NAME, 1, priority=0, weight=1, port=80, target=target) for target in targets]
        glue = tuple(
            dnsrecord.record_bytes(dnsrecord.address_record(t, 1, a)) for t, a in zip(targets, addresses, strict=True)
        )
    balancer = kind(members, random.Random(5), b"host")
    return Page(SERVICE, tuple(map(owner_pointed, records)), glue, balancer=balancer, take=take or count, cell=3)


def reply(made: Page, asked: Query) -> dnslib.DNSRecord:
    return dnslib.DNSRecord.parse(b"\0\7" + made.reply(asked.question, shape_of(asked), made.step(next(CLOCK))))


@pytest.mark.parametrize("weights", [[1.0, 3.0], [7.0, 30.0], [0.1, 0.9], [1.0, 1.0, 1.0]])
def test_first_places_follow_the_weights_exactly_over_windows(weights: list[float]) -> None:
    made = page(len(weights), weights=weights)
    total = 10 if sum(weights) <= 1 else int(sum(weights))
    firsts = Counter(str(reply(made, query()).rr[0].rdata) for _ in range(total * 20))

    assert [firsts[f"10.0.0.{n}"] for n in range(len(weights))] == [
        round(w / sum(weights) * total * 20) for w in weights
    ]


@given(st.integers(1, 400), st.sampled_from([0, 512, 1232, 4096]), st.booleans(), st.booleans())
def test_a_reply_fits_and_says_so_when_it_was_cut(count: int, payload: int, tcp: bool, srv: bool) -> None:
    made = page(count, srv=srv)
    asked = query(payload=payload, tcp=tcp)
    packet = b"\0\7" + made.reply(asked.question, shape_of(asked), 0)
    parsed = dnslib.DNSRecord.parse(packet)

    assert len(packet) <= dnswire.size_limit(asked)
    assert 1 <= len(parsed.rr) <= count
    assert bool(parsed.header.tc) == (len(parsed.rr) < count)
    assert len({str(rr.rdata) for rr in parsed.rr}) == len(parsed.rr)
    assert not (parsed.header.tc and [rr for rr in parsed.ar if rr.rtype != 41])


def test_glue_goes_before_answers() -> None:
    made = page(12, srv=True)
    full, plain = reply(made, query(tcp=True)), reply(made, query())

    assert len(full.ar) == 12
    assert len(plain.rr) == 12
    assert len(plain.ar) < 12


@pytest.mark.parametrize(("take", "count"), [(1, 1), (3, 3), (0, 20)])
def test_an_answer_holds_as_many_as_the_policy_says(take: int, count: int) -> None:
    made = page(20, take=take)

    assert len(reply(made, query(tcp=True)).rr) == count
    assert not reply(made, query(payload=1232)).header.tc


def test_the_parts_of_all_members_turn_up_in_cut_answers() -> None:
    made = page(200, kind=RoundRobin)
    seen = {str(rr.rdata) for _ in range(200) for rr in reply(made, query()).rr}

    assert len(seen) == 200


@pytest.mark.parametrize("kind", [Weighted, RoundRobin, Random])
@pytest.mark.parametrize("count", [1, 2, 7, 10, 33, 64, 65, 100])
def test_every_order_tells_each_member_once(kind: type, count: int) -> None:
    made = page(count, kind=kind, weights=[1.0 + n % 3 for n in range(count)])

    for _ in range(2 * WINDOW):
        told = [str(rr.rdata) for rr in reply(made, query(tcp=True)).rr]
        assert len(told) == len(set(told)) == count


def test_pages_of_services_of_the_same_size_share_their_orders_and_bounds() -> None:
    one, other = page(10), page(10)

    assert one.window is other.window
    assert one.bounds is other.bounds
    assert one.size_bytes < 700


def test_an_order_per_client_is_never_prepared() -> None:
    assert page(3, kind=Hash).per_client
    assert not page(3).per_client


def test_a_window_that_does_not_repeat_itself_is_replayed_while_it_is_young() -> None:
    made = page(40)
    first = made.window
    for _ in range(3 * WINDOW):
        made.step(5.0)
    young = made.window
    for _ in range(WINDOW):
        made.step(5.0 + WINDOW_S)

    assert first is not young
    assert made.renewals == 2


@given(st.integers(17, 120), st.integers(0, 1), st.sampled_from([512, 700, 1232, 65535]), st.integers(0, 99))
def test_the_quick_rendering_of_many_records_is_the_careful_one(
    count: int, short: int, size_max: int, seed: int
) -> None:
    made = page(count, take=count - short, kind=Random)
    order = made.window.orders[seed % WINDOW]
    shape = Shape(0x0100, size_max, b"", over_tcp=size_max == 65535)
    room = size_max - 12 - len(NAME) - 4
    picked = made._fit(order, room)[0]
    quick = dnslib.DNSRecord.parse(b"\0\7" + made.render(query().question, shape, order))

    assert [str(rr.rdata) for rr in quick.rr] == [f"10.0.0.{index}" for index in picked]
    assert bool(quick.header.tc) == (len(picked) < count - short and size_max != 65535)


@pytest.mark.parametrize("count", [20, 32, 48, 60, 64])
@pytest.mark.parametrize("stride", [2, 3, 6])
def test_a_client_that_hears_every_second_or_sixth_answer_hears_of_every_member(count: int, stride: int) -> None:
    """S33: by UDP, then by TCP, which glibc does three times: each reply is a turn."""
    made = page(count)
    asked = query(tcp=True)
    heard = Counter()
    for turn in range(100 * count):
        packet = made.reply(asked.question, shape_of(asked), made.step(turn * 0.05))
        if turn % stride == 0:
            heard[packet[10 + len(asked.question) + 12 :][:4]] += 1  # the first address
    share = 100 / stride

    assert len(heard) == count
    assert max(heard.values()) <= 2 * share
