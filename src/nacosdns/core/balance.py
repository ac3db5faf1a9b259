"""Balancers: in which order the members of a service are told to those who ask.

Must not know: DNS, addresses, how an order becomes an answer, where plugins come from. Rules: the first of an order is
the pick, and the long-run shares of picks are exact; the start is random, so that a thousand agents do not march in
step; a window costs no more than its draws, never a pass over all members for each of them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from difflib import get_close_matches
from functools import lru_cache
from hashlib import blake2b
from heapq import heappop, heapreplace, nsmallest
from itertools import accumulate
from math import inf, log
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import msgspec

from nacosdns.errors import ConfigError

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

CYCLE_MAX = 32
"""The longest cycle that a balancer tells: the length of a window of the book."""

HASHES_MAX = 16_384
"""Members of which the hash is remembered: about 200 bytes each."""

Orders = tuple[tuple[int, ...], ...]

_LIGHTEST = 1e-12  # of the heaviest: a share that nobody could see, and nothing overflows
_MASK = (1 << 64) - 1
_ODD = 0xD6E8FEB86659FD93
_LOG_OF_ALL = log(1 << 64)


class Member(msgspec.Struct, frozen=True, gc=False):
    """One that can be picked. ``identity`` stays the same when its weight or its place in the list changes."""

    identity: str
    weight: float = 1.0


class Balancer(Protocol):
    """Turns the members of a service into windows of orders. An instance lives until its members change.

    ``per_client``: the orders depend on the client, and are asked for once for each class of clients. ``cycle``: after
    so many orders they repeat exactly, so that they need not be drawn again; 0: never, or not within ``CYCLE_MAX``.
    """

    per_client: ClassVar[bool]
    cycle: int

    def __init__(self, members: tuple[Member, ...], rng: random.Random, identity: bytes) -> None:
        """``rng`` is the only source of chance; ``identity`` is this host's, for those who hash."""

    def window(self, count: int, places: int, client: bytes = b"") -> Orders:
        """The next ``count`` orders; the next window goes on where this one ended.

        Each order is ``min(places, len(members))`` different indexes of members, the pick first. ``client`` is its raw
        address or the class that it belongs to.
        """
        ...


class Weighted:
    """Smooth weighted round robin: picks in the proportions of the weights, spread evenly over time.

    Member i is picked at the times (k + phase) / weight for k = 0, 1, 2 and so on; an order lists members by their
    next time. So each is picked exactly as often as its weight says in every cycle. A member without weight comes last.

    The weight of the first pick is drawn by weight, members of equal weight take turns in random order, and kinds of
    weight are independent of each other: so not only the long run but the n-th answer of many agents, for every n, has
    the right shares.
    """

    per_client: ClassVar[bool] = False

    def __init__(self, members: tuple[Member, ...], rng: random.Random, identity: bytes) -> None:
        del identity
        live = _live(members)
        self._idle = _idle(members, live, rng)
        self._rings = rings = _Rings(live, rng)
        self._picks = _cycle_of_picks(rings, _small_parts(live.weights))
        self.cycle = len(self._picks)
        self._at = 0
        self._due: list[tuple[float, int]] = []

    def __repr__(self) -> str:
        size = sum(map(len, self._rings.members))
        return f"<Weighted {size} members, {len(self._idle)} without weight, cycle={self.cycle}>"

    def window(self, count: int, places: int, client: bytes = b"") -> Orders:
        """As Balancer; the client does not matter."""
        del client
        step = self._step_in_cycle if self.cycle else self._step
        if not self.cycle and not self._due:
            self._due = self._rings.begin()
        return tuple(step(places) for _ in range(count))

    def _step_in_cycle(self, places: int) -> tuple[int, ...]:
        picks = dict.fromkeys(self._picks[self._at :] + self._picks[: self._at])
        self._at = (self._at + 1) % self.cycle
        return (*picks, *self._idle)[:places]

    def _step(self, places: int) -> tuple[int, ...]:
        rings = self._rings
        order = rings.next(0, places) if len(rings.members) == 1 else self._merged(places)
        if len(order) < places:
            order += self._idle[: places - len(order)]
        if self._due:
            _, at = self._due.pop(0)
            rings.turns[at] += 1
            insort(self._due, (rings.time(at, 0), at))
        return tuple(order)

    def _merged(self, places: int) -> list[int]:
        """The next members of all rings by their times; the first ``places`` come from as many rings at most."""
        rings = self._rings
        heads = [(time, at, 0) for time, at in self._due[:places]]  # sorted, so it is a heap
        order: list[int] = []
        while heads and len(order) < places:
            _, at, ahead = heads[0]
            members = rings.members[at]
            order.append(members[0] if len(members) == 1 else rings.member(at, ahead))
            if ahead + 1 < len(members):
                heapreplace(heads, (rings.time(at, ahead + 1), at, ahead + 1))
            else:
                heappop(heads)
        return order


class _Rings:
    """Members of equal weight form a ring and take turns: its k-th turn comes at (k + offset) / rate.

    Rings begin at random points; the one that picks first begins at once. What is known of them stands side by side, a
    list for each thing, and the order in a ring is drawn as far as it is needed: there may be as many as members, and
    most are dropped before they came round once.
    """

    __slots__ = ("_drawn", "_rng", "members", "offsets", "rates", "turns")

    def __init__(self, live: _Live, rng: random.Random) -> None:
        alike: defaultdict[float, list[int]] = defaultdict(list)
        if live.alike:
            alike[live.weights[0]] += live.indexes
        else:
            for index, weight in zip(live.indexes, live.weights, strict=True):
                alike[weight].append(index)
        self.members = list(alike.values())
        self.rates = [weight * len(ring) for weight, ring in alike.items()]
        self.offsets = [0.0] * len(self.rates)
        if len(self.rates) > 1:
            draw = rng.random
            self.offsets = [draw() for _ in self.rates]
            self.offsets[rng.choices(range(len(self.rates)), self.rates)[0]] = 0.0
        self.turns = [0] * len(self.rates)
        self._drawn = [0] * len(self.rates)
        self._rng = rng

    def begin(self) -> list[tuple[float, int]]:
        """When the first turn of each comes, the soonest first."""
        times = [offset / rate for offset, rate in zip(self.offsets, self.rates, strict=True)]
        return [(times[at], at) for at in sorted(range(len(times)), key=times.__getitem__)]

    def time(self, at: int, ahead: int) -> float:
        """When the turn ``ahead`` of the next one of a ring comes."""
        return (self.turns[at] + ahead + self.offsets[at]) / self.rates[at]

    def member(self, at: int, ahead: int) -> int:
        """Whose turn that is."""
        members = self.members[at]
        place = (self.turns[at] + ahead) % len(members)
        if place >= self._drawn[at]:
            self._draw(at, place + 1)
        return members[place]

    def next(self, at: int, count: int) -> list[int]:
        """The next members of a ring, each once."""
        members = self.members[at]
        start = self.turns[at] % len(members)
        self._draw(at, min(start + count, len(members)))
        found = members[start : start + count]
        return found + members[: min(start, count - len(found))]

    def _draw(self, at: int, until: int) -> None:
        members, random = self.members[at], self._rng.random
        size = len(members)
        for place in range(self._drawn[at], until):
            other = place + int(random() * (size - place))
            members[place], members[other] = members[other], members[place]
        self._drawn[at] = max(self._drawn[at], until)


def _cycle_of_picks(rings: _Rings, parts: Sequence[int]) -> tuple[int, ...]:
    """The picks of one cycle of a weighted round robin, when it is short; else none."""
    if not parts:
        return ()
    least = min(rate / len(members) for rate, members in zip(rings.rates, rings.members, strict=True))
    scale = min(parts)
    times = [
        (rings.time(at, turn), at, rings.member(at, turn))
        for at, rate in enumerate(rings.rates)
        for turn in range(round(rate / least * scale))
    ]
    return tuple(index for _, _, index in sorted(times))


def _small_parts(weights: Sequence[float]) -> list[int]:
    """Whole numbers in the proportions of the weights, when their sum is at most CYCLE_MAX; else none."""
    least = min(weights, default=1.0)
    for factor in range(1, CYCLE_MAX // max(len(weights), 1) + 1):
        parts = [weight / least * factor for weight in weights]
        if sum(parts) > CYCLE_MAX + 0.5:
            break
        if all(abs(part - round(part)) < 1e-9 * part for part in parts):
            return [round(part) for part in parts]
    return []


class Random:
    """Draws by weight without replacement, each order anew. A member without weight comes last.

    Drawn again while it hits one that was drawn already; the heaviest members, once drawn, are left out of the draw
    altogether, so that few draws are in vain however uneven the weights are.
    """

    per_client: ClassVar[bool] = False

    def __init__(self, members: tuple[Member, ...], rng: random.Random, identity: bytes) -> None:
        del identity
        live = _live(members)
        self.cycle = 0
        self._rng = rng
        self._idle = _idle(members, live, rng)
        ranked = sorted(zip(live.weights, live.indexes, strict=True))
        self._members = [index for _, index in ranked]
        self._sums = list(accumulate(weight for weight, _ in ranked))

    def __repr__(self) -> str:
        return f"<Random {len(self._members)} members, {len(self._idle)} without weight>"

    def window(self, count: int, places: int, client: bytes = b"") -> Orders:
        """As Balancer; the client does not matter."""
        del client
        return tuple(self._draw(places) for _ in range(count))

    def _draw(self, places: int) -> tuple[int, ...]:
        drawn: dict[int, None] = {}
        end = len(self._members)
        while len(drawn) < places and end:
            ticket = self._rng.random() * self._sums[end - 1]
            rank = min(bisect_right(self._sums, ticket), end - 1)
            drawn[self._members[rank]] = None
            while end and self._members[end - 1] in drawn:
                end -= 1
        return (*drawn, *self._idle)[:places]


class RoundRobin:
    """One after the other, without regard to weights; one without any weight comes last."""

    per_client: ClassVar[bool] = False

    def __init__(self, members: tuple[Member, ...], rng: random.Random, identity: bytes) -> None:
        del identity
        live = _live(members)
        self._idle = _idle(members, live, rng)
        self._members = list(live.indexes)
        rng.shuffle(self._members)
        self._at = 0
        self.cycle = len(self._members) if len(self._members) <= CYCLE_MAX else 0

    def __repr__(self) -> str:
        return f"<RoundRobin {len(self._members)} members, {len(self._idle)} without weight, at {self._at}>"

    def window(self, count: int, places: int, client: bytes = b"") -> Orders:
        """As Balancer; the client does not matter."""
        del client
        return tuple(self._step(places) for _ in range(count))

    def _step(self, places: int) -> tuple[int, ...]:
        at = self._at
        order = self._members[at : at + places]
        order += self._members[: min(at, places - len(order))]
        self._at = (at + 1) % max(len(self._members), 1)
        return (*order, *self._idle)[:places]


class Hash:
    """Rendezvous hashing: a client keeps its member while that one is there, and members get clients by weight.

    This host's identity is part of the hash: all clients of an agent are 127.0.0.1, and a fleet would else land on one
    member. A member without weight comes last.
    """

    per_client: ClassVar[bool] = True

    def __init__(self, members: tuple[Member, ...], rng: random.Random, identity: bytes) -> None:
        live = _live(members)
        self.cycle = 1
        self._identity = identity
        self._idle = _idle(members, live, rng)
        self._members = [
            (_hash_of(members[index].identity), 1.0 / weight, index)
            for index, weight in zip(live.indexes, live.weights, strict=True)
        ]

    def __repr__(self) -> str:
        return f"<Hash {len(self._members)} members, {len(self._idle)} without weight>"

    def window(self, count: int, places: int, client: bytes = b"") -> Orders:
        """As Balancer: the same order ``count`` times.

        A member's hash and the client's together give a number evenly drawn from (0, 1); the least of -log(number) /
        weight wins, so that each member wins as often as its weight says.
        """
        seed = _hash(len(self._identity).to_bytes(4) + self._identity + client)
        scores = []
        for member, rarity, index in self._members:
            bits = (member ^ seed) * _ODD & _MASK
            bits = (bits ^ bits >> 32) * _ODD & _MASK
            scores.append(((_LOG_OF_ALL - log(bits | 1)) * rarity, index))
        order = [index for _, index in nsmallest(places, scores)]
        return ((*order, *self._idle)[:places],) * count


@lru_cache(maxsize=HASHES_MAX)
def _hash_of(identity: str) -> int:
    """Of a member: a push brings a thousand, all but one known already."""
    return _hash(identity.encode("utf-8", "surrogatepass"))


def _hash(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest())


class _Live(NamedTuple):
    """The members that can be picked: their indexes, and their weights as parts of the heaviest."""

    indexes: Sequence[int]
    weights: Sequence[float]
    alike: bool


def _live(members: tuple[Member, ...]) -> _Live:
    """The members with a weight; when none has any, all of them alike."""
    weights = [member.weight for member in members]
    indexes: Sequence[int] = range(len(members))
    least, most = min(weights, default=0.0), max(weights, default=0.0)
    if not 0.0 < least <= sum(weights) < inf:  # never so when one of them is no number
        indexes = [index for index, weight in enumerate(weights) if 0.0 < weight < inf]
        weights = [weights[index] for index in indexes]
        least, most = min(weights, default=0.0), max(weights, default=0.0)
    if least == most:
        indexes = indexes or range(len(members))
        return _Live(indexes, (1.0,) * len(indexes), alike=len(indexes) > 0)
    if least > most * _LIGHTEST:
        return _Live(indexes, [weight / most for weight in weights], alike=False)
    return _Live(indexes, [max(weight / most, _LIGHTEST) for weight in weights], alike=False)


def _idle(members: tuple[Member, ...], live: _Live, rng: random.Random) -> list[int]:
    """The others, in random order."""
    if len(live.indexes) == len(members):
        return []
    idle = sorted(set(range(len(members))).difference(live.indexes))
    rng.shuffle(idle)
    return idle


# Tiers


class _Tiered:
    """Balancers one behind the other: each order goes through the first one's members, then the second one's.

    The cycle is the first one's: what stands behind its members is drawn once for each order of it.
    """

    per_client: ClassVar[bool] = False

    def __init__(self, tiers: Sequence[tuple[Balancer, tuple[int, ...]]]) -> None:
        self._first, self._members = tiers[0]
        self._others = tiers[1:]
        self.cycle = self._first.cycle
        self._at = 0
        self._kept: dict[bytes, Orders] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._others) + 1} tiers of {self._first!r}>"

    def window(self, count: int, places: int, client: bytes = b"") -> Orders:
        """As Balancer."""
        orders = _renamed(self._first.window(count, places, client), self._members)
        start, self._at = self._at, self._at + count
        if places <= len(self._members):
            return orders
        if not self.cycle:
            behind = self._behind(count, client)
            return tuple((*order, *rest)[:places] for order, rest in zip(orders, behind, strict=True))
        if client not in self._kept:
            self._kept = {client: self._behind(self.cycle, client)}
        kept = self._kept[client]
        return tuple((*order, *kept[(start + at) % self.cycle])[:places] for at, order in enumerate(orders))

    def _behind(self, count: int, client: bytes) -> Orders:
        windows = [_renamed(tier.window(count, len(members), client), members) for tier, members in self._others]
        return tuple(tuple(index for order in orders for index in order) for orders in zip(*windows, strict=True))


class _TieredPerClient(_Tiered):
    per_client: ClassVar[bool] = True


def _renamed(orders: Orders, members: tuple[int, ...]) -> Orders:
    return tuple(tuple(members[index] for index in order) for order in orders)


def tiered(
    kind: type[Balancer], members: tuple[Member, ...], tiers: tuple[int, ...], rng: random.Random, identity: bytes
) -> Balancer:
    """A balancer of this kind over each tier, the lowest number first.

    A member of a tier stands behind all members of better tiers in every order: it is never the pick while one of
    them exists. ``tiers`` has one number for each member; with a single tier this is the plain balancer.
    """
    if len(set(tiers)) <= 1:
        return kind(members, rng, identity)
    by_tier: dict[int, list[int]] = {}
    for index, tier in enumerate(tiers):
        by_tier.setdefault(tier, []).append(index)
    stack = [
        (kind(tuple(members[index] for index in by_tier[tier]), rng, identity), tuple(by_tier[tier]))
        for tier in sorted(by_tier)
    ]
    return _TieredPerClient(stack) if kind.per_client else _Tiered(stack)


# By name

BUILT_IN: dict[str, type[Balancer]] = {
    "weighted": Weighted,
    "random": Random,
    "round_robin": RoundRobin,
    "hash": Hash,
}


def balancer_type(name: str, balancers: Mapping[str, type[Balancer]]) -> type[Balancer]:
    """The balancer of this name among those that are loaded. ConfigError names the nearest one."""
    kind = balancers.get(name)
    if kind is None:
        near = get_close_matches(name, balancers, 1)
        remedy = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(sorted(balancers))}"
        raise ConfigError(f'no balancer is called "{name}"', key="policy.balancer", remedy=remedy)
    return kind
