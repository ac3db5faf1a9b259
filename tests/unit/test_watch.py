from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nacosdns.core.watch import (
    DELAY_MAX_S,
    DRAIN_S,
    JUDGE_S,
    KEEPER_SLOT,
    LONG_LIFE_S,
    WEB_SLOT,
    Activate,
    Cover,
    Drain,
    Kill,
    Phase,
    Spawn,
    Ward,
    Watch,
)

if TYPE_CHECKING:
    import random


class Play:
    """Carries the plan out by itself: what is spawned lives, and is ready when the test says so."""

    def __init__(self, fronts: int = 1, *, web: bool = True) -> None:
        self.now = 100.0
        self.watch = Watch(fronts, self.now, web=web)
        self.done: list[object] = []

    def plan(self) -> list[object]:
        self.done = []
        for action in self.watch.plan(self.now):
            self.done.append(action)
            if isinstance(action, Spawn):
                self.watch.spawned(action.slot, self.now)
        return self.done

    def ready(self, *slots: int) -> list[object]:
        for slot in slots:
            self.watch.ready(slot)
        return self.plan()

    def exit(self, slot: int) -> list[object]:
        self.watch.exited(slot, self.now)
        return self.plan()

    def after(self, seconds: float) -> list[object]:
        self.now += seconds
        return self.plan()

    def up(self) -> Play:
        self.plan()
        self.ready(*self.watch.wards)
        self.ready(*self.watch.wards)
        return self

    def reads(self) -> dict[int, tuple[int, ...]]:
        return {w.slot: w.reads for w in self.watch.wards.values() if w.role == "front"}


def test_standby_and_web_leave_the_machine_to_the_first_front():
    play = Play()

    assert play.plan() == [Spawn(3), Spawn(KEEPER_SLOT)]
    assert play.ready(3) == [Activate(3, (0,)), Spawn(4), Spawn(WEB_SLOT)]
    assert play.ready(4) == []


def test_standby_and_web_do_not_wait_for_a_slow_or_dead_first_front():
    slow, dead = Play(), Play()
    slow.plan()
    dead.plan()

    assert slow.after(2.0) == [Cover((0,)), Spawn(4), Spawn(WEB_SLOT)]
    assert dead.exit(3) == [Cover((0,)), Spawn(3), Spawn(4), Spawn(WEB_SLOT)]


def test_a_dead_front_is_replaced_by_the_standby_at_once_and_started_again_at_once():
    play = Play().up()

    assert play.exit(3) == [Activate(4, (0,)), Spawn(3)]
    assert play.ready(3) == []
    assert play.reads() == {3: (), 4: (0,)}


def test_without_a_standby_the_other_front_stands_in_until_there_is_one():
    play = Play(fronts=2).up()
    play.exit(3)
    actions = play.exit(4)

    assert Activate(5, (0, 1)) in actions
    assert play.ready(3) == [Activate(3, (1,)), Activate(5, (0,))]
    assert play.ready(4) == []


def test_without_any_front_the_supervisor_covers_at_once():
    play = Play().up()
    play.exit(3)

    assert Cover((0,)) in play.exit(4)
    assert play.ready(4) == [Activate(4, (0,)), Cover(())]


def test_packets_wait_while_fronts_start_for_the_first_time():
    play = Play()

    assert Cover((0,)) not in play.plan()
    assert play.watch.due_at() == pytest.approx(102.0)
    assert Cover((0,)) in play.after(2.0)


def test_a_front_that_crashes_at_its_first_start_ends_the_waiting():
    play = Play()
    play.plan()

    assert Cover((0,)) in play.exit(3)


def test_restarts_wait_longer_each_time_and_never_longer_than_the_limit():
    play = Play().up()
    waits = []
    for _ in range(10):
        play.exit(KEEPER_SLOT)
        due_at = play.watch.wards[KEEPER_SLOT].due_at
        waits.append(round(due_at - play.now, 3))
        play.after(max(0.0, due_at - play.now))

    assert waits == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, DELAY_MAX_S]


def test_one_that_finishes_by_itself_is_no_failure_and_starts_again_at_once():
    play = Play().up()
    for _ in range(3):
        play.watch.exited(KEEPER_SLOT, play.now, in_order=True)

        assert Spawn(KEEPER_SLOT) in play.plan()
        play.ready(KEEPER_SLOT)

    assert play.watch.wards[KEEPER_SLOT].failures == 0


def test_what_waits_after_failures_is_tried_at_once_when_it_is_renewed():
    play = Play().up()
    for _ in range(6):
        play.exit(WEB_SLOT)
        play.after(11.0)
    waits = Spawn(WEB_SLOT) not in play.exit(WEB_SLOT)
    play.watch.renew("web")

    assert waits
    assert Spawn(WEB_SLOT) in play.plan()


def test_who_failed_and_lives_long_fails_no_more():
    play = Play().up()
    for _ in range(3):
        play.exit(WEB_SLOT)
        play.after(1.0)
    play.ready(WEB_SLOT)
    failures = []
    for _ in range(2):
        play.now += LONG_LIFE_S / 2
        play.watch.judge(play.now - JUDGE_S, {})
        play.watch.judge(play.now, {})
        failures.append(play.watch.wards[WEB_SLOT].failures)

    assert failures == [3, 0]


def test_a_long_life_is_forgiven():
    play = Play().up()
    for _ in range(5):
        play.exit(KEEPER_SLOT)
        play.after(20.0)
    play.after(30.0)
    play.exit(KEEPER_SLOT)

    assert play.watch.wards[KEEPER_SLOT].phase is Phase.STARTING


def test_a_front_whose_heartbeat_is_a_second_old_is_killed():
    play = Play().up()
    play.now += JUDGE_S

    assert play.watch.judge(play.now, {3: 1.01, 4: 0.9, KEEPER_SLOT: 1.5}) == [Kill(3, "hangs")]


def test_a_supervisor_that_was_late_itself_judges_nobody():
    play = Play().up()
    play.now += 5.0

    assert play.watch.judge(play.now, {3: 5.0, 4: 5.0}) == []
    play.now += JUDGE_S
    assert play.watch.judge(play.now, {3: 5.25, 4: 0.1}) == [Kill(3, "hangs")]


def test_a_keeper_may_be_busy_for_longer_than_a_front():
    play = Play().up()
    play.now += JUDGE_S

    assert play.watch.judge(play.now, {KEEPER_SLOT: 9.0}) == []
    play.now += JUDGE_S
    assert play.watch.judge(play.now, {KEEPER_SLOT: 10.1}) == [Kill(KEEPER_SLOT, "hangs")]


def test_a_child_that_never_says_ready_is_killed_and_its_heartbeat_is_not_judged_before():
    play = Play()
    play.plan()
    play.after(2.0)
    faults = []
    while not faults:
        play.now += JUDGE_S
        faults = play.watch.judge(play.now, dict.fromkeys(play.watch.wards, 5.0))

    assert play.now - 100.0 == pytest.approx(30.0, abs=2 * JUDGE_S)
    assert faults == [Kill(KEEPER_SLOT, "did not start"), Kill(3, "did not start")]


def test_renewal_replaces_fronts_one_by_one_and_never_leaves_a_socket_unread():
    play = Play(fronts=2).up()
    play.watch.renew("front")
    drained = []
    for _ in range(20):
        for action in play.plan():
            assert not isinstance(action, Cover)
            if isinstance(action, Drain):
                drained.append(action.slot)
        read = sorted(socket for reads in play.reads().values() for socket in reads)
        assert read == [0, 1]
        for ward in list(play.watch.wards.values()):
            if ward.phase is Phase.DRAINING:
                play.exit(ward.slot)
        for ward in list(play.watch.wards.values()):
            play.watch.ready(ward.slot)

    assert sorted(drained) == [3, 4, 5]
    assert play.watch.is_settled


def test_a_front_that_drains_and_does_not_end_is_killed():
    play = Play().up()
    play.watch.renew("front")
    play.plan()
    play.now += 3.25
    play.watch.judge(play.now, {})
    play.now += JUDGE_S

    assert play.watch.judge(play.now, {}) == [Kill(4, "did not end")]


def test_what_cannot_be_replaced_goes_on_and_the_next_try_waits_ever_longer():
    play = Play().up()
    play.watch.renew("web")
    waits = []
    for _ in range(5):
        assert play.plan() == [Drain(WEB_SLOT, DRAIN_S)]
        play.watch.kept(WEB_SLOT, play.now)
        due_at = play.watch.due_at()
        waits.append(round(due_at - play.now, 3))
        play.now = due_at

    assert waits == [0, 0.1, 0.2, 0.4, 0.8]
    assert play.watch.wards[WEB_SLOT].phase is Phase.READY


def test_what_could_not_be_replaced_is_tried_at_once_when_it_is_renewed_again():
    play = Play().up()
    play.watch.renew("web")
    for _ in range(3):
        play.plan()
        play.watch.kept(WEB_SLOT, play.now)
        play.now = play.watch.due_at()
    play.plan()
    play.watch.kept(WEB_SLOT, play.now)
    waits = play.plan()
    play.watch.renew("web")

    assert waits == []
    assert play.plan() == [Drain(WEB_SLOT, DRAIN_S)]


def test_a_process_that_is_gone_already_is_not_kept():
    play = Play().up()
    play.watch.renew("web")
    play.plan()
    play.watch.exited(WEB_SLOT, play.now)
    play.watch.kept(WEB_SLOT, play.now)

    assert Spawn(WEB_SLOT) in play.plan()


def test_keeper_and_web_are_renewed_by_a_drain_and_start_again_at_once():
    play = Play().up()
    play.watch.renew("keeper")
    play.watch.renew("web")

    assert [action.slot for action in play.plan()] == [KEEPER_SLOT, WEB_SLOT]
    assert play.exit(KEEPER_SLOT) == [Spawn(KEEPER_SLOT)]


def test_more_fronts_share_the_sockets_and_fewer_give_them_back():
    play = Play().up()
    play.watch.resize(3, play.now, web=True)
    play.plan()
    play.ready(5, 6)

    assert sorted(len(reads) for reads in play.reads().values()) == [0, 1, 1, 1]

    play.watch.resize(1, play.now, web=True)
    for _ in range(6):
        play.plan()
        for ward in list(play.watch.wards.values()):
            if ward.phase is Phase.DRAINING:
                play.exit(ward.slot)

    assert sorted(play.reads().values()) == [(), (0,)]


def test_web_goes_and_comes_with_the_configuration():
    play = Play().up()
    play.watch.resize(1, play.now, web=False)

    assert play.plan() == [Drain(WEB_SLOT, 2.0)]
    assert play.exit(WEB_SLOT) == []
    assert WEB_SLOT not in play.watch.wards
    play.watch.resize(1, play.now, web=True)
    assert play.plan() == [Spawn(WEB_SLOT)]


def test_web_switched_off_and_on_at_once_is_started_again():
    play = Play().up()
    play.watch.resize(1, play.now, web=False)
    play.plan()
    play.watch.resize(1, play.now, web=True)

    assert play.exit(WEB_SLOT) == [Spawn(WEB_SLOT)]


def test_nothing_is_started_while_stopping():
    play = Play().up()
    play.watch.stopping = True
    for slot in (3, 4):
        play.watch.drained(slot, play.now)
    actions = play.plan() + play.exit(3) + play.exit(4)

    assert actions == [Cover((0,))]
    assert play.watch.due_at() is None


@settings(max_examples=200)
@given(
    st.integers(1, 4),
    st.lists(st.sampled_from(["ready", "exit", "renew", "wait", "resize"]), max_size=40),
    st.randoms(),
)
def test_whatever_happens_each_socket_has_one_reader_or_is_covered(fronts, events, rng: random.Random):
    play = Play(fronts=fronts).up()
    for event in events:
        alive = [w.slot for w in play.watch.wards.values() if w.phase is not Phase.DOWN]
        match event:
            case "ready" if alive:
                play.ready(rng.choice(alive))
            case "exit" if alive:
                play.exit(rng.choice(alive))
            case "renew":
                play.watch.renew(rng.choice(["front", "keeper", "web"]))
            case "resize":
                fronts = rng.randint(1, 4)
                play.watch.resize(fronts, play.now, web=rng.random() < 0.5)
        play.after(rng.choice([0.0, 0.1, 15.0]))
        ready = [w for w in play.watch.wards.values() if w.role == "front" and w.phase is Phase.READY]
        read = sorted(socket for ward in ready for socket in ward.reads)

        assert sorted({*read, *play.watch.covered}) == list(range(fronts))
        assert len(read) == len(set(read))
        assert not set(read) & set(play.watch.covered)


# An upgrade


def taken_over() -> Play:
    """As the new code finds it: a keeper, a front that reads, its standby, and the front that was tried."""
    play = Play(web=False)
    left = [
        Ward(KEEPER_SLOT, "keeper", 0.0, phase=Phase.READY),
        Ward(3, "front", 0.0, phase=Phase.READY),
        Ward(4, "front", 0.0, phase=Phase.READY),
        Ward(5, "front", 0.0, phase=Phase.READY, reads=(0,)),
    ]
    play.watch.adopt(left, [3], play.now, web=False)
    return play


def test_what_an_earlier_supervisor_left_goes_on_as_it_was_until_it_is_renewed():
    play = taken_over()
    play.watch.renew("front")

    assert play.watch.wards[5].reads == (0,)
    assert not play.watch.is_renewed("front")
    assert play.watch.is_renewed("keeper")
    assert play.watch.is_renewed("web")


def test_the_front_that_was_tried_takes_over_and_the_old_standby_waits_until_there_is_another():
    play = taken_over()
    play.watch.renew("front")

    assert play.plan() == [Activate(3, (0,)), Drain(5, 2.0)]
    assert play.exit(5) == [Spawn(5)]
    assert play.ready(5) == [Drain(4, 2.0)]
    assert play.exit(4) == []
    assert play.watch.is_renewed("front")
    assert play.reads() == {3: (0,), 5: ()}


def test_another_number_of_fronts_and_a_web_are_there_after_it():
    play = taken_over()
    play.watch.adopt(list(play.watch.wards.values()), [3], play.now, web=True)

    assert Spawn(WEB_SLOT) in play.plan()
