"""The answer book: what is known of services, by every spelling, packed when there is much of it."""

from __future__ import annotations

import random

import msgspec
import pytest

from nacosdns.core import book as book_room
from nacosdns.core.balance import Member, Weighted
from nacosdns.core.book import Book, service_id
from nacosdns.core.frames import known
from nacosdns.core.model import Instance, Protection, ServiceKey, Snapshot, Source
from nacosdns.core.naming import folded_key
from nacosdns.core.page import Page


def snapshot(service: str = "orders", *addresses: str) -> Snapshot:
    key = ServiceKey("public", "DEFAULT_GROUP", service)
    return Snapshot(key, tuple(Instance(address, 80) for address in addresses or ("10.0.0.1",)))


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


def searched(book: Book, address: str) -> bool | None:
    for _ in book.search([address]):
        pass
    return book.has_address(address)


def test_addresses_of_known_instances_are_found_by_searching_and_others_are_not() -> None:
    book = Book()
    book.update(known(snapshot("a", "192.0.2.1", "2001:db8::1")))

    assert book.has_address("192.0.2.1") is None
    assert searched(book, "192.0.2.1")
    assert searched(book, "2001:db8::1")
    assert searched(book, "192.0.2.10") is False
    assert searched(book, "92.0.2.1") is False

    book.update(known(snapshot("a", "192.0.2.10")))

    assert searched(book, "192.0.2.10")
    assert searched(book, "192.0.2.1") is False

    book.prepared.now += 1.0

    assert book.has_address("192.0.2.1") is None


def test_an_address_that_was_told_is_known_without_searching_while_its_service_has_it() -> None:
    book = Book()
    book.update(known(snapshot("a", "192.0.2.1")))
    book.tell_address("192.0.2.1", service_id(folded_key("public", "DEFAULT_GROUP", "a")))

    assert book.has_address("192.0.2.1")

    book.update(known(snapshot("a", "192.0.2.2")))

    assert book.has_address("192.0.2.1") is None


def test_a_search_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_room, "SEARCHED_AT_ONCE", 10)
    book = Book()
    for number in range(95):
        book.update(known(snapshot(f"s{number}", f"192.0.2.{number}")))
    steps = sum(1 for _ in book.search(["192.0.2.94", "192.0.2.3", "198.51.100.1"]))

    assert steps == 9
    assert [book.has_address(address) for address in ("192.0.2.94", "192.0.2.3", "198.51.100.1")] == [True, True, False]


def test_a_service_that_is_gone_is_known_no_more() -> None:
    book = Book()
    book.update(known(snapshot()))

    assert book.remove(snapshot().key)
    assert not book.remove(snapshot().key)
    assert len(book) == 0
    assert not book.knows(folded_key("public", "DEFAULT_GROUP", "orders"))


def test_the_last_spelling_left_is_told_as_it_is_spelled() -> None:
    book = Book()
    for service in ("Orders", "ORDERS"):
        book.update(known(snapshot(service)))
    book.remove(ServiceKey("public", "DEFAULT_GROUP", "Orders"))

    assert [item.key.service for item in book.known(book.services())] == ["ORDERS"]


def test_in_a_large_book_snapshots_are_compressed_and_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_room, "PACKED_FROM", 2)
    book = Book()
    told = [known(snapshot(f"orders{number}", "192.0.2.1", "192.0.2.2")) for number in range(4)]
    for one in told:
        book.update(one)
    found = book.find(folded_key("public", "DEFAULT_GROUP", "orders3"), "orders3")

    assert found == snapshot("orders3", "192.0.2.1", "192.0.2.2")
    assert [(item.key, bytes(item.body)) for item in book.known(book.services())] == [
        (one.key, bytes(one.body)) for one in told
    ]
    assert searched(book, "192.0.2.2")
    assert book.keys_of([service_id(folded_key("public", "DEFAULT_GROUP", "orders3")), "none"]) == [told[3].key]


@pytest.mark.parametrize(
    ("change", "dropped"),
    [
        ({"confirmed_at": 5.0}, False),
        ({"live": True, "source": Source.PUSH, "revision": 9}, False),
        ({"protection": Protection.EMPTY, "protected_since": 3.0, "unconfirmed": 1}, False),
        ({"live": False}, False),
        ({"threshold_reached": True}, True),
        ({"demoted": 1}, True),
        ({"last_healthy": (Instance("10.0.0.9", 80),)}, True),
        ({"instances": (Instance("10.0.0.1", 80, weight=2.0),)}, True),
    ],
)
def test_what_was_prepared_is_dropped_only_when_the_answer_changes(change: dict[str, object], dropped: bool) -> None:
    book = Book()
    book.update(known(snapshot()))
    folded = folded_key("public", "DEFAULT_GROUP", "orders")
    balancer = Weighted((Member("a"),), random.Random(1), b"")
    book.prepared.keep(b"\x06orders\x00", 1, Page(service_id(folded), (b"record",), balancer=balancer, take=1, cell=1))
    changed = msgspec.structs.replace(snapshot(), **change)
    book.update(known(changed))

    assert (book.prepared.page_count == 0) == dropped
    assert book.find(folded, "orders") == changed


def test_what_was_prepared_of_a_followed_service_is_dropped_when_it_is_followed_no_more() -> None:
    book = Book()
    book.update(known(msgspec.structs.replace(snapshot(), live=True)))
    service = service_id(folded_key("public", "DEFAULT_GROUP", "orders"))
    balancer = Weighted((Member("a"),), random.Random(1), b"")
    book.prepared.keep(b"\x06orders\x00", 1, Page(service, (b"record",), balancer=balancer, take=1, cell=1))
    book.update(known(snapshot()))

    assert book.prepared.page_count == 0


def test_a_value_replaces_the_one_that_its_pages_were_made_beside_and_else_it_is_an_update() -> None:
    book = Book()
    former = msgspec.structs.replace(snapshot("orders", "10.0.0.1"), live=True)
    newer = msgspec.structs.replace(snapshot("orders", "10.0.0.2"), live=True)
    folded = folded_key("public", "DEFAULT_GROUP", "orders")
    service = service_id(folded)
    book.update(known(former))
    held = book.replaced_by(known(newer))
    assert held is not None
    pages = [
        Page(service, (b"record",), balancer=Weighted((Member("a"),), random.Random(1), b""), take=1, cell=1)
        for _ in range(2)
    ]
    book.prepared.keep(b"\x06orders\x00", 1, pages[0])
    book.replace(known(newer), book.packed(known(newer)), former=held, renewed={pages[0]: pages[1]})

    assert book.prepared.pages_of(service) == (pages[1],)
    assert book.find(folded, "orders") == newer

    book.replace(known(former), book.packed(known(former)), former=held, renewed={pages[1]: pages[0]})

    assert book.prepared.page_count == 0
    assert book.find(folded, "orders") == former


@pytest.mark.parametrize("change", [{}, {"revision": 9}, {"live": False, "threshold_reached": True}])
def test_a_value_that_is_no_plain_change_replaces_nothing(change: dict[str, object]) -> None:
    book = Book()
    told = msgspec.structs.replace(snapshot(), live=True)

    assert book.replaced_by(known(told)) is None

    book.update(known(told))

    assert book.replaced_by(known(msgspec.structs.replace(told, **change))) is None
