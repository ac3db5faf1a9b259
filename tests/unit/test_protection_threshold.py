"""Nacos' protection threshold (S28): what the flag of a list means for the instances that count, by server generation.

Nacos 2.x marks all instances healthy when it is reached; others set the flag and leave each instance's own health.
"""

from __future__ import annotations

import pytest

from nacosdns.core import answers
from nacosdns.core.model import Instance, NoneHealthy, Policy, ServiceKey, Snapshot

KEY = ServiceKey("public", "DEFAULT_GROUP", "s")


def count(healthy: int, *, reached: bool, policy: Policy | None = None) -> int:
    """How many of ten instances count when so many are marked healthy."""
    listed = tuple(Instance(f"10.0.0.{number}", 80, healthy=number <= healthy) for number in range(1, 11))
    snapshot = Snapshot(KEY, listed, threshold_reached=reached)

    return len(answers.choose(snapshot, policy or Policy()).instances)


def test_above_the_threshold_the_healthy_ones_count() -> None:
    assert count(6, reached=False) == 6


def test_below_it_all_count_that_the_server_marks_healthy() -> None:
    assert count(10, reached=True) == 10


def test_below_it_all_count_though_the_server_leaves_their_own_health() -> None:
    assert count(5, reached=True) == 10


@pytest.mark.parametrize(
    ("none_healthy", "wanted"), [(NoneHealthy.ALL, 10), (NoneHealthy.NODATA, 0), (NoneHealthy.LAST, 10)]
)
def test_none_healthy_and_no_threshold_is_what_the_policy_says(none_healthy: NoneHealthy, wanted: int) -> None:
    assert count(0, reached=False, policy=Policy(none_healthy=none_healthy)) == wanted


def test_a_primary_that_is_sick_is_never_served() -> None:
    assert count(0, reached=False, policy=Policy(primary=True)) == 0
