"""The time of this host.

Must not know: what the time is used for. Rule: ``now`` counts through a suspend of the machine and never jumps, so
that ages of heartbeats and of leases can be compared between processes; only ``wall`` may jump.
"""

from __future__ import annotations

import asyncio
import time

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # BOOTTIME is Linux only


def until_next(now: float, period_s: float) -> float:
    """Seconds to the next multiple of a period, but not the one at hand: timers that wait so share their wake-ups."""
    wait_s = period_s - now % period_s
    return wait_s if wait_s > period_s / 10 else wait_s + period_s


async def next_multiple(period_s: float) -> None:
    """Waits so."""
    await asyncio.sleep(until_next(asyncio.get_running_loop().time(), period_s))


class HostClock:
    """The Clock port on this host. All our processes see the same ``now``."""

    def now(self) -> float:
        """Seconds since boot."""
        return time.clock_gettime(_STEADY)

    def now_ns(self) -> int:
        """Nanoseconds since boot."""
        return time.clock_gettime_ns(_STEADY)

    def wall(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()
