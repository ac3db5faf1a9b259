"""What a front tells the keeper by itself: what is asked for, what it learned from upstreams, what the keeper lost.

Must not know: queries, answers. Rules: it tells in batches, and soon when the keeper does not follow a service yet;
while the keeper is away the newest outside answers are kept, the rest are counted.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from nacosdns.core import metrics
from nacosdns.core.book import service_of
from nacosdns.core.frames import STATE_FRAME_BYTES, Asked, Externals, Have

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nacosdns.core.book import Book
    from nacosdns.core.frames import External, Known
    from nacosdns.core.metrics import Counters
    from nacosdns.core.model import ServiceKey
    from nacosdns.ports import Link

ASKED_S = 1.0
ASKED_URGENT_S = 0.01
LEARNED_S = 0.1
KEYS_A_FRAME = 500
EXTERNALS_A_FRAME = 100
UNSENT_MAX = 2000
SERVICES_A_PART = 1_000  # told without a pause: queries come in between


class Teller:
    """``take_asked`` and ``take_learned`` hand over what there is to tell. ``link`` is None while the keeper is away."""

    def __init__(
        self,
        book: Book,
        counters: Counters,
        *,
        take_asked: Callable[[], Iterable[ServiceKey]],
        take_learned: Callable[[], Iterable[External]],
    ) -> None:
        self._book = book
        self._count = counters
        self._take_asked = take_asked
        self._take_learned = take_learned
        self._asked_timer: asyncio.TimerHandle | None = None
        self._asked_soon = False
        self._learned_timer: asyncio.TimerHandle | None = None
        self._unsent: list[External] = []
        self._mentioned: set[str] | None = None
        self._untold: Iterator[str] = iter(())
        self._in_use: Iterator[str] = iter(())
        self.link: Link | None = None

    def __repr__(self) -> str:
        return f"<Teller linked={self.link is not None} unsent={len(self._unsent)}>"

    def joined(self, link: Link) -> None:
        """The keeper is there: it hears what is in use, and what it missed."""
        self.link = link
        self._mentioned = set()
        self._in_use = iter(self._book.prepared.services())
        self._tell_in_use()
        self._send_learned()

    def _tell_in_use(self) -> None:
        """Which services have pages, part by part."""
        part = list(islice(self._in_use, KEYS_A_FRAME))
        if part and self.link is not None:
            self._report(self._book.keys_of(part))
            asyncio.get_running_loop().call_soon(self._tell_in_use)

    def left(self) -> None:
        """The keeper is away."""
        self.link = self._mentioned = None

    def mentioned(self, key: ServiceKey) -> None:
        """The keeper knows this service."""
        if self._mentioned is not None:
            self._mentioned.add(service_of(key))

    def tell_unmentioned(self) -> None:
        """The keeper told all it knows; what it did not mention it may have lost, and hears from us, part by part."""
        self._untold = iter(self._book.services())
        self._tell_part()

    def _tell_part(self) -> None:
        mentioned = self._mentioned
        part = list(islice(self._untold, SERVICES_A_PART))
        if self.link is None or mentioned is None or not part:
            self._mentioned = None
            return
        items: list[Known] = []
        size = 0
        for known in self._book.known(service for service in part if service not in mentioned):
            items.append(known)
            size += len(known.body)
            if size > STATE_FRAME_BYTES:
                self.link.send(Have(tuple(items)))
                items, size = [], 0
        if items:
            self.link.send(Have(tuple(items)))
        asyncio.get_running_loop().call_soon(self._tell_part)

    def note(self, *, urgent: bool) -> None:
        """A service was asked for; ``urgent`` when the keeper does not follow it yet."""
        if self._asked_timer is not None:
            if not urgent or self._asked_soon:
                return
            self._asked_timer.cancel()
        self._asked_soon = urgent
        delay = ASKED_URGENT_S if urgent else ASKED_S
        self._asked_timer = asyncio.get_running_loop().call_later(delay, self._send_asked)

    def _send_asked(self) -> None:
        self._asked_timer = None
        self._report(self._take_asked())

    def report_used(self, pages_max: int) -> None:
        """Tells which prepared answers were used since they were looked at last; so many are looked at in one call."""
        self._report(self._book.keys_of(self._book.prepared.used(pages_max)))

    def _report(self, keys: Iterable[ServiceKey]) -> None:
        if self.link is None:
            return
        listed = list(keys)
        for start in range(0, len(listed), KEYS_A_FRAME):
            self.link.send(Asked(tuple(listed[start : start + KEYS_A_FRAME])))

    def learned(self) -> None:
        """An upstream answered: soon there may be something to tell."""
        if self._learned_timer is None:
            self._learned_timer = asyncio.get_running_loop().call_later(LEARNED_S, self._send_learned)

    def tell_learned(self) -> None:
        """Tells all that was learned, without waiting for its turn: this process ends."""
        while learned := list(self._take_learned()):
            self._unsent += learned
        self._send_learned()

    def _send_learned(self) -> None:
        self._learned_timer = None
        learned = list(self._take_learned())
        self._unsent += learned
        if learned:
            self.learned()  # it gives only so many at once
        if self.link is None or self.link.congested:
            lost = max(0, len(self._unsent) - UNSENT_MAX)
            self._count[metrics.EXTERNALS_UNSENT.first] += lost
            del self._unsent[:lost]
            return
        while self._unsent:
            self.link.send(Externals(tuple(self._unsent[:EXTERNALS_A_FRAME])))
            del self._unsent[:EXTERNALS_A_FRAME]

    def close(self) -> None:
        """Cancels every timer."""
        for timer in (self._asked_timer, self._learned_timer):
            if timer is not None:
                timer.cancel()
