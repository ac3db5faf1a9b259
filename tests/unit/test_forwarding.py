"""Forwarding in virtual time: S46 S47 S49 S50 S55 S64 S65 S67 S69 S72 as far as no socket is needed."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from random import Random

import pytest
from dnslib import DNSRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.outside import World, make_query, question_of
from fakes.upstream import Lie, Script
from nacosdns.core import forwarding as room
from nacosdns.core.errands import (
    SLICES_A_SECOND,
    Agenda,
    Deliver,
    Errand,
    Failed,
    ForwardSettings,
    Pending,
    Purpose,
    Send,
)
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.resolvers import Health, Ours, ours

U1, U2 = "192.0.2.1:53", "192.0.2.2:53"
TRUTH, LIE = "192.0.2.99", "203.0.113.66"
SLICE_S = 1 / SLICES_A_SECOND
FAILURES = ("SERVFAIL", "REFUSED", "FORMERR", "NOTIMP", "mute")


def one(**options: object) -> World:
    return World(U1, settings=ForwardSettings(**options))


def break_down(world: World, how: str, address: str = U1) -> None:
    """From now on this resolver fails in this way; "gone": its port is closed."""
    script = world[address]
    script.is_mute = how == "mute"
    script.always = "" if how in {"mute", "gone"} else how
    if how == "gone":
        del world.servers[address]


def mend(world: World, address: str = U1) -> None:
    world[address].is_mute, world[address].always = False, ""


# What is kept, and what the clients see of it


def test_s47_ttls_count_down_and_the_cache_answers_until_they_end() -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH, ttl_s=100)
    first = world.ask("ext.test")
    world.run(40)
    second = world.ask("ext.test")

    assert (first.ttls, first.source) == ([100], "upstream")
    assert (second.ttls, second.source, second.waited_s) == ([60], "cache", 0.0)
    assert world[U1].count("ext.test") == 1


def test_s47_stale_answers_carry_a_small_ttl_again_and_again() -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH, ttl_s=100)
    world.ask("ext.test")
    break_down(world, "mute")
    world.run(200)
    replies = world.ask_every(7, 70, "ext.test")

    assert {(tuple(reply.values), tuple(reply.ttls), reply.source) for reply in replies} == {((TRUTH,), (30,), "stale")}


def test_a_hit_says_until_when_its_bytes_are_right() -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH, ttl_s=3)
    stored_at = 5000.0 + world.rtt_s
    world.ask("ext.test")
    world.run(1.4)
    hit = world.ask("ext.test").outcome

    assert hit.good_until == pytest.approx(stored_at + 2)


@pytest.mark.parametrize("how", FAILURES)
def test_s46_a_failure_never_hides_a_good_stale_answer_and_recovery_shows_within_one_refresh(how: str) -> None:
    world = one()
    world[U1].answer("ext.test", "A", "192.0.2.1", ttl_s=2)
    replies = world.ask_every(0.5, 4, "ext.test")
    break_down(world, how)
    failing = world.ask_every(0.5, 10, "ext.test")
    mend(world)
    world[U1].answer("ext.test", "A", "192.0.2.2", ttl_s=2)
    recovering = world.ask_every(0.5, 8, "ext.test")

    assert {tuple(reply.values) for reply in replies + failing} == {("192.0.2.1",)}
    assert [reply.values for reply in recovering[6:]] == [["192.0.2.2"]] * len(recovering[6:])
    assert {reply.rcode for reply in replies + failing + recovering} == {"NOERROR"}


def test_s46_a_failure_is_never_stored_beside_the_answer() -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH, ttl_s=2)
    world.ask("ext.test")
    break_down(world, "SERVFAIL")
    world.run(10)
    world.ask_every(1, 20, "ext.test")

    assert len(world.forwarding.outside) == 1
    assert world.ask("ext.test").values == [TRUTH]


def test_s46_a_fresh_nxdomain_of_the_owner_replaces_the_stale_answer() -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH, ttl_s=2)
    world.ask("ext.test")
    world[U1].rcode("ext.test", "A", "NXDOMAIN")
    world.run(10)

    assert world.ask("ext.test").rcode == "NXDOMAIN"
    assert world.ask("ext.test").source == "cache"


def test_negative_answers_are_kept_by_rfc_2308_and_served_stale_likewise() -> None:
    """S23."""
    world = one()
    world[U1].negative_ttl(20)
    world[U1].rcode("no.test", "A", "NXDOMAIN")
    world.ask("no.test")
    world.run(5)
    fresh = world.ask("no.test")
    break_down(world, "SERVFAIL")
    world.run(60)
    stale = world.ask("no.test")

    assert (fresh.rcode, fresh.source, fresh.ttls) == ("NXDOMAIN", "cache", [15])
    assert (stale.rcode, stale.source, stale.ttls) == ("NXDOMAIN", "stale", [30])


def test_an_answer_with_ttl_0_is_used_once_and_kept_for_bad_times() -> None:
    world = one()
    world[U1].answer("zero.test", "A", TRUTH, ttl_s=0)
    first, second = world.ask("zero.test"), world.ask("zero.test")
    break_down(world, "SERVFAIL")
    third = world.ask("zero.test")

    assert (first.ttls, first.source, second.source) == ([0], "upstream", "upstream")
    assert (third.values, third.source) == ([TRUTH], "stale")


def test_external_stale_s_ends_what_is_too_old() -> None:
    world = one(external_stale_s=60)
    world[U1].answer("ext.test", "A", TRUTH, ttl_s=10)
    world.ask("ext.test")
    break_down(world, "SERVFAIL")
    world.run(65)
    last = world.ask("ext.test")
    world.run(10)

    assert last.source == "stale"
    assert world.ask("ext.test").rcode == "SERVFAIL"


def test_s49_each_type_has_its_own_answer_with_rcode_authority_and_order() -> None:
    world = one()
    world[U1].answer("e.test", "A", "192.0.2.1", "192.0.2.3", "192.0.2.2")
    world[U1].answer("e.test", "MX", "10 mx.e.test.")
    world[U1].rcode("e.test", "TXT", "NXDOMAIN")
    world[U1].answer("e.test", "AAAA")
    types = ("A", "MX", "TXT", "AAAA")
    first = [world.ask("e.test", rtype) for rtype in types]
    world.run(1)
    second = [world.ask("e.test", rtype) for rtype in reversed(types)][::-1]

    assert [(reply.rcode, reply.values, len(reply.record.auth)) for reply in first] == [
        ("NOERROR", ["192.0.2.1", "192.0.2.3", "192.0.2.2"], 0),
        ("NOERROR", ["10 mx.e.test."], 0),
        ("NXDOMAIN", [], 1),
        ("NOERROR", [], 1),
    ]
    assert [(r.rcode, r.values, len(r.record.auth)) for r in second] == [
        (r.rcode, r.values, len(r.record.auth)) for r in first
    ]
    assert {reply.source for reply in second} == {"cache"}
    assert len(world.forwarding.outside) == 4


def test_s49_do_and_cd_make_other_questions_and_case_does_not() -> None:
    world = one()
    world[U1].answer("e.test", "A", TRUTH)
    for options in ({}, {"do": 1}, {"cd": 1}, {"do": 1, "cd": 1}, {"payload": 4096}):
        world.ask("e.test", **options)
        world.ask("E.TEST", **options)

    assert len(world.forwarding.outside) == 4
    assert world[U1].count("e.test") == 4


def test_s64_the_question_comes_back_as_it_was_asked_also_from_the_cache() -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH)
    replies = [world.ask(name) for name in ("EXT.test", "ExT.TeSt", "ext.test")]

    assert [reply.packet[13:21] for reply in replies] == [b"EXT\x04test", b"ExT\x04TeSt", b"ext\x04test"]
    assert [str(reply.record.rr[0].rname) for reply in replies] == ["EXT.test.", "ExT.TeSt.", "ext.test."]


def test_s64_with_0x20_the_case_sent_varies_and_a_resolver_that_lowers_it_is_still_of_use() -> None:
    world = one(mixed_case=True)
    world[U1].answer_everything(TRUTH)
    world[U1].lowers_case = True
    replies = [world.ask(f"somelongname{number}.test") for number in range(20)]
    sent = [question_of(packet) for _, packet in world.packets]

    assert {tuple(reply.values) for reply in replies} == {(TRUTH,)}
    assert any(question != question.lower() for question in sent)
    assert all(reply.packet[12:] == reply.packet[12:].lower() for reply in replies)


def test_ids_of_clients_come_back_and_cname_chains_pass_as_they_are() -> None:
    world = one()
    lines = ("a.test. 50 IN CNAME b.test.", "b.test. 9 IN CNAME c.test.", "c.test. 70 IN A 192.0.2.7")
    world[U1].answer_chain("a.test", "A", *lines)
    first, second = world.ask("a.test", id=1), world.ask("a.test", id=65535)
    fetched = world[U1].count("a.test")
    world.run(20)

    assert first.values == second.values == ["b.test.", "c.test.", "192.0.2.7"]
    assert (first.record.header.id, second.record.header.id) == (1, 65535)
    assert fetched == 1
    assert world.ask("a.test").source == "upstream"


# Joining and bounds


def test_equal_questions_on_their_way_are_joined() -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH)
    numbers = [world.start("ext.test", id=number) for number in range(50)]
    world.run(1)

    assert [world.reply(number).record.header.id for number in numbers] == list(range(50))
    assert world[U1].count("ext.test") == 1
    assert world.doubles == 0


def test_s50_a_flood_of_random_names_keeps_every_table_bounded_and_old_names_asked_often_stay() -> None:
    world = one(external_entries=200, errands_max=50)
    world[U1].answer_everything(TRUTH)
    world[U1].answer("real.test", "A", "192.0.2.1", ttl_s=3600)
    for number in range(2000):
        world.start(f"r{number}.test")
        world.run(0.001)
        if number % 20 == 0:
            world.ask("real.test")

    assert len(world.forwarding.outside) == 200
    assert world[U1].count("real.test") == 1
    assert world.forwarding.outside.evicted > 0


def test_s50_with_mute_upstreams_a_flood_is_refused_beyond_the_bounds_and_all_clients_are_told() -> None:
    world = one(errands_max=50, waiters_max=80)
    break_down(world, "mute")
    numbers = [world.start(f"r{number % 60}.test") for number in range(500)]
    open_then = len(world.open)
    world.run(100)

    assert open_then <= 50 + 1
    assert {world.reply(number).rcode for number in numbers} == {"SERVFAIL"}
    assert world.counts()["overflows"] > 0
    assert (len(world.open), repr(world.forwarding).split(" waiting=")[1][0]) == (0, "0")


def test_clients_beyond_the_bound_are_told_at_once_and_get_what_is_stale() -> None:
    world = one(waiters_max=10)
    world[U1].answer("old.test", "A", TRUTH, ttl_s=1)
    world.ask("old.test")
    break_down(world, "mute")
    world.run(5)
    numbers = [world.start("new.test") for _ in range(30)]
    old = world.start("old.test")
    at_once = [world.reply(number) for number in numbers]

    assert [reply.rcode if reply else "waits" for reply in at_once] == ["waits"] * 10 + ["SERVFAIL"] * 20
    assert world.reply(old).values == [TRUTH]


# Refresh


def test_what_is_asked_often_is_refreshed_before_its_time_and_nobody_waits() -> None:
    world = one()
    world[U1].answer("hot.test", "A", "192.0.2.1", ttl_s=100)
    world.ask("hot.test")
    world[U1].answer("hot.test", "A", "192.0.2.2", ttl_s=100)
    replies = world.ask_every(1, 300, "hot.test")

    assert {reply.source for reply in replies} == {"cache"}
    assert replies[98].values == ["192.0.2.2"]
    assert world[U1].count("hot.test") == 4


def test_what_nobody_asked_again_is_not_refreshed() -> None:
    world = one()
    world[U1].answer("cold.test", "A", TRUTH, ttl_s=100)
    world.ask("cold.test")
    world.run(100_000)

    assert world[U1].count("cold.test") == 1
    assert world.forwarding.next_due() is None


def test_refreshes_of_many_names_with_one_ttl_are_spread() -> None:
    world = one()
    world[U1].answer_everything(TRUTH)
    for number in range(200):
        world.ask(f"n{number}.test")
        world.ask(f"n{number}.test")
    world[U1].forget()
    times = []
    for _ in range(60):
        world.run(1)
        times.append(world[U1].count())

    assert times[-1] == 200
    assert max(later - earlier for earlier, later in pairwise(times)) < 100


def test_a_failing_refresh_is_tried_again_while_the_name_is_asked_and_does_not_shorten_its_life() -> None:
    world = one()
    world[U1].answer("hot.test", "A", TRUTH, ttl_s=100)
    world.ask("hot.test")
    break_down(world, "SERVFAIL")
    replies = world.ask_every(0.5, 98, "hot.test")

    assert {reply.source for reply in replies[:-1]} == {"cache"}
    assert 3 <= world[U1].count("hot.test") <= 20


def test_only_so_many_refreshes_are_on_their_way_at_once_and_all_have_their_turn() -> None:
    world = one()
    world[U1].answer_everything(TRUTH)
    world.rtt_s = 0.0
    for number in range(300):
        world.ask(f"n{number}.test")
    world.run(58)
    for number in range(300):
        world.ask(f"n{number}.test")
    world[U1].forget()
    world[U1].delay_s = 0.25
    most = 0
    for _ in range(100):
        world.run(0.05)
        most = max(most, len(world.open))

    assert most == room.REFRESHES_MAX
    assert len({seen.name for seen in world[U1].seen}) == 300


def test_an_answer_that_another_front_refreshed_is_not_refreshed_again() -> None:
    world, other = one(), one()
    for each in (world, other):
        each[U1].answer("hot.test", "A", TRUTH, ttl_s=100)
    world.ask("hot.test")
    world.ask("hot.test")
    other.run(60)
    other.ask("hot.test")
    world.run(60)
    world.restore(other.forwarding.outside.learned())
    world.ask("hot.test")
    world.run(80)

    assert world[U1].count("hot.test") == 1


def test_an_answer_that_another_front_got_meanwhile_is_better_than_a_failure() -> None:
    world, other = one(), one()
    other[U1].answer("ext.test", "A", TRUTH, ttl_s=100)
    other.ask("ext.test")
    break_down(world, "mute")
    number = world.start("ext.test")
    world.run(1)
    world.restore(other.forwarding.outside.learned())
    world.run(2)

    assert (world.reply(number).values, world.reply(number).source) == ([TRUTH], "cache")


def test_a_very_large_negative_ttl_counts_as_three_hours() -> None:
    world = one()
    world[U1].negative_ttl(1_000_000)
    world[U1].rcode("no.test", "A", "NXDOMAIN")
    world.ask("no.test")
    world.run(10_000)
    within = world.ask("no.test")
    world.run(50_000)

    assert (within.source, world.ask("no.test").source) == ("cache", "upstream")


def test_very_large_ttls_are_kept_no_longer_than_a_day_without_a_refresh() -> None:
    world = one()
    world[U1].answer("long.test", "A", TRUTH, ttl_s=0x7FFFFFFF)
    world.ask("long.test")
    second = world.ask("long.test")
    world.run(86400)

    assert second.ttls == [86400]
    assert world[U1].count("long.test") == 2


# Fail-over


def test_s67_a_mute_first_resolver_costs_little_once_and_soon_nothing() -> None:
    world = World(U1, U2)
    break_down(world, "mute")
    world[U2].answer_everything(TRUTH)
    waits = [world.ask(f"n{number}.test").waited_s for number in range(10)]

    assert waits[0] <= 1.5
    assert max(waits[4:]) <= 0.05


def test_s67_who_comes_back_is_used_again() -> None:
    world = World(U1, U2)
    for address in (U1, U2):
        world[address].answer_everything(TRUTH)
    break_down(world, "mute")
    for number in range(20):
        world.ask(f"n{number}.test")
        world.run(1)
    mend(world)
    world[U1].forget()
    for number in range(30):
        world.ask(f"m{number}.test")
        world.run(1)

    assert world[U1].count("m29.test") == 1
    assert world[U2].count("m29.test") == 0


@pytest.mark.parametrize("how", [*FAILURES, "gone"])
def test_s67_the_next_resolver_is_asked_in_the_same_query(how: str) -> None:
    world = World(U1, U2)
    world[U2].answer("ext.test", "A", TRUTH)
    break_down(world, how)
    reply = world.ask("ext.test")

    assert reply.values == [TRUTH]
    assert reply.waited_s <= (1.5 if how == "mute" else 0.05)


def test_s67_nxdomain_is_an_answer_and_ends_the_search() -> None:
    world = World(U1, U2)
    world[U1].rcode("no.test", "A", "NXDOMAIN")
    world[U2].answer("no.test", "A", LIE)

    assert world.ask("no.test").rcode == "NXDOMAIN"
    assert world[U2].count("no.test") == 0


def test_a_referral_of_a_server_without_recursion_is_no_answer() -> None:
    world = World(U1, U2)
    world[U1].is_referring = True
    world[U2].answer("ext.test", "A", TRUTH)

    assert world.ask("ext.test").values == [TRUTH]


@pytest.mark.parametrize("how", ["mute", "gone"])
def test_s67_the_only_resolver_down_a_minute_works_again_within_5_s(how: str) -> None:
    world = one()
    script = world[U1]
    script.answer_everything(TRUTH)
    world.ask("before.test")
    break_down(world, how)
    down = world.ask_every(1, 60, "name.test")
    script.is_mute = False
    world.servers[U1] = script
    up = world.ask_every(0.5, 8, "name.test")

    assert {reply.rcode for reply in down} == {"SERVFAIL"}
    assert {reply.rcode for reply in up[10:]} == {"NOERROR"}


@pytest.mark.parametrize("how", ["mute", "gone"])
def test_with_all_resolvers_down_the_answer_is_stale_or_servfail_within_50_ms(how: str) -> None:
    world = World(U1, U2)
    world[U1].answer("old.test", "A", TRUTH, ttl_s=5)
    world.ask("old.test")
    break_down(world, how)
    break_down(world, how, U2)
    world.run(60)
    for number in range(4):
        world.ask(f"n{number}.test")
    replies = [(world.ask("old.test"), world.ask(f"m{number}.test")) for number in range(30) if world.run(1) is None]

    assert {(old.source, new.rcode) for old, new in replies} == {("stale", "SERVFAIL")}
    assert max(max(old.waited_s, new.waited_s) for old, new in replies) <= 0.05


def test_twenty_questions_that_nobody_answers_do_not_slow_the_others_or_harm_their_resolver() -> None:
    world = one()
    world[U1].answer_everything(TRUTH)
    world.ask("first.test")
    mute = [f"mute{number}.test" for number in range(20)]
    world[U1].mute_names.update(mute)
    numbers = [world.start(name) for name in mute]
    others = []
    for number in range(200):
        others.append(world.ask(f"n{number}.test"))
        world.run(0.005)
    world.run(3)
    (resolver,) = world.forwarding.resolvers

    assert {(reply.source, round(reply.waited_s, 6)) for reply in others} == {("upstream", world.rtt_s)}
    assert {world.reply(number).rcode for number in numbers} == {"SERVFAIL"}
    assert resolver.health is Health.UP


def test_the_whole_deadline_is_two_and_a_half_seconds() -> None:
    world = one()
    break_down(world, "mute")
    reply = world.ask("ext.test")

    assert reply.rcode == "SERVFAIL"
    assert 2.5 - 2 * SLICE_S <= reply.waited_s <= 2.5


def test_a_stale_answer_is_served_after_half_a_second_while_the_question_goes_on() -> None:
    world = one()
    world[U1].answer("ext.test", "A", "192.0.2.1", ttl_s=2)
    world.ask("ext.test")
    world.run(10)
    world[U1].delay_s = 1.2
    world[U1].answer("ext.test", "A", "192.0.2.2", ttl_s=50)
    slow = world.ask("ext.test")
    world.run(1)
    later = world.ask("ext.test")

    assert (slow.values, slow.waited_s) == (["192.0.2.1"], pytest.approx(0.5, abs=SLICE_S))
    assert (later.values, later.source) == (["192.0.2.2"], "cache")


def test_a_late_reply_is_still_taken_when_another_try_is_on_its_way() -> None:
    world = World(U1, U2)
    world[U1].answer("ext.test", "A", TRUTH)
    world[U1].delay_s = 0.9
    break_down(world, "mute", U2)
    reply = world.ask("ext.test")

    assert reply.values == [TRUTH]
    assert reply.waited_s == pytest.approx(0.91)
    assert not world.open


def test_a_late_failure_starts_nothing_while_another_try_is_on_its_way() -> None:
    world = World(U1, U2)
    world[U1].delay_s = 0.9
    world[U1].always = "SERVFAIL"
    world[U2].delay_s = 0.45
    world[U2].answer("ext.test", "A", TRUTH)
    reply = world.ask("ext.test")

    assert reply.values == [TRUTH]
    assert (world[U1].count("ext.test"), world[U2].count("ext.test")) == (1, 1)


def test_after_a_failure_a_stale_answer_waits_50_ms_and_after_a_success_half_a_second_again() -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH, ttl_s=1)
    world.ask("ext.test")
    break_down(world, "SERVFAIL")
    world.run(5)
    world.ask("ext.test")
    mend(world)
    world[U1].delay_s = 0.2
    world.run(2)
    failing = world.ask("ext.test")
    world.run(5)
    recovered = world.ask("ext.test")

    assert (failing.source, failing.waited_s) == ("stale", pytest.approx(0.05, abs=SLICE_S))
    assert (recovered.source, recovered.waited_s) == ("upstream", pytest.approx(0.21))


def test_one_name_that_nobody_can_resolve_does_not_put_a_good_resolver_down() -> None:
    world = one()
    world[U1].answer_everything(TRUTH)
    world.ask("good.test")
    world[U1].mute_names = {"lame.test"}
    for number in range(10):
        world.start("lame.test")
        world.run(1.5)
        assert world.ask(f"n{number}.test").values == [TRUTH]

    assert [resolver.health for resolver in world.forwarding.resolvers] == [Health.UP]


def test_a_resolver_that_knows_only_inside_names_is_found_again_by_the_names_that_are_asked() -> None:
    world = one()
    world[U1].answer("in.test", "A", TRUTH)
    world[U1].mute_names = {"", "out.test"}
    world.ask_every(0.5, 6, "out.test")
    replies = world.ask_every(1, 8, "in.test")

    assert {reply.rcode for reply in replies[5:]} == {"NOERROR"}


def test_a_much_slower_first_resolver_is_asked_second_until_it_is_quick_again() -> None:
    world = World(U1, U2)
    for address in (U1, U2):
        world[address].answer_everything(address[:-3])
    world[U1].delay_s = 0.45
    for number in range(5):
        world.ask(f"n{number}.test")
    world[U1].rcode("both.test", "A", "SERVFAIL")
    world.ask("both.test")
    slow = world.ask("slow.test")
    health = next(iter(world.forwarding.resolvers)).health
    world[U1].delay_s = 0.0
    world.run(11)
    quick = world.ask("quick.test")

    assert (slow.values, health) == (["192.0.2.2"], Health.UP)
    assert quick.values == ["192.0.2.1"]


def test_a_server_that_knows_no_edns_is_asked_without() -> None:
    world = one()
    world[U1].answer_everything(TRUTH)
    world[U1].refuses_edns = True
    first = world.ask("one.test")
    sent = len(world.packets)
    second = world.ask("two.test")

    assert (first.values, second.values) == ([TRUTH], [TRUTH])
    assert len(world.packets) == sent + 1
    assert not DNSRecord.parse(world.packets[-1][1]).ar


QUERY_BITS = [({}, 0, 0), ({"do": 1}, 1, 0), ({"cd": 1}, 0, 1), ({"payload": 512}, 0, 0)]


@pytest.mark.parametrize(("options", "dnssec_ok", "checking_disabled"), QUERY_BITS)
def test_queries_ask_for_recursion_and_ad_with_edns_and_the_do_and_cd_of_the_client(
    options: dict[str, int], dnssec_ok: int, checking_disabled: int
) -> None:
    world = one()
    world.ask("ext.test", **options)
    sent = DNSRecord.parse(world.packets[-1][1])

    assert (sent.header.rd, sent.header.ad, sent.header.cd) == (1, 1, checking_disabled)
    assert [(opt.edns_len, opt.edns_do) for opt in sent.ar] == [(1232, dnssec_ok)]


# Truncation


def test_s55_a_truncated_reply_is_asked_again_over_tcp_and_only_the_whole_answer_is_kept() -> None:
    world = one()
    world[U1].answer("big.test", "A", *(f"192.0.2.{number}" for number in range(1, 101)))
    world[U1].truncates = True
    small = world.ask("big.test", payload=1232)
    whole = world.ask("big.test", tcp=1)

    assert small.is_truncated
    assert len(small.packet) <= 1232
    assert (len(whole.values), whole.source, whole.is_truncated) == (100, "cache", False)
    assert world[U1].count("big.test") == 2


def test_s55_when_tcp_fails_tc_is_handed_on_uncached_and_the_next_query_tries_again() -> None:
    world = one()
    world[U1].answer("big.test", "A", TRUTH)
    world[U1].truncates = True
    world[U1].tcp = "close"
    first = world.ask("big.test")
    kept = len(world.forwarding.outside)
    world.run(2)
    world[U1].tcp = "answer"
    second = world.ask("big.test")

    assert (first.is_truncated, first.values, first.rcode, kept) == (True, [], "NOERROR", 0)
    assert second.values == [TRUTH]


def test_s55_a_client_on_tcp_never_sees_tc() -> None:
    world = one()
    world[U1].truncates = True
    world[U1].tcp = "close"

    assert world.ask("big.test", tcp=1).rcode == "SERVFAIL"


def test_tc_over_tcp_is_a_failure_and_not_asked_for_ever() -> None:
    world = one()
    world[U1].answer("big.test", "A", TRUTH)
    world[U1].truncates = world[U1].truncates_tcp = True
    reply = world.ask("big.test")

    assert (reply.is_truncated, len(world.forwarding.outside)) == (True, 0)
    assert world[U1].count("big.test") == 2


def test_s55_a_stale_answer_is_better_than_a_truncated_one() -> None:
    world = one()
    world[U1].answer("big.test", "A", TRUTH, ttl_s=2)
    world.ask("big.test")
    world[U1].truncates = True
    world[U1].tcp = "close"
    world.run(10)

    assert world.ask("big.test").values == [TRUTH]


# Lies


@pytest.mark.parametrize("lie", [lie for lie in Lie if lie not in {Lie.WRONG_ID, Lie.WRONG_PORT, Lie.SHORT}])
def test_s69_what_is_not_the_answer_is_counted_and_waiting_goes_on(lie: Lie) -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH)
    world[U1].lies = (lie,)
    reply = world.ask("ext.test")

    assert reply.values == [TRUTH]
    assert world.counts()["upstream_spoofed"] == 1
    assert len(world.forwarding.outside) == 1


def test_s69_lies_alone_end_in_servfail_and_nothing_is_kept() -> None:
    world = one()
    world[U1].lies = (Lie.WRONG_QUESTION, Lie.GARBAGE, Lie.WRONG_TYPE)
    world[U1].is_truthful = False

    assert world.ask("ext.test").rcode == "SERVFAIL"
    assert len(world.forwarding.outside) == 0


@pytest.mark.parametrize("opcode", [1, 4, 5])
def test_s69_a_reply_of_another_opcode_is_not_the_answer(opcode: int) -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH)
    number = world.start("ext.test")
    token = max(world.open)
    packet = world[U1].reply(DNSRecord.parse(world.packets[-1][1]), over_tcp=False)
    other = packet[:2] + bytes([packet[2] | opcode << 3]) + packet[3:]

    assert world.forwarding.received(token, other, 5000.0, 0.0) is False
    world.run(1)
    assert world.reply(number).values == [TRUTH]


@given(noise=st.binary(max_size=200), keeps_header=st.booleans())
@settings(max_examples=300, deadline=None)
def test_s69_no_bytes_from_outside_raise_or_reach_a_client(noise: bytes, keeps_header: bool) -> None:
    forwarding = Forwarding(ForwardSettings(), Random(1))
    forwarding.set_upstreams([U1], Ours(), 0.0)
    forwarding.ask(make_query("ext.test"), "client", 0.0)
    send = next(work for work in forwarding.take_work() if isinstance(work, Send))
    packet = b"\x00\x00\x81\x80" + send.packet[4:6] + noise[:6].ljust(6, b"\x00") + send.packet[12:26] + noise[6:]
    forwarding.received(send.token, packet if keeps_header else noise, 0.1, 1.0)
    delivered = [work for work in forwarding.take_work() if isinstance(work, Deliver)]

    assert all(isinstance(work.outcome, Failed) or work.outcome.packet[:2] == b"\x12\x67" for work in delivered)


# Never ourselves


def test_s65_our_own_address_is_left_out_and_said_so() -> None:
    own = ours(["127.0.0.1:53"], ["127.0.0.1"])
    world = World("127.0.0.1:53", U1, own=own)
    world[U1].answer("ext.test", "A", TRUTH)

    assert world.ask("ext.test").values == [TRUTH]
    assert world.forwarding.status(5000.0).left_out == (("127.0.0.1:53", "that is ourselves"),)
    assert world["127.0.0.1:53"].count() == 0


@pytest.mark.parametrize("addresses", [(), ("127.0.0.1:53",), ("localhost",)])
def test_s65_s70_with_nobody_left_the_answer_is_servfail_at_once_with_a_reason(addresses: tuple[str, ...]) -> None:
    world = World(*addresses, own=ours(["0.0.0.0:53"], ["192.0.2.7"]))
    reply = world.ask("ext.test")

    assert (reply.rcode, reply.waited_s) == ("SERVFAIL", 0.0)
    assert reply.outcome.why.startswith("no upstream")
    assert all(address in reply.outcome.why for address in addresses)


def test_s65_a_resolver_that_asks_us_back_is_named_left_out_and_checked_again() -> None:
    world = World(U1, U2)
    for address in (U1, U2):
        world[address].answer_everything(TRUTH)
    check = next(packet for address, packet in world.packets if address == U1)
    name = str(DNSRecord.parse(check).q.qname).rstrip(".")
    returned = world.ask(name, "TXT")
    world.ask("ext.test")
    status = world.forwarding.status(5000.0)
    world.run(120)

    assert returned.rcode == "REFUSED"
    assert (status.upstreams[0].health, status.upstreams[0].last_error) == ("loop", "asks us back")
    assert (world[U1].count("ext.test"), world[U2].count("ext.test")) == (0, 1)
    assert world.forwarding.status(5120.0).upstreams[0].health == "up"


def test_s65_fronts_of_one_host_know_the_loop_checks_of_each_other() -> None:
    first, second = (World(U1, settings=ForwardSettings(identity=b"host")) for _ in range(2))
    name = str(DNSRecord.parse(first.packets[0][1]).q.qname).rstrip(".")

    assert second.ask(name, "TXT").rcode == "REFUSED"


def test_s65_each_resolver_of_each_host_has_a_check_of_its_own_that_tells_nothing_of_the_host() -> None:
    identities = (b"host", b"h" * 100, b"other")
    worlds = [World(U1, U2, settings=ForwardSettings(identity=identity)) for identity in identities]
    names = [question_of(packet) for world in worlds for _, packet in world.packets]

    assert len(set(names)) == 6
    assert not any(word in name for name in names for word in ("host", b"host".hex()))


def test_s65_no_answer_to_the_loop_check_stops_nothing() -> None:
    world = World(U1)
    world.servers[U2] = Script()
    world[U2].answer("ext.test", "A", TRUTH)
    world[U2].mute_types = {"TXT"}
    world[U2].mute_names = {"lame.test"}
    world.forwarding.set_upstreams([U2], Ours(), 5000.0)
    world.run(5)
    world.start("lame.test")
    world.run(0.6)
    (resolver,) = world.forwarding.resolvers

    assert world[U2].count(rtype="TXT") == 1
    assert (resolver.health, resolver.misses) == (Health.UP, 1)
    assert world.ask("ext.test").values == [TRUTH]


# Changes while it runs


def test_a_new_list_keeps_what_is_known_of_those_who_stay() -> None:
    world = World(U1, U2)
    for address in (U1, U2):
        world[address].answer_everything(TRUTH)
    world.ask("one.test")
    before = next(iter(world.forwarding.resolvers))
    world.forwarding.set_upstreams(["192.0.2.3", "192.0.2.1"], Ours(), 5001.0)
    after = list(world.forwarding.resolvers)

    assert after[1] is before
    assert [resolver.address for resolver in after] == ["192.0.2.3:53", U1]


def test_a_new_list_is_used_at_once_by_names_that_failed_before() -> None:
    world = one()
    break_down(world, "SERVFAIL")
    world.ask("ext.test")
    world.servers[U2] = Script()
    world[U2].answer("ext.test", "A", TRUTH)
    world.forwarding.set_upstreams([U2], Ours(), 5000.0 + world.now)

    assert world.ask("ext.test").values == [TRUTH]


def test_a_failure_is_remembered_for_a_second() -> None:
    world = one()
    break_down(world, "SERVFAIL")
    replies = [world.ask("ext.test") for _ in range(20)]
    asked = world[U1].count("ext.test")
    world.run(room.RECHECK_S + 0.1)
    world.ask("ext.test")

    assert {reply.rcode for reply in replies} == {"SERVFAIL"}
    assert (asked, world[U1].count("ext.test")) == (1, 2)


def test_s72_cache_flush_forgets_every_type_of_a_name() -> None:
    world = one()
    world[U1].answer("ext.test", "A", TRUTH)
    world[U1].answer("ext.test", "TXT", '"x"')
    world.ask("ext.test")
    world.ask("ext.test", "TXT")
    (questions,) = world.forwarding.forget(b"\x03ext\x04test\x00")

    assert questions == (b"\x03ext\x04test\x00\x00\x01\x00\x01", b"\x03ext\x04test\x00\x00\x10\x00\x01")
    assert world.ask("ext.test").source == "upstream"


def test_an_idle_process_is_left_alone() -> None:
    world = World(U1, U2)
    break_down(world, "mute")
    break_down(world, "mute", U2)
    world.ask_every(1, 10, "ext.test")
    world.run(300)
    world[U1].forget()
    world.run(3600)

    assert world[U1].count() == 0
    assert world.forwarding.next_due() is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "wait", "break 1", "break 2", "mend 1", "mend 2"]),
        st.integers(0, 5),
        st.sampled_from([*FAILURES, "tc", "lie"]),
    ),
    max_size=40,
)


@given(steps=STEPS)
@settings(max_examples=150, deadline=None)
def test_whatever_happens_every_client_gets_exactly_one_answer_in_time_and_nothing_is_left_over(
    steps: list[tuple[str, int, str]],
) -> None:
    world = World(U1, U2)
    for address in (U1, U2):
        world[address].answer_everything(TRUTH)
    started: list[int] = []
    for verb, number, how in steps:
        _act(world, started, verb, number, how)
    world.run(200)
    replies = [world.reply(number) for number in started]

    assert all(reply is not None and reply.waited_s <= 2.5 + 1e-6 for reply in replies)
    assert all(reply.values in ([], [TRUTH]) for reply in replies)
    assert world.doubles == 0
    assert not world.open
    assert "errands=0 tries=0 waiting=0" in repr(world.forwarding)


def _act(world: World, started: list[int], verb: str, number: int, how: str) -> None:
    address = U2 if verb.endswith("2") else U1
    script = world[address]
    if verb == "ask":
        started.append(world.start(f"n{number}.test"))
    elif verb == "wait":
        world.run((0.003, 0.2, 0.7, 3.0, 50.0, 70.0)[number])
    elif verb.startswith("mend"):
        script.is_mute, script.always, script.truncates, script.lies = False, "", False, ()
    elif how == "tc":
        script.truncates, script.tcp = True, ("answer", "mute", "close")[number % 3]
    elif how == "lie":
        script.lies = (Lie.WRONG_QUESTION, Lie.GARBAGE)
    else:
        break_down(world, how, address)


def test_reply_type_is_pending_only_when_a_delivery_follows() -> None:
    forwarding = Forwarding(ForwardSettings(), Random(1))
    forwarding.set_upstreams([U1], Ours(), 0.0)

    assert isinstance(forwarding.ask(make_query("ext.test"), "client", 0.0), Pending)


# When what is due


def errand_due(due: float) -> Errand:
    return Errand(b"key", Purpose.ASKED, (), 0.0, deadline=due)


def test_what_is_due_is_taken_never_early_and_at_most_a_slice_late() -> None:
    agenda = Agenda()
    errand = errand_due(1.003)
    agenda.add(errand)
    due = agenda.next_due()

    assert 1.003 <= due < 1.003 + SLICE_S
    assert agenda.take(1.003) == []
    assert agenda.take(due) == [errand]
    assert (agenda.take(9.0), agenda.next_due()) == ([], inf)


def test_an_errand_is_looked_at_once_however_often_its_time_moves() -> None:
    agenda = Agenda()
    errand = errand_due(3.0)
    agenda.add(errand)
    errand.stale_at = 2.0
    agenda.add(errand)
    errand.try_due = 1.0
    agenda.add(errand)
    agenda.add(errand)

    assert agenda.next_due() == 1.0
    assert agenda.take(5.0) == [errand]
    assert agenda.next_due() == inf or agenda.take(5.0) == []


def test_errands_that_are_over_are_not_waited_for() -> None:
    agenda = Agenda()
    errands = [errand_due(1.0 + number / 10) for number in range(10)]
    for errand in errands:
        agenda.add(errand)
    for errand in errands[:9]:
        errand.over = True

    assert agenda.next_due() == pytest.approx(1.9, abs=SLICE_S)
    assert agenda.take(2.0) == [errands[9]]
    assert agenda.next_due() == inf


# What this host does not allow, and what is said of a failure


def hinder(world: World, *addresses: str) -> None:
    """From now on this host lets no packet to these out."""

    def serve(send: Send, serve=world._serve) -> None:
        if send.address in addresses:
            world._after(0.0, lambda: world.forwarding.hindered(send.token, "Too many open files", world._clock()))
        else:
            serve(send)

    world._serve = serve


def test_what_this_host_does_not_let_out_is_no_fault_of_an_upstream() -> None:
    world = World(U1, U2)
    world.ask("ext.test")
    hinder(world, U1, U2)
    replies = [world.ask(f"e{number}.test") for number in range(20)]
    status = world.forwarding.status(world._clock())
    why = world.forwarding.why(make_query("e19.test"), world._clock())

    assert {reply.rcode for reply in replies} == {"SERVFAIL"}
    assert [(one.health, one.last_error, one.failures) for one in status.upstreams] == [("up", "", 0)] * 2
    assert (status.problem, status.failing) == ("", {})
    assert why == "; ".join(f"{address} could not be asked from here: Too many open files" for address in (U1, U2))
    assert not world.forwarding._tries


def test_the_next_upstream_is_asked_when_a_firewall_of_this_host_is_before_the_first() -> None:
    world = World(U1, U2)
    world[U2].answer_everything(TRUTH)
    hinder(world, U1)
    reply = world.ask("ext.test")

    assert (reply.values, reply.waited_s < 0.1) == ([TRUTH], True)


@pytest.mark.parametrize(
    ("how", "did"),
    [
        ("SERVFAIL", "said SERVFAIL"),
        ("REFUSED", "said REFUSED"),
        ("mute", "did not answer in time"),
        ("gone", "is not there (nothing listens)"),
    ],
)
def test_what_each_upstream_did_in_place_of_an_answer_is_known_afterwards(how: str, did: str) -> None:
    world = World(U1, U2)
    break_down(world, "REFUSED", U1)
    break_down(world, how, U2)
    world.ask("ext.test")

    assert world.forwarding.why(make_query("ext.test"), world._clock()) == f"{U1} said REFUSED; {U2} {did}"


def test_while_a_question_is_on_its_way_it_is_known_who_has_not_answered_yet() -> None:
    world = World(U1, U2)
    break_down(world, "SERVFAIL", U1)
    break_down(world, "mute", U2)
    world.start("ext.test")
    world.run(0.1)

    assert (
        world.forwarding.why(make_query("ext.test"), world._clock()) == f"{U2} has not answered yet; {U1} said SERVFAIL"
    )


def failing(world: World) -> dict[str, str]:
    return world.forwarding.status(world._clock()).failing


def test_upstreams_fail_when_all_that_was_asked_lately_failed_and_a_few_names_were() -> None:
    world = World(U1, U2)
    for address in (U1, U2):
        break_down(world, "SERVFAIL", address)
    world.ask("one.test")
    world.ask("one.test", "AAAA")
    world.ask("two.test")
    few = failing(world)
    world.ask("three.test")
    many = failing(world)
    world.run(31)

    assert (few, failing(world)) == ({}, {})
    assert many == {U1: "said SERVFAIL", U2: "said SERVFAIL"}


def test_upstreams_do_not_fail_while_other_names_are_answered() -> None:
    world = one()
    world[U1].answer_everything(TRUTH)
    for number in range(4):
        world[U1].rcode(f"bad{number}.test", "A", "SERVFAIL")
    world.ask("good.test")
    for number in range(4):
        world.ask(f"bad{number}.test")
    before = failing(world)
    world.ask("better.test")
    world.run(20)
    for number in range(4):
        world.ask(f"bad{number}.test")
    after = failing(world)
    world.run(15)
    for number in range(4):
        world.ask(f"bad{number}.test")

    assert (before, after) == ({}, {})
    assert failing(world) == {U1: "said SERVFAIL"}


def test_names_that_fail_beside_others_are_counted_and_the_newest_is_named_with_the_reason() -> None:
    world = one()
    world[U1].answer_everything(TRUTH)
    for number in range(12):
        world[U1].rcode(f"bad{number}.test", "A", "SERVFAIL")
        world.ask(f"bad{number}.test")
    world.ask("bad11.test", "AAAA")
    world.ask("good.test")
    status = world.forwarding.status(world._clock())
    world.run(31)

    assert (status.failed_names, status.failed_last) == (12, f"bad11.test. ({U1} said SERVFAIL)")
    assert world.forwarding.status(world._clock()).failed_names == 0


def test_probes_alone_are_no_questions_that_fail() -> None:
    """A site without the Internet has SERVFAIL for the root, and nothing to complain of."""
    world = one()
    world[U1].answer("site.test", "A", TRUTH, ttl_s=3600)
    world[U1].rcode("", "NS", "SERVFAIL")
    world.run(120)
    world.ask("site.test")

    assert failing(world) == {}


def test_a_last_error_has_an_age() -> None:
    world = one()
    world[U1].answer_everything(TRUTH)
    world[U1].rcode("bad.test", "A", "SERVFAIL")
    world.ask("bad.test")
    world.run(40)
    (status,) = world.forwarding.status(world._clock()).upstreams

    assert (status.last_error, status.last_error_s) == ("SERVFAIL", pytest.approx(40, abs=0.1))
