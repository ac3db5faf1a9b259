"""Which front is to be replaced because queries stay without an answer although its heart beats.

Must not know: sockets, processes. Rules: one lost canary is an accident, and raises a doubt; in doubt every front is asked
many times at once, and who answered anything since is not to blame, so that overload kills nobody; when a replacement
does not help, it was not the front, and the next one waits ever longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUNDS = 2
ASKED_A_FRONT = 8
"""Canaries in a round of doubt, for each front: of two, a living one gets none of them once in 65,536 rounds."""
PAUSE_MIN_S = 10.0
PAUSE_MAX_S = 600.0


class Silence:
    """Hears of every canary, and in doubt of how much each front that reads sockets has answered."""

    def __init__(self) -> None:
        self.in_doubt = False
        self._rounds: dict[int, int] = {}
        self._pause_s = PAUSE_MIN_S
        self._not_before = 0.0

    def __repr__(self) -> str:
        return f"<Silence {self._rounds}>"

    def answered(self, now: float) -> None:
        """A canary was answered while nobody was in doubt."""
        if now >= self._not_before:
            self._pause_s = PAUSE_MIN_S

    def lost(self) -> None:
        """A canary was not answered."""
        self.in_doubt = True

    def judge(self, now: float, before: Mapping[int, int], after: Mapping[int, int]) -> int | None:
        """The slot of a front to replace, if any; given the answers of each slot before and after a round of doubt."""
        silent = [slot for slot, count in after.items() if before.get(slot) == count]
        self._rounds = {slot: self._rounds.get(slot, 0) + 1 for slot in silent}
        self.in_doubt = bool(silent)
        guilty = [slot for slot, rounds in self._rounds.items() if rounds >= ROUNDS]
        if not guilty or now < self._not_before:
            return None
        del self._rounds[guilty[0]]
        self._not_before = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return guilty[0]
