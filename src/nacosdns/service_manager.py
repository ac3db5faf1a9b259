"""What systemd is told of the bridge, and when: ready, reloading, stopping, alive, and how it is in words.

Must not know: how it is told. Rules: ready is the first answered canary; alive is said only while the canary is answered,
so that systemd starts a bridge anew whose fronts cannot be mended; where no address can be asked yet, there is nothing to
wait for.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from nacosdns.core.watch import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nacosdns.core.handover import Upgrade
    from nacosdns.core.watch import Watch
    from nacosdns.edge.activation import Notifier

CANARY_FRESH_S = 3.0
_US_PER_NS = 1000


class ServiceManager:
    """``period_s`` is how often the manager wants to hear that we live (0: never)."""

    def __init__(self, notifier: Notifier, period_s: float, *, announced: bool = False) -> None:
        self._notifier = notifier
        self._period_s = period_s
        self.announced = announced
        self._status = ""
        self._told_at = 0.0

    def __repr__(self) -> str:
        return f"<ServiceManager announced={self.announced} {self._status!r}>"

    def __bool__(self) -> bool:
        return bool(self._notifier)

    def look(self, now: float, canary_age_s: float, status: str) -> None:
        """To be called every second. ``canary_age_s`` is 0 when there is nothing that could be asked."""
        if status != self._status:
            self._status = status
            self._notifier.say(STATUS=status)
        if canary_age_s > CANARY_FRESH_S:
            return
        if not self.announced:
            self.announced = True
            self._notifier.say(READY=1, MAINPID=os.getpid())
        if self._period_s and now - self._told_at >= self._period_s / 2 - 1.0:  # a look later would be too late
            self._told_at = now
            self._notifier.say(WATCHDOG=1)

    def reloading(self) -> None:
        """A new configuration is being read; ``reloaded`` follows, good or bad."""
        self._notifier.say(RELOADING=1, MONOTONIC_USEC=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // _US_PER_NS)

    def reloaded(self) -> None:
        """The configuration was taken or refused."""
        if self.announced:
            self._notifier.say(READY=1)

    def stopping(self) -> None:
        """We were told to stop, or stop by ourselves."""
        self._notifier.say(STOPPING=1, STATUS="stopping")


def in_words(watch: Watch, addresses: Iterable[object], upgrade: Upgrade | None, *, has_disk: bool) -> str:
    """How the bridge is, in a line for `systemctl status`."""
    if watch.stopping:
        return "stopping"
    ready = sum(ward.phase is Phase.READY for ward in watch.wards.values())
    words = [f"{ready} of {len(watch.wards)} processes up"]
    if upgrade and not upgrade.is_over:
        words.append(f"upgrading ({upgrade.state})")
    if not has_disk:
        words.append("no disk")
    if watch.covered:
        return "; ".join(("NO FRONT answers, clients get SERVFAIL", *words))
    if not any(ward.reads for ward in watch.wards.values()):
        return "; ".join(("starting", *words))
    return "; ".join((f"answering on {', '.join(map(str, addresses))}", *words))
