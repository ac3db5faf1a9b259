"""Forwarding in virtual time: scripted resolvers, clients that ask, a clock that jumps from one event to the next."""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from dnslib import EDNS0, QTYPE, RCODE, DNSRecord

from fakes.upstream import Script, false_reply
from nacosdns.core import dnswire
from nacosdns.core.errands import Deliver, Failed, ForwardSettings, Hit, Release, Send
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.resolvers import Ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from nacosdns.core.model import Query


def make_query(name: str, rtype: str = "A", **options: int) -> Query:
    """A parsed query. ``payload``: with EDNS of this size; ``do``, ``cd``, ``ad``, ``tcp``: 0 or 1; ``id``."""
    record = DNSRecord.question(name, rtype)
    record.header.id = options.get("id", 4711)
    record.header.cd = options.get("cd", 0)
    record.header.ad = options.get("ad", 0)
    if "payload" in options or "do" in options:
        record.add_ar(EDNS0(udp_len=options.get("payload", 1232), flags="do" if options.get("do") else ""))
    return dnswire.parse_query(bytes(record.pack()), over_tcp=bool(options.get("tcp")))


class Reply:
    """What a client got: ``rcode`` NOERROR …, ``values`` of the answers, and when."""

    def __init__(self, outcome: Hit | Failed, asked_at: float, now: float) -> None:
        self.outcome = outcome
        self.waited_s = now - asked_at
        self.packet = outcome.packet if isinstance(outcome, Hit) else b""
        self.record = DNSRecord.parse(self.packet) if self.packet else None
        self.source = outcome.source.value if isinstance(outcome, Hit) else "none"

    def __repr__(self) -> str:
        return f"<Reply {self.rcode} {self.values} {self.source} after {self.waited_s:.3f} s>"

    @property
    def rcode(self) -> str:
        return RCODE[self.record.header.rcode] if self.record else self.outcome.rcode.name

    @property
    def values(self) -> list[str]:
        return [str(rr.rdata) for rr in self.record.rr] if self.record else []

    @property
    def ttls(self) -> list[int]:
        return [rr.ttl for rr in [*self.record.rr, *self.record.auth]] if self.record else []

    @property
    def is_truncated(self) -> bool:
        return bool(self.record and self.record.header.tc)


class World:
    """Resolvers by address, each a Script; ``rtt_s`` from and to each. Times are seconds from the start."""

    def __init__(self, *addresses: str, settings: ForwardSettings | None = None, own: Ours | None = None) -> None:
        self.now = 0.0
        self.rtt_s = 0.01
        self.servers = {address: Script() for address in addresses}
        self.forwarding = Forwarding(settings or ForwardSettings(), Random(7))
        self.forwarding.set_upstreams(addresses, own or Ours(), self._clock())
        self.packets: list[tuple[str, bytes]] = []
        self.open: dict[int, str] = {}
        self.doubles = 0
        self._replies: dict[int, Reply] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._asked = 0
        self.run(0)

    def __getitem__(self, address: str) -> Script:
        return self.servers[address]

    def _clock(self) -> float:
        return 5000.0 + self.now

    @property
    def wall(self) -> float:
        return 1_700_000_000.0 + self.now

    def start(self, name: str, rtype: str = "A", **options: int) -> int:
        """A client asks; its number, under which ``reply`` has the answer once it came."""
        self._asked += 1
        number, asked_at = self._asked, self.now
        outcome = self.forwarding.ask(make_query(name, rtype, **options), (number, asked_at), self._clock())
        if isinstance(outcome, Hit | Failed):
            self._replies[number] = Reply(outcome, asked_at, self.now)
        self._do_work()
        return number

    def reply(self, number: int) -> Reply | None:
        return self._replies.get(number)

    def ask(self, name: str, rtype: str = "A", **options: int) -> Reply:
        """Asks and lets the time pass until the answer is there."""
        number = self.start(name, rtype, **options)
        while number not in self._replies:
            assert self._step(self.now + 10), f"{name} was never answered: {self.forwarding}"
        return self._replies[number]

    def run(self, seconds: float) -> None:
        """Lets this much time pass."""
        end = self.now + seconds
        while self._step(end):
            pass
        self.now = end

    def ask_every(self, interval_s: float, seconds: float, name: str) -> list[Reply]:
        """Asks in a rhythm; the answers in order."""
        numbers = []
        for _ in range(round(seconds / interval_s)):
            numbers.append(self.start(name))
            self.run(interval_s)
        self.run(3)
        return [self._replies[number] for number in numbers]

    def restore(self, items: tuple[object, ...]) -> int:
        return self.forwarding.outside.restore(items, now=self._clock(), wall=self.wall)

    def counts(self) -> Counter[str]:
        return Counter(
            {name: getattr(self.forwarding.counts, name) for name in self.forwarding.counts.__struct_fields__}
        )

    def _step(self, end: float) -> bool:
        """The next event, if it is not after ``end``."""
        due = self.forwarding.next_due()
        timer = max(due - 5000.0, self.now) if due is not None else float("inf")
        event = self._events[0][0] if self._events else float("inf")
        if min(timer, event) > end:
            return False
        if event <= timer:
            self.now = event
            heapq.heappop(self._events)[2]()
        else:
            self.now = timer
            self.forwarding.tick(max(self._clock(), due or 0.0))
        self._do_work()
        return True

    def _do_work(self) -> None:
        for work in self.forwarding.take_work():
            match work:
                case Send():
                    self.packets.append((work.address, work.packet))
                    self.open[work.token] = work.address
                    self._serve(work)
                case Release():
                    del self.open[work.token]
                case Deliver():
                    number, asked_at = work.waiter
                    self.doubles += number in self._replies
                    self._replies[number] = Reply(work.outcome, asked_at, self.now)

    def _serve(self, send: Send) -> None:
        server = self.servers.get(send.address)
        if server is None or (send.over_tcp and server.tcp == "close"):
            self._after(self.rtt_s, lambda: self._fail(send.token, "refused"))
            return
        query = server.note("tcp" if send.over_tcp else "udp", send.packet, 1024)
        if query is None or server.is_mute or (send.over_tcp and server.tcp == "mute"):
            return
        after_s = self.rtt_s + server.delay_s
        for lie in server.lies if not send.over_tcp else ():
            self._after(after_s, lambda lie=lie: self._hand(send.token, false_reply(lie, query, send.packet)))
        if server.is_truthful or send.over_tcp:
            packet = server.reply(query, over_tcp=send.over_tcp)
            self._after(after_s, lambda: self._hand(send.token, packet))

    def _hand(self, token: int, packet: bytes) -> None:
        if token in self.open and self.forwarding.received(token, packet, self._clock(), self.wall):
            self.open.pop(token, None)

    def _fail(self, token: int, reason: str) -> None:
        if self.open.pop(token, None) is not None:
            self.forwarding.failed(token, reason, self._clock())

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + seconds, self._order, call))


def question_of(packet: bytes) -> str:
    """``name type`` of a query, for assertions."""
    question = DNSRecord.parse(packet).q
    return f"{question.qname} {QTYPE[question.qtype]}"
