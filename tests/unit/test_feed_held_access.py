"""The small rooms around the conductors: a front's backlog, questions that wait, who may ask, the catalogue."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from nacosdns.core.access import JUDGED_MAX, Access
from nacosdns.core.catalogue import Catalogue
from nacosdns.core.feed import EXTERNALS_MAX, Feed
from nacosdns.core.frames import (
    STATE_FRAME_BYTES,
    External,
    Externals,
    Names,
    Reachable,
    Removed,
    Synced,
    Updates,
    encode,
    holds,
    is_empty,
    known,
)
from nacosdns.core.held import Held
from nacosdns.core.model import Instance, ServiceKey, Snapshot

if TYPE_CHECKING:
    from nacosdns.core.frames import (
        Known,
        LinkFrame,
    )


def key(number: int) -> ServiceKey:
    return ServiceKey("public", "DEFAULT_GROUP", f"s{number}")


def value(one: ServiceKey, revision: int = 1) -> Known:
    return known(Snapshot(one, (Instance("10.0.0.1", 80, metadata=(("k", "v" * 200),)),), revision=revision))


def drain(feed: Feed, revision: int = 1) -> list[LinkFrame]:
    frames = []
    while (frame := feed.take(lambda one: value(one, revision), revision)) is not None:
        frames.append(frame)
    return frames


def test_a_service_that_changes_often_is_told_once_with_its_newest_value() -> None:
    feed = Feed()
    for _ in range(100):
        feed.changed(key(1))

    assert drain(feed, 9) == [Updates((value(key(1), 9),))]


def test_a_large_catalogue_comes_in_small_frames_that_say_where_it_begins_and_ends() -> None:
    feed = Feed()
    names = tuple(f"com.example.department.service-{n}" for n in range(50_000))
    feed.names(Names("public", "G", ("old",), 1.0))
    feed.names(Names("public", "G", names, 2.0))
    frames = [frame for frame in drain(feed) if isinstance(frame, Names)]

    assert tuple(name for frame in frames for name in frame.names) == names
    assert max(len(encode(frame)) for frame in frames) <= STATE_FRAME_BYTES
    assert [frame.part for frame in frames] == list(range(len(frames)))
    assert [frame.last for frame in frames] == [False] * (len(frames) - 1) + [True]


def test_an_empty_catalogue_is_told_as_well() -> None:
    feed = Feed()
    feed.names(Names("public", "G", (), 1.0))

    assert drain(feed) == [Names("public", "G", (), 1.0)]


def test_what_is_told_ahead_is_not_told_again_and_no_older_removal_follows_it() -> None:
    feed = Feed()
    feed.removed(key(1), "deleted")
    feed.changed(key(1))
    feed.changed(key(2))

    assert feed.ahead([key(1), key(9)], value) == Updates((value(key(1)),))
    assert feed.ahead([key(1)], value) is None
    assert drain(feed) == [Updates((value(key(2)),))]


def test_a_full_state_comes_in_small_frames_and_ends_with_synced() -> None:
    feed = Feed()
    feed.full((key(n) for n in range(2000)), epoch=4)
    frames = drain(feed)
    updates = [frame for frame in frames if isinstance(frame, Updates)]

    assert frames[-1] == Synced(4, 1)
    assert sum(len(frame.items) for frame in updates) == 2000
    assert all(sum(len(item.body) for item in frame.items) < STATE_FRAME_BYTES + 1000 for frame in updates)
    assert len(updates) > 5


def test_a_removal_is_told_before_a_later_value_of_the_same_service() -> None:
    feed = Feed()
    feed.changed(key(1))
    feed.removed(key(1), "deleted")
    feed.changed(key(1))

    assert drain(feed) == [Removed(key(1), "deleted"), Updates((value(key(1)),))]


def test_only_the_newest_reachability_is_told() -> None:
    feed = Feed()
    feed.reachable(Reachable("public", up=False))
    feed.reachable(Reachable("public", up=True))

    assert drain(feed) == [Reachable("public", up=True)]


def test_outside_answers_are_a_ring_that_counts_what_it_loses() -> None:
    feed = Feed()
    feed.externals(External(str(n).encode(), 0, b"", 0.0, 1) for n in range(EXTERNALS_MAX + 5))
    told = [item for frame in drain(feed) if isinstance(frame, Externals) for item in frame.items]

    assert (len(told), feed.lost) == (EXTERNALS_MAX, 5)
    assert told[-1].question == str(EXTERNALS_MAX + 4).encode()


def test_everything_held_comes_out_once_by_landing_or_by_its_deadline() -> None:
    held: Held[str] = Held()
    first = held.add((key(1),), "a", now=0.0, patience_s=1.5)
    second = held.add((key(1),), "b", now=1.0, patience_s=1.5)
    held.add((key(2),), "c", now=1.0, patience_s=1.5)
    flight = held.take((key(1),))
    expired = held.expired(2.5)

    assert (first, second) == (True, False)
    assert flight is not None
    assert flight.items == ["a", "b"]
    assert [one.items for one in expired] == [["c"]]
    assert len(held) == 0
    assert held.take((key(1),)) is None


def test_a_look_up_that_lands_and_is_made_again_keeps_its_own_deadline() -> None:
    held: Held[str] = Held()
    held.add((key(1),), "a", now=0.0, patience_s=1.5)
    held.take((key(1),))
    held.add((key(1),), "b", now=1.0, patience_s=1.5)

    assert held.expired(1.6) == []
    assert [flight.items for flight in held.expired(2.5)] == [["b"]]


def test_what_may_wait_is_bounded() -> None:
    held: Held[int] = Held(held_max=3)
    for number in range(3):
        held.add((key(number),), number, now=0.0, patience_s=1.0)

    assert not held.has_room(b"")


@pytest.mark.parametrize(
    ("allow", "address", "may"),
    [
        (("loopback",), "127.9.9.9", True),
        (("loopback",), "10.0.0.1", False),
        (("loopback",), "::1", True),
        (("private",), "10.0.0.1", True),
        (("private",), "198.51.100.7", False),
        (("private",), "fd00::1", True),
        (("198.51.100.0/24",), "198.51.100.7", True),
        (("198.51.100.7",), "198.51.100.8", False),
        (("all",), "203.0.113.1", True),
        (("loopback",), "::ffff:127.0.0.1", True),
        ((), "127.0.0.1", False),
        (("link",), "192.0.2.9", True),
    ],
)
def test_networks_decide_who_may_ask(allow: tuple[str, ...], address: str, may: bool) -> None:
    """S85."""
    raw = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    access = Access(allow, link=("192.0.2.0/24",))

    assert access.allows(raw) is may
    assert (raw in access.judged) is may


def test_the_table_of_judged_addresses_is_bounded() -> None:
    access = Access(("all",))
    for number in range(JUDGED_MAX + 100):
        access.allows(number.to_bytes(4, "big"))

    assert len(access.judged) <= JUDGED_MAX


def test_refused_addresses_are_remembered_apart_and_bounded() -> None:
    access = Access(("loopback",))
    access.allows(b"\x7f\0\0\1")
    for number in range(JUDGED_MAX + 100):
        assert not access.allows((number + (10 << 24)).to_bytes(4, "big"))

    assert access.judged == {b"\x7f\0\0\1": True}
    assert "refused=100" in repr(access)


def test_who_is_refused_again_evicts_nobody_from_a_full_table() -> None:
    access = Access(("loopback",))
    for number in range(JUDGED_MAX):
        access.allows((number + (10 << 24)).to_bytes(4, "big"))

    assert not access.allows((10 << 24).to_bytes(4, "big"))
    assert f"refused={JUDGED_MAX}" in repr(access)


def test_a_catalogue_knows_spellings_and_what_it_lacks_while_it_is_fresh() -> None:
    catalogue = Catalogue()
    catalogue.learn("public", "DEFAULT_GROUP", ("Order-Service", "b"), 100.0)
    asked = ServiceKey("public", "DEFAULT_GROUP", "order-service")
    other = ServiceKey("public", "DEFAULT_GROUP", "other")

    assert catalogue.spell((asked,)) == (ServiceKey("public", "DEFAULT_GROUP", "Order-Service"),)
    assert catalogue.spell((other,)) == (other,)
    assert catalogue.lacks(other, 150.0)
    assert not catalogue.lacks(asked, 150.0)
    assert not catalogue.lacks(other, 300.0)
    assert not catalogue.lacks(ServiceKey("public", "G2", "other"), 150.0)


def test_what_changes_while_a_full_state_is_told_goes_before_the_rest_of_it() -> None:
    feed = Feed()
    feed.full(map(key, range(1000)), 5)
    first = feed.take(value, 1)
    feed.changed(key(999))
    feed.removed(key(998), "gone")
    second, third = feed.take(value, 1), feed.take(value, 1)

    assert isinstance(first, Updates)
    assert first.items[0] == value(key(0))
    assert second == Removed(key(998), "gone")
    assert isinstance(third, Updates)
    assert third.items[0] == value(key(999))


def test_a_service_that_a_look_up_found_is_told_ahead_of_a_full_state() -> None:
    feed = Feed()
    feed.full(map(key, range(1000)), 5)

    assert feed.ahead([key(999)], value) == Updates((value(key(999)),))


def test_an_encoded_snapshot_shows_whose_it_is_and_whether_it_is_empty_without_being_decoded() -> None:
    full, empty = value(key(1)), known(Snapshot(key(1), ()))

    assert [is_empty(full), is_empty(empty)] == [False, True]
    assert holds(bytes(full.body), key(1))
    assert not holds(bytes(full.body), key(2))
    assert not holds(b"", key(1))


def test_who_is_refused_is_counted_once_and_the_last_one_known() -> None:
    access = Access(["10.0.0.0/8"])
    for last in (1, 2, 1, 1):
        assert not access.allows(bytes([192, 0, 2, last]))
        access.refused(bytes([192, 0, 2, last]))
    assert not access.allows(bytes([192, 0, 2, 3]))
    assert access.allows(bytes([10, 0, 0, 1]))

    assert (access.refused_count, access.refused_queries, access.refused_last) == (2, 4, bytes([192, 0, 2, 1]))


def test_those_who_were_told_that_they_may_not_ask_are_a_bounded_table() -> None:
    access = Access(("loopback",))
    for number in range(JUDGED_MAX + 100):
        access.refused((number + (10 << 24)).to_bytes(4, "big"))

    assert access.refused_count == JUDGED_MAX + 100
