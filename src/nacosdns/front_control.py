"""What an operator asks of a front: a question with its why, the cache of outside names, its state.

Must not know: the control socket. Rule: a question goes the way of a client's question, doors excepted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from nacosdns.core import dnsname, metrics
from nacosdns.core.book import service_of
from nacosdns.core.composing import CANARY
from nacosdns.core.dnsreply import negative_soa
from nacosdns.core.frames import Asked
from nacosdns.core.model import Edns, Query, Rcode, RecordType, Source, rcode_text, type_text
from nacosdns.core.outside import question_key
from nacosdns.core.pipeline import NEVER_ANSWERED
from nacosdns.core.resolvers import NOBODY, Health
from nacosdns.errors import ControlError, UsageError, WireError
from nacosdns.waiters import CommandWaiter

if TYPE_CHECKING:
    from nacosdns.core.book import Book
    from nacosdns.core.forwarding import Forwarding
    from nacosdns.core.metrics import Counters
    from nacosdns.core.model import Snapshot
    from nacosdns.core.pipeline import Pipeline
    from nacosdns.front import Front
    from nacosdns.ports import Clock

LISTED_MAX = 10_000
PATIENCE_S = 0.8
"""So long `ask` waits for what must be looked up; whoever asked us hears nothing after a second."""
SILENT_S = 0.15
"""So long the keeper may take to read what it is told."""
LOOK_S = 0.005
HINDERED_S = 10.0
"""What this host did not let us do counts so long, for it is not known when it would."""
CHANGES_WITHIN_S = 600.0
_NOT_ASKED = frozenset({Health.DOWN.value, Health.LOOP.value})
_OFFERED = [kind.name for kind in RecordType if kind not in NEVER_ANSWERED]


def parse_question(name: str, qtype: str) -> Query:
    """A question as a person writes it. UsageError says what is wrong with it."""
    try:
        wire = dnsname.text_name(name)
    except WireError as error:
        raise UsageError(f"{name!r} is not a DNS name: {error}") from error
    word = qtype.upper()
    number = word.removeprefix("TYPE")
    if word in RecordType.__members__:
        kind = int(RecordType[word])
    elif number.isdigit() and int(number) < 65536:
        kind = int(number)
    else:
        raise UsageError(f"{qtype!r} is not a record type: use {', '.join(_OFFERED)} or TYPE123")
    question = wire + kind.to_bytes(2, "big") + b"\x00\x01"
    return Query(
        1,
        0x0100,
        question,
        dnsname.fold(wire),
        kind,
        edns=Edns(65535),
        over_tcp=True,
    )


_SILENT = "the keeper does not answer (see `nacosdns status`)"


class FrontControl:
    """The front's half of `ask`, `cache` and `status`. ``wants_upstreams``: whether any are configured."""

    def __init__(self, front: Front, pipeline: Pipeline, book: Book, forwarding: Forwarding, clock: Clock) -> None:
        self._front = front
        self._pipeline = pipeline
        self._book = book
        self._forwarding = forwarding
        self._clock = clock
        self._totals = metrics.Totals()
        self._health: dict[str, str] = {}
        self._changes: dict[str, deque[float]] = {}
        self._hindrance = ""
        self.wants_upstreams = True

    def __repr__(self) -> str:
        return f"<FrontControl of {self._front!r}>"

    def use_pipeline(self, pipeline: Pipeline) -> None:
        """A new configuration."""
        self._pipeline = pipeline

    async def ask(self, name: str, qtype: str) -> dict[str, object]:
        """The answer and why: rcode, records, source; the service with its instances when there is one."""
        query = parse_question(name, qtype)
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        began = self._clock.now()
        packet = self._front.ask(query, CommandWaiter(future))
        waited, patient = packet is None, True
        try:
            async with asyncio.timeout(PATIENCE_S):
                packet = packet or await future
        except TimeoutError:
            packet, patient = self._pipeline.failure(query).packet, False
        if packet is None:
            raise ControlError("the question was dropped")
        self._pipeline.explain(query, self._clock.now(), self._clock.wall())
        service = self._pipeline.service
        answer: dict[str, object] = {"packet": packet}
        is_ours = service is not None or not self._pipeline.is_outside(query)
        silent = is_ours and await self._keeper_is_silent()
        why = [*self._pipeline.why, *self._reasons(query, packet, service, began=began, silent=silent)]
        if not patient:
            why.append(f"no answer within {PATIENCE_S:g} s; a client is kept waiting for longer, and may still get one")
        answer["name"] = dnsname.name_text(query.name)
        answer["type"] = qtype.upper()
        answer["source"] = self._source(service, query)
        answer["took_ms"] = round((self._clock.now() - began) * 1000, 3)
        answer["waited"] = waited
        answer["service"] = self._described(service) if service is not None else None
        answer["why"] = why
        return answer

    async def _keeper_is_silent(self) -> bool:
        """Whether the keeper, which is there, does not read: it is told nothing, to see."""
        link = self._front.teller.link
        if link is None:
            return False
        link.send(Asked(()))
        ends = self._clock.now() + SILENT_S
        while link.unread and self._clock.now() < ends:  # noqa: ASYNC110  # the kernel tells nobody
            await asyncio.sleep(LOOK_S)
        return link.unread

    def _reasons(
        self, query: Query, packet: bytes, service: Snapshot | None, *, began: float, silent: bool
    ) -> list[str]:
        """What the pipeline cannot know: who is away, and what is therefore old; which spelling was taken."""
        rcode = packet[3] & 0x0F
        reasons: list[str] = []
        if service is not None:
            reasons += self._reasons_of(service, silent=silent)
        elif self._pipeline.is_outside(query) and query.name != CANARY and not self._pipeline.why:
            reasons += self._reasons_outside(query, packet, began)
        elif rcode == Rcode.SERVFAIL:
            namespace = self._pipeline.namespace_of(query)
            problem = self._problem(namespace)
            if not self._front.linked:
                reasons.append("the keeper is not there, and only it can look up a name that is not known yet")
            elif silent:
                reasons.append(f"{_SILENT}, and only it can look up a name that is not known yet")
            elif self._pipeline.is_down(namespace):
                reasons.append(f"Nacos is away{problem} and this name was never known")
            else:
                reasons.append(f"Nacos told nothing{problem}" if problem else "Nacos did not answer in time")
        elif rcode == Rcode.NXDOMAIN:
            reasons += filter(None, [self._front.problems.get(self._pipeline.namespace_of(query))])
        return reasons

    def _reasons_outside(self, query: Query, packet: bytes, began: float) -> list[str]:
        """Why there is no answer, or an old one, or one that is not kept."""
        now = self._clock.now()
        if packet[3] & 0x0F == Rcode.SERVFAIL:
            return [self._explained(self._forwarding.why(query, now))]
        entry = self._forwarding.outside.get(question_key(query))
        if entry is None or entry.fresh_until > now:
            return []
        if entry.stored_now < began:
            return [f"stale: its time ended {now - entry.fresh_until:.0f} s ago; {self._forwarding.why(query, now)}"]
        denied = packet[3] & 0x0F or not packet[6:8].strip(b"\0")
        bare = denied and not negative_soa(packet)
        why = "a denial without a SOA record is for once (RFC 2308 5)" if bare else "its TTL is 0"
        return [f"an upstream said so just now; it is not kept, for {why}"]

    def _explained(self, why: str) -> str:
        """Of nobody to ask also whether that is the configuration's wish."""
        if why != NOBODY:
            return why
        return f"{why}: {'no resolv.conf names one' if self.wants_upstreams else 'forward.upstreams is empty'}"

    def _problem(self, namespace: str) -> str:
        problem = self._front.problems.get(namespace, "")
        return f" ({problem})" if problem else ""

    def _reasons_of(self, service: Snapshot, *, silent: bool) -> list[str]:
        """What is to be said of a service that the answer comes from."""
        key = service.key
        reasons = []
        spelled = sorted(other.service for other in self._book.keys_of([service_of(key)]))
        if len(spelled) > 1:
            others = ", ".join(name for name in spelled if name != key.service)
            rule = "the spelling that is asked for wins, else the first in code-point order"
            reasons.append(f"taken is {key.service}, not {others}: {rule}")
        if not service.instances:
            reasons.append(
                "the registry named instances once and names none now: none is registered, or none is enabled"
            )
        is_static = service.source is Source.STATIC
        if not self._front.linked and not is_static:
            since_s = self._clock.now() - self._front.unlinked_at
            reasons.append(
                f"the keeper is not there: this is what Nacos said last; nothing has been followed for {since_s:.0f} s"
            )
        elif silent and not is_static:
            since_s = self._clock.now() - self._front.heard_at
            reasons.append(
                f"{_SILENT}: this is what Nacos said last; nothing is followed now, and its last word came {since_s:.0f} s ago"
            )
        elif not service.live and self._pipeline.is_down(key.namespace):
            reasons.append(f"Nacos is away{self._problem(key.namespace)}: this is what it said last")
        elif not service.live:
            problem = self._problem(key.namespace)
            old = f"Nacos tells nothing new{problem}: this is what it said last"
            reasons.append(old if problem else "not followed by push at the moment")
        return reasons

    def gauges(self, counters: Counters, *, strays: int) -> None:
        """What is counted now and then instead of at every change; ``strays`` is the total of the upstream edge."""
        counters[metrics.NONE_HEALTHY.first] += self._pipeline.none_healthy
        counters[metrics.SPELLING_CLASHES.first] += self._book.clashes
        self._pipeline.none_healthy = self._book.clashes = 0
        counts = self._forwarding.counts
        for family, total in (
            (metrics.UPSTREAM_QUERIES, counts.upstream_queries),
            (metrics.UPSTREAM_FAILURES, counts.upstream_failures),
            (metrics.UPSTREAM_TCP_RETRIES, counts.upstream_tcp_retries),
            (metrics.UPSTREAM_SPOOFED, counts.upstream_spoofed),
            (metrics.UPSTREAM_STRAYS, strays),
            (metrics.STALE_ANSWERS, counts.stale_answers),
            (metrics.EXTERNALS_EVICTED, self._forwarding.outside.evicted),
        ):
            self._totals.add(counters, family.first, total)
        counters.set(metrics.BOOK_PAGES.first, self._book.prepared.page_count)
        counters.set(metrics.L1_ENTRIES.first, len(self._book.prepared.packets))
        counters.set(metrics.L1_BYTES.first, self._book.prepared.packets_bytes)
        counters.set(metrics.SERVICES_KNOWN.first, len(self._book))
        counters.set(metrics.EXTERNALS_CACHED.first, len(self._forwarding.outside))

    def changed_upstreams(self) -> list[tuple[str, str, str]]:
        """Upstreams whose health changed since the last call: address, health, last error."""
        upstreams = self._forwarding.status(self._clock.now()).upstreams
        present = {one.address: one.health for one in upstreams}
        changed = [
            (one.address, one.health, one.last_error)
            for one in upstreams
            if self._health.get(one.address, "up") != one.health
        ]
        now = self._clock.now()
        for address, health, _ in changed:
            if (health in _NOT_ASKED) != (self._health.get(address) in _NOT_ASKED):
                self._changes.setdefault(address, deque(maxlen=1000)).append(now)
        self._health = present
        return changed

    def changes_of(self, address: str) -> dict[str, object]:
        """How often an upstream went down or came back lately, and how long ago it did last."""
        now, changes = self._clock.now(), self._changes.get(address, ())
        return {
            "changes_10min": sum(at > now - CHANGES_WITHIN_S for at in changes),
            "changed_s": round(now - changes[-1], 1) if changes else None,
        }

    def changed_hindrance(self) -> tuple[str, str] | None:
        """What this host does not let us do now and did not at the last call; None while that is the same."""
        before, self._hindrance = self._hindrance, self._hindered()
        return None if before == self._hindrance else (before, self._hindrance)

    def _hindered(self) -> str:
        reason, at = self._front.hindrance
        return reason if self._clock.now() - at < HINDERED_S else ""

    def _source(self, service: Snapshot | None, query: Query) -> str:
        if service is not None:
            return service.source.value
        return "forwarded" if self._pipeline.is_outside(query) else "zone"

    def _described(self, snapshot: Snapshot) -> dict[str, object]:
        wall = self._clock.wall()
        key = snapshot.key
        return {
            "namespace": key.namespace,
            "group": key.group,
            "service": key.service,
            "registry": key.registry,
            "source": snapshot.source.value,
            "live": snapshot.live,
            "revision": snapshot.revision,
            "protection": snapshot.protection.value,
            "unconfirmed": snapshot.unconfirmed,
            "demoted": snapshot.demoted,
            "protected_s": round(wall - snapshot.protected_since, 1) if snapshot.protected_since else None,
            "confirmed_s": round(wall - snapshot.confirmed_at, 1) if snapshot.confirmed_at else None,
            "threshold_reached": snapshot.threshold_reached,
            "instances": [
                {
                    "address": i.address,
                    "port": i.port,
                    "weight": i.weight,
                    "healthy": i.healthy,
                    "enabled": i.enabled,
                    "cluster": i.cluster,
                    "demoted": at >= len(snapshot.instances) - snapshot.demoted,
                }
                for at, i in enumerate(snapshot.instances)
            ],
        }

    def cached(self) -> list[dict[str, object]]:
        """`cache list`: what is kept of outside names, at most LISTED_MAX, the least recently asked first."""
        wall = self._clock.wall()
        return [
            {
                "name": item.name,
                "type": type_text(item.type),
                "rcode": rcode_text(item.rcode),
                "ttl_s": item.ttl_s,
                "left_s": round(item.left_s),
                "age_s": round(wall - item.stored_at),
                "size_bytes": item.size_bytes,
                "dnssec_ok": item.dnssec_ok,
                "checking_disabled": item.checking_disabled,
            }
            for item in islice(self._forwarding.outside.listing(self._clock.now()), LISTED_MAX)
        ]

    async def flush(self, name: str) -> dict[str, object]:
        """`cache flush` of an outside name, or of ``*.SUFFIX``."""
        try:
            wire = dnsname.fold(dnsname.text_name(name.removeprefix("*.")))
        except WireError as error:
            raise ControlError(f"{name!r} is not a DNS name: {error}") from error
        steps = self._forwarding.forget_under(wire) if name.startswith("*.") else self._forwarding.forget(wire)
        gone = 0
        for questions in steps:
            gone += len(questions)
            await asyncio.sleep(0)  # queries come first
        self._book.prepared.drop_all()
        return {"name": name, "externals": gone}

    def status(self) -> dict[str, object]:
        """What `status` shows of a front."""
        forward = self._forwarding.status(self._clock.now())
        return {
            "services": len(self._book),
            "pages": self._book.prepared.page_count,
            "prepared": len(self._book.prepared.packets),
            "linked": self._front.linked,
            "synced": self._front.synced,
            "upstreams": [
                {
                    "address": one.address,
                    "health": one.health,
                    "latency_ms": one.latency_ms,
                    "last_error": one.last_error,
                    "last_error_s": one.last_error_s,
                }
                | self.changes_of(one.address)
                for one in forward.upstreams
            ],
            "upstreams_left_out": [{"address": address, "why": why} for address, why in forward.left_out],
            "forward_problem": forward.problem,
            "failing": forward.failing or None,
            "answered_s": forward.answered_s,
            "failed_names": forward.failed_names,
            "failed_last": forward.failed_last,
            "hindered": self._hindered(),
            "externals": forward.entries,
            "waiting": forward.waiters,
        }
