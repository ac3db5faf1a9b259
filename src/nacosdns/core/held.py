"""Questions that wait for a look-up: one flight for equal ones, each flight with a deadline, all of them bounded.

Must not know: who answers, what the look-up finds. Rule: whoever was put in comes out exactly once, by ``take`` or by
``expired``.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nacosdns.core.model import ServiceKey

HELD_MAX = 10_000

Item = TypeVar("Item")
Keys = tuple["ServiceKey", ...]


class Flight(Generic[Item]):
    """Everything that waits for one look-up."""

    __slots__ = ("deadline", "items", "started")

    def __init__(self, started: float, deadline: float) -> None:
        self.started = started
        self.deadline = deadline
        self.items: list[Item] = []

    def __repr__(self) -> str:
        return f"<Flight {len(self.items)} waiting until {self.deadline:.3f}>"


class Held(Generic[Item]):
    """All flights by the spellings that are looked up."""

    def __init__(self, held_max: int = HELD_MAX) -> None:
        self._held_max = held_max
        self._flights: dict[Keys, Flight[Item]] = {}
        self._deadlines: list[tuple[float, int, Keys]] = []
        self._numbers = count()
        self._size = 0

    def __repr__(self) -> str:
        return f"<Held {self._size} in {len(self._flights)} flights>"

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Keys]:
        """The look-ups that are waited for."""
        return iter(list(self._flights))

    @property
    def full(self) -> bool:
        return self._size >= self._held_max

    def add(self, keys: Keys, item: Item, *, now: float, patience_s: float) -> bool:
        """Lets an item wait. True when it is the first: the look-up must be sent."""
        flight = self._flights.get(keys)
        is_first = flight is None
        if flight is None:
            flight = self._flights[keys] = Flight(now, now + patience_s)
            heappush(self._deadlines, (flight.deadline, next(self._numbers), keys))
        flight.items.append(item)
        self._size += 1
        return is_first

    def take(self, keys: Keys) -> Flight[Item] | None:
        """Everything that waits for this look-up; it waits no more."""
        flight = self._flights.pop(keys, None)
        if flight is not None:
            self._size -= len(flight.items)
        return flight

    def expired(self, now: float) -> list[Flight[Item]]:
        """The flights whose deadline has come; they wait no more."""
        flights = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, _, keys = heappop(self._deadlines)
            flight = self._flights.get(keys)
            if flight is not None and flight.deadline == deadline:
                self.take(keys)
                flights.append(flight)
        return flights

    def next_due(self) -> float | None:
        """The nearest deadline; may be that of a flight that has already landed."""
        return self._deadlines[0][0] if self._deadlines else None
