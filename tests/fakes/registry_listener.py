"""A listener that writes down what a registry says, and can wait for it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nacosdns.core.model import ServiceKey, ServiceView
    from nacosdns.ports import Registry


@dataclass
class Listener:
    """Implements ports.RegistryListener. ``events`` are "connected NAMESPACE", "disconnected NAMESPACE" in order."""

    events: list[str] = field(default_factory=list)
    pushes: list[tuple[ServiceKey, ServiceView]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def connected(self, namespace: str) -> None:
        self.events.append(f"connected {namespace}")
        self._changed.set()

    def disconnected(self, namespace: str) -> None:
        self.events.append(f"disconnected {namespace}")
        self._changed.set()

    def pushed(self, key: ServiceKey, view: ServiceView) -> None:
        self.pushes.append((key, view))
        self.times.append(time.monotonic())
        self._changed.set()

    def latest(self, key: ServiceKey) -> ServiceView | None:
        return next((view for pushed, view in reversed(self.pushes) if pushed == key), None)

    async def until(self, true: Callable[[], bool], within_s: float = 5.0) -> None:
        """Returns when the condition holds; TimeoutError when it does not in time."""
        async with asyncio.timeout(within_s):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def heard(self, event: str, times: int = 1, within_s: float = 5.0) -> None:
        await self.until(lambda: self.events.count(event) >= times, within_s)


@asynccontextmanager
async def running(registry: Registry, *, connected: str = "public") -> AsyncIterator[Listener]:
    """Runs a registry, by default until it is connected, and cancels it at the end."""
    listener = Listener()
    task = asyncio.ensure_future(registry.run(listener))
    try:
        if connected:
            await listener.heard(f"connected {connected}", within_s=10)
        yield listener
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and task.exception():
            task.result()
