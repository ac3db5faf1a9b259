"""What new code does with the children of the old: one after the other, and no longer than something comes of it."""

from __future__ import annotations

import asyncio

import pytest

from fakes.clock import VirtualLoop
from nacosdns.core import watch
from nacosdns.core.handover import Upgrade
from nacosdns.core.watch import Watch
from nacosdns.upgrading import REPLACE_S, Upgrading

FRONTS = 3


class TakenBridge:
    """A bridge just after new code took its place; a process is ready ``start_s`` after its birth, if it ever is."""

    web_fault = ""

    def __init__(self, now: float) -> None:
        self.watch = Watch(FRONTS, now, web=True)
        for slot in self.watch.wards:
            self.watch.spawned(slot, now)
            self.watch.ready(slot)
        self.watch.plan(now)
        self.born: list[str] = []

    def wake(self) -> None:
        """The plan is looked at all the time."""

    async def live(self, start_s: float, stillborn: str) -> None:
        now = asyncio.get_running_loop().time
        while True:
            for action in self.watch.plan(now()):
                match action:
                    case watch.Drain(slot):
                        self.watch.exited(slot, now())
                    case watch.Spawn(slot):
                        self.watch.spawned(slot, now())
                        self.born.append(role := self.watch.wards[slot].role)
                        await asyncio.sleep(start_s)
                        if role != stillborn:
                            self.watch.ready(slot)
            await asyncio.sleep(0.1)


def finished(start_s: float, stillborn: str = "") -> tuple[Upgrade, list[str]]:
    async def take() -> tuple[Upgrade, list[str]]:
        bridge = TakenBridge(asyncio.get_running_loop().time())
        upgrading = Upgrading(bridge, Upgrade(number=1, state="replacing"), 0)
        living = asyncio.create_task(bridge.live(start_s, stillborn))
        await upgrading.finish()
        living.cancel()
        assert upgrading.last is not None
        return upgrading.last, bridge.born

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(take())


@pytest.mark.parametrize("start_s", [0.5, 0.8 * REPLACE_S])
def test_however_slow_one_start_is_the_next_one_has_its_own_time(start_s):
    last, born = finished(start_s)

    assert last.state == "done", last.reason
    assert born == ["front"] * (FRONTS + 1) + ["keeper", "web"]


@pytest.mark.parametrize("role", ["front", "keeper", "web"])
def test_who_is_not_ready_in_time_is_named_and_nobody_after_it_is_replaced(role):
    last, born = finished(1.0, stillborn=role)

    assert last.state == "failed"
    assert last.reason.startswith(f"the new {role} was not ready within {REPLACE_S:g} s")
    assert born[-1] == role
