"""Whether clients are answered: a canary through the real sockets, each second, and what follows from it.

Must not know: how a front is replaced, what systemd is. Rules: every address that is there is asked in its turn; a front
that is alive but answers nothing is told of (core/silence.py); an address that the host does not have blames nobody.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING

from nacosdns.core import metrics
from nacosdns.core.silence import ASKED_A_FRONT, Silence
from nacosdns.edge import canary
from nacosdns.edge.clock import next_multiple

if TYPE_CHECKING:
    from collections.abc import Callable

    from nacosdns.children import Children
    from nacosdns.edge.sockets import Endpoint, Listeners
    from nacosdns.ports import Clock

CANARY_S = 1.0
FLUSH_S = 0.6
"""In this time every living front has brought its counters to its page."""
_NS = 1_000_000_000


class Vigil:
    """``present`` are the addresses of this host as text; empty where they cannot be known."""

    def __init__(
        self,
        listeners: Listeners,
        children: Children,
        clock: Clock,
        *,
        counters: metrics.Counters,
        present: set[str],
        silent: Callable[[int], None],
    ) -> None:
        self._present = present
        self._listeners = listeners
        self._children = children
        self._clock = clock
        self._counters = counters
        self._silent = silent
        self._silence = Silence()
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Vigil {self._silence}>"

    async def run(self, told: Callable[[float], None]) -> None:
        """Asks for ever; ``told`` hears after each second how long ago the canary was answered (0: nothing to ask)."""
        while True:
            await next_multiple(CANARY_S)
            endpoints = self._endpoints()
            if endpoints and self._children.answers():
                self._turn += 1
                await self._ask(endpoints[self._turn % len(endpoints)])
            told(self.age_s() if endpoints else 0.0)

    def age_s(self) -> float:
        """How long ago the canary was answered; infinite when never."""
        answered_ns = self._children.own.canary_ns
        return (self._now_ns() - answered_ns) / _NS if answered_ns else float("inf")

    def _endpoints(self) -> list[Endpoint]:
        """The addresses that can be asked now."""
        return [
            endpoint
            for endpoint in self._listeners.wanted
            if endpoint not in self._listeners.late and self._is_present(endpoint.local.host)
        ]

    def _is_present(self, host: str) -> bool:
        bare = host.partition("%")[0]
        return not self._present or bare in self._present or ipaddress.ip_address(bare).is_loopback

    async def _ask(self, endpoint: Endpoint) -> None:
        good = await canary.answered(endpoint.local.host, endpoint.port)
        self._counters[metrics.CANARY.index("answered" if good else "lost")] += 1
        if good:
            self._children.own.canary_answered(self._now_ns())
            self._silence.answered(self._clock.now())
        else:
            self._silence.lost()
        if self._silence.in_doubt:
            await self._doubt(endpoint)

    async def _doubt(self, endpoint: Endpoint) -> None:
        """Asks so often that every front is asked, and looks at who answered nothing at all meanwhile."""
        before = self._children.answers()
        asked = (canary.answered(endpoint.local.host, endpoint.port) for _ in range(ASKED_A_FRONT * len(before)))
        await asyncio.gather(*asked)
        await asyncio.sleep(FLUSH_S)
        slot = self._silence.judge(self._clock.now(), before, self._children.answers())
        if slot is not None:
            self._silent(slot)

    def _now_ns(self) -> int:
        return int(self._clock.now() * _NS)
