"""The answer book: pages rotate, fit, are dropped with their service; whole packets get prepared replies."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import dnslib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core import dnsrecord, dnswire
from nacosdns.core.balance import Member, RoundRobin, Weighted
from nacosdns.core.book import REPLIES_BYTES_MAX, Book, Page, owner_pointed
from nacosdns.core.dnsname import text_name
from nacosdns.core.frames import known
from nacosdns.core.model import Instance, ServiceKey, Snapshot
from nacosdns.core.naming import folded_key

if TYPE_CHECKING:
    from nacosdns.core.model import Query

KEY = ServiceKey("public", "DEFAULT_GROUP", "orders")
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
    return Page(KEY, tuple(map(owner_pointed, records)), glue, balancer=balancer, take=take or count, cell=3)


def reply(made: Page, asked: Query) -> dnslib.DNSRecord:
    return dnslib.DNSRecord.parse(b"\0\7" + made.render(asked, made.orders[made.step()]))


def snapshot(service: str = "orders", *addresses: str) -> Snapshot:
    key = ServiceKey("public", "DEFAULT_GROUP", service)
    return Snapshot(key, tuple(Instance(address, 80) for address in addresses or ("10.0.0.1",)))


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
    packet = b"\0\7" + made.render(asked, made.orders[0])
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


def test_a_packet_gets_prepared_replies_at_its_second_sight_and_loses_them_with_its_page() -> None:
    book, made = Book(), page(3)
    book.update(known(snapshot()))
    book.keep_page(NAME, 1, made)
    packet = b"whole packet"
    book.admit(packet, query(), made)
    first = dict(book.replies)
    book.admit(packet, query(), made)
    entry = book.replies[packet]

    assert first == {}
    assert dnslib.DNSRecord.parse(b"\0\7" + entry.reply()).rr

    book.update(known(snapshot("orders", "10.0.0.9")))

    assert book.replies == {}
    assert book.page(NAME, 1) is None
    assert book.replies_bytes == 0


def test_a_page_that_replaces_another_takes_its_packets_with_it() -> None:
    book, old = Book(), page(3)
    book.keep_page(NAME, 1, old)
    for _ in range(2):
        book.admit(b"packet", query(), old)
    book.keep_page(NAME, 1, page(2))

    assert book.replies == {}


def test_prepared_replies_of_one_page_share_one_rotation_and_follow_its_windows() -> None:
    book, made = Book(), page(2, weights=[7.0, 30.0])
    book.keep_page(NAME, 1, made)
    asked = {b"a": query(), b"b": query(payload=1232)}
    for packet, one in asked.items():
        for _ in range(2):
            book.admit(packet, one, made)
    entries = [book.replies[b"a"], book.replies[b"b"]]
    firsts = Counter(
        str(dnslib.DNSRecord.parse(b"\0\7" + entries[turn % 2].reply()).rr[0].rdata) for turn in range(37 * 6)
    )

    assert firsts == {"10.0.0.0": 42, "10.0.0.1": 180}


def test_the_table_of_packets_is_bounded_in_bytes() -> None:
    book = Book()
    for number in range(3000):
        made = page(70)
        book.keep_page(NAME + number.to_bytes(2, "big"), 1, made)
        for _ in range(2):
            book.admit(number.to_bytes(4, "big"), query(payload=1232), made)

    assert book.replies_bytes <= REPLIES_BYTES_MAX * 1.1
    assert len(book.replies) > 50


def test_several_spellings_share_a_name_and_the_exact_one_wins() -> None:
    book = Book()
    folded = folded_key("public", "DEFAULT_GROUP", "orders")
    for service in ("Orders", "ORDERS"):
        book.update(known(snapshot(service)))

    assert book.is_ambiguous(folded)
    assert book.find(folded, "Orders").key.service == "Orders"  # type: ignore[union-attr]
    assert book.find(folded, "orders").key.service == "ORDERS"  # type: ignore[union-attr]
    assert book.clashes == 2

    book.remove(ServiceKey("public", "DEFAULT_GROUP", "ORDERS"))

    assert not book.is_ambiguous(folded)


def test_addresses_of_known_instances_are_known_and_others_are_not() -> None:
    book = Book()
    book.update(known(snapshot("a", "192.0.2.1", "2001:db8::1")))

    assert book.has_address("192.0.2.1")
    assert book.has_address("2001:db8::1")
    assert not book.has_address("192.0.2.10")
    assert not book.has_address("92.0.2.1")

    book.update(known(snapshot("a", "192.0.2.10")))

    assert book.has_address("192.0.2.10")
    assert not book.has_address("192.0.2.1")


def test_services_whose_prepared_answers_were_used_are_told_once() -> None:
    book, made = Book(), page(3)
    book.keep_page(NAME, 1, made)
    made.step()

    assert book.asked_since() == [KEY]
    assert book.asked_since() == []


def test_a_packet_that_is_prepared_already_is_not_counted_twice() -> None:
    """A client that was not judged yet comes the slow way with a packet that others got prepared replies for."""
    book = Book()
    made = page(3)
    book.keep_page(NAME, 1, made)
    for _ in range(100):
        book.admit(b"packet", query(), made)
    size = sum(entry.size for entry in book.replies.values())

    assert book.replies_bytes == size

    book.replies[b"packet"].reply()
    for _ in range(100):
        book.replies[b"packet"].reply()
    book.drop_pages(folded_key(made.key.namespace, made.key.group, made.key.service))

    assert book.replies_bytes == 0
