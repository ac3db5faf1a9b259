"""What of the keeper's beliefs is not on disk yet, and when it goes there.

Must not know: how the disk is written, what is believed and why. Rules: a change goes at once; a confirmation or a time
of asking, which change without a new list, goes in batches; a batch takes a few milliseconds, however much there is;
what the disk lost is written again.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from nacosdns.core.belief import on_disk
from nacosdns.core.frames import known
from nacosdns.core.model import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nacosdns.core.frames import Known
    from nacosdns.core.model import ServiceKey, Snapshot
    from nacosdns.core.schedule import Schedule
    from nacosdns.core.services import Services
    from nacosdns.ports import Clock, Store

SAVE_S = 30.0
SAVE_ROWS = 200
SAVE_SPACING_S = 0.05
TOMBSTONES_MAX = 10_000


class Saver:
    """``gone`` are the services that were removed in this life of the keeper, and why."""

    def __init__(self, store: Store, services: Services, schedule: Schedule, clock: Clock) -> None:
        self._store = store
        self._services = services
        self._schedule = schedule
        self._clock = clock
        self._unsaved: dict[ServiceKey, None] = {}
        self.gone: dict[ServiceKey, str] = {}
        self.due_at = clock.now() + SAVE_S

    def __repr__(self) -> str:
        return f"<Saver waiting={self.waiting} gone={len(self.gone)}>"

    @property
    def waiting(self) -> int:
        """How many rows are to be written again: confirmed or asked for since."""
        return len(self._unsaved)

    def touch(self, key: ServiceKey) -> None:
        """The service was confirmed or asked for: its row is old."""
        self._unsaved[key] = None

    def bury(self, key: ServiceKey, reason: str) -> None:
        """The service was removed."""
        self._unsaved.pop(key, None)
        self.gone[key] = reason
        if len(self.gone) > TOMBSTONES_MAX:
            del self.gone[next(iter(self.gone))]

    def changed(self, snapshots: Iterable[Snapshot], removed: Iterable[ServiceKey]) -> None:
        """What was published just now."""
        self._store.remove_services(removed)
        ours = [snapshot for snapshot in snapshots if snapshot.source is not Source.STATIC]
        for snapshot in ours:
            self.gone.pop(snapshot.key, None)
        self._store.put_services([self._row(snapshot) for snapshot in ours])

    def turn(self, now: float) -> None:
        """Saves a batch when it is time."""
        if now >= self.due_at:
            self._batch()
            self.due_at = now + (SAVE_SPACING_S if self._unsaved else SAVE_S)

    def save_all(self) -> None:
        """Hands everything over that is not on disk yet."""
        self._batch()
        while self._unsaved:
            self._batch()

    def _batch(self) -> None:
        if self._store.take_lost():
            self._unsaved.update(dict.fromkeys(self._services))
            self._store.remove_services(self.gone)
        keys = list(islice(self._unsaved, SAVE_ROWS))
        for key in keys:
            del self._unsaved[key]
        ours = [key for key in keys if key in self._services and not self._services.is_static(key)]
        self._store.put_services([self._row(self._services.snapshot(key)) for key in ours])

    def _row(self, snapshot: Snapshot) -> tuple[Known, float]:
        at = self._schedule.asked_at(snapshot.key)
        return known(on_disk(snapshot)), self._clock.wall() - (self._clock.now() - at) if at else 0.0
