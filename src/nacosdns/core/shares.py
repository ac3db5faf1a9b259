"""Places that many clients share: who holds how many, and who may have one more.

Must not know: what a place is for. Rule: a client may hold as many places as are still free. So one that wants them all
gets half, two such get a third each, and who holds none always finds one until none is left for anybody (the dynamic
thresholds of Choudhury and Hahne, IEEE/ACM Transactions on Networking 6/2, 1998).
"""

from __future__ import annotations


class Shares:
    """``places`` in all. Clients are raw addresses; ``b""``, nobody in particular, is bounded by what is free only."""

    __slots__ = ("_held", "places", "taken")

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self._held: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return f"<Shares {self.taken} of {self.places} by {len(self._held)}>"

    def has_room(self, client: bytes) -> bool:
        """Whether this client may have one more."""
        free = self.places - self.taken
        return free > 0 and (not client or self._held.get(client, 0) < free)

    def take(self, client: bytes) -> bool:
        """Takes a place; False when this client may not have one more."""
        if not self.has_room(client):
            return False
        self.put(client)
        return True

    def put(self, client: bytes) -> None:
        """Takes a place for which there is room."""
        self.taken += 1
        self._held[client] = self._held.get(client, 0) + 1

    def give_back(self, client: bytes) -> None:
        """The client needs one of its places no more."""
        self.taken -= 1
        held = self._held[client] - 1
        if held:
            self._held[client] = held
        else:
            del self._held[client]
