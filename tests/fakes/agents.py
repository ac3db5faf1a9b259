"""Many keepers in one process, each with its own connections to a Nacos: what a fleet of agents does to it, and no DNS.

``python -m fakes.agents SERVER COUNT``; the code is the keeper's own (``nacosdns.keeper``, ``nacosdns.edge.nacos``), the
disk and the fronts are left out. Each line of its input is an order: ``{"ask": [SERVICE, ...]}`` as clients of every
agent would, ``{"tell": SERVICE}`` prints the addresses that each agent believes in. A line a second tells what was
requested so far, how many are connected, and how many subscriptions are live. All lines are JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import structlog

from nacosdns import config as configuration
from nacosdns.config import Config
from nacosdns.core.frames import Asked
from nacosdns.core.metrics import Counters
from nacosdns.core.model import Instance, ServiceKey, Snapshot, Source
from nacosdns.edge.clock import HostClock
from nacosdns.edge.nacos import NacosRegistry
from nacosdns.edge.nacos_http import Settings
from nacosdns.keeper import Keeper
from nacosdns.keeper_process import schedule_settings, services_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nacosdns.core.frames import External, Known, LinkFrame
    from nacosdns.ports import StoredService


class Nowhere:
    """ports.Store without a disk."""

    async def load(self) -> tuple[Sequence[StoredService], Sequence[External]]:
        return (), ()

    def put_services(self, items: Iterable[tuple[Known, float]]) -> None: ...

    def remove_services(self, keys: Iterable[ServiceKey]) -> None: ...

    def put_externals(self, items: Iterable[External]) -> None: ...

    def remove_externals(self, questions: Iterable[bytes]) -> None: ...

    def take_lost(self) -> bool:
        return False

    async def flush(self) -> None: ...

    async def close(self) -> None: ...

    def status(self) -> dict[str, object]:
        return {}


def _key(service: str) -> ServiceKey:
    return ServiceKey("public", "DEFAULT_GROUP", service)


def agent(server: str, number: int) -> tuple[Keeper, NacosRegistry]:
    """One keeper as the process of the keeper makes it."""
    config = Config()
    log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr), processors=[_silent])
    registry = NacosRegistry(Settings(servers=(server,)), ("public",), log)
    keeper = Keeper(
        policies=configuration.policies(config),
        services=services_settings(config),
        schedule=schedule_settings(config, configuration.names(config)),
        registry=registry,
        store=Nowhere(),
        clock=HostClock(),
        rng=random.SystemRandom(),
        log=log,
        counters=Counters(),
        epoch=number + 1,
    )
    return keeper, registry


def _silent(_logger: object, _method: str, _event: object) -> Any:
    raise structlog.DropEvent


async def main(server: str, count: int) -> None:
    agents = [agent(server, number) for number in range(count)]
    async with asyncio.TaskGroup() as group:
        for keeper, _ in agents:
            group.create_task(keeper.run())
        group.create_task(_obey([keeper for keeper, _ in agents]))
        while True:
            requests: dict[str, int] = {}
            for _, registry in agents:
                for kind, sent in registry.requests.items():
                    requests[kind] = requests.get(kind, 0) + sent
            connected = sum(bool(keeper.up) for keeper, _ in agents)
            live = sum(len(keeper.schedule.subscribed()) for keeper, _ in agents)
            _say({"at": time.monotonic(), "requests": requests, "connected": connected, "live": live})
            await asyncio.sleep(1.0)


async def _obey(keepers: list[Keeper]) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if "tell" in order:
            known = [_key(order["tell"]) in keeper.services for keeper in keepers]
            snapshots = [k.services.snapshot(_key(order["tell"])) for k, has in zip(keepers, known, strict=True) if has]
            _say({"told": [sorted(instance.address for instance in snapshot.instances) for snapshot in snapshots]})
            continue
        for keeper in keepers:
            _ask(keeper, [_key(service) for service in order["ask"]])


def _ask(keeper: Keeper, keys: list[ServiceKey]) -> None:
    """Services that the agent's disk knew, at an address of long ago, and that its front is asked for now."""
    keeper.services.restore(Snapshot(key, (Instance("192.0.2.1", 80),), source=Source.DISK) for key in keys)
    keeper.received(Deaf(), Asked(tuple(keys)))


class Deaf:
    """ports.Link to a front that says nothing back."""

    congested = unread = False

    def send(self, frame: LinkFrame) -> None: ...

    def close(self) -> None: ...


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - whoever started it reads that


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
