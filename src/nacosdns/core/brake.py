"""The brake: when too many services lose most of their instances at once, the registry is not believed.

Must not know: services' lists; it counts losses and says whether the brake is on. Rule: it engages when more than a
fifth of the known services (and at least five) lost over half of their instances within a minute, or stand to lose them
in the next moment, and ends by time, by the operator, or (its owner sees that) when nothing is kept back any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nacosdns.core.model import Instance, ServiceKey

WINDOW_S = 60.0
SHARE = 0.2
SERVICES_MIN = 5
SOON_S = 10.0
"""Doubts that end so soon count with the first loss: what was wiped at once is asked again one service after the other."""

Vanished = dict[tuple[str, int, str], "Instance"]


class Loss:
    """What one service lost since ``at``; ``size`` is how many it had then."""

    __slots__ = ("at", "size", "vanished")

    def __init__(self, at: float, size: int) -> None:
        self.at = at
        self.size = size
        self.vanished: Vanished = {}

    def __repr__(self) -> str:
        return f"<Loss {len(self.vanished)} of {self.size}>"

    @property
    def big(self) -> bool:
        return len(self.vanished) * 2 > self.size


class Brake:
    """Counts the losses of the last minute. ``accept_before`` is a wall time: until then nothing is braked."""

    def __init__(self, max_s: float, accept_before: float) -> None:
        self._max_s = max_s
        self._accept_before = accept_before
        self._losses: dict[ServiceKey, Loss] = {}
        self._big: set[ServiceKey] = set()
        self._standing: dict[ServiceKey, float] = {}
        self.since = 0.0
        self.lost, self.known = 0, 0
        """How many services of how many lost most, or stood to, when it was engaged last."""

    def __repr__(self) -> str:
        words = f"losses={len(self._losses)} big={len(self._big)} standing={len(self._standing)}"
        return f"<Brake {'on' if self.engaged else 'off'} {words}>"

    @property
    def engaged(self) -> bool:
        return self.since > 0.0

    @property
    def ends(self) -> float:
        """When it ends by itself, in ``now`` seconds."""
        return self.since + self._max_s

    def configure(self, max_s: float, accept_before: float) -> None:
        """New times; they hold for a brake that is on as well."""
        self._max_s = max_s
        self._accept_before = accept_before

    def expired(self, now: float) -> bool:
        return self.engaged and now >= self.ends

    def stands(self, key: ServiceKey, ends: float) -> None:
        """This service will lose most of its instances at this time, unless the registry changes its word."""
        self._standing[key] = ends

    def stands_no_more(self, key: ServiceKey) -> None:
        """There is no such doubt any more: it was cleared up, or became a loss."""
        self._standing.pop(key, None)

    def count(self, key: ServiceKey, vanished: Vanished, *, size: int, known: int, now: float, wall: float) -> None:
        """One of ``known`` services is about to lose ``vanished`` of its ``size``; engages when it is one too many."""
        self._drop_old(now)
        loss = self._losses.get(key)
        if loss is None:
            loss = self._losses[key] = Loss(now, size)
        loss.vanished.update(vanished)
        if loss.big:
            self._big.add(key)
            if not self.engaged and wall >= self._accept_before and self._many(known, now):
                self.since = now

    def _many(self, known: int, now: float) -> bool:
        soon = sum(ends <= now + SOON_S and key not in self._big for key, ends in self._standing.items())
        self.lost, self.known = len(self._big) + soon, known
        return self.lost >= SERVICES_MIN and self.lost > SHARE * known

    def _drop_old(self, now: float) -> None:
        while self._losses:
            key = next(iter(self._losses))
            if now - self._losses[key].at <= WINDOW_S:
                return
            del self._losses[key]
            self._big.discard(key)

    def take_recent(self) -> list[tuple[ServiceKey, Vanished]]:
        """What vanished in the last minute, once."""
        recent = [(key, loss.vanished) for key, loss in self._losses.items()]
        self._losses.clear()
        self._big.clear()
        return recent

    def forget(self, key: ServiceKey) -> None:
        """What this service lost is believed: it does not count, and does not come back."""
        self._losses.pop(key, None)
        self._big.discard(key)

    def release(self) -> None:
        """Ends it; losses and doubts counted so far count no more."""
        self.since = 0.0
        self._losses.clear()
        self._big.clear()
        self._standing.clear()
