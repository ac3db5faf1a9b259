"""The tables of the fast path: who gets replies of its own, what shares a page, what drops it, and the bounds."""

from __future__ import annotations

import random
from collections import Counter
from math import inf
from typing import TYPE_CHECKING

import dnslib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core import dnsrecord, dnswire
from nacosdns.core import prepared as prepared_room
from nacosdns.core.balance import Member, Weighted
from nacosdns.core.dnsname import text_name
from nacosdns.core.dnsrecord import owner_pointed
from nacosdns.core.model import Answer, Rcode
from nacosdns.core.page import Page, shape_of
from nacosdns.core.prepared import SAMPLED, Prepared

if TYPE_CHECKING:
    from nacosdns.core.model import Query

NAME = text_name("orders.nacos")
SERVICE = "public\0DEFAULT_GROUP\0orders"


def packet_of(
    name: bytes = NAME, *, payload: int = 0, kind: int = 1, options: bytes = b"", flags: int = 0x0100, ident: int = 7
) -> bytes:
    packet = ident.to_bytes(2, "big") + flags.to_bytes(2, "big") + b"\0\1\0\0\0\0\0" + (b"\1" if payload else b"\0")
    packet += name + kind.to_bytes(2, "big") + b"\0\1"
    if payload:
        packet += b"\0\0\x29" + payload.to_bytes(2, "big") + bytes(4) + len(options).to_bytes(2, "big") + options
    return packet


def page(count: int = 3, *, weights: list[float] | None = None, service: str = SERVICE) -> Page:
    members = tuple(Member(f"m{n}", (weights or [1.0] * count)[n]) for n in range(count))
    records = tuple(owner_pointed(dnsrecord.address_record(NAME, 1, f"10.0.0.{n}")) for n in range(count))
    return Page(service, records, balancer=Weighted(members, random.Random(5), b""), take=count, cell=3)


def table(made: Page | None = None, name: bytes = NAME) -> Prepared:
    prepared = Prepared()
    prepared.keep(name, 1, made or page())
    return prepared


def ask(prepared: Prepared, packet: bytes) -> dnslib.DNSRecord | None:
    """As a door does it."""
    prepared.now += 1.0
    entry = prepared.packets.get(packet[2:])
    if entry is not None:
        return dnslib.DNSRecord.parse(packet[:2] + prepared.next_reply(entry))
    found = prepared.similar(packet[2:])
    return None if found is None else dnslib.DNSRecord.parse(packet[:2] + found)


def ask_often(prepared: Prepared, packet: bytes) -> None:
    """Until it has replies of its own, if it may have any."""
    for _ in range(2 * (SAMPLED + 1)):
        ask(prepared, packet)


def test_a_packet_gets_replies_of_its_own_when_it_comes_often_and_loses_them_with_its_service() -> None:
    prepared = table()
    counts = []
    for _ in range(2 * (SAMPLED + 1)):
        assert ask(prepared, packet_of()) is not None
        counts.append(len(prepared.packets))

    assert (counts[0], counts[-1]) == (0, 1)

    prepared.drop("another")
    assert len(prepared.packets) == 1
    prepared.drop(SERVICE)

    assert (prepared.packets, prepared.page_count, prepared.packets_bytes, prepared.pages_bytes) == ({}, 0, 0, 0)
    assert ask(prepared, packet_of()) is None


def test_a_page_that_replaces_another_takes_its_packets_with_it() -> None:
    prepared = table()
    ask_often(prepared, packet_of())
    prepared.keep(NAME, 1, page(2))

    assert prepared.packets == {}
    assert prepared.page_count == 1
    assert len(ask(prepared, packet_of()).rr) == 2  # type: ignore[union-attr]


def test_a_renewed_page_takes_the_place_of_its_former_and_what_stays_keeps_its_packets() -> None:
    prepared = Prepared()
    changed, same, gone = page(3), page(4), page(5)
    names = [text_name(f"{word}.nacos") for word in ("changed", "same", "gone")]
    for name, made in zip(names, (changed, same, gone), strict=True):
        prepared.keep(name, 1, made)
        ask_often(prepared, packet_of(name))
    query = dnswire.parse_query(packet_of(text_name("txt.nacos")))
    for _ in range(2):
        prepared.keep_reply(query, negative(query), cell=9, until=99.0, about=(SERVICE,))
    prepared.renew(SERVICE, {changed: page(2), same: same, page(9): page(8)})

    assert [prepared.page(name, 1) is not None for name in names] == [True, True, False]
    assert list(prepared.packets) == [packet_of(names[1])[2:]]
    assert len(ask(prepared, packet_of(names[0])).rr) == 2  # type: ignore[union-attr]
    assert prepared.page(names[1], 1) is same
    assert prepared.similar(packet_of(text_name("txt.nacos"))[2:]) is None
    assert len(prepared.pages_of(SERVICE)) == 2

    prepared.drop(SERVICE)

    assert (prepared.packets, prepared.page_count, prepared.packets_bytes, prepared.pages_bytes) == ({}, 0, 0, 0)


def test_all_packets_of_one_page_share_one_rotation_and_follow_its_windows() -> None:
    prepared = table(page(2, weights=[7.0, 30.0]))
    asked = [packet_of(), packet_of(payload=1232), packet_of(text_name("Orders.Nacos"))]
    firsts = Counter(str(ask(prepared, asked[turn % 3]).rr[0].rdata) for turn in range(37 * 6))  # type: ignore[union-attr]

    assert firsts["10.0.0.0"] == pytest.approx(42, abs=1)  # a window begins elsewhere in its turns
    assert firsts.total() == 222


@given(
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.sampled_from([0, 512, 1232, 4096]),
    st.lists(st.tuples(st.integers(0, 65535), st.binary(max_size=20)), max_size=3),
    st.sampled_from([0x0000, 0x0100, 0x0110, 0x0120, 0x0500]),
    st.integers(1, 80),
)
def test_what_is_prepared_is_what_the_slow_way_says(
    capitals: list[bool], payload: int, options: list[tuple[int, bytes]], flags: int, count: int
) -> None:
    """The page is stepped by both, so the replies are compared as sets of records, and the rest byte for byte."""
    name = bytes(
        byte - 32 * (97 <= byte <= 122 and up) for byte, up in zip(NAME, [*capitals, False, False], strict=True)
    )
    coded = b"".join(code.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data for code, data in options)
    packet = packet_of(name, payload=payload, options=coded if payload else b"", flags=flags)
    query = dnswire.parse_query(packet)
    made = page(count)
    prepared = table(made)
    slow = dnslib.DNSRecord.parse(packet[:2] + made.reply(query.question, shape_of(query), 0))

    for _ in range(2 * (SAMPLED + 1)):
        fast = ask(prepared, packet)
        assert fast is not None
        assert fast.header.bitmap == slow.header.bitmap
        assert fast.q.qname.label == slow.q.qname.label
        assert len(fast.rr) == len(slow.rr)
        assert [str(rr) for rr in fast.ar] == [str(rr) for rr in slow.ar]
        assert fast.pack()[12 : 12 + len(query.question)] == query.question


@given(
    st.sampled_from([0, 512, 1232]),
    st.lists(st.tuples(st.integers(0, 65535), st.binary(max_size=20)), max_size=2),
    st.integers(1, 120),
)
def test_by_tcp_the_whole_answer_is_prepared(payload: int, options: list[tuple[int, bytes]], count: int) -> None:
    coded = b"".join(code.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data for code, data in options)
    packet = packet_of(text_name("Orders.NACOS"), payload=payload, options=coded if payload else b"")
    prepared = table(page(count))
    ask(prepared, packet)
    reply = dnslib.DNSRecord.parse(packet[:2] + (prepared.for_tcp(packet[2:]) or b""))

    assert len(reply.rr) == count
    assert not reply.header.tc
    assert len(reply.ar) == bool(payload)


def test_by_tcp_an_answer_from_outside_is_the_kept_one_unless_it_was_cut() -> None:
    prepared = Prepared()
    asked = [packet_of(text_name(name)) for name in ("whole.example", "cut.example")]
    replies = [
        packet_of(text_name(name), flags=flags) for name, flags in (("whole.example", 0x8180), ("cut.example", 0x8380))
    ]
    for _ in range(2):
        for packet, reply in zip(asked, replies, strict=True):
            prepared.keep_packet(packet, reply, cell=4, until=2.0, about=())

    assert prepared.for_tcp(asked[0][2:]) == replies[0][2:]
    assert prepared.for_tcp(asked[1][2:]) is None


@pytest.mark.parametrize(
    "packet",
    [
        packet_of(flags=0x8100),
        packet_of(flags=0x2900),
        packet_of()[:5] + b"\2" + packet_of()[6:],
        packet_of() + b"x",
        packet_of(payload=1232)[:-1],
        packet_of(payload=1232, options=b"\0\x0a\0\x08abc"),
        packet_of(payload=1232, options=b"\0\x0a\0"),
        packet_of(payload=1232).replace(b"\x04\xd0\0\0", b"\x04\xd0\0\1"),
        packet_of()[:-1],
        packet_of()[:14],
        packet_of()[:11],
        b"",
    ],
    ids=[
        "a reply",
        "an update",
        "two questions",
        "rubbish behind",
        "half an OPT",
        "half an option",
        "an option's head",
        "EDNS version 1",
        "no class",
        "half a name",
        "half a header",
        "nothing",
    ],
)
def test_a_packet_that_is_no_plain_query_is_left_to_the_slow_way(packet: bytes) -> None:
    prepared = table()
    for payload in (0, 1232):
        for _ in range(2 * (SAMPLED + 1)):
            ask(prepared, packet_of(payload=payload))
            ask(prepared, packet_of(payload=payload, options=b"\0\x0a\0\x03abc"))
            prepared.for_tcp(packet_of(payload=payload)[2:])

    assert ask(prepared, packet) is None
    assert prepared.for_tcp(packet[2:]) is None


def test_packets_in_other_spellings_or_with_options_get_no_replies_of_their_own() -> None:
    prepared = table()
    for number in range(10):
        ask(prepared, packet_of(text_name("ORDERS.nacos")))
        ask(prepared, packet_of(payload=1232, options=b"\0\x0a\0\x08abcdefg%d" % (number % 10)))

    assert prepared.packets == {}


def negative(query: Query, rcode: Rcode = Rcode.NXDOMAIN) -> bytes:
    soa = dnsrecord.soa(text_name("nacos"), 1, 1, 1)
    return dnswire.render(query, Answer(rcode=rcode, authority=(soa,)), size_max=dnswire.size_limit(query))


@given(st.sampled_from([0, 1232]), st.sampled_from([0, 512, 1232]), st.sampled_from([0, 0x0100, 0x0110]))
def test_a_negative_answer_is_kept_for_every_spelling_and_shape(first: int, then: int, flags: int) -> None:
    prepared = Prepared()
    query = dnswire.parse_query(packet_of(payload=first))
    for _ in range(2):
        prepared.keep_reply(query, negative(query), cell=9, until=5.0, about=())
    asked = packet_of(text_name("oRDers.nacos"), payload=then, flags=flags)
    found = prepared.similar(asked[2:])

    assert (prepared.cell, found) == (9, negative(dnswire.parse_query(asked))[2:])


def test_a_kept_reply_ends_with_its_time_and_with_its_services() -> None:
    prepared = Prepared()
    for name, about in (("a.nacos", ("a",)), ("b.nacos", ("b", "c")), ("d.nacos", ())):
        query = dnswire.parse_query(packet_of(text_name(name)))
        for _ in range(2):
            prepared.keep_reply(query, negative(query), cell=9, until=5.0 if name != "d.nacos" else 3.0, about=about)
    prepared.drop("c")

    assert prepared.similar(packet_of(text_name("b.nacos"))[2:]) is None
    assert prepared.next_expiry == 3.0

    prepared.expire(3.0)

    assert prepared.similar(packet_of(text_name("d.nacos"))[2:]) is None
    assert prepared.similar(packet_of(text_name("a.nacos"))[2:]) is not None

    prepared.expire(5.0)

    assert (prepared.page_count, prepared.pages_bytes, prepared.next_expiry) == (0, 0, inf)


@pytest.mark.parametrize(("kept", "asked"), [(65, 97), (97, 65), (90, 122)])
def test_types_that_differ_as_letters_do_are_not_taken_for_each_other(kept: int, asked: int) -> None:
    """65 is HTTPS, and a capital A."""
    prepared = Prepared()
    query = dnswire.parse_query(packet_of(kind=kept))
    for _ in range(2):
        prepared.keep_reply(query, negative(query), cell=9, until=5.0, about=())

    assert prepared.page_count == 1
    assert prepared.similar(packet_of(kind=asked)[2:]) is None


def test_names_that_come_once_are_not_kept() -> None:
    prepared = Prepared()
    for number in range(1000):
        query = dnswire.parse_query(packet_of(text_name(f"random{number}.nacos")))
        prepared.keep_reply(query, negative(query), cell=9, until=5.0, about=())

    assert prepared.page_count == 0


def test_an_answer_from_outside_is_kept_for_its_packet_until_its_time() -> None:
    prepared = Prepared()
    asked, reply = packet_of(text_name("example.com")), packet_of(text_name("example.com"), flags=0x8180)
    for _ in range(2):
        prepared.keep_packet(asked, reply, cell=4, until=2.0, about=("bare",))

    assert prepared.next_reply(prepared.packets[asked[2:]]) == reply[2:]
    assert prepared.packets[asked[2:]].page.cell == 4

    prepared.expire(2.0)

    assert prepared.packets == {}

    prepared.keep_packet(asked, reply, cell=4, until=3.0, about=("bare",))
    prepared.drop("bare")

    assert (prepared.packets, prepared.packets_bytes) == ({}, 0)


def test_switched_off_nothing_is_prepared_until_it_is_on_again() -> None:
    prepared = table()
    ask_often(prepared, packet_of())
    prepared.switch(on=False)
    prepared.keep(NAME, 1, page())

    assert prepared.packets == {}
    assert ask(prepared, packet_of()) is None

    prepared.switch(on=True)
    prepared.keep(NAME, 1, page())

    assert ask(prepared, packet_of()) is not None


def test_the_table_of_packets_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_room, "PACKETS_BYTES_MAX", 1 << 20)
    prepared = Prepared()
    for number in range(300):
        name = text_name(f"orders{number}.nacos")
        prepared.keep(name, 1, page(70, service=str(number)))
        for _ in range(12):
            ask(prepared, packet_of(name, payload=1232))

    assert prepared.packets_bytes <= 1.1 * (1 << 20)
    assert len(prepared.packets) > 20
    assert prepared.packets_bytes == sum(entry.size_bytes for entry in prepared.packets.values())


def test_pages_are_bounded_in_bytes_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_room, "PAGES_BYTES_MAX", 1 << 20)
    prepared = Prepared()
    names = [text_name(f"orders{number}.nacos") for number in range(4000)]
    for name in names:
        prepared.keep(name, 1, page(10, service=str(name)))

    assert prepared.pages_bytes <= 1 << 20
    assert prepared.page(names[0], 1) is None
    assert prepared.page(names[-1], 1) is not None
    assert 1000 < prepared.page_count < 4000


def test_services_whose_prepared_answers_were_used_are_told_once_slice_by_slice() -> None:
    prepared = Prepared()
    for number in range(10):
        prepared.keep(text_name(f"s{number}.nacos"), 1, page(service=str(number)))
    asked = ask(prepared, packet_of(text_name("s3.nacos")))
    told = [prepared.used(4) for _ in range(4)]

    assert asked is not None
    assert [service for services in told for service in services] == ["3"]
    assert prepared.used(100) + prepared.used(100) == []
