"""The resolvers of [forward] upstreams as a group: where they are, how they do, who is next, how long to wait.

Must not know: packets, the cache, sockets. Rules: the configured order holds among equals (the first of resolv.conf
may be the only one that knows inside names); no verdict is for ever: who is doubted is probed, one query at a time,
while somebody asks; a resolver is down only when a probe of its own went unanswered.
"""

from __future__ import annotations

import re
from enum import Enum
from ipaddress import IPv6Address, ip_address
from math import inf
from typing import TYPE_CHECKING

import msgspec

from nacosdns.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from ipaddress import IPv4Address
    from random import Random

DNS_PORT = 53
FIRST_PATIENCE_S = 0.5
FIRST_PATIENCE_MAX_S = 0.7
PATIENCE_MIN_S = 0.3
PATIENCE_MAX_S = 1.0
PROBE_PATIENCE_S = 1.0
PROBE_EVERY_S = 2.0
SLOW_PROBE_EVERY_S = 10.0
LOOP_CHECK_EVERY_S = 60.0
VERDICT_S = 5.0
WANTED_S = 60.0
SLOWER_S = 0.3
MISSES_TO_DOUBT = 2
MISSES_TO_DOWN = 3
ERRORS_TO_DOUBT = 3
PLAIN_S = 3600.0
NOBODY = "no upstream"
_BRACKETED = re.compile(r"\[([^]]*:[^]]*)\](?::([0-9]+))?").fullmatch
_UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what the kernel connects to instead


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """An address to ask or to listen on: ``host`` in its shortest spelling, with ``%zone`` for IPv6 link-local."""

    host: str
    port: int = DNS_PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """``192.0.2.53``, ``192.0.2.53:5353``, ``2001:db8::1``, ``[fe80::1%eth0]:53``; UpstreamError for anything else."""
    host, port_text = _split_port(text.strip())
    port = int(port_text) if port_text.isascii() and port_text.isdigit() else 0
    try:
        address = ip_address(host)
    except ValueError:
        raise UpstreamError(f"{text!r} is not an IP address with an optional port") from None
    if not 0 < port < 65536:
        raise UpstreamError(f"{text!r}: the port must be 1 to 65535")
    return Endpoint(_plain(address), port)


def _split_port(text: str) -> tuple[str, str]:
    """Host and port as written; what is neither form comes back whole."""
    bracketed = _BRACKETED(text)
    if bracketed:
        return bracketed[1], bracketed[2] or str(DNS_PORT)
    host, colon, port = text.partition(":")
    return (host, port) if colon and ":" not in port else (text, str(DNS_PORT))


def _plain(address: IPv4Address | IPv6Address) -> str:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class Ours(msgspec.Struct, frozen=True, gc=False):
    """What reaches ourselves: exact listen addresses, ports listened on everywhere, and this host's addresses."""

    listen: frozenset[Endpoint] = frozenset()
    wildcard_ports: frozenset[int] = frozenset()
    local: frozenset[str] = frozenset()

    def __contains__(self, endpoint: Endpoint) -> bool:
        if endpoint in self.listen:
            return True
        if endpoint.port not in self.wildcard_ports:
            return False
        host = endpoint.host.partition("%")[0]
        return host in self.local or ip_address(host).is_loopback


def ours(listen: Iterable[str], local: Iterable[str]) -> Ours:
    """From the addresses we are bound to (``host:port``; wildcards too) and the addresses of this host.

    A bind to ``::`` counts for IPv4 too: the kernel takes both unless told otherwise. UpstreamError as parse_endpoint.
    """
    endpoints = {parse_endpoint(text) for text in listen}
    return Ours(
        listen=frozenset(endpoints),
        wildcard_ports=frozenset(endpoint.port for endpoint in endpoints if endpoint.host in _UNSPECIFIED),
        local=frozenset(_plain(ip_address(text)).partition("%")[0] for text in local),
    )


class Health(Enum):
    """What we hold of a resolver at the moment."""

    UP = "up"
    DOUBTED = "doubted"  # misses or errors in a row: asked last, probed
    DOWN = "down"  # a probe went unanswered too: not asked, probed
    LOOP = "loop"  # it asks us back: not asked, checked again later


_TOLD = {"refused": "nothing listens there"}
"""What a person would take for something else: REFUSED is an answer."""

_UP = Health.UP  # a look-up in an enum costs as much as a call
_RANK = {Health.UP: 0, Health.DOUBTED: 1, Health.DOWN: 2}


class Resolver(msgspec.Struct, eq=False, kw_only=True):
    """One upstream and what was seen of it. Times are of the monotonic clock; ``place`` is its place in the list.

    ``replied_at`` is its last answer that counts, ``spoke_at`` its last failure or checked reply; ``last_error`` is for people.
    """

    endpoint: Endpoint
    address: str
    place: int = 0
    health: Health = Health.UP
    latency_s: float = 0.0
    spread_s: float = 0.0
    misses: int = 0
    errors: int = 0
    replied_at: float = -inf
    spoke_at: float = -inf
    judged_at: float = -inf
    probe_at: float = inf
    probe_turn: int = 0
    loop_check_due: float = inf
    loop_checked_at: float = -inf
    looped_at: float = -inf
    plain_until: float = -inf
    good_question: bytes = b""
    sent: int = 0
    replies: int = 0
    failures: int = 0
    last_error: str = ""
    error_at: float = -inf

    def __repr__(self) -> str:
        return f"<Resolver {self.address} {self.health.value} {self.latency_s * 1000:.0f} ms misses={self.misses}>"

    def patience_s(self, *, first: bool) -> float:
        """How long to wait before another try is made; the try stays open for a late reply."""
        if self.latency_s == 0.0:
            return FIRST_PATIENCE_S
        wanted = self.latency_s + 4 * self.spread_s
        if wanted <= PATIENCE_MIN_S:
            return PATIENCE_MIN_S
        return min(wanted, FIRST_PATIENCE_MAX_S if first else PATIENCE_MAX_S)

    def answered(self, sent_at: float, now: float, question: bytes, *, probe: bool) -> None:
        """It gave an answer that counts (NXDOMAIN too): it is up, and its latency is known."""
        self.replies += 1
        self.replied_at = self.judged_at = now
        if self.misses:
            self.misses = 0
        took_s, latency_s = now - sent_at, self.latency_s
        if probe or latency_s == 0.0:
            self.latency_s = max(took_s, 1e-6)
            self.spread_s = took_s / 2
        else:
            off_s = took_s - latency_s
            self.latency_s = latency_s + off_s / 8
            spread_s = self.spread_s
            self.spread_s = spread_s + (abs(off_s) - spread_s) / 4
        self.good_question = question
        if self.errors:
            self.errors = 0
        if self.probe_at != inf:
            self.probe_at = inf
        if self.health is not _UP and self.health is not Health.LOOP:
            self.health = _UP

    def erred(self, now: float, error: str) -> None:
        """It answered with a failure: alive, but perhaps of no use."""
        self._spoke(now)
        self.errors += 1
        self.failures += 1
        self.last_error, self.error_at = error, now
        if self.health is Health.DOWN or (self.health is Health.UP and self.errors >= ERRORS_TO_DOUBT):
            self._doubt(now)

    def missed(self, sent_at: float, now: float, error: str, *, probe: bool) -> None:
        """Nothing came within its patience, or the host refused. A reply since ``sent_at`` clears it."""
        self.failures += 1
        self.last_error, self.error_at = _TOLD.get(error, error), now
        self.judged_at = now
        if sent_at < max(self.replied_at, self.spoke_at):
            return
        self.misses += 1
        if self.health is Health.UP and self.misses >= MISSES_TO_DOUBT:
            self._doubt(now)
        elif self.health is Health.DOUBTED and probe and self.misses >= MISSES_TO_DOWN:
            self.health = Health.DOWN

    def checked(self, started_at: float, now: float) -> None:
        """A loop check was answered, well or not: by somebody else, unless ``looped`` was called since."""
        self._spoke(now)
        if self.health is Health.DOWN:
            self._doubt(now)
        if self.health is Health.LOOP and self.looped_at < started_at:
            self.health = Health.UP

    def looped(self, now: float) -> None:
        """Our own check came back to us: it is not asked any more until a later check does not come back."""
        self.health = Health.LOOP
        self.looped_at = now
        self.probe_at = inf
        self.loop_check_due = now + LOOP_CHECK_EVERY_S
        self.last_error, self.error_at = "asks us back", now

    def is_askable(self, now: float) -> bool:
        """Not looping, and not down by a verdict that is still fresh."""
        if self.health is Health.DOWN:
            return now - self.judged_at >= VERDICT_S
        return self.health is not Health.LOOP

    def _spoke(self, now: float) -> None:
        self.replies += 1
        self.spoke_at = self.judged_at = now
        if self.misses:
            self.misses = 0

    def _doubt(self, now: float) -> None:
        self.health = Health.DOUBTED
        self.probe_at = now
        self.loop_check_due = max(now, self.loop_checked_at + LOOP_CHECK_EVERY_S)


class Resolvers:
    """The group. ``refused`` names the addresses that were left out, and why."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._members: tuple[Resolver, ...] = ()
        self._asked_at = -inf
        self.refused: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"<Resolvers {list(self._members)} refused={dict(self.refused)}>"

    def __iter__(self) -> Iterator[Resolver]:
        return iter(self._members)

    def replace(self, addresses: Iterable[str], own: Ours, now: float) -> None:
        """Takes a new list. Who stays keeps what is known of it; our own addresses and bad ones are left out."""
        known = {member.endpoint: member for member in self._members}
        endpoints, self.refused = _usable(addresses, own)
        self._members = tuple(known.get(endpoint) or _new(endpoint, now) for endpoint in endpoints)
        for place, member in enumerate(self._members):
            member.place = place

    def order(self, now: float) -> tuple[Resolver, ...]:
        """Whom to ask, best first; empty when nobody can be asked, that is when all are known to be down."""
        self._asked_at = now
        for member in self._members:
            if member.health is not _UP or member.latency_s > SLOWER_S:
                break
        else:
            return self._members
        members = [member for member in self._members if member.is_askable(now)]
        if len(members) > 1:
            self._sort(members, now)
        return tuple(members)

    def problem(self, now: float) -> str:
        """Why nobody can be asked; "" when somebody can."""
        return "" if any(member.is_askable(now) for member in self._members) else self.why_nobody()

    @property
    def replied_at(self) -> float:
        """When anybody gave an answer that counts."""
        return max((member.replied_at for member in self._members), default=-inf)

    def why_nobody(self) -> str:
        """Why ``order`` is empty, for people."""
        if not self._members:
            left_out = "; ".join(f"{address}: {why}" for address, why in self.refused)
            return f"{NOBODY} ({left_out})" if left_out else NOBODY
        return "; ".join(f"{member.address}: {member.health.value}, {member.last_error}" for member in self._members)

    def named(self, address: str) -> Resolver | None:
        """The member with this ``address``, spelled as Endpoint spells it."""
        return next((member for member in self._members if member.address == address), None)

    def take_probes(self, now: float) -> list[Resolver]:
        """Whom to probe now; each is due again after a while, with jitter."""
        due = [member for member in self._members if member.probe_at <= now and self._is_wanted(member)]
        for member in due:
            every_s = SLOW_PROBE_EVERY_S if member.health is Health.UP else PROBE_EVERY_S
            member.probe_at = now + every_s * self._rng.uniform(0.8, 1.0)
        return due

    def take_loop_checks(self, now: float) -> list[Resolver]:
        """Whom to ask whether it asks us back: new ones at once, doubted ones when doubted, looping ones each minute."""
        due = [member for member in self._members if member.loop_check_due <= now]
        for member in due:
            member.loop_checked_at = now
            member.loop_check_due = now + LOOP_CHECK_EVERY_S if member.health is Health.LOOP else inf
        return due

    def next_due(self) -> float:
        """When ``take_probes`` or ``take_loop_checks`` will have something; inf for never."""
        due = inf
        for member in self._members:
            if member.probe_at < due and self._is_wanted(member):
                due = member.probe_at
            due = min(due, member.loop_check_due)
        return due

    def _is_wanted(self, member: Resolver) -> bool:
        """Nobody asks: nobody is probed, and an idle process stays idle."""
        return member.probe_at - self._asked_at < WANTED_S

    def _sort(self, members: list[Resolver], now: float) -> None:
        quickest_s = min((member.latency_s for member in members if member.latency_s), default=inf)
        slow = [member for member in members if member.latency_s > quickest_s + SLOWER_S]
        for member in slow:
            member.probe_at = min(member.probe_at, now + SLOW_PROBE_EVERY_S)
        members.sort(key=lambda member: (_RANK[member.health], member in slow, member.place))


def _new(endpoint: Endpoint, now: float) -> Resolver:
    return Resolver(endpoint=endpoint, address=str(endpoint), loop_check_due=now)


def _usable(addresses: Iterable[str], own: Ours) -> tuple[list[Endpoint], tuple[tuple[str, str], ...]]:
    endpoints: dict[Endpoint, None] = {}
    refused: list[tuple[str, str]] = []
    for text in addresses:
        try:
            endpoint = parse_endpoint(text)
        except UpstreamError as error:
            refused.append((text, str(error)))
            continue
        endpoint = msgspec.structs.replace(endpoint, host=_UNSPECIFIED.get(endpoint.host, endpoint.host))
        if endpoint in own:
            refused.append((text, "that is ourselves"))
        else:
            endpoints[endpoint] = None
    return list(endpoints), tuple(refused)
