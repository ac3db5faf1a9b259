"""What one front still has to be told: a set of changed services in which the newest value wins, never a queue.

Must not know: the link. Rules: a full state only adds; a removal is told as such and before any later value of the
same service; what cannot be merged (external answers) is kept in a bounded ring that counts what it loses.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nacosdns.core.frames import (
    STATE_FRAME_BYTES,
    Externals,
    Names,
    Removed,
    Synced,
    Updates,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nacosdns.core.frames import (
        External,
        Known,
        LinkFrame,
        Reachable,
    )
    from nacosdns.core.model import ServiceKey

EXTERNALS_MAX = 2000
EXTERNALS_A_FRAME = 100
NAMES_A_FRAME = 500


class Feed:
    """The backlog of one front."""

    def __init__(self) -> None:
        self._reachable: dict[str, Reachable] = {}
        self._names: dict[tuple[str, str], deque[Names]] = {}
        self._removed: dict[ServiceKey, str] = {}
        self._changed: dict[ServiceKey, None] = {}
        self._state: list[ServiceKey] = []
        self._externals: deque[External] = deque(maxlen=EXTERNALS_MAX)
        self._epoch = 0
        self.lost = 0

    def __repr__(self) -> str:
        return f"<Feed changed={len(self._changed)} state={len(self._state)} removed={len(self._removed)} externals={len(self._externals)}>"

    def full(self, keys: Iterable[ServiceKey], epoch: int) -> None:
        """Everything known is to be told, then ``Synced``."""
        self._state = list(keys)
        self._state.reverse()
        self._epoch = epoch

    def changed(self, key: ServiceKey) -> None:
        self._changed[key] = None

    def removed(self, key: ServiceKey, reason: str) -> None:
        self._changed.pop(key, None)
        self._removed[key] = reason

    def reachable(self, frame: Reachable) -> None:
        self._reachable[frame.namespace] = frame

    def names(self, frame: Names) -> None:
        """A catalogue, in parts; a newer one takes the place of what is still to be told of an older one."""
        names, size = frame.names, NAMES_A_FRAME
        starts = range(0, len(names) or 1, size)
        self._names[frame.namespace, frame.group] = deque(
            Names(frame.namespace, frame.group, names[at : at + size], frame.at, at // size, at == starts[-1])
            for at in starts
        )

    def externals(self, items: Iterable[External]) -> None:
        for item in items:
            self.lost += len(self._externals) == EXTERNALS_MAX
            self._externals.append(item)

    def take(self, known: Callable[[ServiceKey], Known | None], revision: int) -> LinkFrame | None:
        """The next frame to send, None when all is told. ``known`` gives the present value of a service."""
        if self._reachable:
            return self._reachable.pop(next(iter(self._reachable)))
        if self._removed:
            key = next(iter(self._removed))
            return Removed(key, self._removed.pop(key))
        if self._changed or self._state:
            return self._updates(known)
        if self._epoch:
            epoch, self._epoch = self._epoch, 0
            return Synced(epoch, revision)
        if self._names:
            return self._names_part()
        if self._externals:
            return Externals(
                tuple(self._externals.popleft() for _ in range(min(EXTERNALS_A_FRAME, len(self._externals))))
            )
        return None

    def ahead(self, keys: Iterable[ServiceKey], known: Callable[[ServiceKey], Known | None]) -> Updates | None:
        """What is still to be told of these services, before all the rest; None when nothing is."""
        items = []
        for key in keys:
            if (key in self._changed or self._state) and (item := known(key)) is not None:
                self._changed.pop(key, None)
                self._removed.pop(key, None)
                items.append(item)
        return Updates(tuple(items)) if items else None

    def _names_part(self) -> Names:
        group, parts = next(iter(self._names.items()))
        part = parts.popleft()
        if not parts:
            del self._names[group]
        return part

    def _next(self) -> ServiceKey:
        """What changed goes before the rest of a full state."""
        if not self._changed:
            return self._state.pop()
        key = next(iter(self._changed))
        del self._changed[key]
        return key

    def _updates(self, known: Callable[[ServiceKey], Known | None]) -> Updates:
        items: list[Known] = []
        size = 0
        while (self._changed or self._state) and size < STATE_FRAME_BYTES:
            key = self._next()
            if (item := known(key)) is not None:
                items.append(item)
                size += len(item.body) + 64
        return Updates(tuple(items))
