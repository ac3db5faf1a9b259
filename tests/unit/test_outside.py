"""The cache of outside answers: S46 S49 S50; disk and other fronts."""

from __future__ import annotations

from itertools import islice
from random import Random

import msgspec
import pytest
from dnslib import EDNS0, RR, DNSRecord
from hypothesis import given
from hypothesis import strategies as st

from fakes.outside import World, make_query
from nacosdns.core import dnswire
from nacosdns.core.errands import ForwardSettings
from nacosdns.core.frames import External
from nacosdns.core.outside import (
    DUE_SPARE,
    EVICTIONS_A_TURN,
    LEARNED_MAX,
    NO_ID,
    ONCE_A_CALL,
    Outside,
    question_key,
)

U1 = "192.0.2.1:53"


def make_reply(name: str, *values: str, ttl_s: int = 60, opt: bool = True, text: str = "") -> bytes:
    reply = DNSRecord.question(name, "TXT" if text else "A").reply(ra=1, aa=0)
    lines = [f"{name}. {ttl_s} IN A {value}" for value in values] + (
        [f'{name}. {ttl_s} IN TXT "{text}"'] if text else []
    )
    for line in lines:
        reply.add_answer(*RR.fromZone(line))
    if opt:
        reply.add_ar(EDNS0(udp_len=1232))
    return bytes(reply.pack())


def make_cache(entries_max: int = 10, **options: float) -> Outside:
    return Outside(Random(3), entries_max=entries_max, **options)


def put(cache: Outside, name: str, *, now: float = 0.0, ttl_s: int = 60, text: str = "") -> bytes:
    packet = make_reply(name, "192.0.2.1", ttl_s=ttl_s, text=text)
    key = question_key(make_query(name, "TXT" if text else "A"))
    cache.put(key, packet, dnswire.scan_reply(packet), now=now, wall=1000.0 + now)
    return key


def test_the_least_recently_asked_goes_first_when_there_is_no_room() -> None:
    cache = make_cache(3)
    keys = [put(cache, name) for name in ("a.test", "b.test", "c.test")]
    cache.get(keys[0])
    put(cache, "d.test")

    assert [cache.get(key) is not None for key in keys] == [True, False, True]
    assert (len(cache), cache.evicted) == (3, 1)


def test_a_refresh_does_not_count_as_asked() -> None:
    cache = make_cache(2)
    keys = [put(cache, name) for name in ("a.test", "b.test")]
    put(cache, "a.test", now=5)
    put(cache, "c.test")

    assert cache.get(keys[0]) is None
    assert cache.get(keys[1]) is not None


def test_the_bytes_of_all_entries_are_bounded_too() -> None:
    cache = make_cache(10)
    for number in range(10):
        put(cache, f"n{number}.test", text="x" * 250)
    for number in range(10):
        reply = make_reply(f"m{number}.test", *(f"192.0.2.{byte}" for byte in range(250)))
        key = question_key(make_query(f"m{number}.test"))
        cache.put(key, reply, dnswire.scan_reply(reply), now=0.0, wall=0.0)

    assert cache.size_bytes <= 10 * 1024
    assert len(cache) < 10


def test_the_size_is_what_the_entries_have_after_any_change() -> None:
    cache = make_cache(5)
    for number in range(9):
        put(cache, f"n{number % 7}.test")
    list(cache.forget(b"\x02n5\x04test\x00"))
    left = cache.size_bytes
    list(cache.forget_under(b"\x00"))

    assert left > 0
    assert (cache.size_bytes, len(cache)) == (0, 0)


def test_no_room_at_all_still_gives_the_waiting_client_its_answer() -> None:
    world = World(U1, settings=ForwardSettings(external_entries=0))
    world[U1].answer("ext.test", "A", "192.0.2.5")

    assert world.ask("ext.test").values == ["192.0.2.5"]
    assert len(world.forwarding.outside) == 0


def test_opt_is_not_kept_and_answers_go_to_clients_with_and_without_edns() -> None:
    world = World(U1)
    world[U1].answer("ext.test", "A", "192.0.2.5")
    world.ask("ext.test", payload=1232)
    plain, edns = world.ask("ext.test"), world.ask("ext.test", payload=4096)

    assert (len(plain.record.ar), len(edns.record.ar)) == (0, 1)


def test_what_was_learned_is_told_once_with_the_newest_value() -> None:
    cache = make_cache()
    put(cache, "a.test", now=1)
    key = put(cache, "b.test", now=2)
    put(cache, "b.test", now=3)
    learned = cache.learned()

    assert [item.question for item in learned] == [key[:-1], question_key(make_query("a.test"))[:-1]]
    assert (learned[0].stored_at, learned[0].ttl_s, learned[0].flags) == (1003.0, 60, 0)
    assert cache.learned() == ()


def test_names_asked_again_are_told_before_those_of_a_flood_and_all_in_the_end() -> None:
    cache = make_cache(1000)
    keys = [put(cache, f"n{number}.test") for number in range(500)]
    cache.render(keys[499], cache.get(keys[499]), make_query("n499.test"), 1.0)
    calls = list(iter(cache.learned, ()))

    assert [item.question for item in calls[0]] == [key[:-1] for key in (keys[499], *keys[:ONCE_A_CALL])]
    assert sorted(item.question for call in calls for item in call) == sorted(key[:-1] for key in keys)
    assert max(map(len, calls)) == ONCE_A_CALL + 1


def test_what_was_learned_is_a_bounded_ring_that_counts_what_it_loses() -> None:
    cache = make_cache(LEARNED_MAX + 100)
    packet = make_reply("a.test", "192.0.2.1")
    scan = dnswire.scan_reply(packet)
    for number in range(LEARNED_MAX + 50):
        cache.put(b"\x06" + f"{number:06d}".encode() + packet[12:24] + b"\x00", packet, scan, now=0.0, wall=0.0)

    assert sum(map(len, iter(cache.learned, ()))) == LEARNED_MAX
    assert cache.learned_lost == 50


def test_answers_survive_a_restart_with_what_is_left_of_their_time() -> None:
    first = World(U1)
    first[U1].answer("ext.test", "A", "192.0.2.5", ttl_s=100)
    first.ask("ext.test", do=1)
    items = msgspec.msgpack.decode(
        msgspec.msgpack.encode(first.forwarding.outside.learned()), type=tuple[External, ...]
    )
    second = World(U1)
    second.run(30)
    second.restore(items)
    fresh = second.ask("ext.test", do=1)
    second[U1].always = "SERVFAIL"
    second.run(100)
    stale = second.ask("ext.test", do=1)

    assert (fresh.source, fresh.values, fresh.ttls) == ("cache", ["192.0.2.5"], [71])
    assert (stale.source, stale.values) == ("stale", ["192.0.2.5"])


def test_an_answer_from_another_front_counts_when_it_is_newer() -> None:
    cache = make_cache()
    key = put(cache, "a.test", now=100)
    (ours,) = cache.learned()
    older = msgspec.structs.replace(ours, stored_at=ours.stored_at - 1, reply=make_reply("a.test", "192.0.2.7")[2:])
    newer = msgspec.structs.replace(older, stored_at=ours.stored_at + 1)
    taken = [cache.restore([item], now=101.0, wall=1101.0) for item in (older, ours, newer, newer)]

    assert taken == [0, 0, 1, 0]
    assert b"\xc0\x00\x02\x07" in cache.get(key).packet
    assert cache.learned() == ()


def test_a_clock_set_back_does_not_make_an_entry_live_for_years() -> None:
    cache = make_cache()
    key = put(cache, "a.test")
    (item,) = cache.learned()
    other = make_cache()
    other.restore([item], now=50.0, wall=item.stored_at - 1e9)

    assert other.get(key).fresh_until == 110.0


DAMAGED = (
    b"",
    b"\x00",
    b"\x81\x80\x00\x01",
    make_reply("other.test", "192.0.2.1")[2:],
    make_reply("a.test", "192.0.2.1")[2:-13],
)


@pytest.mark.parametrize("reply", DAMAGED)
def test_a_damaged_row_is_dropped_and_counted_when_it_is_asked(reply: bytes) -> None:
    cache = make_cache()
    key = question_key(make_query("a.test"))
    cache.restore([External(key[:-1], 0, reply, 1000.0, 60)], now=0.0, wall=1000.0)

    assert cache.get(key) is None
    assert (len(cache), cache.damaged, cache.size_bytes) == (0, 1, 0)


@given(question=st.binary(max_size=40), reply=st.binary(max_size=80), ttl_s=st.integers(0, 2**31))
def test_no_row_from_disk_raises(question: bytes, reply: bytes, ttl_s: int) -> None:
    cache = make_cache()
    cache.restore([External(question, 0xFF, reply, 0.0, ttl_s)], now=0.0, wall=0.0)
    list(cache.listing(0.0))
    list(cache.forget_under(b"\x04test\x00"))
    listed_bytes = sum(line.size_bytes for line in cache.listing(0.0))
    kept = [cache.get(key) for key in list(cache._entries)]

    assert listed_bytes <= sum(len(NO_ID + item.reply) for item in [External(question, 0xFF, reply, 0.0, ttl_s)])
    assert cache.size_bytes == sum(len(entry.packet) for entry in kept if entry is not None)


def test_a_suffix_is_forgotten_at_label_borders_only() -> None:
    cache = make_cache()
    for name in ("test", "a.test", "b.a.test", "latest", "a.test.other"):
        put(cache, name)
    (dropped,) = cache.forget_under(b"\x04test\x00")

    assert [dnswire.name_text(question[:-4]) for question in dropped] == ["test.", "a.test.", "b.a.test."]
    assert [line.name for line in cache.listing(0.0)] == ["latest.", "a.test.other."]


def test_the_listing_shows_what_is_kept_and_how_old_it_is() -> None:
    cache = make_cache()
    put(cache, "a.test", now=10, ttl_s=30)
    (line,) = islice(cache.listing(100.0), 5)

    assert (line.name, line.type, line.rcode, line.ttl_s, line.left_s) == ("a.test.", 1, 0, 30, -60.0)


def test_due_times_that_were_set_aside_are_still_kept() -> None:
    cache = make_cache(DUE_SPARE)
    query = make_query("a.test")
    keys = [put(cache, f"n{number}.test", ttl_s=100 + number % 7) for number in range(DUE_SPARE)]
    for _ in range(3):
        for key in keys:
            cache.render(key, cache.get(key), query, 1.0)
            cache.postpone(key, 50.0)
    for key in keys:
        cache.render(key, cache.get(key), query, 2.0)
    taken = [cache.take_due(now, 40) for now in (49.0, 50.0, 50.0, 50.0, 50.0)]

    assert sorted(key for part in taken for key in part) == sorted(keys)
    assert cache.next_due() > 50.0


def test_only_so_much_is_given_up_at_once_and_all_in_the_end() -> None:
    cache = make_cache(1000)
    for number in range(1000):
        put(cache, f"n{number}.test")
    cache.entries_max = 10
    sizes = []
    while cache.is_over:
        cache.make_room()
        sizes.append(len(cache))

    assert sizes[0] == 1000 - EVICTIONS_A_TURN - 1
    assert (sizes[-1], cache.evicted) == (10, 990)


def test_due_times_of_entries_that_went_do_not_pile_up() -> None:
    cache = make_cache(5)
    query = make_query("a.test")
    for number in range(1000):
        key = put(cache, f"n{number}.test", ttl_s=86400)
        cache.render(key, cache.get(key), query, 1.0)

    assert len(cache._due) + len(cache._due_before) <= 2 * (5 + DUE_SPARE) + 5
