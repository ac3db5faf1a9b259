"""The fronts as the keeper sees them: what each still has to be told, and who waits for which look-up.

Must not know: what is believed, the registry. Rules: the newest value wins; a front that reads slowly is told later,
not less; what a look-up found is told before the word that it was found.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nacosdns.core.feed import Feed
from nacosdns.core.frames import LookedUp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nacosdns.core.frames import Known
    from nacosdns.core.model import ServiceKey
    from nacosdns.ports import Link

FRAMES_A_TURN = 4
"""A frame of a full state holds 64 kB; what was never touched is not even encoded for it."""

Keys = tuple["ServiceKey", ...]


class Fronts:
    """``known`` gives the present value of a service, ``revision`` the present revision."""

    def __init__(self, known: Callable[[ServiceKey], Known | None], revision: Callable[[], int]) -> None:
        self._known = known
        self._revision = revision
        self._feeds: dict[Link, Feed] = {}
        self._going_on: set[Link] = set()
        self._waiting: dict[Keys, set[tuple[Link, Keys]]] = {}

    def __repr__(self) -> str:
        return f"<Fronts {len(self._feeds)} waiting={len(self._waiting)}>"

    def __len__(self) -> int:
        return len(self._feeds)

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._feeds.values())

    def add(self, link: Link) -> Feed:
        """A front joined: its backlog."""
        feed = self._feeds[link] = Feed()
        return feed

    def drop(self, link: Link) -> None:
        """A front left; it waits for nothing any more."""
        self._feeds.pop(link, None)
        for waiters in self._waiting.values():
            waiters -= {waiter for waiter in waiters if waiter[0] is link}

    def feed(self, link: Link) -> Feed | None:
        """The backlog of this front; None when it is not one."""
        return self._feeds.get(link)

    def others(self, link: Link) -> list[Feed]:
        """The backlogs of all fronts but this one."""
        return [feed for other, feed in self._feeds.items() if other is not link]

    # --- look-ups

    def wait(self, link: Link, asked: Keys, keys: Keys) -> None:
        """A front that asked for ``asked`` waits for the look-up of ``keys``."""
        self._waiting.setdefault(keys, set()).add((link, asked))

    def waited_for(self, namespace: str) -> list[Keys]:
        """The look-ups of a namespace that somebody waits for."""
        return [keys for keys in self._waiting if keys[0].namespace == namespace]

    def looked_up(self, keys: Keys, outcome: str) -> None:
        """A look-up ended: who waits for it hears of it."""
        for link, asked in self._waiting.pop(keys, ()):
            feed = self._feeds.get(link)
            if feed is not None and (updates := feed.ahead(keys, self._known)) is not None:
                link.send(updates)
            link.send(LookedUp(asked, outcome))

    # --- telling

    def changed(self, told: Mapping[ServiceKey, Known], removed: Iterable[tuple[ServiceKey, str]]) -> None:
        """These services have new values, those are gone. ``told`` saves encoding them for each front anew."""
        gone = tuple(removed)
        for feed in self:
            for key, reason in gone:
                feed.removed(key, reason)
            for key in told:
                feed.changed(key)
        self.send_all(told)

    def send_all(self, told: Mapping[ServiceKey, Known] | None = None) -> None:
        """Sends every front what it reads fast enough."""
        for link in list(self._feeds):
            self.send(link, told)

    def send(self, link: Link, told: Mapping[ServiceKey, Known] | None = None) -> None:
        """Sends one front its backlog, until that is told or the link congested; others get their turn in between."""
        feed = self._feeds.get(link)
        for _ in range(FRAMES_A_TURN):
            if feed is None or link.congested:
                return
            frame = feed.take(lambda key: (told or {}).get(key) or self._known(key), self._revision())
            if frame is None:
                return
            link.send(frame)
        if link not in self._going_on:
            self._going_on.add(link)
            asyncio.get_running_loop().call_soon(self._go_on, link)

    def _go_on(self, link: Link) -> None:
        self._going_on.discard(link)
        self.send(link)
