"""What a front tells the keeper by itself: which services are asked for, and what it learned from upstreams.

Must not know: queries, answers. Rules: it tells in batches, and soon when the keeper does not follow a service yet;
while the keeper is away the newest outside answers are kept, the rest are counted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nacosdns.core import metrics
from nacosdns.core.frames import Asked, Externals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nacosdns.core.book import Book
    from nacosdns.core.frames import External
    from nacosdns.core.metrics import Counters
    from nacosdns.core.model import ServiceKey
    from nacosdns.ports import Link

ASKED_S = 1.0
ASKED_URGENT_S = 0.01
LEARNED_S = 0.1
KEYS_A_FRAME = 500
EXTERNALS_A_FRAME = 100
UNSENT_MAX = 2000


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
        self.link: Link | None = None

    def __repr__(self) -> str:
        return f"<Teller linked={self.link is not None} unsent={len(self._unsent)}>"

    def joined(self, link: Link) -> None:
        """The keeper is there: it hears what is in use, and what it missed."""
        self.link = link
        self._report(self._book.page_keys())
        self._send_learned()

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

    def report_used(self) -> None:
        """Tells which prepared answers were used since the last time; called now and then."""
        self._report(self._book.asked_since())

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

    def _send_learned(self) -> None:
        self._learned_timer = None
        self._unsent += self._take_learned()
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
