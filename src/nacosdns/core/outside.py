"""The cache of answers for names outside every zone: kept for ever, fresh or stale, given up only for room.

Must not know: upstreams, timers, sockets, who asks. Rules: the key is folded name, type, class, DO and CD; what is
kept is the whole reply without id and OPT; nothing leaves by age, only the least recently asked by lack of room; a
refresh is due at about nine tenths of the life, and only for what was served since the last one.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core import dnswire
from nacosdns.core.frames import External
from nacosdns.core.model import Rcode
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    from nacosdns.core.model import Query

DNSSEC_OK = 1
CHECKING_DISABLED = 2
LIFE_MAX_S = 86400
NEGATIVE_LIFE_MAX_S = 10800  # RFC 2308 5
REFRESH_FROM, REFRESH_SPREAD = 0.85, 0.1
BYTES_PER_ENTRY = 1024  # all entries together may use this much each; a few may be far longer
LEARNED_MAX = 10_000
DUE_SPARE = 64
NO_ID = b"\x00\x00"
KEY_BYTES_MIN = 6  # the root, type, class, flags
HEADER_BYTES = 12
OPT_HEAD = b"\x00\x00\x29"
OPT_BYTES = 11


def question_key(query: Query) -> bytes:
    """Folded name, type, class and one byte of flags (DNSSEC_OK, CHECKING_DISABLED): what makes questions equal."""
    edns = query.edns
    flags = DNSSEC_OK if edns is not None and edns.dnssec_ok else 0
    if query.flags & 0x0010:
        flags |= CHECKING_DISABLED
    return query.name + query.question[-4:] + flags.to_bytes(1, "big")


class Entry(msgspec.Struct, gc=False):
    """One kept answer. ``packet`` has an id of 0; ``fresh_until`` and ``refresh_at`` are of the monotonic clock.

    ``ttl_offsets`` is None until the packet was read once in this process: 100,000 from disk must load at once.
    """

    packet: bytes
    stored_at: float
    stored_now: float
    ttl_s: int
    fresh_until: float
    refresh_at: float
    served: bool = False
    ttl_offsets: tuple[int, ...] | None = None


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
    """The cache. ``stale_max_s`` 0 means that a stale answer is good for ever."""

    def __init__(self, rng: Random, *, entries_max: int, stale_max_s: float = 0.0) -> None:
        self._random = rng.random
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._due: list[tuple[float, bytes]] = []
        self._learned: dict[bytes, None] = {}
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
        if entry.ttl_offsets is None and not self._read(key, entry):
            return None
        self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, packet: bytes, scan: dnswire.ReplyScan, *, now: float, wall: float) -> Entry:
        """Keeps a reply whose question is the key's, in the place of the one before. WireError when it is garbage."""
        kept = NO_ID + _without_opt(packet, scan)[2:]
        negative = scan.rcode != Rcode.NOERROR or not scan.answer_count
        life_max_s = NEGATIVE_LIFE_MAX_S if negative else LIFE_MAX_S
        entry = self._entry(kept, stored_at=wall, stored_now=now, ttl_s=min(scan.ttl_min_s, life_max_s))
        entry.ttl_offsets = tuple(offset for offset in scan.ttl_offsets if offset + 4 <= len(kept))
        self._set(key, entry)
        self._learn(key)
        self._make_room()
        return entry

    def is_usable_stale(self, entry: Entry, now: float) -> bool:
        """Whether it may still be served although its time is over."""
        return self.stale_max_s == 0.0 or now - entry.fresh_until <= self.stale_max_s

    def render_new(self, entry: Entry, query: Query) -> bytes:
        """The answer for a client who waited for it, with its TTLs as they came; also when they are 0."""
        return _render(query, entry.packet)

    def render(self, key: bytes, entry: Entry, query: Query, now: float) -> tuple[bytes, float]:
        """The answer from the cache for this client, and until when exactly these bytes are right: its TTLs count down each second.

        It was served, so it will be refreshed. A stale answer carries STALE_TTL_S and is right for this moment only.
        """
        offsets = entry.ttl_offsets or ()
        if now < entry.fresh_until:
            passed_s = max(int(now - entry.stored_now), 0)
            aged = dnswire.with_ttl(entry.packet, offsets, passed_s, cap_s=LIFE_MAX_S)
            good_until = min(entry.stored_now + passed_s + 1, entry.fresh_until)
            self._served(key, entry, now)
        else:
            stale_s = dnswire.STALE_TTL_S
            aged = dnswire.with_ttl(entry.packet, offsets, 0, floor_s=stale_s, cap_s=stale_s)
            good_until = now
        return _render(query, aged), good_until

    def take_due(self, now: float, count_max: int) -> list[bytes]:
        """Keys to refresh now, at most so many; each only once until it is stored or served again."""
        taken: list[bytes] = []
        while self._due and self._due[0][0] <= now and len(taken) < count_max:
            due, key = heappop(self._due)
            entry = self._entries.get(key)
            if entry is not None and entry.served and entry.refresh_at <= due:
                entry.served = False
                taken.append(key)
        return taken

    def postpone(self, key: bytes, until: float) -> None:
        """The refresh failed or could not be tried: not before ``until`` again, and only if it is served again."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.served = False
            entry.refresh_at = until

    def next_due(self) -> float:
        """When ``take_due`` will perhaps have something; inf for never."""
        return self._due[0][0] if self._due else inf

    def learned(self) -> tuple[External, ...]:
        """What was stored by ``put`` since the last call, oldest first: for the keeper and the other fronts."""
        keys, self._learned = self._learned, {}
        return tuple(_external(key, entry) for key in keys if (entry := self._entries.get(key)) is not None)

    def restore(self, items: Iterable[External], *, now: float, wall: float) -> int:
        """Takes entries from disk or another front; ours stays when it is not older. Returns how many were taken."""
        taken = 0
        for item in items:
            key = item.question + (item.flags & 3).to_bytes(1, "big")
            if len(key) < KEY_BYTES_MIN or len(item.reply) < HEADER_BYTES - 2:
                self.damaged += 1
                continue
            present = self._entries.get(key)
            if present is not None and present.stored_at >= item.stored_at:
                continue
            stored_now = now - max(wall - item.stored_at, 0.0)
            entry = self._entry(
                NO_ID + item.reply, stored_at=item.stored_at, stored_now=stored_now, ttl_s=min(item.ttl_s, LIFE_MAX_S)
            )
            self._set(key, entry)
            taken += 1
        self._make_room()
        return taken

    def forget(self, name: bytes) -> tuple[bytes, ...]:
        """Drops every type of this folded wire name; the questions that were dropped, for the store."""
        return self._drop([key for key in self._entries if key[:-5] == name])

    def forget_under(self, suffix: bytes) -> tuple[bytes, ...]:
        """Drops this folded wire name and everything under it; the root drops everything. Returns as ``forget``."""
        return self._drop([key for key in self._entries if _is_under(key[:-5], suffix)])

    def listing(self, now: float) -> Iterator[Listed]:
        """Every entry, least recently asked first; a damaged row whose name cannot be read is left out."""
        for key, entry in self._entries.items():
            line = _listed(key, entry, now)
            if line is not None:
                yield line

    def _entry(self, packet: bytes, *, stored_at: float, stored_now: float, ttl_s: int) -> Entry:
        return Entry(
            packet=packet,
            stored_at=stored_at,
            stored_now=stored_now,
            ttl_s=ttl_s,
            fresh_until=stored_now + ttl_s,
            refresh_at=stored_now + ttl_s * (REFRESH_FROM + REFRESH_SPREAD * self._random()),
        )

    def _set(self, key: bytes, entry: Entry) -> None:
        before = self._entries.get(key)
        self.size_bytes += len(entry.packet) - (len(before.packet) if before is not None else 0)
        self._entries[key] = entry

    def _make_room(self) -> None:
        bytes_max = self.entries_max * BYTES_PER_ENTRY
        while len(self._entries) > self.entries_max or self.size_bytes > bytes_max:
            _, entry = self._entries.popitem(last=False)
            self.size_bytes -= len(entry.packet)
            self.evicted += 1

    def _served(self, key: bytes, entry: Entry, now: float) -> None:
        if not entry.served:
            entry.served = True
            entry.refresh_at = max(entry.refresh_at, now)
            heappush(self._due, (entry.refresh_at, key))
            if len(self._due) > 2 * self.entries_max + DUE_SPARE:
                self._prune_due()

    def _prune_due(self) -> None:
        """Lets go of the due times of entries that went for lack of room."""
        self._due = [(entry.refresh_at, key) for key, entry in self._entries.items() if entry.served]
        heapify(self._due)

    def _learn(self, key: bytes) -> None:
        self._learned.pop(key, None)
        self._learned[key] = None
        if len(self._learned) > LEARNED_MAX:
            del self._learned[next(iter(self._learned))]
            self.learned_lost += 1

    def _read(self, key: bytes, entry: Entry) -> bool:
        entry.ttl_offsets = _ttl_offsets(key, entry.packet)
        if entry.ttl_offsets is None:
            self.damaged += 1
            self._drop([key])
        return entry.ttl_offsets is not None

    def _drop(self, keys: Iterable[bytes]) -> tuple[bytes, ...]:
        questions: dict[bytes, None] = {}
        for key in keys:
            self.size_bytes -= len(self._entries.pop(key).packet)
            self._learned.pop(key, None)
            questions[key[:-1]] = None
        return tuple(questions)


def _render(query: Query, packet: bytes) -> bytes:
    return dnswire.reply_for(query, packet, size_max=dnswire.size_limit(query))


def _without_opt(packet: bytes, scan: dnswire.ReplyScan) -> bytes:
    """``strip_opt``, without reading all records again in the usual case: an OPT without options behind all others."""
    if scan.ttl_offsets:
        last = scan.ttl_offsets[-1] + 4
        end = last + 2 + int.from_bytes(packet[last : last + 2], "big")
    else:
        end = scan.name_end + 4
    opt = packet[end:]
    if len(opt) == OPT_BYTES and opt.startswith(OPT_HEAD) and opt.endswith(b"\x00\x00"):
        additionals = int.from_bytes(packet[10:12], "big") - 1
        return packet[:10] + additionals.to_bytes(2, "big") + packet[12:end]
    return dnswire.strip_opt(packet)


def _ttl_offsets(key: bytes, packet: bytes) -> tuple[int, ...] | None:
    """Where its TTLs stand; None when it is not a reply to the key's question (a damaged row)."""
    try:
        scan = dnswire.scan_reply(packet)
    except WireError:
        return None
    return None if scan.truncated or scan.question != key[:-1] else scan.ttl_offsets


def _external(key: bytes, entry: Entry) -> External:
    return External(
        question=key[:-1], flags=key[-1], reply=entry.packet[2:], stored_at=entry.stored_at, ttl_s=entry.ttl_s
    )


def _is_under(name: bytes, suffix: bytes) -> bool:
    if not name.endswith(suffix):
        return False
    at = 0
    while at < len(name) - len(suffix):
        at += 1 + name[at]
    return at == len(name) - len(suffix)


def _listed(key: bytes, entry: Entry, now: float) -> Listed | None:
    try:
        name = dnswire.name_text(key[:-5])
    except WireError:
        return None
    return Listed(
        name=name,
        type=int.from_bytes(key[-5:-3], "big"),
        rcode=entry.packet[3] & 0xF,
        dnssec_ok=bool(key[-1] & DNSSEC_OK),
        checking_disabled=bool(key[-1] & CHECKING_DISABLED),
        stored_at=entry.stored_at,
        ttl_s=entry.ttl_s,
        left_s=entry.fresh_until - now,
        size_bytes=len(entry.packet),
    )
