"""The cache of answers for names outside every zone: kept for ever, fresh or stale, given up only for room.

Must not know: upstreams, timers, sockets, who asks. Rules: the key is folded name, type, class, DO and CD; what is
kept is the whole reply without id and OPT; nothing leaves by age, only the least recently asked by lack of room; a
refresh is due at about nine tenths of the life, and only for what was served since the last one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core import dnswire
from nacosdns.core.frames import External
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from random import Random

    from nacosdns.core.model import Query

DNSSEC_OK = 1
CHECKING_DISABLED = 2
LIFE_MAX_S = 86400
NEGATIVE_LIFE_MAX_S = 10800  # RFC 2308 5
REFRESH_FROM, REFRESH_SPREAD = 0.85, 0.1
BYTES_PER_ENTRY = 1024  # all entries together may use this much each; a few may be far longer
LEARNED_MAX = 10_000
AGAIN_A_CALL = 200
ONCE_A_CALL = 20  # a flood of random names must not keep the keeper and its disk busy
LEARNED_A_TURN = 2_000
DUES_A_TURN = 256
EVICTIONS_A_TURN = 64
DUE_SPARE = 64
KEYS_A_STEP = 2_000
SURELY_FITS_BYTES = 500  # with an OPT record into any reply
NO_ID = b"\x00\x00"
KEY_BYTES_MIN = 6  # the root, type, class, flags
HEADER_BYTES = 12
FLAG_BYTES = (b"\x00", b"\x01", b"\x02", b"\x03")


def question_key(query: Query) -> bytes:
    """Folded name, type, class and one byte of flags (DNSSEC_OK, CHECKING_DISABLED): what makes questions equal."""
    edns = query.edns
    flags = DNSSEC_OK if edns is not None and edns.dnssec_ok else 0
    if query.flags & 0x0010:
        flags |= CHECKING_DISABLED
    return query.name + query.question[-4:] + FLAG_BYTES[flags]


class Entry(msgspec.Struct, gc=False):
    """One kept answer. ``packet`` has an id of 0; ``fresh_until`` and ``refresh_at`` are of the monotonic clock.

    ``refresh_at`` is drawn when it is first served; ``told`` when the keeper was told of it.
    """

    packet: bytes
    stored_at: float
    stored_now: float
    ttl_s: int
    fresh_until: float
    ttl_offsets: tuple[int, ...]
    told: bool = False
    served: bool = False
    refresh_at: float = 0.0


class Listed(msgspec.Struct, frozen=True, gc=False):
    """One line of ``cache list``. ``left_s`` is negative when the answer is stale."""

    name: str
    type: int
    rcode: int
    dnssec_ok: bool
    checking_disabled: bool
    stored_at: float
    ttl_s: int
    left_s: float
    size_bytes: int


class Outside:
    """The cache. ``stale_max_s`` 0 means that a stale answer is good for ever.

    An entry that came from disk or another front stays an ``External`` until it is asked for: 100,000 from disk must
    load at once.
    """

    def __init__(self, rng: Random, *, entries_max: int, stale_max_s: float = 0.0) -> None:
        self._random = rng.random
        self._entries: OrderedDict[bytes, Entry | External] = OrderedDict()
        self._due: list[tuple[float, bytes]] = []
        self._due_before: list[tuple[float, bytes]] = []
        self._again: deque[bytes] = deque()
        self._once: deque[bytes] = deque()
        self._restored_now = 0.0
        self._restored_wall = 0.0
        self.entries_max = entries_max
        self.stale_max_s = stale_max_s
        self.size_bytes = 0
        self.evicted = 0
        self.damaged = 0
        self.learned_lost = 0

    def __repr__(self) -> str:
        return f"<Outside {len(self)} of {self.entries_max} entries, {self.size_bytes} bytes, due={len(self._due)}>"

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Entry | None:
        """The entry, which is the most recently asked from now on; None when there is none or it cannot be read."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if isinstance(entry, External):
            read = self._read(key, entry)
            if read is None:
                return None
            entry = read
        self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, packet: bytes, scan: dnswire.ReplyScan, *, now: float, wall: float) -> Entry:
        """Keeps a reply whose question is the key's, in the place of the one before. ``scan`` is the packet's."""
        kept = dnswire.strip_opt(packet, scan)
        size_bytes = len(kept)
        offsets, ttl_s = scan.ttl_offsets, scan.ttl_min_s
        if offsets and offsets[-1] >= size_bytes:
            offsets = tuple(offset for offset in offsets if offset < size_bytes)
        if not ttl_s and offsets:
            kept = dnswire.with_ttl(
                kept, offsets, 0
            )  # one over 2^31 among them counts as 0 for clients too (RFC 2181 8)
        life_max_s = NEGATIVE_LIFE_MAX_S if scan.rcode or not scan.answer_count else LIFE_MAX_S
        ttl_s = min(ttl_s, life_max_s)
        entry = Entry(kept, wall, now, ttl_s, now + ttl_s, offsets)
        entries = self._entries
        before = entries.get(key)
        entries[key] = entry
        self.size_bytes += size_bytes
        if before is not None:
            self.size_bytes -= _size_bytes(before)
        learned = self._once if before is None else self._again
        learned.append(key)
        if len(learned) > LEARNED_MAX:
            self._lose(learned)
        if len(entries) > self.entries_max or self.size_bytes > self.entries_max * BYTES_PER_ENTRY:
            self.make_room()
        return entry

    def is_usable_stale(self, entry: Entry, now: float) -> bool:
        """Whether it may still be served although its time is over."""
        return self.stale_max_s == 0.0 or now - entry.fresh_until <= self.stale_max_s

    def render_new(self, entry: Entry, query: Query) -> bytes:
        """The answer for a client who waited for it, with its TTLs as they came; also when they are 0."""
        kept = entry.packet
        if len(kept) <= SURELY_FITS_BYTES:
            return dnswire.reply_for(query, kept, size_max=dnswire.PLAIN_BYTES_MAX)
        return _render(query, kept)

    def render(self, key: bytes, entry: Entry, query: Query, now: float) -> tuple[bytes, float]:
        """The answer from the cache for this client, and until when exactly these bytes are right: its TTLs count down each second.

        It was served, so it will be refreshed. A stale answer carries STALE_TTL_S and is right for this moment only.
        """
        if now < entry.fresh_until:
            if not entry.served:
                self._served(key, entry, now)
            passed_s = int(now - entry.stored_now)
            aged = dnswire.with_ttl(entry.packet, entry.ttl_offsets, passed_s, cap_s=LIFE_MAX_S)
            next_s = entry.stored_now + passed_s + 1
            return _render(query, aged), min(entry.fresh_until, next_s)
        stale_s = dnswire.STALE_TTL_S
        aged = dnswire.with_ttl(entry.packet, entry.ttl_offsets, 0, floor_s=stale_s, cap_s=stale_s)
        return _render(query, aged), now

    def take_due(self, now: float, count_max: int) -> list[bytes]:
        """Keys to refresh now, at most so many; each only once until it is stored or served again."""
        taken: list[bytes] = []
        for _ in range(DUES_A_TURN):  # those of entries that went cost time too
            if len(taken) >= count_max or self.next_due() > now:
                break
            due, key = heappop(self._due if self._due and self._due[0][0] <= now else self._due_before)
            entry = self._entries.get(key)
            if isinstance(entry, Entry) and entry.served and entry.refresh_at <= due:
                entry.served = False
                taken.append(key)
        return taken

    def postpone(self, key: bytes, until: float) -> None:
        """The refresh failed or could not be tried: not before ``until`` again, and only if it is served again."""
        entry = self._entries.get(key)
        if isinstance(entry, Entry):
            entry.served = False
            entry.refresh_at = until

    def next_due(self) -> float:
        """When ``take_due`` will perhaps have something; inf for never."""
        due = self._due[0][0] if self._due else inf
        return min(due, self._due_before[0][0]) if self._due_before else due

    def learned(self) -> tuple[External, ...]:
        """What was stored by ``put`` and not told yet, oldest first: for the keeper and the other fronts.

        Names asked more than once go first; each call gives at most so many of both kinds, the rest later ones.
        """
        return (*self._take_learned(self._again, AGAIN_A_CALL), *self._take_learned(self._once, ONCE_A_CALL))

    def restore(self, items: Iterable[External], *, now: float, wall: float) -> int:
        """Takes entries from disk or another front; ours stays when it is not older. Returns how many were taken."""
        self._restored_now, self._restored_wall = now, wall
        entries, find = self._entries, self._entries.get
        taken = 0
        for item in items:
            key = item.question + FLAG_BYTES[item.flags & 3]
            if len(key) < KEY_BYTES_MIN or len(item.reply) < HEADER_BYTES - 2:
                self.damaged += 1
                continue
            present = find(key)
            if present is not None:
                if present.stored_at >= item.stored_at:
                    continue
                self.size_bytes -= _size_bytes(present)
            entries[key] = item
            self.size_bytes += len(item.reply) + 2
            taken += 1
        self.make_room(taken)
        return taken

    def forget(self, name: bytes) -> Iterator[tuple[bytes, ...]]:
        """Drops every type of this folded wire name: a slice of the cache at each step, so that others may work between.

        Each step gives the questions that it dropped, for the store.
        """
        return self._forget(lambda key: key.startswith(name) and len(key) == len(name) + 5)

    def forget_under(self, suffix: bytes) -> Iterator[tuple[bytes, ...]]:
        """Drops this folded wire name and everything under it; the root drops everything. Steps as ``forget``."""
        return self._forget(lambda key: _is_under(key[:-5], suffix))

    def listing(self, now: float) -> Iterator[Listed]:
        """Every entry, least recently asked first; a damaged row whose name cannot be read is left out."""
        for key, entry in self._entries.items():
            line = _listed(key, entry, self._left_s(entry, now))
            if line is not None:
                yield line

    @property
    def is_over(self) -> bool:
        """Whether there is more than there is room for."""
        return len(self._entries) > self.entries_max or self.size_bytes > self.entries_max * BYTES_PER_ENTRY

    def make_room(self, count: int = 1) -> None:
        """The least recently asked go until there is room, but in one call at most a few more than the ``count`` that came."""
        for _ in range(count + EVICTIONS_A_TURN):
            if not self.is_over:
                return
            _, entry = self._entries.popitem(last=False)
            self.size_bytes -= _size_bytes(entry)
            self.evicted += 1

    def _served(self, key: bytes, entry: Entry, now: float) -> None:
        """Served for the first time since it was stored or refreshed: it is worth a refresh, and the keeper's disk."""
        entry.served = True
        if not entry.told:
            self._again.append(key)
            if len(self._again) > LEARNED_MAX:
                self._lose(self._again)
        drawn = entry.refresh_at or entry.stored_now + entry.ttl_s * (REFRESH_FROM + REFRESH_SPREAD * self._random())
        entry.refresh_at = max(drawn, now)
        heappush(self._due, (entry.refresh_at, key))
        if self._due_before:
            self._sort_out()
        elif len(self._due) > self.entries_max + DUE_SPARE:
            self._due_before, self._due = self._due, []

    def _sort_out(self) -> None:
        """Two of the due times of long ago: who is still there counts on. The last of a heap may go at any time."""
        for due, key in [self._due_before.pop() for _ in range(min(2, len(self._due_before)))]:
            entry = self._entries.get(key)
            if isinstance(entry, Entry) and entry.served and entry.refresh_at == due:
                heappush(self._due, (due, key))

    def _lose(self, learned: deque[bytes]) -> None:
        entry = self._entries.get(learned.popleft())
        self.learned_lost += isinstance(entry, Entry) and not entry.told

    def _take_learned(self, keys: deque[bytes], count_max: int) -> list[External]:
        taken: list[External] = []
        for _ in range(min(len(keys), LEARNED_A_TURN)):  # those of entries that went or were told cost time too
            if len(taken) == count_max:
                break
            key = keys.popleft()
            entry = self._entries.get(key)
            if isinstance(entry, Entry) and not entry.told:
                entry.told = True
                taken.append(External(key[:-1], key[-1], entry.packet[2:], entry.stored_at, entry.ttl_s))
        return taken

    def _read(self, key: bytes, item: External) -> Entry | None:
        """What was restored becomes an entry; a damaged row is dropped and counted."""
        packet = NO_ID + item.reply
        offsets = _ttl_offsets(key, packet)
        if offsets is None:
            self.damaged += 1
            self._drop([key])
            return None
        stored_now, ttl_s = self._stored_now(item), min(item.ttl_s, LIFE_MAX_S)
        entry = Entry(packet, item.stored_at, stored_now, ttl_s, stored_now + ttl_s, offsets, told=True)
        self._entries[key] = entry
        return entry

    def _stored_now(self, item: External) -> float:
        """On our monotonic clock; never later than the last ``restore``, whatever the wall clock did."""
        return self._restored_now - max(self._restored_wall - item.stored_at, 0.0)

    def _left_s(self, entry: Entry | External, now: float) -> float:
        if isinstance(entry, Entry):
            return entry.fresh_until - now
        return self._stored_now(entry) + min(entry.ttl_s, LIFE_MAX_S) - now

    def _forget(self, is_meant: Callable[[bytes], bool]) -> Iterator[tuple[bytes, ...]]:
        keys = list(dict.keys(self._entries))  # not in the order of asking, which costs ten times as much
        for start in range(0, len(keys), KEYS_A_STEP):
            yield self._drop([key for key in keys[start : start + KEYS_A_STEP] if is_meant(key)])

    def _drop(self, keys: Iterable[bytes]) -> tuple[bytes, ...]:
        questions: dict[bytes, None] = {}
        for key in keys:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.size_bytes -= _size_bytes(entry)
                questions[key[:-1]] = None
        return tuple(questions)


def _size_bytes(entry: Entry | External) -> int:
    return len(entry.packet) if isinstance(entry, Entry) else len(entry.reply) + 2


def _render(query: Query, packet: bytes) -> bytes:
    return dnswire.reply_for(query, packet, size_max=dnswire.size_limit(query))


def _ttl_offsets(key: bytes, packet: bytes) -> tuple[int, ...] | None:
    """Where its TTLs stand; None when it is not a reply to the key's question (a damaged row)."""
    try:
        scan = dnswire.scan_reply(packet)
    except WireError:
        return None
    return None if scan.truncated or scan.question != key[:-1] else scan.ttl_offsets


def _is_under(name: bytes, suffix: bytes) -> bool:
    if not name.endswith(suffix):
        return False
    at = 0
    while at < len(name) - len(suffix):
        at += 1 + name[at]
    return at == len(name) - len(suffix)


def _listed(key: bytes, entry: Entry | External, left_s: float) -> Listed | None:
    try:
        name = dnswire.name_text(key[:-5])
    except WireError:
        return None
    rcode = entry.packet[3] if isinstance(entry, Entry) else entry.reply[1]
    return Listed(
        name=name,
        type=int.from_bytes(key[-5:-3], "big"),
        rcode=rcode & 0xF,
        dnssec_ok=bool(key[-1] & DNSSEC_OK),
        checking_disabled=bool(key[-1] & CHECKING_DISABLED),
        stored_at=entry.stored_at,
        ttl_s=entry.ttl_s,
        left_s=left_s,
        size_bytes=_size_bytes(entry),
    )
