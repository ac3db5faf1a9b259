"""The answer book: what a front knows, and pages of rendered answers that replay a balancer's orders.

Must not know: sockets, the clock, how a miss is filled. Rules: the fast path reads only ``replies`` (whole packet
without its id -> finished replies) and ``turn``; a page is rendered on first use and dropped when its service changes;
everything is bounded; a snapshot stays encoded until it is asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from nacosdns.core import dnsrecord, dnswire
from nacosdns.core.frames import decode_snapshot
from nacosdns.core.spelling import folded_of
from nacosdns.core.suffixes import Suffixes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nacosdns.core.balance import Balancer
    from nacosdns.core.frames import Known
    from nacosdns.core.model import Query, Record, ServiceKey, Snapshot

WINDOW = 32
PLACES = 8
REPLIES_BYTES_MAX = 8 << 20
PAGES_MAX = 200_000
SEEN_MAX = 20_000
ADDRESSES_MAX = 10_000
FLAG_AA_QR_RA = 0x8480
FLAG_TC = 0x0200


class Page:
    """The answers to one question about one service: member records, and the window of orders now in use.

    ``records`` are wire bytes whose owner is a pointer to the question; ``take`` is how many an answer holds.
    """

    __slots__ = (
        "_window_size",
        "balancer",
        "cell",
        "cursor",
        "glue",
        "key",
        "mark",
        "orders",
        "records",
        "replays",
        "size",
        "take",
        "turn",
    )

    def __init__(
        self,
        key: ServiceKey,
        records: tuple[bytes, ...],
        glue: tuple[bytes, ...],
        *,
        balancer: Balancer,
        take: int,
        cell: int,
    ) -> None:
        self.key = key
        self.records = records
        self.glue = glue
        self.balancer = balancer
        self.take = take
        self.cell = cell
        self.mark = -1
        self.cursor = -1
        self.turn = 0
        cycle = balancer.cycle
        self.replays = 0 < cycle <= WINDOW
        self._window_size = WINDOW // cycle * cycle if self.replays else WINDOW
        self.orders: tuple[tuple[int, ...], ...] = ()
        self.size = 0
        self.renew()

    def __repr__(self) -> str:
        return f"<Page {self.key} records={len(self.records)} turn={self.turn} cursor={self.cursor}>"

    def renew(self) -> None:
        """Draws the next window; the balancer goes on where it stood."""
        self.orders = self.balancer.window(self._window_size, min(PLACES, self.take, len(self.records)))
        self.size = len(self.orders)
        self.turn += 1

    def step(self) -> int:
        """The place of the next order in the window; at its end the window is drawn anew, or replayed if it is whole."""
        self.cursor += 1
        if self.cursor >= self.size:
            self.cursor = 0
            if not self.replays:
                self.renew()
        return self.cursor

    def render(self, query: Query, order: tuple[int, ...]) -> bytes:
        """The reply without its id, for this order, cut to what the client takes."""
        size_max = dnswire.size_limit(query)
        opt = dnswire.opt_record(query)
        room = size_max - 12 - len(query.question) - len(opt)
        picked, used = self._fit(order, room)
        cut = len(picked) < min(self.take, len(self.records))
        glue = [] if cut else self._glue(picked, room - used)
        flags = FLAG_AA_QR_RA | (query.flags & 0x0110) | (FLAG_TC if cut and not query.over_tcp else 0)
        head = flags.to_bytes(2, "big") + b"\x00\x01" + len(picked).to_bytes(2, "big") + b"\x00\x00"
        extra = (len(glue) + bool(opt)).to_bytes(2, "big")
        return b"".join((head, extra, query.question, *[self.records[i] for i in picked], *glue, opt))

    def _fit(self, order: tuple[int, ...], room: int) -> tuple[list[int], int]:
        """Members in order, the rest after the drawn ones, as many whole records as fit."""
        picked: list[int] = []
        used = 0
        for index in self._all(order):
            used += len(self.records[index])
            if used > room:
                return picked, used - len(self.records[index])
            picked.append(index)
            if len(picked) == self.take:
                break
        return picked, used

    def _all(self, order: tuple[int, ...]) -> Iterator[int]:
        yield from order
        if len(order) < min(self.take, len(self.records)):
            drawn = set(order)
            size = len(self.records)
            first = (order[0] + 1) if order else 0
            yield from (i % size for i in range(first, first + size) if i % size not in drawn)

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


def owner_pointed(record: Record) -> bytes:
    """A record's bytes with its owner as a pointer to the question."""
    return b"\xc0\x0c" + dnsrecord.record_tail(record)


class Entry:
    """The finished replies of one packet: one for each order of the page's window."""

    __slots__ = ("page", "query", "replies", "size", "turn")

    def __init__(self, page: Page, query: Query) -> None:
        self.page = page
        self.query = query
        self.turn = -1
        self.replies: list[bytes] = []
        self.fill()
        self.size = sum(map(len, self.replies)) + 200

    def __repr__(self) -> str:
        return f"<Entry {self.page!r} replies={len(self.replies)}>"

    def fill(self) -> None:
        """Renders the page's present window for this packet."""
        self.replies = [self.page.render(self.query, order) for order in self.page.orders]
        self.turn = self.page.turn

    def reply(self) -> bytes:
        """The next reply, without the id."""
        at = self.page.step()
        if self.turn != self.page.turn:
            self.fill()
        return self.replies[at]


class Book:
    """What a front knows of services, and its pages. ``clashes`` counts answers where several spellings met."""

    def __init__(self) -> None:
        self._services: dict[tuple[str, str, str], dict[ServiceKey, Known]] = {}
        self._decoded: OrderedDict[ServiceKey, Snapshot] = OrderedDict()
        self._pages: OrderedDict[tuple[bytes, int], Page] = OrderedDict()
        self._pages_of: dict[tuple[str, str, str], set[tuple[bytes, int]]] = {}
        self._packets_of: dict[Page, set[bytes]] = {}
        self._seen: set[bytes] = set()
        self._addresses: dict[str, bool] = {}
        self._replies_bytes = 0
        self.suffixes = Suffixes()
        self.replies: dict[bytes, Entry] = {}
        self.clashes = 0

    def __repr__(self) -> str:
        return f"<Book services={len(self._services)} pages={len(self._pages)} packets={len(self.replies)}>"

    def __len__(self) -> int:
        return len(self._services)

    @property
    def page_count(self) -> int:
        return len(self._pages)

    @property
    def replies_bytes(self) -> int:
        return self._replies_bytes

    def page_keys(self) -> list[ServiceKey]:
        """The services that have pages: asked since their last change."""
        return list(dict.fromkeys(page.key for page in self._pages.values()))

    def items(self) -> Iterator[Known]:
        """Everything known, still encoded."""
        for spellings in self._services.values():
            yield from spellings.values()

    # --- what is known

    def update(self, known: Known) -> None:
        """A newer value of a service."""
        key = known.key
        folded = folded_of(key)
        spellings = self._services.get(folded)
        if spellings is None:
            spellings = self._services[folded] = {}
            self.suffixes.add(folded)
        spellings[key] = known
        self._addresses.clear()
        self._decoded.pop(key, None)
        self.drop_pages(folded)

    def remove(self, key: ServiceKey) -> bool:
        """The service is gone. Returns whether it was known."""
        folded = folded_of(key)
        spellings = self._services.get(folded, {})
        found = spellings.pop(key, None) is not None
        if found and not spellings:
            del self._services[folded]
            self.suffixes.remove(folded)
        self._decoded.pop(key, None)
        self.drop_pages(folded)
        return found

    def find(self, folded: tuple[str, str, str], asked: str) -> Snapshot | None:
        """The service of this folded key: the spelling asked for wins, else the first in code-point order, counted."""
        spellings = self._services.get(folded)
        if not spellings:
            return None
        if len(spellings) == 1:
            return self._decode(next(iter(spellings)), spellings)
        self.clashes += 1
        exact = next((key for key in spellings if key.service == asked), None)
        return self._decode(exact or min(spellings), spellings)

    def is_ambiguous(self, folded: tuple[str, str, str]) -> bool:
        """Whether several spellings share the key, so that its answers must not be prepared."""
        return len(self._services.get(folded, ())) > 1

    def _decode(self, key: ServiceKey, spellings: Mapping[ServiceKey, Known]) -> Snapshot:
        snapshot = self._decoded.get(key)
        if snapshot is None:
            snapshot = self._decoded[key] = decode_snapshot(spellings[key].body)
            if len(self._decoded) > WINDOW:
                self._decoded.popitem(last=False)
        return snapshot

    def has_address(self, address: str) -> bool:
        """Whether an instance of a known service has this address. Reads the encoded snapshots; the last words are kept."""
        known = self._addresses.get(address)
        if known is None:
            text = address.encode()
            needle = bytes([0xA0 | len(text)]) + text if len(text) < 32 else bytes([0xD9, len(text)]) + text
            known = any(needle in bytes(item.body) for item in self.items())
            if len(self._addresses) >= ADDRESSES_MAX:
                self._addresses.clear()
            self._addresses[address] = known
        return known

    def asked_since(self) -> list[ServiceKey]:
        """Services whose prepared answers were used since the last call."""
        used = []
        for page in self._pages.values():
            mark = page.turn * WINDOW + page.cursor
            if mark != page.mark:
                page.mark = mark
                used.append(page.key)
        return used

    # --- pages

    def page(self, name: bytes, qtype: int) -> Page | None:
        """The page of a folded name and type, if it was rendered since the last change."""
        return self._pages.get((name, qtype))

    def keep_page(self, name: bytes, qtype: int, page: Page) -> None:
        """Keeps a page until its service changes; the oldest goes when there are too many."""
        folded = folded_of(page.key)
        if (former := self._pages.pop((name, qtype), None)) is not None:
            self._drop_packets(former)
        self._pages[name, qtype] = page
        self._pages_of.setdefault(folded, set()).add((name, qtype))
        if len(self._pages) > PAGES_MAX:
            oldest, dropped = self._pages.popitem(last=False)
            old = folded_of(dropped.key)
            self._pages_of.get(old, set()).discard(oldest)
            self._drop_packets(dropped)

    def drop_pages(self, folded: tuple[str, str, str]) -> None:
        """Its service changed."""
        for at in self._pages_of.pop(folded, ()):
            if (page := self._pages.pop(at, None)) is not None:
                self._drop_packets(page)

    def drop_all_pages(self) -> None:
        """Policy changed: everything is rendered anew."""
        self._pages.clear()
        self._pages_of.clear()
        self._packets_of.clear()
        self.replies.clear()
        self._replies_bytes = 0

    def _drop_packets(self, page: Page) -> None:
        for packet in self._packets_of.pop(page, ()):
            entry = self.replies.pop(packet, None)
            if entry is not None:
                self._replies_bytes -= entry.size

    # --- whole packets

    def admit(self, packet: bytes, query: Query, page: Page) -> None:
        """Prepares replies for a packet (without its id) when it is seen the second time."""
        if packet in self.replies:
            return
        if packet not in self._seen:
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()
            self._seen.add(packet)
            return
        if self._replies_bytes > REPLIES_BYTES_MAX:
            self._forget_packets()
        self._seen.discard(packet)
        entry = self.replies[packet] = Entry(page, query)
        self._replies_bytes += entry.size
        self._packets_of.setdefault(page, set()).add(packet)

    def _forget_packets(self) -> None:
        """Room for others: half of the table goes, the oldest first."""
        for packet in list(self.replies)[: len(self.replies) // 2 + 1]:
            entry = self.replies.pop(packet)
            self._replies_bytes -= entry.size
            self._packets_of.get(entry.page, set()).discard(packet)
