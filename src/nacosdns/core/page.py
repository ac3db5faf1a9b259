"""Pages: the prepared answer to one question, rendered for whoever asks in whatever spelling and with whatever EDNS.

Must not know: sockets, the clock, which pages are kept. Rules: a page holds records, not replies, so that a hundred
thousand of them fit; what pages have in common (orders, bounds) they share; a reply is cut to what the client takes.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from nacosdns.core import dnswire

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nacosdns.core.balance import Balancer
    from nacosdns.core.model import Query
    from nacosdns.core.rendering import Recipe

WINDOW = 32
WINDOW_S = 0.02
SHIFT_S = 1.0
NEVER = -1.0
PLACES = 8
LARGE = 16
SHARED_MAX = 4096
PAGE_BYTES = 360  # of Python's objects around a page's records: the page, its names and its places in tables
FLAG_AA_QR_RA = 0x8480
FLAG_TC = 0x0200
KEPT_FLAGS = 0x0110  # RD and CD go back as they came

_COUNTED = 128
_COUNTS = tuple(
    tuple(count.to_bytes(2, "big") + b"\0\0\0" + extra for count in range(_COUNTED)) for extra in (b"\0", b"\1")
)
"""Without and with OPT: the counts of answers, authority and additional records, by the number of answers."""

Order = tuple[int, ...]
Place = TypeVar("Place", Order, int)


class Shape:
    """What a query wants beside its question: flags that go back, the OPT record of the reply, and its room.

    ``room`` is for the question and records.
    """

    __slots__ = ("flags", "head", "opt", "over_tcp", "room", "tails")

    def __init__(self, flags: int, size_max: int, opt: bytes, *, over_tcp: bool = False) -> None:
        self.flags = flags
        self.opt = opt
        self.over_tcp = over_tcp
        self.room = size_max - 12 - len(opt)
        self.head = (FLAG_AA_QR_RA | flags).to_bytes(2, "big") + b"\0\1"
        self.tails = _COUNTS[bool(opt)]

    def __repr__(self) -> str:
        return f"<Shape {self.flags:04x} room={self.room}>"


def shape_of(query: Query) -> Shape:
    """The shape of a parsed query."""
    return Shape(
        query.flags & KEPT_FLAGS, dnswire.size_limit(query), dnswire.opt_record(query), over_tcp=query.over_tcp
    )


class Window(NamedTuple):
    """A window of orders; ``starts`` says where an order is the records turned round at that member, else -1.

    A page's ``cuts`` say the same in bytes, for every place of its window.
    """

    orders: tuple[Order, ...]
    starts: tuple[int, ...]


class Page:
    """The answers to one question about one service, and the window of orders now in use.

    ``records`` are wire bytes whose owner is a pointer to the question; ``take`` is how many an answer holds; ``service``
    is the book's key of the service. ``turns`` counts the places of the window, which holds a short cycle several times.
    ``recipe`` makes the page anew when the service changes; ``digest`` tells whether that would be another one (0: unknown).
    """

    __slots__ = (
        "balancer",
        "blob",
        "bounds",
        "cell",
        "cursor",
        "cuts",
        "digest",
        "drawn_at",
        "entries",
        "glue",
        "kind",
        "mark",
        "question",
        "recipe",
        "renewals",
        "service",
        "take",
        "turns",
        "window",
    )

    def __init__(
        self,
        service: str,
        records: Sequence[bytes],
        glue: Sequence[bytes] = (),
        *,
        balancer: Balancer,
        take: int,
        cell: int,
        window: Window | None = None,
    ) -> None:
        """``window``: what ``first_window`` said, when it was asked before."""
        self.service = service
        self.question = b""
        self.kind = 0
        self.take = min(take, len(records))
        self.cell = cell
        self.cursor = -1
        self.drawn_at = NEVER
        self.mark = 0xFF
        self.renewals = 0
        self.recipe: Recipe | None = None
        self.digest = 0
        self.entries: list[Entry] | None = None
        self.balancer: Balancer | None = balancer
        if _repeats_soon(balancer):
            self.balancer = None
            cycle = balancer.cycle
            orders = balancer.window(cycle, len(records))
            if _turn_round(orders, len(records)):
                records = [records[index] for index in orders[0]]
                glue = [glue[index] for index in orders[0]] if glue else ()
                self.window = _turning(len(records), self.take)
            else:
                self.window = _shared(tuple(order[: self.take] for order in orders))
            self.turns = WINDOW // cycle * cycle
        else:
            self.window = window or _drawn(balancer, self.take)
            self.turns = len(self.window.orders)
        self.blob = b"".join(records)
        self.bounds = _bounds(tuple(map(len, records)))
        self.glue = tuple(glue) if any(glue) else ()
        starts = self.window.starts if not self.glue else (-1,) * len(self.window.orders)
        self.cuts = _cuts(self.bounds, starts, self.turns // len(starts))

    def __repr__(self) -> str:
        return f"<Page {self.service!r} members={self.members} renewals={self.renewals} cursor={self.cursor}>"

    @property
    def members(self) -> int:
        """How many records there are to choose from."""
        return len(self.bounds) - 1

    @property
    def size_bytes(self) -> int:
        """About what it costs in memory."""
        own = 0 if self.balancer is None else 600 * len(self.window.orders)
        return PAGE_BYTES + len(self.blob) + sum(map(len, self.glue)) + own

    @property
    def in_use(self) -> bool:
        """Whether it was asked for since it was made."""
        return self.cursor >= 0

    @property
    def per_client(self) -> bool:
        """Whether each client has orders of its own, so that nothing is prepared."""
        return self.balancer is not None and self.balancer.per_client

    def _all(self, order: Order) -> Iterator[int]:
        """An order to the last place: the drawn ones, then the others as they stand."""
        yield from order
        if len(order) < self.take:
            drawn = set(order)
            size = self.members
            first = order[0] + 1 if order else 0
            yield from (at % size for at in range(first, first + size) if at % size not in drawn)

    def step(self, now: float) -> int:
        """The place of the next order in the window."""
        self.cursor = at = self.cursor + 1
        return at if at < self.turns else self.turn(now)

    def turn(self, now: float) -> int:
        """The first place of the window, at its end.

        It is replayed when it is younger than WINDOW_S, for a window costs as much as a hundred answers; else it is
        drawn anew, and the prepared replies of all its packets no longer hold. One that repeats itself is kept for
        SHIFT_S. Each begins elsewhere in its turns than the one before: a client that asks twice for each answer (by
        UDP, then by TCP) hears every second turn, and would else never be told half of the members first.
        """
        self.cursor = 0
        kept_s = SHIFT_S if self.balancer is None else WINDOW_S
        if self.balancer is None and self.drawn_at == NEVER:
            self.drawn_at = now
        if not self.drawn_at <= now < self.drawn_at + kept_s:
            if self.balancer is None:
                self.window = Window(_begun_later(self.window.orders), _begun_later(self.window.starts))
                self.cuts = _begun_later(self.cuts)
            else:
                orders, starts = _drawn(self.balancer, self.take)
                at = _scattered(self.renewals) % len(orders)
                self.window = Window(orders[at:] + orders[:at], starts)
            self.drawn_at = now
            self.renewals += 1
            for entry in self.entries or ():
                entry.empty()
        return 0

    def reply(self, question: bytes, shape: Shape, at: int) -> bytes:
        """The reply without its id, with the records in the order at this place of the window."""
        cut, blob = self.cuts[at], self.blob
        if cut < 0 or len(blob) + len(question) > shape.room:
            orders = self.window.orders
            return self.render(question, shape, orders[at % len(orders)])
        return b"".join((shape.head, shape.tails[self.take], question, blob[cut:], blob[:cut], shape.opt))

    def _record(self, index: int) -> bytes:
        return self.blob[self.bounds[index] : self.bounds[index + 1]]

    def is_cut(self, reply: bytes) -> bool:
        """Whether this reply (without its id) holds fewer records than it should."""
        return int.from_bytes(reply[4:6], "big") < self.take

    def render(self, question: bytes, shape: Shape, order: Order) -> bytes:
        """The reply without its id, for any order of members, cut to what the client takes."""
        room = shape.room - len(question)
        glue: Sequence[bytes] = ()
        if not self.glue and self.members > LARGE and self.bounds[1] * self.members == len(self.blob):
            count = min(room // self.bounds[1], self.take)
            records = self._even(order, count)
        else:
            picked, used = self._fit(order, room)
            count = len(picked)
            records = b"".join(map(self._record, picked))
            glue = self._glue(picked, room - used) if self.glue and count == self.take else ()
        cut = count < self.take
        flags = FLAG_AA_QR_RA | shape.flags | (FLAG_TC if cut and not shape.over_tcp else 0)
        head = flags.to_bytes(2, "big") + b"\x00\x01" + count.to_bytes(2, "big") + b"\x00\x00"
        extra = (len(glue) + bool(shape.opt)).to_bytes(2, "big")
        return b"".join((head, extra, question, records, *glue, shape.opt))

    def _even(self, order: Order, count: int) -> bytes:
        """The first ``count`` of many records of one size: the drawn ones, then what is between them, piece by piece."""
        size = self.bounds[1]
        pieces = list(map(self._record, order[:count]))
        if len(pieces) < count:
            first = order[0]
            turned = self.blob[first * size :] + self.blob[: first * size]
            places = sorted((index - first) % self.members for index in order)
            pieces += [turned[at * size + size : to * size] for at, to in pairwise((*places, self.members))]
        return b"".join(pieces)[: count * size]

    def _fit(self, order: Order, room: int) -> tuple[list[int], int]:
        """Members in order, the rest after the drawn ones, as many whole records as fit."""
        picked: list[int] = []
        used = 0
        for index in self._all(order):
            size = self.bounds[index + 1] - self.bounds[index]
            if used + size > room:
                break
            used += size
            picked.append(index)
            if len(picked) == self.take:
                break
        return picked, used

    def _glue(self, picked: list[int], room: int) -> list[bytes]:
        """Each glue record once, while there is room: glue goes before answers."""
        chosen: dict[bytes, None] = {}
        for index in picked:
            record = self.glue[index]
            if record and record not in chosen:
                room -= len(record)
                if room < 0:
                    break
                chosen[record] = None
        return list(chosen)


class Fixed:
    """One reply that stays the same for a while: a negative answer, a TXT record, a cached answer from outside.

    Kept as the flags, the counts and what follows the question, so that it fits any spelling of the question; an answer
    from outside is kept ``whole``, for the one packet that it was made for.
    """

    __slots__ = (
        "about",
        "body",
        "cell",
        "counts",
        "cursor",
        "entries",
        "flags",
        "kind",
        "question",
        "until",
        "whole",
    )

    turns = 1

    def __init__(
        self,
        reply: bytes,
        *,
        cell: int,
        until: float,
        about: tuple[str, ...],
        question: bytes = b"",
        opt_bytes: int = 0,
    ) -> None:
        """``reply`` without its id, ending in an OPT record of so many bytes; without ``question`` it is kept whole."""
        self.flags = int.from_bytes(reply[:2], "big") & ~KEPT_FLAGS
        extra = int.from_bytes(reply[8:10], "big") - bool(opt_bytes)
        self.counts = (reply[4:8] + b"\0" + bytes((extra,)), reply[4:8] + b"\0" + bytes((extra + 1,)))
        self.body = reply[10 + len(question) : len(reply) - opt_bytes]
        self.whole = b"" if question else reply
        self.question = question
        self.kind = question[-3] if question else 0
        self.cell = cell
        self.cursor = -1
        self.until = until
        self.about = about
        self.entries: list[Entry] | None = None

    def __repr__(self) -> str:
        return f"<Fixed {self.flags:04x} {len(self.body)} bytes until={self.until:.1f}>"

    def step(self, now: float) -> int:
        """There is one reply only."""
        return self.turn(now)

    def turn(self, now: float) -> int:
        """The same one again."""
        del now
        self.cursor = 0
        return 0

    def reply(self, question: bytes, shape: Shape, at: int) -> bytes:
        """The reply without its id; b"" when it does not fit, for then it is cut by those who know its records."""
        del at
        if self.whole:
            return self.whole
        if len(question) + len(self.body) > shape.room:
            return b""
        flags = (self.flags | shape.flags).to_bytes(2, "big")
        return b"".join((flags, b"\0\1", self.counts[bool(shape.opt)], question, self.body, shape.opt))


class Entry:
    """The finished replies of one packet: one for each order of the page's window.

    Each is rendered when it is first its turn. ``vectors`` are what a door reads: where each reply lies in memory, or
    the replies themselves; b"" for one that is not rendered yet.
    """

    __slots__ = ("packet", "page", "question", "replies", "shape", "size_bytes", "vectors")

    def __init__(self, packet: bytes, page: Page | Fixed, question: bytes, shape: Shape) -> None:
        self.packet = packet
        self.page = page
        self.question = question
        self.shape = shape
        self.size_bytes = 0
        self.replies: list[bytes] = []
        self.vectors: list[bytes] = []

    def __repr__(self) -> str:
        return f"<Entry {self.page!r} replies={len(self.replies)}>"

    def empty(self) -> None:
        """What was prepared no longer holds: the next query begins anew. ``replies`` stay, for they may be on their way."""
        self.vectors = []


def first_window(balancer: Balancer, take: int) -> Window | None:
    """The first window of a page of ``take`` records an answer; None of a balancer whose cycle the page itself holds."""
    return None if _repeats_soon(balancer) else _drawn(balancer, take)


def _repeats_soon(balancer: Balancer) -> bool:
    return 0 < balancer.cycle <= WINDOW and not balancer.per_client


def _drawn(balancer: Balancer, take: int) -> Window:
    """The next window of a balancer that does not repeat itself soon, or that wants to know the client."""
    count = 1 if balancer.per_client else WINDOW
    return Window(balancer.window(count, min(PLACES, take)), (-1,) * count)


def _turn_round(orders: tuple[Order, ...], members: int) -> bool:
    """Whether the orders are one order of all members, begun at each of them in turn: so with equal weights."""
    first = orders[0]
    if len(orders) != members or len(first) != members:
        return False
    twice = first + first
    return all(order == twice[at : at + members] for at, order in enumerate(orders))


@lru_cache(maxsize=SHARED_MAX)
def _turning(members: int, take: int) -> Window:
    """The same object for all pages of so many records, which stand in the order of the first turn."""
    twice = tuple(range(members)) * 2
    starts = tuple(range(members)) if take == members < _COUNTED else (-1,) * members
    return Window(tuple(twice[at : at + take] for at in range(members)), starts)


@lru_cache(maxsize=SHARED_MAX)
def _begun_later(places: tuple[Place, ...]) -> tuple[Place, ...]:
    """A cycle begun at its second place; the same object for equal cycles."""
    return places[1:] + places[:1]


def _scattered(number: int) -> int:
    """A number that has no period in common with any count of members."""
    number = number * 0x9E3779B1 & 0xFFFFFFFF
    number = (number ^ number >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    return number ^ number >> 13


@lru_cache(maxsize=SHARED_MAX)
def _shared(orders: tuple[Order, ...]) -> Window:
    """The same object for equal windows."""
    return Window(orders, (-1,) * len(orders))


def _bounds(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Where each record begins, and the end of the last; shared by pages with records of one size."""
    if len(set(sizes)) <= 1:
        return _even_bounds(len(sizes), sizes[0] if sizes else 0)
    return tuple(_sums(sizes))


@lru_cache(maxsize=SHARED_MAX)
def _even_bounds(count: int, size: int) -> tuple[int, ...]:
    return tuple(range(0, count * size + 1, size)) if size else (0,) * (count + 1)


@lru_cache(maxsize=SHARED_MAX)
def _cuts(bounds: tuple[int, ...], starts: tuple[int, ...], times: int) -> tuple[int, ...]:
    return tuple(-1 if start < 0 else bounds[start] for start in starts) * times


def _sums(sizes: Iterable[int]) -> Iterator[int]:
    at = 0
    yield at
    for size in sizes:
        at += size
        yield at
