"""How fresh an answer is: ``python bench/freshness.py [--times 100] [--delays 0,default] [--json]``.

Starts a real Nacos (deploy/nacos) for each push delay and the real program, changes an instance's weight TIMES times over
Nacos's HTTP API, and hears the same pushes with a client of its own: the time of that client's callback is the start, the
first DNS answer with the new weight the end. Then registers TIMES services, and TIMES more that were asked
for in vain right before (a miss is remembered ``negative_ttl_s``): from the server's yes to the first answer. ``default`` is the push delay that Nacos has by itself (500 ms).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from measure import Bridge, Nacos, question

from nacosdns.core.model import ServiceKey
from nacosdns.edge.nacos import NacosRegistry
from nacosdns.edge.nacos_http import Settings

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from nacosdns.core.model import ServiceView

KEY = ServiceKey("public", "DEFAULT_GROUP", "fresh")
ADDRESS = "127.0.0.9"  # a persistent instance: the server itself connects to it
DEADLINE_S, PAUSE_S = 10.0, 0.0002
SRV = 33


class Ear:
    """Hears pushes; ``at`` is when the list with each weight arrived."""

    def __init__(self) -> None:
        self.at: dict[float, float] = {}
        self.up = asyncio.Event()

    def connected(self, namespace: str) -> None:
        del namespace
        self.up.set()

    def disconnected(self, namespace: str) -> None:
        del namespace
        self.up.clear()

    def pushed(self, key: ServiceKey, view: ServiceView) -> None:
        del key
        for instance in view.instances:
            self.at.setdefault(instance.weight, time.perf_counter())


def weight_of(sock: socket.socket, name: str) -> int:
    """The weight in the first SRV record; 0 without one."""
    packet = question(name, SRV)
    sock.send(packet)
    reply = sock.recv(4096)
    at = len(packet) + 14
    return int.from_bytes(reply[at : at + 2], "big") if reply[7] else 0


def ask(pipe: Connection, port: int) -> None:
    """A process of its own, so that asking delays nobody's callback: told (name, weight), says when the answer had it.

    Weight -1: asks once only. ``time.perf_counter`` is the same clock in all processes (CLOCK_MONOTONIC).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", port))
        sock.settimeout(3.0)
        while order := pipe.recv():
            name, weight = order
            ends = time.perf_counter() + DEADLINE_S
            while weight_of(sock, name) != weight and weight >= 0 and time.perf_counter() < ends:
                time.sleep(PAUSE_S)
            now = time.perf_counter()
            pipe.send(now if now < ends else 0.0)


class Asker:
    """The asking process as seen from here."""

    def __init__(self, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=ask, args=(theirs, port), daemon=True)
        self._process.start()

    async def until(self, name: str, weight: int) -> float:
        """When the answer first had this weight."""
        self._pipe.send((name, weight))
        at: float = await asyncio.to_thread(self._pipe.recv)
        if not at:
            raise SystemExit(f"{name} never had weight {weight}")
        return at

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join(5)


async def measure(nacos: Nacos, bridge: Bridge, times: int) -> dict[str, list[float]]:
    """Seconds by what was measured."""
    ear, asker = Ear(), Asker(bridge.port)
    log = structlog.wrap_logger(None, processors=[_drop])
    registry = NacosRegistry(Settings(servers=(nacos.address,)), ["public"], log)
    listening = asyncio.create_task(registry.run(ear))
    try:
        await ear.up.wait()
        return {
            "SDK callback to first changed answer": await changed(nacos, registry, ear, asker, times),
            "registered to first answer": await registered(nacos, asker, times, in_vain=False),
            "the same, asked in vain right before": await registered(nacos, asker, times, in_vain=True),
        }
    finally:
        asker.end()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def instance(service: str, weight: int) -> dict[str, object]:
    return {"serviceName": service, "ip": ADDRESS, "port": 80, "ephemeral": "false", "weight": weight}


async def changed(nacos: Nacos, registry: NacosRegistry, ear: Ear, asker: Asker, times: int) -> list[float]:
    """From the callback to the first changed answer."""
    nacos.http("POST", **instance("fresh", 1))
    await asker.until("fresh.nacos", 1)
    await registry.subscribe(KEY)
    await asyncio.sleep(2)
    took = []
    for weight in range(2, times + 2):
        answered = asyncio.create_task(asker.until("fresh.nacos", weight))
        await asyncio.to_thread(lambda weight=weight: nacos.http("PUT", **instance("fresh", weight)))
        at = await answered
        for _ in range(100):  # the answer may be there before our own callback was
            if weight in ear.at:
                break
            await asyncio.sleep(0.01)
        took.append(at - ear.at[weight])
        await asyncio.sleep(random.random() * 0.05)
    return took


async def registered(nacos: Nacos, asker: Asker, times: int, *, in_vain: bool) -> list[float]:
    """From the server's yes to a registration to the first answer."""
    took = []
    for number in range(times):
        service = f"{'late' if in_vain else 'new'}-{number}"
        if in_vain:
            await asker.until(f"{service}.nacos", -1)
        await asyncio.to_thread(lambda service=service: nacos.http("POST", **instance(service, 7)))
        began = time.perf_counter()
        took.append(await asker.until(f"{service}.nacos", 7) - began)
    return took


def _drop(_logger: object, _name: str, _event: dict[str, object]) -> str:
    raise structlog.DropEvent


def row(what: str, delay: str, seconds: list[float]) -> dict[str, object]:
    ordered = sorted(second * 1000 for second in seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    median = round(statistics.median(ordered), 2)
    return {"what": what, "push_delay": delay, "times": len(ordered), "median_ms": median, "p99_ms": round(p99, 2)}


def measure_delay(delay: str, times: int) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as place:
        nacos = Nacos(Path(place), random.randrange(12_000, 30_000), None if delay == "default" else int(delay))
        bridge = Bridge(Path(place), f'[nacos]\nservers = ["{nacos.address}"]\n')
        try:
            nacos.start()
            bridge.start().until_complete()
            found = asyncio.run(measure(nacos, bridge, times))
        finally:
            bridge.end()
            nacos.end()
    return [row(what, delay, seconds) for what, seconds in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--delays", default="0,default", help="push delays of Nacos in ms")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [one for delay in options.delays.split(",") for one in measure_delay(delay, options.times)]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'':<40}{'push delay':>12}{'times':>7}{'median ms':>11}{'p99 ms':>9}")
    for one in rows:
        print(f"{one['what']:<40}{one['push_delay']:>12}{one['times']:>7}{one['median_ms']:>11}{one['p99_ms']:>9}")


if __name__ == "__main__":
    main()
