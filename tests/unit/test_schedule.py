"""Every request to the registry is planned within its budget: look-ups, subscriptions, pulls, signs of life, catalogue."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from nacosdns.core.model import ServiceKey
from nacosdns.core.schedule import PULLS_APART_S, Bucket, Kind, Schedule, Settings

if TYPE_CHECKING:
    from nacosdns.core.schedule import Action

BOOT = 1000.0


def key(name: str, namespace: str = "public") -> ServiceKey:
    return ServiceKey(namespace, "DEFAULT_GROUP", name)


def made(**settings: object) -> Schedule:
    schedule = Schedule(Settings(**settings), random.Random(3))  # type: ignore[arg-type]
    schedule.connected("public", BOOT)
    return schedule


def live(schedule: Schedule, *names: str, now: float = BOOT) -> None:
    for name in names:
        schedule.asked(key(name), now)
    finish(schedule, schedule.take(now), now)


def reconnected() -> Schedule:
    """A thousand live services, the last of them asked for last, and a connection that was lost and came back."""
    schedule = made()
    for number in range(1000):
        live(schedule, f"s{number}", now=BOOT + number * 0.01)
    schedule.disconnected("public")
    schedule.connected("public", BOOT + 100)
    return schedule


def finish(schedule: Schedule, actions: list[Action], now: float, *, good: bool = True) -> list[Action]:
    for action in actions:
        schedule.done(action, now, good=good)
    return actions


def run(schedule: Schedule, start: float, seconds: float, step: float = 0.05) -> list[tuple[float, Action]]:
    """Everything that is taken in this time, each done at once."""
    taken = []
    for turn in range(int(seconds / step)):
        now = start + turn * step
        taken += [(now, action) for action in finish(schedule, schedule.take(now), now)]
    return taken


def kinds(actions: list[tuple[float, Action]] | list[Action]) -> Counter[Kind]:
    return Counter((one[1] if isinstance(one, tuple) else one).kind for one in actions)


def test_equal_look_ups_are_one_flight() -> None:
    schedule = made()
    first = schedule.lookup((key("a"),), known=False)
    second = schedule.lookup((key("a"),), known=False)

    assert first
    assert second
    assert kinds(schedule.take(BOOT))[Kind.LOOKUP] == 1


def test_unknown_names_are_looked_up_twenty_times_a_second_at_most() -> None:
    schedule = made()
    taken = []
    for turn in range(200):
        now = BOOT + turn * 0.05
        for number in range(20):
            schedule.lookup((key(f"rnd{turn}-{number}"),), known=False)
        taken += finish(schedule, schedule.take(now), now)

    assert kinds(taken)[Kind.LOOKUP] <= 20 * 10 + 20


def test_known_names_pass_unknown_ones_thirty_two_at_a_time() -> None:
    schedule = made()
    for number in range(100):
        schedule.lookup((key(f"rnd{number}"),), known=False)
        schedule.lookup((key(f"known{number}"),), known=True)
    taken = [action for action in schedule.take(BOOT) if action.key.service.startswith("known")]

    assert len(taken) == 32

    finish(schedule, taken, BOOT)

    assert len([action for action in schedule.take(BOOT) if action.key.service.startswith("known")]) == 32


def test_a_full_queue_says_so_instead_of_growing() -> None:
    schedule = made()
    answers = [schedule.lookup((key(f"rnd{number}"),), known=False) for number in range(100)]

    assert answers.count(False) == 60
    assert schedule.unknown_crowded(BOOT)


def test_a_namespace_that_is_not_configured_is_never_asked() -> None:
    schedule = made()
    schedule.asked(key("a", "nowhere"), BOOT)

    assert not schedule.lookup((key("a", "nowhere"),), known=False)
    assert all(action.key.namespace == "public" for action in schedule.take(BOOT + 20))


def test_what_is_asked_is_subscribed_once() -> None:
    schedule = made()
    live(schedule, "a")
    schedule.asked(key("a"), BOOT + 1)
    again = schedule.take(BOOT + 1)

    assert schedule.is_live(key("a"))
    assert kinds(again)[Kind.SUBSCRIBE] == 0


def test_a_subscription_that_fails_is_tried_again_ever_more_slowly() -> None:
    schedule = made()
    schedule.asked(key("a"), BOOT)
    times = []
    for turn in range(1200):
        now = BOOT + turn * 0.1
        for action in schedule.take(now):
            schedule.done(action, now, good=action.kind is not Kind.SUBSCRIBE)
            if action.kind is Kind.SUBSCRIBE:
                times.append(now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]

    assert 5 <= len(times) <= 10
    assert gaps[0] < 2
    assert gaps[-1] > 15


def test_after_a_reconnect_the_most_recently_asked_come_first_two_hundred_a_second_after_a_random_start() -> None:
    schedule = reconnected()
    taken = [(at, a) for at, a in run(schedule, BOOT + 100, 8) if a.kind is Kind.SUBSCRIBE]

    assert len(taken) == 1000
    assert [action.key.service for _, action in taken[:3]] == ["s999", "s998", "s997"]
    assert taken[0][0] > BOOT + 100
    assert max(Counter(int(at) for at, _ in taken).values()) <= 221


def test_what_is_asked_for_while_it_waits_to_be_read_again_goes_before_the_others() -> None:
    """With 10,000 services in use the last of them waits for fifty seconds: not one that somebody asks for now."""
    schedule = reconnected()
    run(schedule, BOOT + 100, 2)

    schedule.asked(key("s5"), BOOT + 102)
    schedule.asked(key("s7"), BOOT + 102)
    taken = [action for _, action in run(schedule, BOOT + 102, 1) if action.kind is Kind.SUBSCRIBE]

    assert [action.key.service for action in taken[:2]] == ["s7", "s5"]


def test_pulls_are_spread_and_grow_rarer_with_many_services() -> None:
    """S35."""
    few, many = made(), made()
    live(few, "a", "b")
    for number in range(500):
        live(many, f"s{number}", now=BOOT + number * 0.02)
    few_pulls = kinds(run(few, BOOT, 600, 0.5))[Kind.PULL]
    many_pulls = [(at, a) for at, a in run(many, BOOT + 10, 2000, 0.5) if a.kind is Kind.PULL]
    per_second = Counter(int(at) for at, _ in many_pulls)

    assert 15 <= few_pulls <= 25
    assert 350 <= len(many_pulls) <= 650
    assert max(per_second.values()) <= 12
    assert min(later - earlier for earlier, later in itertools.pairwise(sorted(per_second))) >= PULLS_APART_S


def test_an_idle_client_asks_less_than_half_a_request_a_second() -> None:
    schedule = made()
    live(schedule, *(f"s{number}" for number in range(20)))

    assert len(run(schedule, BOOT + 1, 300, 0.25)) <= 150


def test_silence_is_broken_by_one_query_of_something_known_every_ten_seconds() -> None:
    schedule = made()
    live(schedule, "a")
    signs = [action for _, action in run(schedule, BOOT, 40, 0.1) if action.kind is Kind.LIFE]

    assert 2 <= len(signs) <= 4
    assert {action.key.service for action in signs} == {"a"}


def test_what_is_heard_counts_as_a_sign_of_life() -> None:
    schedule = made()
    for turn in range(40):
        schedule.heard("public", BOOT + turn)

        assert kinds(finish(schedule, schedule.take(BOOT + turn), BOOT + turn))[Kind.LIFE] == 0


def test_the_catalogue_is_read_at_start_and_after_misses_once_a_minute_at_most() -> None:
    schedule = made()
    reads = []
    for turn in range(6000):
        now = BOOT + turn * 0.1
        schedule.want_catalogue("public", "DEFAULT_GROUP")
        reads += [now for action in finish(schedule, schedule.take(now), now) if action.kind is Kind.CATALOGUE]
    gaps = [later - earlier for earlier, later in itertools.pairwise(reads)]

    assert reads[0] == BOOT
    assert all(41 <= gap <= 79 for gap in gaps)


def test_without_misses_only_zones_with_bare_names_read_the_catalogue_every_minute() -> None:
    plain, bare = made(), made(bare=frozenset({("public", "DEFAULT_GROUP")}))

    assert kinds(run(plain, BOOT, 600, 0.5))[Kind.CATALOGUE] == 1
    assert 7 <= kinds(run(bare, BOOT, 600, 0.5))[Kind.CATALOGUE] <= 15


def test_while_a_service_is_wanted_the_catalogue_is_read_every_ten_minutes_for_other_spellings() -> None:
    schedule = made()
    live(schedule, "orders")

    assert 4 <= kinds(run(schedule, BOOT, 3000, 1.0))[Kind.CATALOGUE] <= 6


def test_an_idle_subscription_ends_and_a_preloaded_one_does_not() -> None:
    schedule = made(idle_s=600.0, preload=frozenset({key("kept")}))
    live(schedule, "a")
    taken = run(schedule, BOOT, 1500, 0.5)

    assert [action.key.service for _, action in taken if action.kind is Kind.UNSUBSCRIBE] == ["a"]
    assert schedule.subscribed() == [key("kept")]


def test_a_service_that_is_gone_is_unsubscribed_and_pulled_no_more() -> None:
    """S52."""
    schedule = made()
    live(schedule, "a")
    schedule.forget(key("a"))
    taken = run(schedule, BOOT, 300, 0.5)

    assert kinds(taken)[Kind.UNSUBSCRIBE] == 1
    assert kinds(taken)[Kind.PULL] == 0


def test_nothing_but_look_ups_is_asked_of_a_registry_that_is_not_there() -> None:
    schedule = made()
    live(schedule, "a")
    schedule.disconnected("public")
    schedule.check([key("a")])

    assert set(kinds(run(schedule, BOOT + 1, 200, 0.5))) <= {Kind.LOOKUP}


@pytest.mark.parametrize("rate", [1.0, 20.0, 200.0])
def test_a_bucket_gives_its_rate_in_the_long_run(rate: float) -> None:
    bucket = Bucket(rate, 5)
    given = sum(bucket.take(BOOT + turn * 0.001) for turn in range(20_000))

    assert rate * 20 - 1 <= given <= rate * 20 + 5


def test_next_due_never_lies_in_the_past_of_what_take_would_do() -> None:
    schedule = made()
    live(schedule, "a", "b")
    now = BOOT
    for _ in range(300):
        due = schedule.next_due(now)
        now = max(now + 0.002, due)
        finish(schedule, schedule.take(now), now)

    assert now > BOOT + 300


def test_queries_that_settle_doubts_share_the_budget_of_re_reads() -> None:
    schedule = made()
    schedule.check(key(f"s{number}") for number in range(1000))
    taken = [(at, a) for at, a in run(schedule, BOOT, 8) if a.kind is Kind.PULL]

    assert len(taken) == 1000
    assert max(Counter(int(at) for at, _ in taken).values()) <= 221
