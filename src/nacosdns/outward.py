"""Outside names on behalf of a front: asks the core what to do, has the upstream edge do it, answers who waits.

Must not know: doors, zones, the keeper. Rules: what the packets of one batch want of the upstreams is done for all of them
together, and at one time, which is read once; a hit is kept for its like as long as it stays the same; every answer is
counted once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from nacosdns.core import dnswire, metrics
from nacosdns.core.errands import PENDING, Deliver, Failed, Hit, Send
from nacosdns.core.model import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from nacosdns.core.errands import Pending
    from nacosdns.core.forwarding import Forwarding
    from nacosdns.core.metrics import Counters
    from nacosdns.core.model import Query, Rcode
    from nacosdns.core.prepared import Prepared
    from nacosdns.ports import Clock, Upstream
    from nacosdns.waiters import Waiter

    Asker = tuple[Query, Waiter, float]  # and when it asked


class Outward:
    """``arm`` is called after everything that may change when something is due."""

    def __init__(
        self, forwarding: Forwarding, prepared: Prepared, clock: Clock, counters: Counters, *, arm: Callable[[], None]
    ) -> None:
        self._forwarding = forwarding
        self._prepared = prepared
        self._clock = clock
        self._counts = counters
        self._arm = arm
        self._read_at: tuple[float, float] | None = None
        self.upstream: Upstream | None = None
        self.unsettled = False

    def __repr__(self) -> str:
        return f"<Outward {self._forwarding!r}>"

    def ask(self, query: Query, waiter: Waiter, packet: bytes = b"", about: tuple[str, ...] = ()) -> bytes | None:
        """The reply if it is there at once; else the waiter gets it.

        ``packet`` came through a door, which set ``prepared.now``; by UDP in a batch that will settle.
        """
        now = self._prepared.now if packet else self._clock.now()
        answer = self._forwarding.ask(query, (query, waiter, now), now)
        if query.over_tcp or not packet:
            self.work()
        else:
            self.unsettled = True
        return None if answer is PENDING else self._at_once(query, answer, packet, about, now)

    def _at_once(
        self, query: Query, answer: Hit | Pending | Failed, packet: bytes, about: tuple[str, ...], now: float
    ) -> bytes | None:
        match answer:
            case Hit(packet=reply, source=source, good_until=until):
                cell = self._cell(query, reply, source.value)
                self._counts[cell] += 1
                if packet and until > now and not query.over_tcp and not (query.edns and query.edns.options):
                    self._prepared.keep_packet(packet, reply, cell=cell, until=until, about=about)
                return reply
            case Failed(rcode=rcode):
                return self._failure(query, rcode)
            case _:
                return None

    def _failure(self, query: Query, rcode: Rcode) -> bytes:
        reply = dnswire.render(query, Answer(rcode=rcode, authoritative=False), size_max=dnswire.size_limit(query))
        self._counts[self._cell(query, reply, "none")] += 1
        return reply

    def _cell(self, query: Query, reply: bytes, source: str) -> int:
        has_answer = 1 if reply[7] or reply[6] else 0
        return metrics.query_cell(source, query.type, reply[3] & 0x0F, has_answer, over_tcp=query.over_tcp)

    def received(self, token: int, packet: bytes) -> bool:
        """The upstream edge has a reply, and will settle. False: not the answer, wait on."""
        if self._read_at is None:
            self._read_at = self._clock.now(), self._clock.wall()
        return self._forwarding.received(token, packet, *self._read_at)

    def failed(self, token: int, reason: str) -> None:
        """The upstream edge could not do it."""
        self._forwarding.failed(token, reason, self._clock.now())

    def hindered(self, token: int, reason: str) -> None:
        """This host did not let the upstream edge do it."""
        self._forwarding.hindered(token, reason, self._clock.now())

    def work(self) -> None:
        """Does what is to be done now, for all who asked since the last time."""
        self.unsettled = False
        self._read_at = None
        upstream = self.upstream
        while work := self._forwarding.take_work():
            now = self._clock.now()
            waited: dict[float, int] = {}  # most asked in the same batch
            for item in work:
                if isinstance(item, Send):
                    if upstream is not None:
                        upstream.send(item.address, item.packet, over_tcp=item.over_tcp, token=item.token)
                elif isinstance(item, Deliver):
                    query, waiter, asked_at = cast("Asker", item.waiter)
                    waited[asked_at] = waited.get(asked_at, 0) + 1
                    outcome = item.outcome
                    if isinstance(outcome, Hit):
                        packet = outcome.packet
                        self._counts[self._cell(query, packet, outcome.source.value)] += 1
                    else:
                        packet = self._failure(query, outcome.rcode)
                    waiter.give(packet)
                elif upstream is not None:
                    upstream.release(item.token)
            for asked_at, times in waited.items():
                self._counts.observe(metrics.SLOW_TIME, int((now - asked_at) * 1e6), times)
        self._arm()
