"""The end of a bridge in order: fronts and web finish first, then the keeper saves; who does not listen is killed.

Must not know: why it ends. Rule: under 3 s in all, whatever the children do.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from nacosdns.core import frames, watch
from nacosdns.core.watch import Phase
from nacosdns.edge import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from nacosdns.children import Children
    from nacosdns.core.watch import Watch
    from nacosdns.ports import Clock, Log

FRONT_DRAIN_S = 1.2
KEEPER_DRAIN_S = 1.0
DRAIN_GRACE_S = 0.15
KILL_GRACE_S = 0.2


class Stopping:
    """``wake`` has the plan looked at again; ``gone`` is to be called when a child has ended."""

    def __init__(self, watch_: Watch, children: Children, clock: Clock, wake: Callable[[], None]) -> None:
        self._watch = watch_
        self._children = children
        self._clock = clock
        self._wake = wake
        self._gone = asyncio.Event()
        self._log: Log = logs.log()

    def __repr__(self) -> str:
        return f"<Stopping {self._children}>"

    def gone(self) -> None:
        """A child has ended."""
        self._gone.set()

    async def stop(self) -> None:
        """Ends every child."""
        self._log.info("stopping")
        await self._drain(self._children.slots - {watch.KEEPER_SLOT}, FRONT_DRAIN_S)
        await self._drain({watch.KEEPER_SLOT}, KEEPER_DRAIN_S)
        self._log.info("stopped")

    async def _drain(self, slots: set[int], deadline_s: float) -> None:
        for slot in slots & self._children.slots:
            starting = self._watch.wards[slot].phase is Phase.STARTING
            self._watch.drained(slot, self._clock.now())
            if starting or not self._children.tell(slot, frames.Drain(deadline_s)):
                self._children.kill(slot, "is not up")
        self._wake()
        await self._until_gone(slots, deadline_s + DRAIN_GRACE_S)
        for slot in slots & self._children.slots:
            self._children.kill(slot, "did not end")
        await self._until_gone(slots, KILL_GRACE_S)

    async def _until_gone(self, slots: set[int], deadline_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while slots & self._children.slots:
                    self._gone.clear()
                    await self._gone.wait()
