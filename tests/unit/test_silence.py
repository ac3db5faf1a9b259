from __future__ import annotations

import itertools

from nacosdns.core.silence import PAUSE_MIN_S, Silence


def rounds(silence: Silence, now: float, before: dict[int, int], after: dict[int, int]) -> int | None:
    """Lost canaries until somebody is to blame, three rounds at most."""
    for second in range(3):
        silence.lost()
        slot = silence.judge(now + second, before, after)
        if slot is not None:
            return slot
    return None


def test_one_lost_canary_blames_nobody():
    silence = Silence()
    silence.lost()

    assert silence.in_doubt
    assert silence.judge(0.0, {3: 7}, {3: 7}) is None


def test_a_front_that_answers_nothing_for_two_rounds_is_to_blame():
    assert rounds(Silence(), 0.0, {3: 7}, {3: 7}) == 3


def test_of_two_fronts_the_silent_one_is_to_blame():
    assert rounds(Silence(), 0.0, {3: 7, 5: 1}, {3: 15, 5: 1}) == 5


def test_a_front_that_answers_others_is_overloaded_and_not_silent():
    silence = Silence()

    assert rounds(silence, 0.0, {3: 7}, {3: 9000}) is None
    assert not silence.in_doubt


def test_a_front_that_took_over_meanwhile_is_not_to_blame():
    assert rounds(Silence(), 0.0, {3: 7}, {5: 0}) is None


def test_when_a_replacement_does_not_help_the_next_one_waits_ever_longer():
    silence = Silence()
    killed = [now for now in range(100) if rounds(silence, float(now), {3: 7}, {3: 7})]
    gaps = [second - first for first, second in itertools.pairwise(killed)]

    assert gaps[0] >= PAUSE_MIN_S - 3
    assert all(second > first for first, second in itertools.pairwise(gaps))
    silence.answered(10_000.0)
    assert rounds(silence, 10_001.0, {3: 7}, {3: 7}) == 3
    assert rounds(silence, 10_001.0 + PAUSE_MIN_S + 1, {3: 7}, {3: 7}) == 3
