"""Forwarding joined with real sockets: what a front does with them, without clients. For tests and measurements."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import TYPE_CHECKING, Self

from fakes.outside import Reply, make_query
from nacosdns.core.errands import Deliver, Failed, ForwardSettings, Hit, Release, Send
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.resolvers import Ours
from nacosdns.edge.upstream import UpstreamSockets

if TYPE_CHECKING:
    from nacosdns.core.model import Query
    from nacosdns.edge.upstream import Limits


class Forwarder:
    """An asynchronous context manager; ``ask`` waits for the answer."""

    def __init__(
        self,
        *addresses: str,
        settings: ForwardSettings | None = None,
        limits: Limits | None = None,
        own: Ours | None = None,
    ) -> None:
        self._addresses = addresses
        self._own = own or Ours()
        self._limits = limits
        self.forwarding = Forwarding(settings or ForwardSettings(), Random(11))
        self._group = asyncio.TaskGroup()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._loop = asyncio.get_running_loop()
        self.sockets = UpstreamSockets(
            self._received,
            self._failed,
            self._group.create_task,
            hindered=self._hindered,
            settled=self._work,
            limits=self._limits,
        )
        self.set_upstreams(*self._addresses, own=self._own)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.sockets.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._group.__aexit__(*error)

    def set_upstreams(self, *addresses: str, own: Ours | None = None) -> None:
        self.forwarding.set_upstreams(addresses, own or self._own, self._loop.time())
        self._work()

    async def ask(self, name: str, rtype: str = "A", **options: int) -> Reply:
        asked_at = self._loop.time()
        outcome = await self.ask_query(make_query(name, rtype, **options))
        return Reply(outcome, asked_at, self._loop.time())

    async def ask_query(self, query: Query) -> Hit | Failed:
        future: asyncio.Future[Hit | Failed] = self._loop.create_future()
        outcome = self.forwarding.ask(query, future, self._loop.time())
        self._work()
        return outcome if isinstance(outcome, Hit | Failed) else await future

    def _received(self, token: int, packet: bytes) -> bool:
        return self.forwarding.received(token, packet, self._loop.time(), time.time())

    def _failed(self, token: int, word: str) -> None:
        self.forwarding.failed(token, word, self._loop.time())

    def _hindered(self, token: int, reason: str) -> None:
        self.forwarding.hindered(token, reason, self._loop.time())

    def _tick(self) -> None:
        self._timer = None
        self.forwarding.tick(self._loop.time())
        self._work()

    def _work(self) -> None:
        for work in self.forwarding.take_work():
            match work:
                case Send():
                    self.sockets.send(work.address, work.packet, over_tcp=work.over_tcp, token=work.token)
                case Release():
                    self.sockets.release(work.token)
                case Deliver():
                    if not work.waiter.done():
                        work.waiter.set_result(work.outcome)
        self._arm()

    def _arm(self) -> None:
        """One timer, moved only to an earlier time."""
        due = self.forwarding.next_due()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._tick)
