"""Parts of the bridge are killed or stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from chaos.ground import BATCH, await_new, collect, freeze, kill, pid_of, thaw
from chaos.steady import Steady
from fakes.running import TWO_ORDERS, until

if TYPE_CHECKING:
    from chaos.ground import Drill, Ground, Load
    from fakes.running import Bridge

DRILLS: list[Drill] = []
GAP_MS = 20.0


def _asked(ground: Ground, rate: float = 500) -> tuple[Bridge, Load]:
    running = ground.bridge(TWO_ORDERS)
    return running, ground.load(running.port, rate).expect_orders()


def _kill_front(running: Bridge) -> None:
    """Kill -9 of the one that answers; waits until there is another one, and a standby again."""
    old = pid_of(running, "front", active=True)
    kill(old)
    await_new(running, "front", old, active=True)
    until(lambda: pid_of(running, "front", active=False), 20, "a standby")


@collect(DRILLS)
def front_killed(ground: Ground) -> None:
    """The standby takes the sockets over: at most the batch in the dead front's hand is lost, nothing is wrong."""
    running, load = _asked(ground, 2000)
    kills = 10 if not ground.short else 3
    with ground.under_load(load, lost=kills * BATCH):
        for _ in range(kills):
            _kill_front(running)
    ground.found(kills=kills)


@collect(DRILLS, needs=["cc"])
def front_killed_at_10000(ground: Ground) -> None:
    """At 10,000 questions a second a kill -9 of the active front loses at most its batch, and nobody waits over 20 ms.

    Where the machine alone makes answers wait that long while any program of this weight starts, not over twice that.
    """
    running = ground.bridge(TWO_ORDERS)
    kills = int(ground.span(10, 3))
    load = Steady(ground, running.port, ["orders.nacos"], 10_000, kills * 3.0 + 2)
    time.sleep(1.0)
    for _ in range(kills):
        _kill_front(running)
        time.sleep(0.5)
    report = load.end()
    ground.require(report, lost=kills * BATCH)
    ground.found(kills=kills, longest_wait_ms=round(report.slowest_ms, 1))
    if not ground.short:
        alone_ms = _longest_wait_beside_starts_ms(ground, running, kills)
        ground.found(longest_beside_other_starts_ms=round(alone_ms, 1))
        waited = f"the slowest answer took {report.slowest_ms:.0f} ms, beside starts of other programs {alone_ms:.0f}"
        ground.hold(report.slowest_ms < max(GAP_MS, 2 * alone_ms), waited)


def _longest_wait_beside_starts_ms(ground: Ground, running: Bridge, starts: int) -> float:
    """While nobody is killed and a program imports what a front does, so many times: what this machine makes of that."""
    load = Steady(ground, running.port, ["orders.nacos"], 10_000, float(starts))
    for _ in range(starts):
        subprocess.run([sys.executable, "-c", "import nacosdns.front_process"], check=True)
    report = load.end()
    ground.require(report)
    return report.slowest_ms


@collect(DRILLS)
def front_stopped(ground: Ground) -> None:
    """A front that hangs is replaced after a second; what it left in its socket is answered then, none lost but its batch."""
    running, load = _asked(ground)
    with ground.under_load(load, lost=BATCH):
        old = pid_of(running, "front", active=True)
        freeze(old)
        ground.at_end(thaw, old)
        await_new(running, "front", old, active=True)


@collect(DRILLS)
def standby_killed(ground: Ground) -> None:
    """Nobody notices; another one stands by within seconds."""
    running, load = _asked(ground)
    with ground.under_load(load):
        old = pid_of(running, "front", active=False)
        kill(old)
        await_new(running, "front", old, active=False)


@collect(DRILLS)
def keeper_killed(ground: Ground) -> None:
    """Answers go on from what the fronts know; another keeper takes over."""
    running, load = _asked(ground)
    with ground.under_load(load):
        for _ in range(3):
            old = pid_of(running, "keeper")
            kill(old)
            await_new(running, "keeper", old)
            time.sleep(ground.span(3, 0.5))


@collect(DRILLS)
def keeper_stopped(ground: Ground) -> None:
    """A keeper that hangs is replaced; answers go on."""
    running, load = _asked(ground)
    with ground.under_load(load):
        old = pid_of(running, "keeper")
        freeze(old)
        ground.at_end(thaw, old)
        await_new(running, "keeper", old, seconds=60)


@collect(DRILLS)
def web_killed(ground: Ground) -> None:
    """Answers go on; health and metrics are back within seconds."""
    running, load = _asked(ground)
    with ground.under_load(load):
        old = pid_of(running, "web")
        kill(old)
        await_new(running, "web", old)
