"""Takes newer values of services into the book; those that cost much in slices, so that questions come in between.

Must not know: what a value says, how pages are made of it. Rules: one slice a turn of the loop; a newer value of a
service takes the place of the one underway, never the other way round, and cannot put it off for ever; what goes wrong
in slices goes the direct way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from nacosdns.core.book import service_of
from nacosdns.core.renewal import is_worth_slices, renewal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nacosdns.core.answers import Slices
    from nacosdns.core.book import Book
    from nacosdns.core.frames import Known
    from nacosdns.core.model import ServiceKey
    from nacosdns.ports import Log

REPLACED_MAX = 3
"""So often a newer value puts a renewal off; the next one goes the direct way, so that old answers end."""


class _Underway(NamedTuple):
    known: Known
    slices: Slices[None]
    replaced: int


class Renewing:
    """All changes of services come by here. The old answers go on until a renewal is at its end, a few turns later."""

    def __init__(self, book: Book, log: Log) -> None:
        self._book = book
        self._log = log
        self._underway: dict[str, _Underway] = {}
        self._handle: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<Renewing {len(self._underway)} services>"

    def update(self, known: Known) -> None:
        """A newer value of a service."""
        service = service_of(known.key)
        former = self._underway.pop(service, None)
        replaced = 0 if former is None else former.replaced + 1
        if replaced > REPLACED_MAX or not is_worth_slices(self._book, known):
            self._book.update(known)
            return
        self._underway[service] = _Underway(known, renewal(self._book, known), replaced)
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def remove(self, key: ServiceKey) -> None:
        """The service is gone."""
        self.settle((key,))
        self._book.remove(key)

    def settle(self, keys: Iterable[ServiceKey]) -> None:
        """Somebody must know now what was said of these services."""
        for key in keys:
            underway = self._underway.pop(service_of(key), None)
            if underway is not None:
                self._book.update(underway.known)

    def _turn(self) -> None:
        """The next slice of the oldest."""
        self._handle = None
        if not self._underway:
            return
        service, underway = next(iter(self._underway.items()))
        try:
            ended = next(underway.slices, self) is self
        except Exception:  # noqa: BLE001  # a balancer's fault, which may be a stranger's; who asks next meets it too
            self._log.exception("renewal.surprise", service=str(underway.known.key))
            self._book.update(underway.known)
            ended = True
        if ended:
            del self._underway[service]
        if self._underway:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def close(self) -> None:
        """What is underway is dropped."""
        self._underway.clear()
        if self._handle is not None:
            self._handle.cancel()
