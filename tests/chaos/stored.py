"""A cache on disk as the keeper leaves it, for drills without a Nacos."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from nacosdns.core.frames import known
from nacosdns.core.model import Instance, ServiceKey, Snapshot, Source
from nacosdns.edge.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

NO_NACOS = '[nacos]\nservers = ["127.0.0.1:1"]\n'
"""Names a registry that refuses: with none at all, only static services are answered."""


def snapshot(number: int, *, confirmed_ago_s: float = 3600.0, room: int = 0) -> Snapshot:
    """The service ``svc-NUMBER``: two instances."""
    key = ServiceKey("public", "DEFAULT_GROUP", f"svc-{number}")
    high, low = divmod(number + 1, 250)
    instances = tuple(Instance(f"10.{high}.{room + part}.{low}", 80) for part in (0, 1))
    return Snapshot(key, instances, source=Source.PUSH, confirmed_at=time.time() - confirmed_ago_s)


def addresses_of(number: int, room: int = 0) -> list[str]:
    """What the service ``svc-NUMBER`` resolves to."""
    return [instance.address for instance in snapshot(number, room=room).instances]


def fill(directory: Path, services: int, *, confirmed_ago_s: float = 3600.0, room: int = 0) -> None:
    """Writes ``svc-0`` and so many more."""

    async def write() -> None:
        store = SqliteStore(str(directory), external_entries=1, log=structlog.get_logger())
        await store.load()
        rows = [(known(snapshot(n, confirmed_ago_s=confirmed_ago_s, room=room)), time.time()) for n in range(services)]
        store.put_services(rows)
        await store.flush()
        await store.close()

    directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(write())
