"""Virtual time: a loop whose clock jumps to the next timer when nothing is ready."""

from __future__ import annotations

import asyncio
import selectors

BOOT_S = 1000.0
EPOCH_S = 1_750_000_000.0


class _JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: it moves the loop's clock on by as long as it was told to wait."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing is left to wait for")
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time, which starts at BOOT_S."""

    def __init__(self) -> None:
        self.now = BOOT_S
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class VirtualClock:
    """ports.Clock on a VirtualLoop. ``wall_jump_s`` sets the wall clock off."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.wall_jump_s = 0.0

    def now(self) -> float:
        return self._loop.now

    def wall(self) -> float:
        return EPOCH_S + self._loop.now + self.wall_jump_s
