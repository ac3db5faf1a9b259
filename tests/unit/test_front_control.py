"""What a front counts of its upstreams for `status`."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from nacosdns.core.errands import ForwardSettings
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.resolvers import Health, ours
from nacosdns.front_control import FrontControl

UP, DOUBTED, DOWN, LOOP = Health


@pytest.mark.parametrize(
    ("seen", "changes", "changed_s"),
    [
        ((DOUBTED, UP, DOUBTED, UP), 0, None),
        ((DOUBTED, DOWN, DOUBTED, UP), 2, 2.0),
        ((DOWN, UP, DOWN), 3, 1.0),
        ((LOOP, UP, UP, UP), 2, 3.0),
        ((DOWN, LOOP), 1, 2.0),
    ],
)
def test_only_what_went_down_or_came_back_is_a_change(
    seen: tuple[Health, ...], changes: int, changed_s: float | None
) -> None:
    clock = SimpleNamespace(at=100.0)
    clock.now = lambda: clock.at
    forwarding = Forwarding(ForwardSettings(), random.Random(1))
    forwarding.set_upstreams(["192.0.2.1"], ours([], []), 0.0)
    (resolver,) = forwarding.resolvers
    nobody: Any = None
    control = FrontControl(nobody, nobody, nobody, forwarding, clock)  # type: ignore[arg-type]
    for health in seen:
        resolver.health = health
        control.changed_upstreams()
        clock.at += 1.0

    assert control.changes_of(resolver.address) == {"changes_10min": changes, "changed_s": changed_s}
