"""Many at once: a deploy that replaces every instance of a service, a fleet of agents whose Nacos dies and comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.drills.network import NACOS, is_followed
from chaos.ground import collect
from fakes.asking import addresses
from fakes.running import TESTS, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chaos.ground import Drill, Ground
    from fakes.real_nacos import RealNacos
    from fakes.running import Bridge

DRILLS: list[Drill] = []
LINGERS_S = 10.0
"""How long an instance that is gone may still be answered."""
BARS = " ▁▂▃▄▅▆▇█"


class Fleet:
    """Keepers in one process (``fakes.agents``), from outside. ``said`` are the lines of each second, oldest first, with ``at`` as time.monotonic."""

    def __init__(self, server: str, count: int) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "fakes.agents", server, str(count)]
        environment = os.environ | {"PYTHONPATH": ":".join([str(TESTS), *filter(None, sys.path)])}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.said: list[dict[str, Any]] = []
        self.told: list[list[str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            if "told" in found:
                self.told = found["told"]
            else:
                self.said.append(found)

    def ask(self, services: Sequence[str]) -> None:
        """Clients of every agent ask for these."""
        self._order({"ask": list(services)})

    def tell(self, service: str) -> None:
        """Brings ``told`` up to date, a moment later."""
        self._order({"tell": service})

    @property
    def live(self) -> int:
        """How many subscriptions are live in all."""
        return int(self.said[-1]["live"]) if self.said else 0

    def _order(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def _fleet(ground: Ground, nacos: RealNacos, count: int) -> Fleet:
    fleet = Fleet(nacos.address, count)
    ground.at_end(fleet.kill)
    return fleet


# ---- a rolling deploy


class Deploy:
    """Instances in groups of ten, each group a client of Nacos; each in turn is replaced by ten at other addresses."""

    def __init__(self, ground: Ground, nacos: RealNacos, groups: int) -> None:
        self._crowd = ground.crowd(nacos)
        self.groups = groups
        self.gone: dict[str, float] = {}
        self.alive: set[str] = set()
        for group in range(groups):
            self._start(1, group)

    def _addresses(self, version: int, group: int) -> list[str]:
        return [f"10.{version}.{group}.{number + 1}" for number in range(10)]

    def _start(self, version: int, group: int) -> None:
        self._crowd.hold({"deploy": self._addresses(version, group)}, f"v{version}-{group}")
        self.alive.update(self._addresses(version, group))

    def roll(self) -> Iterator[None]:
        """Replaces one group after the other."""
        for group in range(self.groups):
            self.alive.update(self._addresses(2, group))  # they may be answered before we know that they are registered
            yield
            self._start(2, group)
            self._crowd.end(f"v1-{group}")
            old = self._addresses(1, group)
            self.alive.difference_update(old)
            self.gone.update(dict.fromkeys(old, time.monotonic()))
            yield

    def allowed(self) -> set[str]:
        """What may be answered now."""
        now = time.monotonic()
        return self.alive | {address for address, at in self.gone.items() if now - at < LINGERS_S}


def _until_all(running: Bridge, deploy: Deploy, seconds: float) -> None:
    """Every instance is answered, over TCP, and no other."""
    until(lambda: set(addresses(running.port, "deploy.nacos", tcp=True)) == deploy.alive, seconds, "the truth")


@collect(DRILLS, needs=NACOS)
def rolling_deploy(ground: Ground) -> None:
    """300 instances are replaced ten by ten before 50 subscribers: never none, none that is long gone, all true in the end.

    In short 60 instances, 12 subscribers. Some of the subscribers are whole bridges under load, the rest keepers alone.
    """
    groups, bridges, agents = (6, 2, 10) if ground.short else (30, 3, 47)
    nacos = ground.nacos()
    deploy = Deploy(ground, nacos, groups)
    fleet = _fleet(ground, nacos, agents)
    fleet.ask(["deploy"])
    text = f'[nacos]\nservers = ["{nacos.address}"]\n'
    running = [ground.bridge(text) for _ in range(bridges)]
    for one in running:
        _until_all(one, deploy, 20)
        until(lambda one=one: is_followed(one), 20, "a subscription")
    until(lambda: fleet.live == agents, 30, "the subscriptions of the agents")
    loads = [ground.load(one.port, 100).expect("deploy.nacos", *deploy.alive, at_least=20).go() for one in running]
    for _ in deploy.roll():
        for load in loads:
            load.expect("deploy.nacos", *deploy.allowed(), at_least=20)
        time.sleep(ground.span(0.3, 0.1))
    began = time.monotonic()
    for one in running:
        _until_all(one, deploy, LINGERS_S)

    def agree() -> bool:
        fleet.tell("deploy")
        time.sleep(0.3)
        return len(fleet.told) == agents and all(set(told) == deploy.alive for told in fleet.told)

    until(agree, LINGERS_S, "the same truth at every agent")
    ground.found(
        instances=10 * groups, subscribers=bridges + agents, all_true_after_s=round(time.monotonic() - began, 1)
    )
    for load in loads:
        load.expect("deploy.nacos", *deploy.alive, at_least=20)
    time.sleep(2.0)
    for load in loads:
        ground.require(load.end())


# ---- a fleet whose Nacos dies


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def _bars(values: Sequence[float]) -> str:
    top = max(values, default=0) or 1
    return "".join(BARS[-1 if value >= top else 1 + int(value / top * 7)] if value else BARS[0] for value in values)


@collect(DRILLS, needs=NACOS)
def fleet_returns(ground: Ground) -> None:
    """Nacos dies under 20 agents of 200 services and comes back: no second asks more than three times the recovery's mean.

    In short 50 services each. The recovery lasts from the first connection until every subscription is live again.
    """
    agents, services = 20, [f"s{number}" for number in range(int(ground.span(200, 50)))]
    nacos = ground.nacos()
    held = {service: ["10.0.0.1", "10.0.0.2"] for service in services}
    crowd = ground.crowd(nacos).hold(held)
    fleet = _fleet(ground, nacos, agents)
    fleet.ask(services)
    wanted = agents * len(services)
    until(lambda: fleet.live == wanted, 120, f"{wanted} subscriptions")
    crowd.kill()
    nacos.kill()
    until(lambda: not fleet.said[-1]["connected"], 20, "that every agent noticed")
    time.sleep(ground.span(20, 2))
    nacos.start()
    first, used = len(fleet.said), [_cpu_s(nacos.pid)]
    ground.crowd(nacos).hold(held)
    until(lambda: any(line["connected"] for line in fleet.said[first:]), 60, "a connection")
    ends = time.monotonic() + ground.span(60, 40)
    while fleet.live < wanted or len(used) < ground.span(30, 10):
        ground.hold(time.monotonic() < ends, f"{fleet.live} subscriptions of {wanted}")
        time.sleep(1.0)
        used.append(_cpu_s(nacos.pid))
    lines = fleet.said[first - 1 :]
    sent = [sum(line["requests"].values()) for line in lines]
    rates = [after - before for before, after in pairwise(sent)]
    begun = next(n for n, line in enumerate(lines[1:]) if line["connected"] or lines[n]["connected"])
    over = next(n for n, line in enumerate(lines[1:]) if line["live"] == wanted)
    recovery = rates[begun : over + 1]
    mean = sum(recovery) / len(recovery)
    ground.found(
        agents=agents, services=len(services), recovery_s=len(recovery), mean_per_s=round(mean), peak=max(rates)
    )
    ground.found(peak_to_mean=round(max(rates) / mean, 2), requests_per_s=f"`{_bars(rates)}` {rates}")
    cpu = [round((after - before) * 100) for before, after in pairwise(used)]
    ground.found(server_cpu_percent=f"`{_bars(cpu)}` {cpu}")
    ground.hold(max(rates) <= 3 * mean, f"{max(rates)} requests in a second, {mean:.0f} in the mean: {rates}")
