"""The world around keeper and front, as fake ports: a registry, a disk, a link, upstreams. Everything is in memory.

Each notes what it was asked for; a scenario must declare all of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dnslib

from nacosdns.core.frames import Hello, LookedUp, decode_link, encode
from nacosdns.core.model import ServiceView
from nacosdns.edge.store import StoredService
from nacosdns.errors import RegistryDown, RegistryNameRefused, RegistryRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nacosdns.core.frames import External, Known, LinkFrame
    from nacosdns.core.model import ServiceKey
    from nacosdns.ports import LinkListener, RegistryListener


class FakeRegistry:
    """ports.Registry. ``calls`` are what it was asked, oldest first; its truth is set by the scenario."""

    def __init__(self, namespaces: Iterable[str]) -> None:
        self.truth: dict[ServiceKey, ServiceView] = {}
        self.catalogue_only: set[ServiceKey] = set()
        self.subscribed: set[ServiceKey] = set()
        self.calls: list[str] = []
        self.up = True
        self.delay_s = 0.001
        self.complaint = "down by script"
        self.refusal = ""
        self._namespaces = tuple(namespaces)
        self._listener: RegistryListener | None = None

    async def run(self, listener: RegistryListener) -> None:
        self._listener = listener
        if self.up:
            self.come_up()
        await asyncio.get_running_loop().create_future()

    def come_up(self) -> None:
        self.up = True
        self.subscribed.clear()
        for namespace in self._namespaces:
            if self._listener is not None:
                self._listener.connected(namespace)

    def go_down(self) -> None:
        self.up = False
        self.subscribed.clear()
        for namespace in self._namespaces:
            if self._listener is not None:
                self._listener.disconnected(namespace)

    def push(self, key: ServiceKey) -> None:
        if self.up and self._listener is not None:
            self._listener.pushed(key, self.truth.get(key, ServiceView(())))

    async def _call(self, word: str) -> None:
        self.calls.append(word)
        await asyncio.sleep(self.delay_s)
        if not self.up:
            raise RegistryDown("down by script")
        if self.refusal:
            raise RegistryRefused(self.refusal)

    async def query(self, key: ServiceKey) -> ServiceView:
        await self._call(f"query {key.service}")
        if not key.service.isascii() and key not in self.truth:
            raise RegistryNameRefused("illegal characters, as Nacos 2.3.2 says")  # newer ones let some in
        return self.truth.get(key, ServiceView(()))

    async def subscribe(self, key: ServiceKey) -> ServiceView:
        await self._call(f"subscribe {key.service}")
        self.subscribed.add(key)
        return self.truth.get(key, ServiceView(()))

    async def unsubscribe(self, key: ServiceKey) -> None:
        await self._call(f"unsubscribe {key.service}")
        self.subscribed.discard(key)

    async def list_services(self, namespace: str, group: str) -> tuple[str, ...]:
        await self._call(f"list {group}")
        keys = self.truth.keys() | self.catalogue_only
        return tuple(sorted(key.service for key in keys if (key.namespace, key.group) == (namespace, group)))

    def is_connected(self, namespace: str) -> bool:
        return self.up and namespace in self._namespaces

    def problem(self, namespace: str) -> str:
        del namespace
        return self.refusal if self.up else self.complaint

    def set_password(self, password: str) -> None:
        del password

    def status(self) -> dict[str, object]:
        return {"up": self.up}


@dataclass
class FakeDisk:
    """What outlives the processes."""

    services: dict[ServiceKey, StoredService] = field(default_factory=dict)
    externals: dict[tuple[bytes, int], External] = field(default_factory=dict)
    full: bool = False


class FakeStore:
    """ports.Store on a FakeDisk."""

    def __init__(self, disk: FakeDisk) -> None:
        self._disk = disk
        self._lost = False

    async def load(self) -> tuple[tuple[StoredService, ...], tuple[External, ...]]:
        return tuple(self._disk.services.values()), tuple(self._disk.externals.values())

    def put_services(self, items: Iterable[tuple[Known, float]]) -> None:
        if self._disk.full:
            self._lost = True
            return
        for known, asked_at in items:
            self._disk.services[known.key] = StoredService(known, asked_at)

    def remove_services(self, keys: Iterable[ServiceKey]) -> None:
        if self._disk.full:
            self._lost = True
            return
        for key in keys:
            self._disk.services.pop(key, None)

    def put_externals(self, items: Iterable[External]) -> None:
        for item in items:
            self._disk.externals[item.question, item.flags] = item

    def remove_externals(self, questions: Iterable[bytes]) -> None:
        gone = set(questions)
        self._disk.externals = {k: v for k, v in self._disk.externals.items() if k[0] not in gone}

    def take_lost(self) -> bool:
        lost, self._lost = self._lost, False
        return lost

    async def flush(self) -> None:
        return

    async def close(self) -> None:
        return

    def status(self) -> dict[str, object]:
        return {"full": self._disk.full}


class SlowLink:
    """ports.Link that keeps what it was given; congested when the test says so."""

    def __init__(self) -> None:
        self.congested = self.unread = False
        self.sent: list[LinkFrame] = []

    def send(self, frame: LinkFrame) -> None:
        self.sent.append(frame)

    def close(self) -> None:
        return

    def outcomes(self) -> list[str]:
        return [frame.outcome for frame in self.sent if isinstance(frame, LookedUp)]


class FakeLink:
    """One end of a link in memory: frames are really encoded and decoded, and arrive in a later turn."""

    def __init__(self) -> None:
        self.other: FakeLink | None = None
        self.listener: LinkListener | None = None
        self.congested = self.unread = False

    def send(self, frame: LinkFrame) -> None:
        if self.other is not None:
            asyncio.get_running_loop().call_soon(self.other.arrive, encode(frame))

    def arrive(self, data: bytes) -> None:
        if self.other is not None and self.listener is not None:
            self.listener.received(self, decode_link(data))

    def close(self) -> None:
        other, self.other = self.other, None
        if other is not None:
            other.other = None
            for end in (self, other):
                if end.listener is not None:
                    end.listener.left(end)


def connect(keeper: LinkListener, front: LinkListener, epoch: int) -> FakeLink:
    """A link between two listeners; returns the front's end."""
    near, far = FakeLink(), FakeLink()
    near.other, far.other = far, near
    near.listener, far.listener = front, keeper
    keeper.joined(far, Hello(1, "front"))
    front.joined(near, Hello(1, "keeper", epoch))
    return near


@dataclass
class Resolver:
    """One upstream as the scenario sees it."""

    mood: str = "well"
    records: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    ttl_s: int = 60


class FakeUpstream:
    """ports.Upstream with scripted resolvers by address."""

    def __init__(self) -> None:
        self.resolvers: dict[str, Resolver] = {}
        self.calls: list[str] = []
        self.received: Callable[[int, bytes], bool] | None = None
        self.failed: Callable[[int, str], None] | None = None
        self.settled: Callable[[], None] = lambda: None
        self._wanted: set[int] = set()

    def send(self, address: str, packet: bytes, *, over_tcp: bool, token: int) -> None:
        query = dnslib.DNSRecord.parse(packet)
        name = str(query.q.qname).rstrip(".").lower()
        if name.endswith(".nacosdns"):
            return
        qtype = dnslib.QTYPE.get(query.q.qtype)
        self.calls.append(f"{address} {name} {qtype}{' tcp' if over_tcp else ''}")
        self._wanted.add(token)
        resolver = self.resolvers.setdefault(address, Resolver())
        asyncio.get_running_loop().call_later(0.002, self._answer, resolver, query, name, qtype, over_tcp, token)

    def _answer(
        self, resolver: Resolver, query: dnslib.DNSRecord, name: str, qtype: str, over_tcp: bool, token: int
    ) -> None:
        if token not in self._wanted or resolver.mood == "mute" or self.received is None or self.failed is None:
            return
        if resolver.mood == "refuses":
            self._wanted.discard(token)
            self.failed(token, "refused")
            self.settled()
            return
        reply = query.reply(ra=1, aa=0)
        values = resolver.records.get((name, qtype), [])
        if resolver.mood == "servfail":
            reply.header.rcode = 2
        elif resolver.mood == "truncates" and not over_tcp:
            reply.header.tc = 1
        elif values:
            for value in values:
                reply.add_answer(*dnslib.RR.fromZone(f"{name}. {resolver.ttl_s} IN {qtype} {value}"))
        else:
            reply.header.rcode = 0 if any(known == name for known, _ in resolver.records) else 3
            reply.add_auth(*dnslib.RR.fromZone("test. 30 IN SOA ns.test. root.test. 1 60 60 60 30"))
        if self.received(token, bytes(reply.pack())):
            self._wanted.discard(token)
        self.settled()

    def release(self, token: int) -> None:
        self._wanted.discard(token)

    def close(self) -> None:
        self._wanted.clear()
