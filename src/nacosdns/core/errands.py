"""What goes to upstreams and comes back: the values of forwarding, the questions on their way, their packets.

Must not know: what is decided about them (core/forwarding.py). Rule: what the front sees is frozen.
"""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from heapq import heappop, heappush
from math import ceil, inf
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core import dnspacket, dnswire
from nacosdns.core.dnsname import name_text
from nacosdns.core.model import Query, Rcode
from nacosdns.core.outside import CHECKING_DISABLED, DNSSEC_OK
from nacosdns.core.resolvers import Resolver

if TYPE_CHECKING:
    from random import Random

    from nacosdns.core.outside import Outside
    from nacosdns.core.resolvers import Resolvers

TRIES_MAX = 6
RECHECK_S = 1.0  # RFC 9520 2.2: a failure is remembered so long
FAILURES_MAX = 10_000
FAILING_WITHIN_S = 30.0
FAILING_NAMES = 3  # so many names that fail, and none that is answered, are no fault of a name
RD, CD = 0x0100, 0x0010
SLICES_A_SECOND = 128  # a power of two: a slice's time is exact
_ANSWERS = frozenset({int(Rcode.NOERROR), int(Rcode.NXDOMAIN)})
_RCODES = set(Rcode)
_RESPONSIBLE = dnspacket.AA | dnspacket.RA


class ForwardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``identity`` is the same in all fronts of a host, so that any of them knows a loop check of another."""

    external_entries: int = 100_000
    external_stale_s: float = 0.0
    identity: bytes = b""
    mixed_case: bool = False
    errands_max: int = 8192  # half of them for a client that is alone
    waiters_max: int = 20_000


class Source(Enum):
    """Where an answer came from, in the words of the metric."""

    CACHE = "cache"
    STALE = "stale"
    UPSTREAM = "upstream"


class Hit(msgspec.Struct, frozen=True, gc=False):
    """An answer ready for this client. The same question packet may get the same bytes until ``good_until``."""

    packet: bytes
    source: Source
    good_until: float = 0.0


class Pending(msgspec.Struct, frozen=True, gc=False):
    """The waiter will get a ``Deliver``."""


class Failed(msgspec.Struct, frozen=True, gc=False):
    """No answer; ``why`` is for people."""

    rcode: Rcode
    why: str


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send ``packet`` (its id is 0: the edge puts one in) and report under ``token``."""

    token: int
    address: str
    packet: bytes
    over_tcp: bool


class Release(msgspec.Struct, frozen=True, gc=False):
    """No answer is wanted any more for this token."""

    token: int


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Give this to whoever waits; exactly once for each ``Pending``."""

    waiter: object
    outcome: Hit | Failed


Work = Send | Release | Deliver
PENDING = Pending()


class Counts(msgspec.Struct):
    """Plain counters, in the words of the metrics where there is one."""

    upstream_queries: int = 0
    upstream_failures: int = 0
    upstream_tcp_retries: int = 0
    upstream_spoofed: int = 0
    stale_answers: int = 0
    joined: int = 0
    refreshes: int = 0
    probes: int = 0
    overflows: int = 0


class ResolverStatus(msgspec.Struct, frozen=True):
    """One upstream for ``status``: ``health`` is up, doubted, down or loop; ``last_error_s`` how long ago that was."""

    address: str
    health: str
    latency_ms: float
    sent: int
    replies: int
    failures: int
    last_error: str
    last_error_s: float | None


class ForwardStatus(msgspec.Struct, frozen=True):
    """``problem`` is "" while there is somebody to ask; ``left_out`` names addresses that are not used, and why.

    ``failing``: while nothing that was asked lately was answered, what each upstream said to it; ``answered_s``: how long
    ago anything was. ``failed_names``: how many names nobody answered lately; ``failed_last``: the newest, and why.
    """

    upstreams: tuple[ResolverStatus, ...]
    left_out: tuple[tuple[str, str], ...]
    problem: str
    failing: dict[str, str]
    answered_s: float | None
    failed_names: int
    failed_last: str
    errands: int
    waiters: int
    entries: int
    size_bytes: int


class Purpose(Enum):
    """Why a question is on its way."""

    ASKED = "asked"
    REFRESH = "refresh"
    PROBE = "probe"
    LOOP_CHECK = "loop check"


_NOT_ASKED = "could not be asked from here"


class Errand(msgspec.Struct, eq=False, gc=False):
    """One question on its way. ``slice`` is its place on the agenda; ``alone``: asked of one resolver, for nobody, joined by nobody.

    ``client`` was the first to ask. ``said`` is what each resolver did in place of an answer.
    """

    key: bytes
    purpose: Purpose
    order: tuple[Resolver, ...]
    started_at: float
    deadline: float
    tries_left: int = TRIES_MAX
    waiters: list[tuple[Query, object]] = []
    tokens: tuple[int, ...] = ()
    stale_at: float = inf
    try_due: float = inf
    slice: float = inf
    truncated: bytes = b""
    over: bool = False
    alone: bool = False
    client: bytes = b""
    said: dict[str, str] | None = None

    def tell(self, address: str, did: str) -> None:
        """This resolver gave no answer."""
        self.said = {**(self.said or {}), address: did}

    def not_asked(self, address: str, reason: str) -> None:
        """This host did not let us ask it."""
        self.tell(address, f"{_NOT_ASKED}: {reason}")


_IN_WORDS = {
    "refused": "is not there (nothing listens)",
    "unreachable": "is unreachable",
    "closed": "closed the connection",
    "timeout": "did not answer by TCP",
    "no answer": "did not answer in time",
    "no recursion there": "said that it knows only its own names",
    "truncated over TCP": "said half an answer by TCP",
}
"""What an upstream did, by the words of its failures; others are what it said."""


def in_words(fault: str) -> str:
    """What an upstream did."""
    return _IN_WORDS.get(fault) or f"said {fault}"


class Failures(dict[bytes, tuple[float, dict[str, str]]]):
    """Questions that no upstream answered, the newest last, and what each of them said; bounded.

    ``good_at`` is when somebody's question was answered while there were any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.good_at = -inf

    def __repr__(self) -> str:
        return f"<Failures {len(self)}>"

    def note(self, errand: Errand, now: float, replied_at: float) -> None:
        """Nobody answered this question; ``replied_at``: when anything was answered, for the first failure of all."""
        key = errand.key
        self.good_at = self.good_at if self else replied_at
        self.pop(key, None)
        self[key] = (now, errand.said or {})
        if len(self) > FAILURES_MAX:
            del self[next(iter(self))]

    def answered(self, key: bytes, now: float) -> None:
        """A question that somebody asked has its answer."""
        self.good_at = now
        self.pop(key, None)

    def clear(self) -> None:
        """Others are asked from now on, or all is asked anew."""
        super().clear()
        self.good_at = -inf

    def is_fresh(self, key: bytes, now: float) -> bool:
        """Whether it failed a moment ago: asked again, it would fail again."""
        at, _ = self.get(key, (-inf, {}))
        return now - at < RECHECK_S

    def said(self, key: bytes) -> dict[str, str]:
        """What each upstream did when this question failed."""
        return self.get(key, (0.0, {}))[1]

    def failing(self, now: float) -> dict[str, str]:
        """What each upstream said last, when it was a failure for every one of a few names lately; else nothing."""
        if now - self.good_at < FAILING_WITHIN_S:
            return {}
        names: set[bytes] = set()
        told: dict[str, str] = {}
        for key, (at, said) in reversed(self.items()):
            if now - at > FAILING_WITHIN_S or len(names) >= FAILING_NAMES:
                break
            if any(words.startswith("said ") for words in said.values()):
                names.add(key[:-5])
                told = said | told
        return told if len(names) >= FAILING_NAMES else {}

    def lately(self, now: float) -> tuple[int, str]:
        """How many names no upstream answered lately, and the newest of them with what each did."""
        names: dict[bytes, dict[str, str]] = {}
        for key, (at, said) in reversed(self.items()):
            if now - at > FAILING_WITHIN_S:
                break
            if any(not words.startswith(_NOT_ASKED) for words in said.values()):
                names.setdefault(key[:-5], said)
        if not names:
            return 0, ""
        name, said = next(iter(names.items()))
        told = ", ".join(f"{address} {did}" for address, did in said.items())
        return len(names), f"{name_text(name)} ({told})"


class Agenda:
    """Which errand must be looked at when, in slices of a 128th of a second: never early, late by a slice at most.

    Most errands end long before; so what is over costs next to nothing, and nothing is sorted but the slices.
    """

    def __init__(self) -> None:
        self._slices: dict[int, list[Errand]] = {}
        self._order: list[int] = []

    def __repr__(self) -> str:
        return f"<Agenda {len(self._slices)} slices>"

    def add(self, errand: Errand) -> None:
        """At its next time, unless it is on the agenda for an earlier one."""
        number = ceil(min(errand.try_due, errand.stale_at, errand.deadline) * SLICES_A_SECOND)
        if number < errand.slice:
            errand.slice = number
            errands = self._slices.get(number)
            if errands is None:
                errands = self._slices[number] = []
                heappush(self._order, number)
            errands.append(errand)

    def next_due(self) -> float:
        """When ``take`` will have something; inf for never."""
        while self._order:
            errands = self._slices[self._order[0]]
            while errands and errands[-1].over:
                errands.pop()
            if errands:
                return self._order[0] / SLICES_A_SECOND
            del self._slices[heappop(self._order)]
        return inf

    def take(self, now: float) -> list[Errand]:
        """Who must be looked at now, in the order of the slices; they are on no agenda any more."""
        taken: list[Errand] = []
        while self._order and self._order[0] <= now * SLICES_A_SECOND:
            number = heappop(self._order)
            for errand in self._slices.pop(number):
                if errand.slice == number and not errand.over:
                    errand.slice = inf
                    taken.append(errand)
        return taken


class Try(msgspec.Struct, eq=False, gc=False):
    """One packet to one resolver; ``late`` when its patience is over."""

    errand: Errand
    resolver: Resolver
    question: bytes
    sent_at: float
    over_tcp: bool
    has_opt: bool
    late: bool = False


def forward_status(  # all that is looked at
    resolvers: Resolvers, failures: Failures, outside: Outside, now: float, *, errands: int, waiters: int
) -> ForwardStatus:
    """How outside names go."""
    good_at = failures.good_at if failures else resolvers.replied_at
    failed_names, failed_last = failures.lately(now)
    return ForwardStatus(
        upstreams=tuple(resolver_status(resolver, now) for resolver in resolvers),
        left_out=resolvers.refused,
        problem=resolvers.problem(now),
        failing=failures.failing(now),
        answered_s=None if good_at == -inf else round(now - good_at, 1),
        failed_names=failed_names,
        failed_last=failed_last,
        errands=errands,
        waiters=waiters,
        entries=len(outside),
        size_bytes=outside.size_bytes,
    )


def resolver_status(resolver: Resolver, now: float) -> ResolverStatus:
    """What is known of a resolver, for people."""
    return ResolverStatus(
        address=resolver.address,
        health=resolver.health.value,
        latency_ms=round(resolver.latency_s * 1000, 3),
        sent=resolver.sent,
        replies=resolver.replies,
        failures=resolver.failures,
        last_error=resolver.last_error,
        last_error_s=round(now - resolver.error_at, 1) if resolver.last_error else None,
    )


def query_packet(question: bytes, flags: int, *, has_opt: bool) -> bytes:
    """A query with id 0. AD asks for the AD bit of the answer (RFC 6840 5.7): not every client of the entry will."""
    header, opt = _AROUND_QUESTION[has_opt][flags]
    return header + question + opt


def _around_question(flags: int, *, has_opt: bool) -> tuple[bytes, bytes]:
    header_flags = RD | dnspacket.AD | (CD if flags & CHECKING_DISABLED else 0)
    header = dnspacket.HEADER.pack(0, header_flags, 1, 0, 0, int(has_opt))
    return header, dnspacket.opt_bytes(0, dnssec_ok=bool(flags & DNSSEC_OK)) if has_opt else b""


_AROUND_QUESTION = [[_around_question(flags, has_opt=has_opt) for flags in range(4)] for has_opt in (False, True)]
"""Without and with OPT, by the key's flags: what stands before and behind the question of a query."""


def spelled(question: bytes, rng: Random) -> bytes:
    """0x20: each letter of the name in a case drawn anew: more for a forger to guess."""
    name = bytes(byte ^ 0x20 if 97 <= byte <= 122 and rng.getrandbits(1) else byte for byte in question[:-4])
    return name + question[-4:]


def failure(flags: int, scan: dnswire.ReplyScan, *, over_tcp: bool) -> str:
    """Why this reply is no answer, "" when it is one: an rcode other than NOERROR and NXDOMAIN, a referral."""
    if scan.rcode not in _ANSWERS:
        return Rcode(scan.rcode).name if scan.rcode in _RCODES else f"rcode {scan.rcode}"
    if scan.truncated:
        return "truncated over TCP" if over_tcp else ""
    is_referral = not (scan.rcode or scan.answer_count or flags & _RESPONSIBLE)
    return "no recursion there" if is_referral else ""


def may_lack_edns(scan: dnswire.ReplyScan, packet: bytes) -> bool:
    """RFC 6891 7: an old server answers OPT with FORMERR or NOTIMP, and has no OPT itself (ARCOUNT 0)."""
    return scan.rcode in {Rcode.FORMERR, Rcode.NOTIMP} and packet[10:12] == b"\x00\x00"


def check_name(identity: bytes, address: str) -> bytes:
    """The name that we ask a resolver, and nobody else asks us, to find out whether it asks us back.

    A keyed hash: every front of the host knows it, and it tells an upstream nothing of the host.
    """
    digest = blake2b(address.encode(), key=identity[:64], digest_size=16).hexdigest()
    return dnswire.name_to_wire((b"loop-" + digest.encode(), b"nacosdns"))
