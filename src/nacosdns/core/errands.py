"""What goes to upstreams and comes back: the values of forwarding, the questions on their way, their packets.

Must not know: what is decided about them (core/forwarding.py). Rule: what the front sees is frozen.
"""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from math import inf

import msgspec

from nacosdns.core import dnspacket, dnswire
from nacosdns.core.dnsname import HEADER_BYTES
from nacosdns.core.model import Query, Rcode
from nacosdns.core.outside import CHECKING_DISABLED, DNSSEC_OK
from nacosdns.core.resolvers import Resolver

TRIES_MAX = 6
RD, CD = 0x0100, 0x0010
_ANSWERS = {Rcode.NOERROR, Rcode.NXDOMAIN}
_RCODES = set(Rcode)


class ForwardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``identity`` is the same in all fronts of a host, so that any of them knows a loop check of another."""

    external_entries: int = 100_000
    external_stale_s: float = 0.0
    identity: bytes = b""
    mixed_case: bool = False
    errands_max: int = 4096
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


class Deliver(msgspec.Struct, frozen=True):
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
    """One upstream for ``status``: ``health`` is up, doubted, down or loop."""

    address: str
    health: str
    latency_ms: float
    sent: int
    replies: int
    failures: int
    last_error: str


class ForwardStatus(msgspec.Struct, frozen=True):
    """``problem`` is "" while there is somebody to ask; ``left_out`` names addresses that are not used, and why."""

    upstreams: tuple[ResolverStatus, ...]
    left_out: tuple[tuple[str, str], ...]
    problem: str
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


ALONE = {Purpose.PROBE, Purpose.LOOP_CHECK}  # asked of one resolver, for nobody, joined by nobody


class Errand(msgspec.Struct, eq=False):
    """One question on its way. ``due`` is the time under which it lies in the heap."""

    key: bytes
    purpose: Purpose
    order: list[Resolver]
    started_at: float
    deadline: float
    tries_left: int = TRIES_MAX
    waiters: list[tuple[Query, object]] = []
    tokens: list[int] = []
    stale_at: float = inf
    try_due: float = inf
    due: float = inf
    truncated: bytes = b""
    over: bool = False


class Try(msgspec.Struct, eq=False):
    """One packet to one resolver; ``late`` when its patience is over."""

    errand: Errand
    resolver: Resolver
    question: bytes
    sent_at: float
    over_tcp: bool
    has_opt: bool
    late: bool = False


def resolver_status(resolver: Resolver) -> ResolverStatus:
    """What is known of a resolver, for people."""
    return ResolverStatus(
        address=resolver.address,
        health=resolver.health.value,
        latency_ms=round(resolver.latency_s * 1000, 3),
        sent=resolver.sent,
        replies=resolver.replies,
        failures=resolver.failures,
        last_error=resolver.last_error,
    )


def query_packet(question: bytes, flags: int, *, has_opt: bool) -> bytes:
    """A query with id 0. AD asks for the AD bit of the answer (RFC 6840 5.7): not every client of the entry will."""
    header_flags = RD | dnspacket.AD | (CD if flags & CHECKING_DISABLED else 0)
    header = dnspacket.HEADER.pack(0, header_flags, 1, 0, 0, int(has_opt))
    return header + question + (dnspacket.opt_bytes(0, dnssec_ok=bool(flags & DNSSEC_OK)) if has_opt else b"")


def failure(flags: int, scan: dnswire.ReplyScan, *, over_tcp: bool) -> str:
    """Why this reply is no answer, "" when it is one: an rcode other than NOERROR and NXDOMAIN, a referral."""
    if scan.rcode not in _ANSWERS:
        return Rcode(scan.rcode).name if scan.rcode in _RCODES else f"rcode {scan.rcode}"
    if scan.truncated:
        return "truncated over TCP" if over_tcp else ""
    is_referral = scan.rcode == Rcode.NOERROR and not scan.answer_count and not flags & (dnspacket.AA | dnspacket.RA)
    return "no recursion there" if is_referral else ""


def may_lack_edns(scan: dnswire.ReplyScan, packet: bytes) -> bool:
    """RFC 6891 7: an old server answers OPT with FORMERR or NOTIMP, and has no OPT itself (ARCOUNT 0)."""
    return scan.rcode in {Rcode.FORMERR, Rcode.NOTIMP} and packet[10:12] == b"\x00\x00"


def repeats(packet: bytes, question: bytes) -> bool:
    """Whether the reply has our question letter by letter, also in case (0x20)."""
    return packet.startswith(question, HEADER_BYTES)


def check_name(identity: bytes, address: str) -> bytes:
    """The name that we ask a resolver, and nobody else asks us, to find out whether it asks us back.

    A keyed hash: every front of the host knows it, and it tells an upstream nothing of the host.
    """
    digest = blake2b(address.encode(), key=identity[:64], digest_size=16).hexdigest()
    return dnswire.name_to_wire((b"loop-" + digest.encode(), b"nacosdns"))
