"""The end of a bridge, in virtual time: what no machine is too slow for."""

from __future__ import annotations

import asyncio
import math

import pytest

from fakes.clock import VirtualClock, VirtualLoop
from nacosdns.core import frames
from nacosdns.core.watch import KEEPER_SLOT, WEB_SLOT, Phase, Watch
from nacosdns.stopping import Stopping

END_S = 3.0
FRONT_SLOTS = {3, 4, 5}


class Household:
    """Children that end ``drain_s`` after they are told to, or when they are killed."""

    def __init__(self, watch: Watch, drain_s: dict[int, float]) -> None:
        self.slots = set(watch.wards)
        self.said: list[tuple[str, int]] = []
        self.gone = lambda: None
        self._drain_s = drain_s

    def tell(self, slot: int, frame: frames.ChannelFrame) -> bool:
        assert isinstance(frame, frames.Drain)
        self.said.append(("drain", slot))
        drain_s = self._drain_s.get(slot, 0.3)
        if drain_s < math.inf:
            asyncio.get_running_loop().call_later(drain_s, self._end, slot)
        return True

    def kill(self, slot: int, reason: str) -> None:
        self.said.append((reason, slot))
        asyncio.get_running_loop().call_soon(self._end, slot)

    def _end(self, slot: int) -> None:
        if slot in self.slots:
            self.said.append(("gone", slot))
            self.slots.remove(slot)
            self.gone()


def stopped(drain_s: dict[int, float], starting: int = -1) -> tuple[float, Household]:
    """How long it took, and what came to pass."""

    async def stop(loop: VirtualLoop) -> tuple[float, Household]:
        watch = Watch(2, loop.time(), web=True)
        for slot in watch.wards:
            watch.spawned(slot, loop.time())
            if slot != starting:
                watch.ready(slot)
        household = Household(watch, drain_s)
        stopping = Stopping(watch, household, VirtualClock(loop), lambda: None)
        household.gone = stopping.gone
        began = loop.time()
        await stopping.stop()
        assert all(ward.phase is Phase.DRAINING for ward in watch.wards.values())
        return loop.time() - began, household

    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(stop(loop))


def test_the_keeper_saves_after_everybody_else_has_finished():
    took_s, household = stopped({})

    assert took_s == pytest.approx(0.6)
    assert household.slots == set()
    assert {slot for _, slot in household.said[:8]} == FRONT_SLOTS | {WEB_SLOT}
    assert household.said[8:] == [("drain", KEEPER_SLOT), ("gone", KEEPER_SLOT)]


@pytest.mark.parametrize("deaf", [{KEEPER_SLOT}, {WEB_SLOT}, FRONT_SLOTS, {KEEPER_SLOT, WEB_SLOT, *FRONT_SLOTS}])
def test_who_does_not_listen_is_killed_and_all_of_it_is_over_in_three_seconds(deaf):
    took_s, household = stopped(dict.fromkeys(deaf, math.inf))

    assert took_s < END_S
    assert household.slots == set()
    assert {slot for word, slot in household.said if word == "did not end"} == deaf


def test_who_is_not_up_is_not_waited_for():
    took_s, household = stopped({4: math.inf}, starting=4)

    assert took_s < 1.0
    assert ("is not up", 4) in household.said
