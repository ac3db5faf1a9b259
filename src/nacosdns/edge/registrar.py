"""Keeps instances of one service registered in Nacos while their probes hold: how a database gets a name.

Must not know: who asks for the service. Rules: what Nacos says of a registration is read back and not trusted; one
connection holds all instances where the server takes batches, else one connection each; what stands in Nacos when we
stop is taken out.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nacosdns.edge.nacos import to_view
from nacosdns.edge.nacos_client import Access, Client
from nacosdns.edge.nacos_http import fetch, in_plain_words
from nacosdns.edge.nacos_wire import batch_registration, deregistration, query, registration
from nacosdns.errors import RegistryDown, RegistryError, RegistryRefused, RegistryUnsupported

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nacosdns.core.model import Instance, ServiceKey
    from nacosdns.edge.nacos_http import Settings
    from nacosdns.edge.nacos_wire import ServiceInfo
    from nacosdns.ports import Log

    Probe = Callable[[Instance], Awaitable[str]]
    """Why an instance is not to be registered; "" when it is."""

_SETTLE_S = 2.0  # the server's lists lag behind its registrations
_AGAIN_S = 1.0  # after a failed request
_FAILURES_MAX = 2  # probes in a row that must fail before an instance is taken out
_LEAVE_S = 2.0


def tcp_probe(timeout_s: float = 2.0) -> Probe:
    """Holds while a TCP connection to the instance can be opened."""

    async def probe(instance: Instance) -> str:
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(instance.address, instance.port)
        except TimeoutError:
            return f"no connection within {timeout_s:g} s"
        except OSError as error:
            return in_plain_words(error)
        writer.transport.abort()
        return ""

    return probe


def http_probe(path: str = "/", timeout_s: float = 2.0) -> Probe:
    """Holds while a GET of ``path`` on the instance is answered with a status below 400."""

    async def probe(instance: Instance) -> str:
        host = f"[{instance.address}]" if ":" in instance.address else instance.address
        try:
            status, _ = await fetch(f"http://{host}:{instance.port}{path}", timeout_s=timeout_s)
        except RegistryDown as error:
            return str(error)
        return "" if status < 400 else f"{path} is answered with status {status}"

    return probe


class _Seat:
    """One client and which instances it holds; ``done`` is what was told on its present connection."""

    def __init__(self, client: Client, indices: tuple[int, ...], changed: asyncio.Event) -> None:
        self.client = client
        self.indices = indices
        self.done: tuple[Instance, ...] | None = None
        self._changed = changed

    def connected(self) -> None:
        """From the client: there is something to tell."""
        self._changed.set()

    def disconnected(self) -> None:
        """From the client: the next connection will hold nothing."""
        self.done = None
        self._changed.set()

    def pushed(self, service: ServiceInfo) -> None:
        """From the client; nothing is subscribed here."""


class Registrar:
    """Keeps ``instances`` of the service registered while ``run`` runs; with a probe, those for which it holds.

    ConfigError when the settings cannot be used.
    """

    read_back_s = 15.0
    probe_every_s = 2.0

    def __init__(
        self,
        settings: Settings,
        service: ServiceKey,
        instances: Sequence[Instance],
        log: Log,
        *,
        probe: Probe | None = None,
    ) -> None:
        self._access = Access(settings, log)
        self._service = service
        self._instances = list(instances)
        self._holds = [probe is None] * len(self._instances)
        self._told = [""] * len(self._instances)
        self._probe = probe
        self._read_back_at = 0.0
        self._changed = asyncio.Event()
        self._seats: list[_Seat] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._was_registered = False

    def __repr__(self) -> str:
        return f"<Registrar {self._service}: {sum(self._holds)} of {len(self._instances)} instances>"

    @property
    def registered(self) -> bool:
        """Whether Nacos was told all that there is to tell, on the present connections."""
        return bool(self._seats) and all(seat.done == self._wanted(seat) for seat in self._seats)

    def set_healthy(self, index: int, *, healthy: bool, reason: str = "") -> None:
        """Registers an instance, or takes it out until it is healthy again; each ``reason`` is said once."""
        name, changes = _name(self._instances[index]), self._holds[index] != healthy
        if not healthy and (changes or reason != self._told[index]):
            self._access.log.warning("register.unhealthy", instance=name, reason=reason, registered=False)
        elif healthy and changes:
            self._access.log.info("register.healthy", instance=name)
        self._told[index] = "" if healthy else reason
        if changes:
            self._holds[index] = healthy
            self._changed.set()

    def update(self, index: int, instance: Instance) -> None:
        """Other weight, metadata, cluster or address for an instance."""
        self._instances[index] = instance
        self._changed.set()

    def status(self) -> dict[str, object]:
        """``registered``, ``holds`` per instance, ``clients`` as Client.status says, ``requests`` sent by kind."""
        return {
            "registered": self.registered,
            "holds": list(self._holds),
            "clients": [seat.client.status() for seat in self._seats],
            "requests": dict(self._access.requests),
        }

    async def run(self) -> None:
        """Works until cancelled, then takes the instances out.

        Before anything was registered, a RegistryRefused or RegistryUnsupported ends it; later they are logged and
        tried again. An unreachable Nacos never ends it.
        """
        async with asyncio.TaskGroup() as group:
            self._sit(group, tuple(range(len(self._instances))))
            if self._probe is not None:
                probing = [self._probing(index, self._probe) for index in range(len(self._instances))]
                self._tasks += [group.create_task(one) for one in probing]
            try:
                failure = await self._work(group)
            finally:
                await self._leave()
                for task in self._tasks:
                    task.cancel()
        raise failure

    def _sit(self, group: asyncio.TaskGroup, indices: tuple[int, ...]) -> None:
        seat = _Seat(Client(self._access, self._service.namespace), indices, self._changed)
        self._seats.append(seat)
        self._tasks.append(group.create_task(seat.client.run(seat)))

    async def _work(self, group: asyncio.TaskGroup) -> RegistryError:
        """Tells Nacos what has changed and reads it back, for ever; returns only what must end it."""
        while True:
            self._changed.clear()
            wait_s = self.read_back_s
            try:
                for seat in self._seats:
                    await self._tell(seat)
                wait_s = await self._read_back()
            except RegistryError as error:
                wait_s = _AGAIN_S
                if self._needs_more_seats(error):
                    self._spread(group)
                    continue
                if self._ends(error):
                    return error
                self._access.quiet.warning("register.failed", namespace=self._service.namespace, reason=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def _wanted(self, seat: _Seat) -> tuple[Instance, ...]:
        return tuple(self._instances[index] for index in seat.indices if self._holds[index])

    async def _tell(self, seat: _Seat) -> None:
        """Makes what a seat's connection holds what it should hold. RegistryError when that fails."""
        wanted = self._wanted(seat)
        if not seat.client.connected:
            if seat.client.error and self._ends(seat.client.error):
                raise seat.client.error
            return
        if seat.done == wanted:
            return
        if wanted:
            batch = len(seat.indices) > 1
            request = batch_registration(self._service, wanted) if batch else registration(self._service, wanted[0])
            await seat.client.request(request, "register")
            self._was_registered = True
            self._access.log.info("register.done", service=str(self._service), instances=[_name(one) for one in wanted])
        elif seat.done:
            await seat.client.request(deregistration(self._service, seat.done[0]), "deregister")
        seat.done = wanted
        self._read_back_at = max(self._read_back_at, time.monotonic() + min(_SETTLE_S, self.read_back_s))

    def _ends(self, error: RegistryError) -> bool:
        return not self._was_registered and isinstance(error, (RegistryRefused, RegistryUnsupported))

    def _needs_more_seats(self, error: RegistryError) -> bool:
        first = self._seats[0]
        return isinstance(error, RegistryUnsupported) and first.client.connected and len(first.indices) > 1

    def _spread(self, group: asyncio.TaskGroup) -> None:
        """No batches here (Nacos 2.0): a client holds one instance of a service, so each instance gets a client."""
        first, *others = self._seats[0].indices
        self._seats[0].indices = (first,)
        for index in others:
            self._sit(group, (index,))
        self._access.log.info("register.no_batches", service=str(self._service), clients=len(self._seats))

    async def _read_back(self) -> float:
        """Asks Nacos, when that is due, whether it has what it was told; how long until the next time.

        A registration can be lost on the server without a word. RegistryError when it cannot be asked.
        """
        left_s = self._read_back_at - time.monotonic()
        told = [seat for seat in self._seats if seat.done and seat.client.connected]
        if left_s > 0 or not told:
            return max(left_s, 0.0) or self.read_back_s
        self._read_back_at = time.monotonic() + self.read_back_s
        message = await told[0].client.request(query(self._service), "query")
        found = to_view(message.service_info).instances
        for seat in told:
            missing = [_name(instance) for instance in seat.done or () if not _is_among(instance, found)]
            if missing:
                seat.done = None
                self._changed.set()
                self._access.log.warning("register.lost", service=str(self._service), instances=missing)
        return self.read_back_s

    async def _probing(self, index: int, probe: Probe) -> None:
        failures = 0
        while True:
            fault = await probe(self._instances[index])
            failures = failures + 1 if fault else 0
            if not fault or failures >= _FAILURES_MAX:
                self.set_healthy(index, healthy=not fault, reason=fault)
            await asyncio.sleep(self.probe_every_s * self._access.rng.uniform(0.8, 1.2))

    async def _leave(self) -> None:
        for seat in self._seats:
            if seat.done and seat.client.connected:
                with suppress(RegistryError):  # the server also takes them out when the connection ends
                    request = deregistration(self._service, seat.done[0])
                    await seat.client.request(request, "deregister", timeout_s=_LEAVE_S)


def _name(instance: Instance) -> str:
    return f"{instance.address}:{instance.port}"


def _is_among(instance: Instance, found: Sequence[Instance]) -> bool:
    """Whether it stands there as it was told; health is the server's to change."""
    return any(
        (one.identity, one.weight, one.metadata) == (instance.identity, instance.weight, instance.metadata)
        for one in found
    )
