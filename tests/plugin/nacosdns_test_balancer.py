"""A balancer that sends everything to the heaviest member; the others stand by, the heavier first."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import random

    from nacosdns import Member


class Heaviest:
    """Active and standby: what has the greatest weight gets it all until it is gone."""

    per_client: ClassVar[bool] = False
    cycle = 1

    def __init__(self, members: tuple[Member, ...], rng: random.Random, identity: bytes) -> None:
        del identity
        order = list(range(len(members)))
        rng.shuffle(order)
        order.sort(key=lambda index: members[index].weight, reverse=True)
        self._order = tuple(order)

    def window(self, count: int, places: int, client: bytes = b"") -> tuple[tuple[int, ...], ...]:
        """The same order each time: it repeats after one, as ``cycle`` says."""
        del client
        return (self._order[:places],) * count
