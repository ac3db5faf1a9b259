"""Names that are not ours: which upstream is asked next, when to give up, what the client gets meanwhile.

Must not know: sockets, ids, where the time comes from; what is kept (core/outside.py), how resolvers do (core/resolvers.py).
Rules: a failure never hides a good stale answer (RFC 8767); equal questions on their way are joined; only a reply to the
very question counts, anything else is counted while waiting goes on; every call that can lead to work leaves it for
``take_work``; every table is bounded.

An *errand* is one question on its way, a *try* one packet of it to one resolver (both, and the values that the front
sees, are in core/errands.py). A try that is out of patience stays open for a late reply until its errand ends.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from nacosdns.core import dnspacket, dnswire
from nacosdns.core.dnsname import HEADER_BYTES
from nacosdns.core.errands import (
    PENDING,
    RECHECK_S,
    TRIES_MAX,
    Agenda,
    Counts,
    Deliver,
    Errand,
    Failed,
    Failures,
    Hit,
    Purpose,
    Release,
    Send,
    Source,
    Try,
    check_name,
    failure,
    forward_status,
    in_words,
    may_lack_edns,
    query_packet,
    spelled,
)
from nacosdns.core.model import Rcode
from nacosdns.core.outside import Outside, question_key
from nacosdns.core.resolvers import PLAIN_S, PROBE_PATIENCE_S, Health, Resolvers
from nacosdns.core.shares import Shares
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    from nacosdns.core.errands import ForwardSettings, ForwardStatus, Pending, Work
    from nacosdns.core.model import Query
    from nacosdns.core.outside import Entry
    from nacosdns.core.resolvers import Ours, Resolver

DEADLINE_S = 2.49  # and a slice of the agenda: 2.5, below the 5 s of libc
STALE_WAIT_S = 0.5  # RFC 8767 5, client response timer
FAILING_WAIT_S = 0.05  # the same while the question failed last time: enough to see that it works again
TCP_PATIENCE_S = 1.0
REFRESHES_MAX = 64
OPCODE = 0x7800
_NOT_PLAIN = OPCODE | dnspacket.TC
_ASKED, _CACHE, _UPSTREAM = Purpose.ASKED, Source.CACHE, Source.UPSTREAM  # a look-up in an enum costs as much as a call
TXT_IN = b"\x00\x10\x00\x01"
ROOT_NS = b"\x00\x00\x02\x00\x01\x00"  # a question key: what every resolver has at hand


class Forwarding:
    """See the module. After each call that takes ``now``: do what ``take_work`` returns, and tick at ``next_due``."""

    def __init__(self, settings: ForwardSettings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self._identity = settings.identity or rng.randbytes(8)
        self.resolvers = Resolvers(rng)
        self.outside = Outside(rng, entries_max=settings.external_entries, stale_max_s=settings.external_stale_s)
        self.counts = Counts()
        self._errands: dict[bytes, Errand] = {}
        self._tries: dict[int, Try] = {}
        self._failures = Failures()
        self._checks: dict[bytes, Resolver] = {}
        self._wanted_key = b""
        self._agenda = Agenda()
        self._work: list[Work] = []
        self._token = 0
        self._waiting = Shares(settings.waiters_max)
        self._begun = Shares(settings.errands_max)
        self._refreshing = 0

    def __repr__(self) -> str:
        return (
            f"<Forwarding errands={len(self._errands)} tries={len(self._tries)} waiting={self._waiting.taken} "
            f"{self.outside!r} {self.resolvers!r}>"
        )

    # What the front calls

    def ask(self, query: Query, waiter: object, now: float) -> Hit | Pending | Failed:
        """The answer now, or the promise of a ``Deliver`` to ``waiter`` within DEADLINE_S, or none."""
        key = question_key(query)
        entry = self.outside.get(key)
        if entry is not None and now < entry.fresh_until:
            packet, good_until = self.outside.render(key, entry, query, now)
            return Hit(packet, _CACHE, good_until)
        return self._ask_upstream(query, waiter, key, entry, now)

    def received(self, token: int, packet: bytes, now: float, wall: float) -> bool:
        """A packet came for this token. False: it is not the answer, go on waiting."""
        attempt = self._tries.get(token)
        if attempt is None:
            return True
        errand = attempt.errand
        try:
            scan = dnswire.scan_reply(packet, attempt.question)
        except WireError:
            return self._ignored()
        flags = packet[2] << 8 | packet[3]
        question = scan.question
        if (
            scan.answer_count
            and question is attempt.question
            and not (flags & _NOT_PLAIN or scan.rcode or errand.alone)
        ):
            self._drop_try(token, attempt)  # what most replies are, and nothing else is to be asked of them
            self._answered(attempt, packet, scan, now, wall)
            return True
        return self._judge(token, attempt, packet, scan, now, wall)

    def _judge(self, token: int, attempt: Try, packet: bytes, scan: dnswire.ReplyScan, now: float, wall: float) -> bool:
        """Whether this is a reply to the question, and what it is worth."""
        errand, question, flags = attempt.errand, scan.question, packet[2] << 8 | packet[3]
        fault = failure(flags, scan, over_tcp=attempt.over_tcp)
        is_spelled = question == attempt.question
        if not is_spelled and question != errand.key[:-1] and (question or not fault):
            return self._ignored()  # some servers leave the question out when they fail (RFC 1035 7.3)
        if flags & OPCODE:
            return self._ignored()
        self._drop_try(token, attempt)
        if errand.alone and errand.purpose is Purpose.LOOP_CHECK:
            self._end(errand)
            attempt.resolver.checked(attempt.sent_at, now)
        elif fault and attempt.has_opt and may_lack_edns(scan, packet):
            self._try(errand, attempt.resolver, now, has_opt=False, over_tcp=attempt.over_tcp)
        elif fault:
            self._erred(attempt, fault, now)
        elif scan.truncated:
            self._truncated(attempt, packet, now)
        elif self._settings.mixed_case and not attempt.over_tcp and not is_spelled:
            self._retry_over_tcp(attempt, now)
        else:
            self._answered(attempt, packet, scan, now, wall)
        return True

    def failed(self, token: int, reason: str, now: float) -> None:
        """The packet of this token could not be sent, was refused, or its TCP connection ended without an answer."""
        attempt = self._tries.get(token)
        if attempt is None:
            return
        self._drop_try(token, attempt)
        self.counts.upstream_failures += 1
        self._blame(attempt, reason, now)
        self._spent(attempt, now)

    def hindered(self, token: int, reason: str, now: float) -> None:
        """This host did not let the packet of this token out, which tells nothing of the resolver."""
        attempt = self._tries.get(token)
        if attempt is not None:
            self._drop_try(token, attempt)
            attempt.errand.not_asked(attempt.resolver.address, reason)
            self._spent(attempt, now)

    def tick(self, now: float) -> None:
        """Does what is due: patience and deadlines, refreshes, probes."""
        for errand in self._agenda.take(now):
            if not errand.over:
                self._expire(errand, now)
        if self.outside.next_due() <= now:
            self._refresh(now)
        if self.outside.is_over:
            self.outside.make_room()
        for resolver in self.resolvers.take_probes(now):
            self._probe(resolver, now)
        for resolver in self.resolvers.take_loop_checks(now):
            self._check_loop(resolver, now)

    def next_due(self) -> float | None:
        """When ``tick`` must be called next; None when nothing is waited for."""
        due = self._agenda.next_due()
        if self._refreshing < REFRESHES_MAX:
            due = min(due, self.outside.next_due())
        if self.outside.is_over:
            due = 0.0
        due = min(due, self.resolvers.next_due())
        return None if due == inf else due

    def take_work(self) -> list[Work]:
        """What is to be done now, in order."""
        work, self._work = self._work, []
        return work

    def set_upstreams(self, addresses: Iterable[str], own: Ours, now: float) -> None:
        """The list from now on; who stays keeps its health. What is ``own`` is left out (see ``status``)."""
        self.resolvers.replace(addresses, own, now)
        self._checks = {check_name(self._identity, resolver.address): resolver for resolver in self.resolvers}
        self._failures.clear()

    def configure(self, settings: ForwardSettings) -> None:
        """New bounds and switches; the cache and everything on its way stay."""
        self._settings = settings
        self._waiting.places, self._begun.places = settings.waiters_max, settings.errands_max
        self.outside.entries_max = settings.external_entries
        self.outside.stale_max_s = settings.external_stale_s

    def forget(self, name: bytes) -> Iterator[tuple[bytes, ...]]:
        """Drops what is kept of this folded wire name, whatever the type, in steps; each gives its questions, for the store."""
        self._failures.clear()
        return self.outside.forget(name)

    def forget_under(self, suffix: bytes) -> Iterator[tuple[bytes, ...]]:
        """Drops what is kept of this folded wire name and everything under it, in steps as ``forget``."""
        self._failures.clear()
        return self.outside.forget_under(suffix)

    def status(self, now: float) -> ForwardStatus:
        """For ``status`` and ``doctor``."""
        errands, waiters = len(self._errands), self._waiting.taken
        return forward_status(self.resolvers, self._failures, self.outside, now, errands=errands, waiters=waiters)

    def why(self, query: Query, now: float) -> str:
        """Why this question, asked a moment ago, has no answer, for people: what each upstream did."""
        key = question_key(query)
        errand = self._errands.get(key)
        waiting = [self._tries[token].resolver.address for token in errand.tokens] if errand else ()
        said = (errand.said or {}) if errand else self._failures.said(key)
        did = dict.fromkeys(waiting, "has not answered yet") | said
        told = "; ".join(f"{address} {what}" for address, what in did.items())
        return self.resolvers.problem(now) or told or "no upstream gave an answer"

    # Asking

    def _ask_upstream(
        self, query: Query, waiter: object, key: bytes, entry: Entry | None, now: float
    ) -> Hit | Pending | Failed:
        if query.name in self._checks:
            return self._looping(self._checks[query.name], now)
        self._wanted_key = key
        stale = entry if entry is not None and self.outside.is_usable_stale(entry, now) else None
        errand = self._errands.get(key)
        if errand is None:
            begun = self._begin(key, _ASKED, now, query.client)
            if isinstance(begun, str):
                return self._stale(query, key, stale, now) if stale is not None else Failed(Rcode.SERVFAIL, begun)
            errand = begun
        else:
            self.counts.joined += 1
        return self._join(errand, query, waiter, stale, now)

    def _looping(self, resolver: Resolver, now: float) -> Failed:
        resolver.looped(now)
        return Failed(Rcode.REFUSED, f"{resolver.address} asks us back")

    def _join(
        self, errand: Errand, query: Query, waiter: object, stale: Entry | None, now: float
    ) -> Hit | Pending | Failed:
        if stale is not None:
            wait_s = FAILING_WAIT_S if errand.key in self._failures else STALE_WAIT_S
            if errand.started_at + wait_s <= now or not self._waiting.take(query.client):
                return self._stale(query, errand.key, stale, now)
            errand.stale_at = errand.started_at + wait_s
            self._agenda.add(errand)
        elif not self._waiting.take(query.client):
            self.counts.overflows += 1
            return Failed(Rcode.SERVFAIL, "too many questions of this client wait, or of all clients")
        errand.waiters.append((query, waiter))
        return PENDING

    def _begin(self, key: bytes, purpose: Purpose, now: float, client: bytes = b"") -> Errand | str:
        """A new errand for this question, or why there is none."""
        if self._failures and self._failures.is_fresh(key, now):
            return "it failed a moment ago"
        order = self.resolvers.order(now)
        if not order:
            return self.resolvers.why_nobody()
        if not self._begun.take(client):
            self.counts.overflows += 1
            return "too many questions of this client are on their way, or of all clients"
        errand = self._errands[key] = Errand(key, purpose, order, now, now + DEADLINE_S, client=client)
        self._advance(errand, now)
        return errand

    def _refresh(self, now: float) -> None:
        for key in self.outside.take_due(now, REFRESHES_MAX - self._refreshing):
            if key in self._errands:
                continue
            if isinstance(self._begin(key, Purpose.REFRESH, now), str):
                self.outside.postpone(key, now + RECHECK_S * self._rng.uniform(1.0, 2.0))
            else:
                self._refreshing += 1
                self.counts.refreshes += 1

    def _probe(self, resolver: Resolver, now: float) -> None:
        """Asks what it answered well before; while it is down also, in turn, what somebody wants to know now."""
        known = resolver.good_question or ROOT_NS
        choices = (known, self._wanted_key or known) if resolver.health is Health.DOWN else (known,)
        key = choices[resolver.probe_turn % len(choices)]
        resolver.probe_turn += 1
        self._ask_one(key, Purpose.PROBE, resolver, now)

    def _check_loop(self, resolver: Resolver, now: float) -> None:
        key = check_name(self._identity, resolver.address) + TXT_IN + b"\x00"
        self._ask_one(key, Purpose.LOOP_CHECK, resolver, now)

    def _ask_one(self, key: bytes, purpose: Purpose, resolver: Resolver, now: float) -> None:
        self.counts.probes += 1
        deadline = now + PROBE_PATIENCE_S
        errand = Errand(key, purpose, (resolver,), now, deadline, tries_left=1, alone=True)
        self._advance(errand, now)

    # Tries

    def _advance(self, errand: Errand, now: float) -> None:
        """One more try with the next resolver; without one, or without tries, what is open is waited for."""
        if errand.tries_left > 0 and errand.order:
            resolver = errand.order[0]
            if len(errand.order) > 1:
                errand.order = (*errand.order[1:], resolver)
            self._try(errand, resolver, now, has_opt=resolver.plain_until <= now)  # RFC 6891 6.2.2
        elif errand.order and errand.tokens:
            errand.try_due = inf
            self._agenda.add(errand)
        else:
            self._give_up(errand, "no upstream gave an answer", now)

    def _try(
        self, errand: Errand, resolver: Resolver, now: float, *, has_opt: bool = True, over_tcp: bool = False
    ) -> None:
        token = self._token = self._token + 1
        key = errand.key
        question = key[:-1]
        if self._settings.mixed_case:
            question = spelled(question, self._rng)
        self._tries[token] = Try(errand, resolver, question, now, over_tcp, has_opt)
        errand.tokens = (*errand.tokens, token)
        tries_left = errand.tries_left
        if errand.alone:
            patience_s = PROBE_PATIENCE_S
        else:
            patience_s = TCP_PATIENCE_S if over_tcp else resolver.patience_s(first=tries_left == TRIES_MAX)
        errand.try_due = now + patience_s
        errand.tries_left = tries_left - 1
        resolver.sent += 1
        self.counts.upstream_queries += 1
        packet = query_packet(question, key[-1], has_opt=has_opt)
        self._work.append(Send(token, resolver.address, packet, over_tcp))
        self._agenda.add(errand)

    def _drop_try(self, token: int, attempt: Try) -> None:
        del self._tries[token]
        errand = attempt.errand
        tokens = errand.tokens
        errand.tokens = () if len(tokens) == 1 else tuple(other for other in tokens if other != token)

    def _spent(self, attempt: Try, now: float) -> None:
        """This resolver has no answer to this question: the next one, unless another try is on its way."""
        errand = attempt.errand
        errand.order = tuple(resolver for resolver in errand.order if resolver is not attempt.resolver)
        if not errand.order or not attempt.late:
            self._advance(errand, now)

    def _ignored(self) -> bool:
        self.counts.upstream_spoofed += 1
        return False

    # What came back

    def _truncated(self, attempt: Try, packet: bytes, now: float) -> None:
        """RFC 2181 9, RFC 7766 5: the same again over TCP; the head of the reply is kept for the case that it fails."""
        self._credit(attempt, now)
        question_end = HEADER_BYTES + len(attempt.errand.key) - 1
        attempt.errand.truncated = packet[:4] + b"\x00\x01" + bytes(6) + packet[HEADER_BYTES:question_end]
        self._retry_over_tcp(attempt, now)

    def _retry_over_tcp(self, attempt: Try, now: float) -> None:
        if attempt.errand.alone:
            self._end(attempt.errand)
            return
        self.counts.upstream_tcp_retries += 1
        self._try(attempt.errand, attempt.resolver, now, has_opt=attempt.has_opt, over_tcp=True)

    def _erred(self, attempt: Try, fault: str, now: float) -> None:
        self.counts.upstream_failures += 1
        attempt.resolver.erred(now, fault)
        attempt.errand.tell(attempt.resolver.address, in_words(fault))
        self._spent(attempt, now)

    def _answered(self, attempt: Try, packet: bytes, scan: dnswire.ReplyScan, now: float, wall: float) -> None:
        errand = attempt.errand
        key, outside, work = errand.key, self.outside, self._work
        self._credit(attempt, now)
        self._end(errand)
        if self._failures and not errand.alone:
            self._failures.answered(key, now)
        entry = outside.put(key, packet, scan, now=now, wall=wall)
        for query, waiter in errand.waiters:
            work.append(Deliver(waiter, Hit(outside.render_new(entry, query), _UPSTREAM)))

    def _credit(self, attempt: Try, now: float) -> None:
        """The resolver did well. TCP tells nothing of its latency."""
        resolver, errand = attempt.resolver, attempt.errand
        if not attempt.has_opt:
            resolver.plain_until = now + PLAIN_S
        if not attempt.over_tcp:
            is_probe = errand.alone and errand.purpose is Purpose.PROBE
            resolver.answered(attempt.sent_at, now, errand.key, probe=is_probe)

    # Ends

    def _expire(self, errand: Errand, now: float) -> None:
        if now >= errand.try_due:
            self._lose_patience(errand, now)
        if not errand.over and now >= errand.deadline:
            self._give_up(errand, f"no answer within {errand.deadline - errand.started_at} s", now)
        if errand.over:
            return
        if now >= errand.stale_at:
            self._serve_stale(errand, now)
        self._agenda.add(errand)

    def _lose_patience(self, errand: Errand, now: float) -> None:
        errand.try_due = inf
        for attempt in [self._tries[token] for token in errand.tokens]:
            if attempt.late:
                continue
            self.counts.upstream_failures += 1
            self._blame(attempt, "no answer", now)
            attempt.late = True
        if not errand.alone:
            self._advance(errand, now)

    def _blame(self, attempt: Try, error: str, now: float) -> None:
        """The resolver did not answer. What TCP and loop checks meet tells nothing of its health."""
        purpose = attempt.errand.purpose
        attempt.errand.tell(attempt.resolver.address, in_words(error))
        if not attempt.over_tcp and not attempt.late and purpose is not Purpose.LOOP_CHECK:
            attempt.resolver.missed(attempt.sent_at, now, error, probe=purpose is Purpose.PROBE)

    def _serve_stale(self, errand: Errand, now: float) -> None:
        """The clients have waited enough: they get the stale answer, the errand goes on for the next ones."""
        errand.stale_at = inf
        entry = self.outside.get(errand.key)
        if entry is None:
            return
        for query, waiter in errand.waiters:
            self._deliver(waiter, self._stale(query, errand.key, entry, now))
            self._waiting.give_back(query.client)
        errand.waiters.clear()

    def _give_up(self, errand: Errand, why: str, now: float) -> None:
        self._end(errand)
        if errand.alone:
            return
        self._failures.note(errand, now, self.resolvers.replied_at)
        for query, waiter in errand.waiters:
            self._deliver(waiter, self._second_best(errand, query, why, now))

    def _second_best(self, errand: Errand, query: Query, why: str, now: float) -> Hit | Failed:
        entry = self.outside.get(errand.key)
        if entry is not None and self.outside.is_usable_stale(entry, now):
            return self._stale(query, errand.key, entry, now)
        if errand.truncated and not query.over_tcp:
            packet = dnswire.reply_for(query, errand.truncated, size_max=dnswire.size_limit(query))
            return Hit(packet, Source.UPSTREAM)
        return Failed(Rcode.SERVFAIL, why)

    def _stale(self, query: Query, key: bytes, entry: Entry, now: float) -> Hit:
        packet, _ = self.outside.render(key, entry, query, now)
        if now < entry.fresh_until:  # a refresh failed before its time was over
            return Hit(packet, Source.CACHE)
        self.counts.stale_answers += 1
        return Hit(packet, Source.STALE)

    def _end(self, errand: Errand) -> None:
        errand.over = True
        if errand.tokens:
            for token in errand.tokens:
                del self._tries[token]
                self._work.append(Release(token))
            errand.tokens = ()
        for query, _ in errand.waiters:
            self._waiting.give_back(query.client)
        if not errand.alone:
            del self._errands[errand.key]
            self._begun.give_back(errand.client)
            if errand.purpose is not _ASKED:
                self._refreshing -= 1

    def _deliver(self, waiter: object, outcome: Hit | Failed) -> None:
        self._work.append(Deliver(waiter, outcome))
