"""Questions that wait for a look-up: one flight for equal ones, each flight with a deadline, all of them bounded.

Must not know: who answers, what the look-up finds. Rules: whoever was put in comes out exactly once, by ``take`` or by
``expired``; no client has more than its share of the places (core/shares.py).
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

from nacosdns.core.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nacosdns.core.model import ServiceKey

HELD_MAX = 10_000

Item = TypeVar("Item")
Keys = tuple["ServiceKey", ...]


class Flight(Generic[Item]):
    """Everything that waits for one look-up."""

    __slots__ = ("clients", "deadline", "items", "started")

    def __init__(self, started: float, deadline: float) -> None:
        self.started = started
        self.deadline = deadline
        self.items: list[Item] = []
        self.clients: list[bytes] = []

    def __repr__(self) -> str:
        return f"<Flight {len(self.items)} waiting until {self.deadline:.3f}>"


class Held(Generic[Item]):
    """All flights by the spellings that are looked up."""

    def __init__(self, held_max: int = HELD_MAX) -> None:
        self._places = Shares(held_max)
        self._flights: dict[Keys, Flight[Item]] = {}
        self._deadlines: list[tuple[float, int, Keys]] = []
        self._numbers = count()

    def __repr__(self) -> str:
        return f"<Held {self._places.taken} in {len(self._flights)} flights>"

    def __len__(self) -> int:
        return self._places.taken

    def __iter__(self) -> Iterator[Keys]:
        """The look-ups that are waited for."""
        return iter(list(self._flights))

    def has_room(self, client: bytes) -> bool:
        """Whether one more item of this client may wait."""
        return self._places.has_room(client)

    def add(self, keys: Keys, item: Item, *, now: float, patience_s: float, client: bytes = b"") -> bool:
        """Lets an item wait, for which there is room. True when it is the first: the look-up must be sent."""
        self._places.put(client)
        flight = self._flights.get(keys)
        is_first = flight is None
        if flight is None:
            flight = self._flights[keys] = Flight(now, now + patience_s)
            heappush(self._deadlines, (flight.deadline, next(self._numbers), keys))
        flight.items.append(item)
        flight.clients.append(client)
        return is_first

    def take(self, keys: Keys) -> Flight[Item] | None:
        """Everything that waits for this look-up; it waits no more."""
        flight = self._flights.pop(keys, None)
        for client in flight.clients if flight is not None else ():
            self._places.give_back(client)
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
