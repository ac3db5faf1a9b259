"""Outside names on behalf of a front: asks the core what to do, has the upstream edge do it, answers who waits.

Must not know: doors, zones, the keeper. Rules: what the packets of one batch want of the upstreams is done for all of them
together; a hit is kept for its like as long as it stays the same; every answer is counted once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.core import dnswire, metrics
from nacosdns.core.errands import Deliver, Failed, Hit, Pending, Release, Send
from nacosdns.core.model import Answer
from nacosdns.waiters import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from nacosdns.core.forwarding import Forwarding
    from nacosdns.core.metrics import Counters
    from nacosdns.core.model import Query, Rcode
    from nacosdns.core.prepared import Prepared
    from nacosdns.ports import Clock, Upstream
    from nacosdns.waiters import Waiter


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
        self.upstream: Upstream | None = None
        self.unsettled = False

    def __repr__(self) -> str:
        return f"<Outward {self._forwarding!r}>"

    def ask(self, query: Query, waiter: Waiter, packet: bytes = b"", about: tuple[str, ...] = ()) -> bytes | None:
        """The reply if it is there at once; else the waiter gets it. ``packet`` came by UDP, in a batch that will settle."""
        now = self._clock.now()
        answer = self._forwarding.ask(query, Question(query, waiter, now), now)
        if query.over_tcp or not packet:
            self.work()
        else:
            self.unsettled = True
        match answer:
            case Hit(packet=reply, source=source, good_until=until):
                cell = self._count(query, reply, source.value)
                if packet and until > now and not query.over_tcp and not (query.edns and query.edns.options):
                    self._prepared.keep_packet(packet, reply, cell=cell, until=until, about=about)
                return reply
            case Failed(rcode=rcode):
                return self._failure(query, rcode)
            case Pending():
                return None

    def _failure(self, query: Query, rcode: Rcode) -> bytes:
        reply = dnswire.render(query, Answer(rcode=rcode, authoritative=False), size_max=dnswire.size_limit(query))
        self._count(query, reply, "none")
        return reply

    def _count(self, query: Query, reply: bytes, source: str) -> int:
        answers = int.from_bytes(reply[6:8], "big")
        cell = metrics.query_cell(source, query.type, reply[3] & 0x0F, answers, over_tcp=query.over_tcp)
        self._counts[cell] += 1
        return cell

    def received(self, token: int, packet: bytes) -> bool:
        """The upstream edge has a reply. False: not the answer, wait on."""
        return self._forwarding.received(token, packet, self._clock.now(), self._clock.wall())

    def failed(self, token: int, reason: str) -> None:
        """The upstream edge could not do it."""
        self._forwarding.failed(token, reason, self._clock.now())

    def work(self) -> None:
        """Does what is to be done now, for all who asked since the last time."""
        self.unsettled = False
        while work := self._forwarding.take_work():
            for item in work:
                match item:
                    case Send(token=token, address=address, packet=packet, over_tcp=over_tcp):
                        if self.upstream is not None:
                            self.upstream.send(address, packet, over_tcp=over_tcp, token=token)
                    case Release(token=token):
                        if self.upstream is not None:
                            self.upstream.release(token)
                    case Deliver(waiter=waiter, outcome=outcome):
                        self._deliver(waiter, outcome)
        self._arm()

    def _deliver(self, question: object, outcome: Hit | Failed) -> None:
        assert isinstance(question, Question)
        query = question.query
        self._counts.observe(metrics.SLOW_TIME, int((self._clock.now() - question.started) * 1e6))
        if isinstance(outcome, Hit):
            packet = outcome.packet
            self._count(query, packet, outcome.source.value)
        else:
            packet = self._failure(query, outcome.rcode)
        question.waiter.give(packet)
