"""The tables of the fast path: finished replies by whole packet, and pages by question.

Must not know: sockets, the clock, what is known of services. Rules: a packet gets replies of its own when it comes
again soon, a question has one page; both are dropped with what they tell, or when their time is over; all is bounded; a
reply that may be on its way is kept until the batch it is in has been sent.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from typing import TYPE_CHECKING

from nacosdns.core import dnswire
from nacosdns.core.page import WINDOW, Entry, Fixed, Page, Shape, shape_of
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nacosdns.core.model import Query

PACKETS_BYTES_MAX = 8 << 20
PAGES_BYTES_MAX = 64 << 20
FIXED_MAX = 20_000
SEEN_MAX = 4_000
SAMPLED = 3  # one answer of so many and one is looked at for whether its packet comes often
SHAPES_MAX = 500
EVICTED_AT_ONCE = 256
FIXED_BYTES = 600  # of Python's objects around a fixed reply
ENTRY_BYTES = 400  # around a packet with replies of its own
REPLY_BYTES = 110  # around each of its replies
_COUNTS = (b"\0\1\0\0\0\0\0\0", b"\0\1\0\0\0\0\0\1")
_NO_PLAIN_QUERY = 0xFA  # QR, opcode and TC in the first byte of flags
TYPE_MAX = 255  # of larger ones the first byte, too, might be a letter
_TRUNCATED = 0x02
_OPT_BYTES = 11  # root, type, payload, version and flags, length


class Prepared:
    """``packets``: whole packet without its id -> its entry. Doors read it, then ``similar``, then go the slow way.

    ``vector`` makes what a door sends from a reply. A door calls ``begin`` before each batch, and
    empties ``retired`` when the batch has been sent.
    """

    def __init__(self, vector: Callable[[bytes], bytes] | None = None) -> None:
        self.packets: dict[bytes, Entry] = {}
        self.retired: list[object] = []
        self.now = 0.0
        self.next_expiry = inf
        self.packets_bytes = 0
        self.pages_bytes = 0
        self._vector = vector
        self._on = True
        self.cell = 0
        self.cut = False
        self._pages: dict[bytes, Page | Fixed] = {}  # by question in small letters, its type too
        self._pages_of: dict[str, tuple[Page, ...]] = {}
        self._fixed_of: dict[str, set[Fixed]] = {}
        self._fixed = 0
        self._timed: list[tuple[float, int, Fixed]] = []
        self._number = count()
        self._seen: set[bytes] = set()
        self._shapes: dict[bytes, Shape] = {}
        self._tcp_shapes: dict[bytes, Shape] = {}
        self._unread: Iterator[Page | Fixed] = iter(())

    def __repr__(self) -> str:
        return f"<Prepared pages={len(self._pages)} packets={len(self.packets)}>"

    @property
    def page_count(self) -> int:
        return len(self._pages)

    def switch(self, *, on: bool) -> None:
        """Off: every query goes the slow way, so that each can be logged."""
        if on != self._on:
            self._on = on
            self.drop_all()

    # --- what the doors ask

    def similar(self, key: bytes) -> bytes | None:
        """For a packet without replies of its own (and without its id): a reply without its id; ``cell`` counts it.

        Packets that differ in the case of the name (RFC 1035 2.3.3), in EDNS or in options that nobody answers share a
        page. None: it must be read as a whole.
        """
        end = key.find(0, 10) + 5
        question = key[10:end]
        folded = question.lower()  # the type too, so it is compared by itself
        page = self._pages.get(folded)
        if page is None or page.kind != key[end - 3]:
            return None
        plain = len(key) <= end + _OPT_BYTES
        if len(key) == end:
            shape_key = key[:10]
        else:
            rest = key[end:]
            shape_key = key[:10] + (rest if plain else _without_options(rest))
        shape = self._shapes.get(shape_key) or self._shape(shape_key, key)
        if shape is None:
            return None
        page.cursor = at = page.cursor + 1
        if at >= page.turns:
            at = page.turn(self.now)
        reply = page.reply(question, shape, at)
        if not at & SAMPLED and plain and folded == question and reply and self._is_seen(key):
            self._admit(key, page, question, shape)
        self.cell = page.cell
        return reply or None

    def for_tcp(self, key: bytes) -> bytes | None:
        """As ``similar``, for a message by TCP: its reply is as long as it needs to be; ``cut`` when even that is too short."""
        self.cut = False
        entry = self.packets.get(key)
        if entry is not None and isinstance(entry.page, Fixed):
            reply = entry.page.reply(entry.question, entry.shape, 0)
            self.cell = entry.page.cell
            return reply if reply and not reply[0] & _TRUNCATED else None
        end = key.find(0, 10) + 5
        question = key[10:end]
        page = self._pages.get(question.lower())
        if page is None or page.kind != key[end - 3]:
            return None
        shape_key = key[:10] + _without_options(key[end:])
        shape = self._tcp_shapes.get(shape_key) or self._shape(shape_key, key, over_tcp=True)
        if shape is None:
            return None
        self.cell = page.cell
        reply = page.reply(question, shape, page.step(self.now))
        self.cut = isinstance(page, Page) and page.is_cut(reply)
        return reply or None

    def _shape(self, shape_key: bytes, key: bytes, *, over_tcp: bool = False) -> Shape | None:
        """The shape of a query with at most an OPT record, whose options nobody answers; None for any other packet."""
        if not self._on or key[0] & _NO_PLAIN_QUERY or key[2:10] not in _COUNTS:
            return None
        try:
            query = dnswire.parse_query(b"\0\0" + key, over_tcp=over_tcp)
        except WireError:
            return None
        if query.edns is not None and query.edns.version:
            return None
        shapes = self._tcp_shapes if over_tcp else self._shapes
        if len(shapes) >= SHAPES_MAX:
            shapes.clear()
        shape = shapes[shape_key] = shape_of(query)
        return shape

    def begin(self, now: float) -> None:
        """The time of what is asked next; what held until then goes."""
        self.now = now
        if now >= self.next_expiry:
            self.expire(now)

    def expire(self, now: float) -> None:
        """Drops what held until now."""
        while self._timed and self._timed[0][0] <= now:
            self._drop_fixed(heappop(self._timed)[2])
        self.next_expiry = self._timed[0][0] if self._timed else inf

    def next_reply(self, entry: Entry) -> bytes:
        """The vector of the entry's next reply, where it does not simply stand behind the last one."""
        at = entry.page.step(self.now)
        if not entry.vectors:
            self._begin(entry)
        return entry.vectors[at] or self._render(entry, at)

    def _begin(self, entry: Entry) -> None:
        """An entry with nothing rendered yet; what it had may still be on its way."""
        self.retired.append(entry.replies)
        self.packets_bytes -= entry.size_bytes
        entry.replies = []
        entry.vectors = [b""] * entry.page.turns
        entry.size_bytes = ENTRY_BYTES + len(entry.packet)
        self.packets_bytes += entry.size_bytes

    def _render(self, entry: Entry, at: int) -> bytes:
        """The reply at this place, which stands at every place where the window repeats itself."""
        reply = entry.page.reply(entry.question, entry.shape, at)
        vector = reply if self._vector is None else self._vector(reply)
        entry.replies.append(reply)
        if isinstance(entry.page, Fixed):
            entry.vectors = [vector] * WINDOW
        else:
            cycle = len(entry.page.window.orders)
            for place in range(at % cycle, len(entry.vectors), cycle):
                entry.vectors[place] = vector
        size = REPLY_BYTES + len(reply)
        entry.size_bytes += size
        self.packets_bytes += size
        return vector

    # --- what is prepared

    def page(self, name: bytes, qtype: int) -> Page | None:
        """The page of a folded name and type that turns, if it was rendered since the last change."""
        question = name + qtype.to_bytes(2, "big") + b"\0\1"
        page = self._pages.get(question.lower())
        return page if isinstance(page, Page) and page.question == question else None

    def keep(self, name: bytes, qtype: int, page: Page) -> None:
        """Keeps a page until its service changes; the oldest goes when there are too many."""
        page.question = question = name + qtype.to_bytes(2, "big") + b"\0\1"
        page.kind = -1 if page.per_client else qtype
        folded = question.lower()
        self._drop_question(folded)
        self._pages[question if question == folded else folded] = page  # one object where one will do
        self._pages_of[page.service] = (*self._pages_of.get(page.service, ()), page)
        self.pages_bytes += page.size_bytes
        if self.pages_bytes > PAGES_BYTES_MAX:
            for oldest in list(islice(self._pages, EVICTED_AT_ONCE)):
                self._drop_question(oldest)

    def keep_reply(self, query: Query, reply: bytes, *, cell: int, until: float, about: tuple[str, ...]) -> None:
        """Keeps one reply (with its id) for its question until then, or until one of these services changes."""
        folded = query.name + query.question[-4:]
        key = folded.lower()
        if not self._on or query.type > TYPE_MAX or key in self._pages or not self._is_seen(folded):
            return
        opt_bytes = len(dnswire.opt_record(query))
        fixed = Fixed(reply[2:], cell=cell, until=until, about=about, question=folded, opt_bytes=opt_bytes)
        if self._take_in(fixed):
            self._pages[key] = fixed
            self.pages_bytes += len(fixed.body) + FIXED_BYTES

    def keep_packet(self, packet: bytes, reply: bytes, *, cell: int, until: float, about: tuple[str, ...]) -> None:
        """Keeps one reply (both with their ids) for this very packet only."""
        key = packet[2:]
        if not self._on or key in self.packets or not self._is_seen(key):
            return
        fixed = Fixed(reply[2:], cell=cell, until=until, about=about)
        if self._take_in(fixed):
            self._admit(key, fixed, b"", PLAIN)

    def _take_in(self, fixed: Fixed) -> bool:
        if self._fixed >= FIXED_MAX:
            return False
        self._fixed += 1
        for service in fixed.about:
            self._fixed_of.setdefault(service, set()).add(fixed)
        heappush(self._timed, (fixed.until, next(self._number), fixed))
        self.next_expiry = self._timed[0][0]
        return True

    def _is_seen(self, key: bytes) -> bool:
        """Whether this is its second sight within a short while."""
        if key in self._seen:
            return True
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        self._seen.add(key)
        return False

    def _admit(self, key: bytes, page: Page | Fixed, question: bytes, shape: Shape) -> None:
        if key in self.packets:
            return
        if self.packets_bytes > PACKETS_BYTES_MAX:
            self._drop_oldest_packets()
        entry = self.packets[key] = Entry(key, page, question, shape)
        if page.entries is None:
            page.entries = []
        page.entries.append(entry)
        self._begin(entry)

    # --- what is dropped

    def renew(self, service: str, renewed: Mapping[Page, Page]) -> None:
        """This service changed, and of some of its pages there are new ones, or they stay as they are.

        A new page takes the place of the one that it was made from, and of no other: that one may be gone by now.
        """
        present = self._pages_of.get(service, ())
        staying = tuple(page for page in present if renewed.get(page) is page)
        self.drop(service, but=staying)
        for page in present:
            new = renewed.get(page, page)
            if new is not page:
                self.keep(page.question[:-4], int.from_bytes(page.question[-4:-2], "big"), new)

    def drop(self, service: str, *, but: tuple[Page, ...] = ()) -> None:
        """This service changed; ``but`` these of its pages say the same as before."""
        for page in self._pages_of.pop(service, ()):
            if page not in but:
                self._forget(page)
        if but:
            self._pages_of[service] = but
        for fixed in tuple(self._fixed_of.get(service, ())):
            self._drop_fixed(fixed)

    def drop_all(self) -> None:
        """Policy changed: everything is rendered anew."""
        self.retired.append(list(self.packets.values()))
        self.packets.clear()
        for table in (
            self._pages,
            self._pages_of,
            self._fixed_of,
            self._timed,
            self._shapes,
            self._tcp_shapes,
            self._seen,
        ):
            table.clear()
        self.packets_bytes = self.pages_bytes = self._fixed = 0
        self.next_expiry = inf
        self._unread = iter(())

    def _drop_question(self, key: bytes) -> None:
        page = self._pages.get(key)
        if isinstance(page, Fixed):
            self._drop_fixed(page)
        elif page is not None:
            others = tuple(other for other in self._pages_of.get(page.service, ()) if other is not page)
            if others:
                self._pages_of[page.service] = others
            else:
                self._pages_of.pop(page.service, None)
            self._forget(page)

    def _forget(self, page: Page) -> None:
        if self._pages.pop(page.question.lower(), None) is not None:
            self.pages_bytes -= page.size_bytes
        self._drop_entries(page)

    def _drop_fixed(self, fixed: Fixed) -> None:
        """Nothing when it was dropped before; its place in the heap of times stays until then."""
        if fixed.until == 0.0:
            return
        fixed.until = 0.0
        self._fixed -= 1
        for service in fixed.about:
            others = self._fixed_of.get(service, set())
            others.discard(fixed)
            if not others:
                self._fixed_of.pop(service, None)
        if fixed.question and self._pages.pop(fixed.question.lower(), None) is not None:
            self.pages_bytes -= len(fixed.body) + FIXED_BYTES
        self._drop_entries(fixed)

    def _drop_entries(self, page: Page | Fixed) -> None:
        for entry in page.entries or ():
            self._drop_entry(entry)
        page.entries = None

    def _drop_entry(self, entry: Entry) -> None:
        if self.packets.pop(entry.packet, None) is not None:
            self.packets_bytes -= entry.size_bytes
            self.retired.append(entry)

    def _drop_oldest_packets(self) -> None:
        """Room for others: half of the table goes."""
        for entry in list(islice(self.packets.values(), len(self.packets) // 2 + 1)):
            self._drop_entry(entry)
            if entry.page.entries is not None:
                entry.page.entries.remove(entry)

    # --- what is in use

    def pages_of(self, service: str) -> tuple[Page, ...]:
        """The pages of this service."""
        return self._pages_of.get(service, ())

    def services(self) -> list[str]:
        """The services that have pages."""
        return list(self._pages_of)

    def used(self, pages_max: int) -> list[str]:
        """Services whose prepared answers were used since they were looked at last; looks at so many pages a call."""
        found = []
        looked = 0
        for page in islice(self._unread, pages_max):
            looked += 1
            if isinstance(page, Fixed):
                continue
            mark = page.renewals << 8 | page.cursor & 0xFF
            if mark != page.mark:
                page.mark = mark
                found.append(page.service)
        if looked < pages_max:
            self._unread = iter(list(self._pages.values()))
        return found


PLAIN = Shape(0, dnswire.PLAIN_BYTES_MAX, b"")


def _without_options(rest: bytes) -> bytes:
    """What follows the question: an OPT record without its options, when that is all there is; else as it is."""
    end = len(rest)
    if end <= _OPT_BYTES:
        return rest
    if rest[:3] != b"\0\0\x29" or (rest[9] << 8) + rest[10] != end - _OPT_BYTES:
        return rest
    at = _OPT_BYTES
    while at + 4 <= end:
        at += 4 + (rest[at + 2] << 8) + rest[at + 3]
    return rest[:9] + b"\0\0" if at == end else rest
