"""Conductor 3: answers. Takes questions from the doors, holds those that wait for the keeper or an upstream.

Must not know: gRPC, the SDK, how frames and packets travel. Rules: what can be answered is answered in the same turn;
nothing that the keeper, the link, the disk or an upstream does delays that; whoever waits gets an answer by its
deadline; a fault of ours is SERVFAIL, one log line and a counter.
"""

from __future__ import annotations

import asyncio
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

from nacosdns.core import dnswire, metrics
from nacosdns.core.composing import Reply
from nacosdns.core.dnsname import name_text
from nacosdns.core.dnsreply import answer_records, negative_soa
from nacosdns.core.frames import (
    Externals,
    LookedUp,
    Lookup,
    Names,
    Reachable,
    Removed,
    Synced,
    Updates,
)
from nacosdns.core.held import Held
from nacosdns.core.model import Rcode
from nacosdns.core.pipeline import Chase, Forward, Search
from nacosdns.core.pipeline import Lookup as NeedsLookup
from nacosdns.core.querylog import QueryLog
from nacosdns.core.spelling import folded_of
from nacosdns.errors import WireError
from nacosdns.outward import Outward
from nacosdns.renewing import Renewing
from nacosdns.searching import Searcher
from nacosdns.teller import Teller
from nacosdns.waiters import ChaseWaiter, LoggedWaiter, Question, TcpWaiter, UdpWaiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nacosdns.core.book import Book
    from nacosdns.core.forwarding import Forwarding
    from nacosdns.core.frames import (
        Hello,
        Known,
        LinkFrame,
    )
    from nacosdns.core.metrics import Counters
    from nacosdns.core.model import Query, Record, ServiceKey
    from nacosdns.core.pipeline import Outcome, Pipeline
    from nacosdns.edge.tcp import Connection
    from nacosdns.edge.udp import Client, UdpDoor
    from nacosdns.ports import Clock, Link, Log, Upstream
    from nacosdns.waiters import Waiter

CHASE_DEPTH_MAX = 4
_RESPONSE, _NO_QUERY = 0x80, 0xF8  # of a packet's third byte: QR, and the opcode too


class Front:
    """Answers. Doors call ``slow`` and ``asked``; the link's client calls the LinkListener methods."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        book: Book,
        forwarding: Forwarding,
        clock: Clock,
        counters: Counters,
        log: Log,
        find_on_disk: Callable[[tuple[ServiceKey, ...]], bool] = lambda _: False,
    ) -> None:
        self._pipeline = pipeline
        self._find_on_disk = find_on_disk
        self._book = book
        self._renewing = Renewing(book, log)
        self._forwarding = forwarding
        self._clock = clock
        self.counts = counters
        self.batches = [0] * len(metrics.BATCH_TIME)
        self._log = log
        self.teller = Teller(book, counters, take_asked=self._take_asked, take_learned=forwarding.outside.learned)
        self._outward = Outward(forwarding, book.prepared, clock, counters, arm=self._arm)
        self.received, self.failed = self._outward.received, self._outward.failed
        self._held: Held[Question] = Held()
        self._searcher: Searcher[Question] = Searcher(book, partial(self._land, again=True))
        self._query_log = QueryLog("off")
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._complained_at = 0.0
        self.synced = False
        self.hindrance = ("", 0.0)
        """What this host did not let us do last, and when."""
        self.unlinked_at = clock.now()
        """When the keeper went, or we began without it."""
        self.heard_at = clock.now()
        """When the keeper said something last."""
        self.problems: dict[str, str] = {}
        """By namespace: what keeps the keeper from hearing of it, ``""`` when nothing does."""

    def __repr__(self) -> str:
        return f"<Front {self._held!r} linked={self.teller.link is not None} {self._book!r} {self._forwarding!r}>"

    @property
    def linked(self) -> bool:
        """Whether the keeper is there."""
        return self.teller.link is not None

    def use_upstream(self, upstream: Upstream) -> None:
        """The edge that carries forwarded questions."""
        self._outward.upstream = upstream

    def use_query_log(self, query_log: QueryLog) -> None:
        """Which queries are logged; when it must see them all, none is answered from what is prepared."""
        self._query_log = query_log
        self._book.prepared.switch(on=not query_log.sees_everything)

    def use_pipeline(self, pipeline: Pipeline) -> None:
        """A new configuration: everything is rendered anew by it."""
        pipeline.take_over(self._pipeline)
        self._pipeline = pipeline
        self._book.prepared.drop_all()

    # --- the doors

    def slow(self, packet: bytes, client: Client, door: UdpDoor) -> bytes | None:
        """A packet by UDP that no prepared reply fits: the whole reply, or None (dropped, or given later)."""
        return self._take(packet, UdpWaiter(door, client), client=client.address, over_tcp=False)

    def asked(self, packet: bytes, address: bytes, connection: Connection) -> None:
        """A message by TCP."""
        waiter = TcpWaiter(connection)
        reply = self._prepared_for_tcp(packet, address) or self._take(packet, waiter, client=address, over_tcp=True)
        if reply is not None:
            waiter.give(reply)

    def _prepared_for_tcp(self, packet: bytes, address: bytes) -> bytes | None:
        if not self._pipeline.admits(address):
            return None
        prepared = self._book.prepared
        prepared.begin(self._clock.now())
        try:
            reply = prepared.for_tcp(packet[2:])
        except Exception:  # noqa: BLE001  # a balancer's fault, which may be a stranger's
            return self._surprise(packet, None)
        prepared.retired.clear()
        if reply is None:
            return None
        self.counts[prepared.cell + metrics.UDP_TO_TCP] += 1
        self.counts[metrics.CUT_ANSWERS.first] += prepared.cut
        return packet[:2] + reply

    def count_batches(self) -> None:
        """Counts the batches that the UDP doors read since the last time."""
        for offset, times in enumerate(self.batches):
            self.counts[metrics.BATCH_TIME.first + offset] += times
            self.batches[offset] = 0

    def surprised(self, packet: bytes) -> bytes | None:
        """A door could not make a prepared reply."""
        return self._surprise(packet, None)

    def dropped(self, reason: str) -> None:
        self.counts[metrics.DROPPED.index(reason)] += 1

    def closed_for_room(self) -> None:
        self.counts[metrics.TCP_CLOSED.first] += 1

    def hindered_here(self, reason: str) -> None:
        """This host did not let a door or the upstream edge do its work: no descriptor, no memory, a firewall."""
        self.hindrance = (reason, self._clock.now())

    def hindered(self, token: int, reason: str) -> None:
        """So it is, and a question to an upstream did not leave."""
        self.hindered_here(reason)
        self._outward.hindered(token, reason)

    def _take(self, packet: bytes, waiter: Waiter, *, client: bytes, over_tcp: bool) -> bytes | None:
        try:
            if len(packet) < 12 or packet[2] & _NO_QUERY:
                return self._refuse(packet, waiter, over_tcp=over_tcp)
            try:
                query = dnswire.parse_query(packet, over_tcp=over_tcp, client=client)
            except WireError:
                return self._error(packet, Rcode.FORMERR, over_tcp=over_tcp)
            if self._query_log:
                return self._decide_logged(packet, query, waiter)
            if self._pipeline.is_plainly_foreign(query):
                return self._outward.ask(query, waiter, packet)
            return self._decide(packet, query, waiter)
        except Exception:  # noqa: BLE001  # a surprise must not take the others' answers with it
            return self._surprise(packet, waiter)

    def _refuse(self, packet: bytes, waiter: Waiter, *, over_tcp: bool) -> bytes | None:
        """What is no query: a fragment or a response is dropped, another opcode is not implemented."""
        if len(packet) >= 12 and not packet[2] & _RESPONSE:
            return self._error(packet, Rcode.NOTIMP, over_tcp=over_tcp)
        self.dropped("short" if len(packet) < 12 else "response")
        if over_tcp:
            waiter.give(None)
        return None

    def _decide_logged(self, packet: bytes, query: Query, waiter: Waiter) -> bytes | None:
        note = partial(self._log_query, query, self._clock.now())
        reply = self._decide(packet, query, LoggedWaiter(waiter, note))
        if reply is not None:
            note(reply)
        return reply

    def _outcome(self, query: Query) -> Outcome:
        """What is decided now; the keeper hears which services are asked for."""
        outcome = self._pipeline.decide(query, self._clock.now(), self._clock.wall())
        if self._pipeline.asked:
            self.teller.note(urgent=self._pipeline.urgent)
        return outcome

    def _decide(self, packet: bytes, query: Query, waiter: Waiter) -> bytes | None:
        outcome = self._outcome(query)
        if isinstance(outcome, Forward):
            return self._outward.ask(query, waiter, packet, outcome.about)
        if isinstance(outcome, Reply) and outcome.until > 0 and not query.over_tcp and not outcome.packet[2] & 0x02:
            self._book.prepared.keep_reply(
                query, outcome.packet, cell=outcome.cell, until=outcome.until, about=outcome.about
            )
        return self._act(query, outcome, waiter)

    def _log_query(self, query: Query, began: float, reply: bytes | None) -> None:
        if reply is None or not self._query_log.wants(reply[3] & 0x0F):
            return
        self._log.info(
            "query",
            name=name_text(query.name),
            type=metrics.type_word(query.type) if query.type in metrics.TYPE_WORDS else query.type,
            rcode=metrics.rcode_word(reply[3] & 0x0F, int.from_bytes(reply[6:8], "big")),
            client=client_text(query.client),
            door="tcp" if query.over_tcp else "udp",
            took_ms=round((self._clock.now() - began) * 1000, 3),
        )

    def _error(self, packet: bytes, rcode: Rcode, *, over_tcp: bool) -> bytes:
        self.counts[metrics.query_cell("none", 0, rcode, over_tcp=over_tcp)] += 1
        return dnswire.error_reply(packet, rcode)

    def _surprise(self, packet: bytes, waiter: Waiter | None) -> bytes | None:
        self.counts[metrics.SURPRISES.first] += 1
        now = self._clock.now()
        if now - self._complained_at > 1.0:
            self._complained_at = now
            self._log.exception("query.surprise", packet=packet[:512].hex())
        try:
            return dnswire.error_reply(packet, Rcode.SERVFAIL)
        except WireError:
            if waiter is not None:
                waiter.give(None)
            return None

    # --- outcomes

    def ask(self, query: Query, waiter: Waiter) -> bytes | None:
        """Decides a parsed question and does it. The reply if it is there at once; else the waiter gets it."""
        return self._act(query, self._outcome(query), waiter)

    def _act(self, query: Query, outcome: Outcome, waiter: Waiter) -> bytes | None:
        match outcome:
            case Reply():
                self.counts[outcome.cell] += 1
                self.counts[metrics.CUT_ANSWERS.first] += outcome.cut
                return outcome.packet
            case NeedsLookup():
                return self._hold(query, outcome, waiter)
            case Forward():
                return self._outward.ask(query, waiter)
            case Chase():
                return self._chase(query, outcome, waiter)
            case Search(address=address):
                waits = self._searcher.wait(address, Question(query, waiter, self._clock.now()))
                return None if waits else self._failure(query)

    def _failure(self, query: Query) -> bytes:
        reply = self._pipeline.failure(query)
        self.counts[reply.cell] += 1
        return reply.packet

    def _otherwise(self, query: Query, otherwise: Reply | Chase | None, waiter: Waiter) -> bytes | None:
        return self._failure(query) if otherwise is None else self._act(query, otherwise, waiter)

    def _chase(self, query: Query, chase: Chase, waiter: Waiter) -> bytes | None:
        """Asks for what the alias points at, in our zones or outside."""
        if waiter.depth >= CHASE_DEPTH_MAX:
            return self._failure(query)
        complete = partial(self._complete, query, chase.alias)
        packet = self.ask(chase.question, ChaseWaiter(complete, waiter))
        return None if packet is None else complete(packet)

    def _complete(self, query: Query, alias: Record, packet: bytes | None) -> bytes:
        """The whole answer of a service with host names, from the reply to the question behind its alias."""
        if packet is None or packet[3] & 0x0F not in {Rcode.NOERROR, Rcode.NXDOMAIN}:
            return self._failure(query)
        try:
            chased, soa = answer_records(packet), negative_soa(packet)
        except WireError:
            return self._failure(query)
        return self._pipeline.compose(query, alias, chased, Rcode(packet[3] & 0x0F), soa).packet

    # --- look-ups

    def _hold(self, query: Query, need: NeedsLookup, waiter: Waiter) -> bytes | None:
        """Keeps the question until the keeper has found out, at most for its patience."""
        if not self._held.has_room(query.client):
            self.counts[metrics.LOOKUPS.index("refused")] += 1
            return self._otherwise(query, need.otherwise, waiter)
        if need.otherwise is None and self._find_on_disk(need.keys):
            return self._act(query, self._outcome(query), waiter)
        if need.otherwise is not None and self.teller.link is None:
            return self._otherwise(query, need.otherwise, waiter)  # nobody is there who could know better in time
        now = self._clock.now()
        question = Question(query, waiter, now, need.otherwise)
        is_first = self._held.add(need.keys, question, now=now, patience_s=need.patience_s, client=query.client)
        if is_first and self.teller.link is not None:
            self.teller.link.send(Lookup(need.keys))
        self._arm()
        return None

    def _looked_up(self, keys: tuple[ServiceKey, ...], outcome: str) -> None:
        self._renewing.settle(keys)
        if outcome == "missing":
            self._pipeline.missed(keys, self._clock.now())
        flight = self._held.take(keys)
        if flight is not None:
            self.counts[metrics.LOOKUPS.index(outcome)] += 1
            self.counts.observe(metrics.SLOW_TIME, int((self._clock.now() - flight.started) * 1e6))
            self._land(flight.items, again=outcome in {"found", "missing"})

    def _land(self, questions: Iterable[Question], *, again: bool) -> None:
        """Answers those who waited: decided again with what is known now, or with what there was."""
        for question in questions:
            try:
                packet = self._answer_held(question, again=again)
            except Exception:  # noqa: BLE001  # a surprise must not take the others' answers with it
                packet = self._surprise(question_packet(question.query), question.waiter)
            if packet is not None:
                question.waiter.give(packet)

    def known_more(self) -> None:
        """More was read from the disk: who waits for it is answered."""
        for keys in self._held:
            known = any(self._book.find(folded_of(key), key.service) is not None for key in keys)
            if known and (flight := self._held.take(keys)) is not None:
                self._land(flight.items, again=True)

    def _answer_held(self, question: Question, *, again: bool) -> bytes | None:
        query, waiter = question.query, question.waiter
        if not again:
            return self._otherwise(query, question.otherwise, waiter)
        outcome = self._outcome(query)
        if isinstance(outcome, NeedsLookup):
            return self._otherwise(query, outcome.otherwise, waiter)
        return self._act(query, outcome, waiter)

    # --- upstreams

    @property
    def unsettled(self) -> bool:
        """Whether packets of this batch want something of the upstreams."""
        return self._outward.unsettled

    def settle(self) -> None:
        """A UDP door has read its batch: what its packets want of the upstreams is done for all of them together."""
        self._outward.work()

    def settled(self) -> None:
        """The upstream edge has told all it has at the moment."""
        self._outward.work()
        self.teller.learned()

    # --- time

    def _arm(self) -> None:
        dues = [due for due in (self._forwarding.next_due(), self._held.next_due()) if due is not None]
        if not dues or (self._timer is not None and self._timer_at <= min(dues)):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = min(dues)
        self._timer = asyncio.get_running_loop().call_later(max(self._timer_at - self._clock.now(), 0.0), self._tick)

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        now = self._clock.now()
        for flight in self._held.expired(now):
            self.counts[metrics.LOOKUPS.index("timeout")] += 1
            self._land(flight.items, again=False)
        self._forwarding.tick(now)
        self._outward.work()

    def start(self) -> None:
        """Begins to look after upstreams and time."""
        self._tick()

    # --- the keeper (LinkListener)

    def joined(self, link: Link, peer: Hello) -> None:
        self._log.info("link.joined", role=peer.role, epoch=peer.epoch)
        self.counts[metrics.LINK_RECONNECTS.first] += 1
        for keys in self._held:
            link.send(Lookup(keys))
        self.teller.joined(link)

    def left(self, link: Link) -> None:
        if self.teller.link is link:
            self.teller.left()
            self.unlinked_at = self._clock.now()
            self.counts[metrics.LINK_DROPS.first] += 1

    def drained(self, link: Link) -> None:
        """Nothing is held back for the keeper but what the next timer sends."""
        del link

    def heard(self, link: Link, frame: LinkFrame) -> None:
        """A frame of the keeper."""
        self.heard_at = self._clock.now()
        match frame:
            case Updates(items=items):
                self._update(items)
            case Removed(key=key):
                self._renewing.remove(key)
            case LookedUp(keys=keys, outcome=outcome):
                self._looked_up(keys, outcome)
            case Reachable(namespace=namespace, up=up, problem=problem):
                self._pipeline.reachable(namespace, up=up)
                self.problems[namespace] = problem
            case Names():
                self._pipeline.listed(frame)
            case Externals(items=items):
                self._forwarding.outside.restore(items, now=self._clock.now(), wall=self._clock.wall())
            case Synced():
                self.synced = True
                self.teller.tell_unmentioned()
            case _:
                self._log.warning("link.unexpected_frame", frame=type(frame).__name__)

    def _update(self, items: Iterable[Known]) -> None:
        for known in items:
            self._renewing.update(known)
            self._pipeline.appeared(known.key)
            self.teller.mentioned(known.key)

    def _take_asked(self) -> list[ServiceKey]:
        keys = self._book.keys_of(self._pipeline.asked)
        self._pipeline.asked.clear()
        self._pipeline.urgent = False
        return keys

    # --- ends

    def busy(self) -> bool:
        """Whether somebody still waits for an answer."""
        return len(self._held) > 0 or self._forwarding.status(self._clock.now()).waiters > 0

    def close(self) -> None:
        """Cancels every timer."""
        self.teller.close()
        self._renewing.close()
        if self._timer is not None:
            self._timer.cancel()


def client_text(client: bytes) -> str:
    """A client's raw address as text."""
    return str(ip_address(client)) if client else "-"


def question_packet(query: Query) -> bytes:
    """A query's header and question, for an error reply when the packet itself is gone."""
    return query.id.to_bytes(2, "big") + query.flags.to_bytes(2, "big") + b"\0\1\0\0\0\0\0\0" + query.question
