"""Nacos as a registry: queries, subscriptions and pushes of services, a client for each namespace.

Must not know: which services are wanted, whether a list is to be believed, when to subscribe again. Rules: every list
is handed on as it came, empty ones too; a query never subscribes; the default namespace is always called ``public``;
a client that was connected anew subscribes to nothing by itself.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from nacosdns.core.model import DEFAULT_CLUSTER, DEFAULT_NAMESPACE, Instance, ServiceKey, ServiceView
from nacosdns.edge.nacos_client import Access, Client
from nacosdns.edge.nacos_wire import catalogue, query, subscription
from nacosdns.errors import RegistryDown, RegistryRefused

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping

    from nacosdns.edge.nacos_http import Settings
    from nacosdns.edge.nacos_wire import Host, Request, ServiceInfo
    from nacosdns.ports import Log, RegistryListener

_PAGE_SIZE = 20_000  # each page is a scan of all services on the server: one large page
WEIGHT_MAX = 10_000.0  # the most that a server of today lets through
_PAGE_TRIES = 3


def to_instance(host: Host) -> Instance | None:
    """One instance; None when it has no usable address or port. A weight that is no weight counts as 0."""
    address, port = host.ip, host.port
    if not isinstance(address, str) or not address.strip():
        return None
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        return None
    cluster = host.cluster_name
    return Instance(
        address=address.strip(),
        port=port,
        weight=_weight(host.weight),
        healthy=bool(host.healthy),
        enabled=bool(host.enabled),
        cluster=cluster if isinstance(cluster, str) and cluster else DEFAULT_CLUSTER,
        metadata=_metadata(host.metadata),
    )


def _weight(weight: object) -> float:
    if isinstance(weight, (int, float)) and not isinstance(weight, bool) and 0 < weight < math.inf:
        return float(min(weight, WEIGHT_MAX))
    return 0.0


def _metadata(metadata: object) -> tuple[tuple[str, str], ...]:
    if not metadata or not isinstance(metadata, dict):
        return ()
    if set(map(type, metadata.values())) == {str}:
        return tuple(sorted(metadata.items()))
    return tuple(sorted((str(name), str(value)) for name, value in metadata.items() if value is not None))


def to_view(service: ServiceInfo | None) -> ServiceView:
    """A service as Nacos wrote it; a missing one is an empty view. Instances that cannot be used are left out."""
    if service is None:
        return ServiceView(())
    instances = tuple(found for host in service.hosts or () if (found := to_instance(host)) is not None)
    return ServiceView(instances, threshold_reached=service.reach_protection_threshold)


class _Waiting:
    """A question under way, and the list that was pushed meanwhile."""

    def __init__(self) -> None:
        self.pushed: ServiceView | None = None


class _Namespace:
    """One namespace: its client, and the questions under way."""

    def __init__(self, access: Access, name: str) -> None:
        self.name = name
        self.client = Client(access, name)
        self._access = access
        self._listener: RegistryListener | None = None
        self._waiting: dict[ServiceKey, list[_Waiting]] = {}

    async def run(self, listener: RegistryListener) -> None:
        """Stays connected until cancelled."""
        self._listener = listener
        await self.client.run(self)

    def connected(self) -> None:
        """From the client."""
        if self._listener:
            self._listener.connected(self.name)

    def disconnected(self) -> None:
        """From the client."""
        if self._listener:
            self._listener.disconnected(self.name)

    def pushed(self, service: ServiceInfo) -> None:
        """From the client: hands the list on as it came."""
        key = ServiceKey(self.name, service.group_name, service.name.removeprefix(f"{service.group_name}@@"))
        view = self.view(key, service)
        for waiting in self._waiting.get(key, ()):
            waiting.pushed = view
        if self._listener:
            self._listener.pushed(key, view)

    async def ask(self, key: ServiceKey, request: Request, kind: str) -> ServiceView:
        """The list in the answer, or the one pushed while it was on its way.

        Pushes come in order; an answer travels beside them and may be older than a push that it met. Whatever is newer
        than that push will be pushed too. So no time stamp of the server is needed, and its clock may be set back.
        """
        waiting = _Waiting()
        questions = self._waiting.setdefault(key, [])
        questions.append(waiting)
        try:
            message = await self.client.request(request, kind)
        finally:
            questions.remove(waiting)
            if not questions:
                del self._waiting[key]
        return waiting.pushed or self.view(key, message.service_info)

    def view(self, key: ServiceKey, service: ServiceInfo | None) -> ServiceView:
        """The view of a list; unusable instances in it are logged."""
        view = to_view(service)
        left_out = len(service.hosts or ()) - len(view.instances) if service else 0
        if left_out:
            self._access.quiet.warning(
                "registry.instances_unusable", namespace=self.name, service=str(key), count=left_out
            )
        return view


class NacosRegistry:
    """Implements ports.Registry. ConfigError when the settings cannot be used."""

    def __init__(
        self,
        settings: Settings,
        namespaces: Iterable[str],
        log: Log,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self._access = Access(settings, log, rng)
        names = dict.fromkeys(name or DEFAULT_NAMESPACE for name in namespaces)
        self._namespaces = {name: _Namespace(self._access, name) for name in names}

    def __repr__(self) -> str:
        return f"<NacosRegistry {[space.client for space in self._namespaces.values()]}>"

    async def run(self, listener: RegistryListener) -> None:
        """Connects a client for each namespace and keeps it connected until cancelled. Call it once."""
        async with asyncio.TaskGroup() as group:
            for space in self._namespaces.values():
                group.create_task(space.run(listener))

    async def query(self, key: ServiceKey) -> ServiceView:
        """Asks once, without a subscription on the server. A missing service is an empty view."""
        return await self._space(key.namespace).ask(key, query(key), "query")

    async def subscribe(self, key: ServiceKey) -> ServiceView:
        """Subscribes on the present connection and returns the present list."""
        return await self._space(key.namespace).ask(key, subscription(key, subscribe=True), "subscribe")

    async def unsubscribe(self, key: ServiceKey) -> None:
        """Ends a subscription on the server."""
        await self._space(key.namespace).client.request(subscription(key, subscribe=False), "unsubscribe")

    async def list_services(self, namespace: str, group: str) -> tuple[str, ...]:
        """The catalogue, in one page: pages are unsorted and each is a new scan of all services on the server."""
        space = self._space(namespace)
        timeout_s = self._access.settings.list_timeout_s
        size = _PAGE_SIZE
        for _ in range(_PAGE_TRIES):
            page = await space.client.request(catalogue(namespace, group, size), "list", timeout_s=timeout_s)
            names = page.service_names or []
            if page.count <= len(names):
                return tuple(dict.fromkeys(names))
            size = page.count + _PAGE_SIZE
        raise RegistryDown(f"the catalogue of {namespace}/{group} grows faster than it can be read")

    def is_connected(self, namespace: str) -> bool:
        """Whether requests for this namespace can be sent."""
        space = self._namespaces.get(namespace)
        return space is not None and space.client.connected

    def problem(self, namespace: str) -> str:
        """Why there is no connection, or what the last request on it was refused for; ``""`` when all is well."""
        return str(self._space(namespace).client.error or "")

    def set_password(self, password: str) -> None:
        """A new password for the next login; a client that was refused tries it now."""
        self._access.account.set_password(password)
        for space in self._namespaces.values():
            space.client.wake()

    @property
    def requests(self) -> Mapping[str, int]:
        """How many requests of each kind were sent since the start."""
        return self._access.requests

    def status(self) -> dict[str, object]:
        """``namespaces``: what Client.status says of each; ``requests``: everything sent so far, by kind."""
        return {
            "namespaces": {name: space.client.status() for name, space in self._namespaces.items()},
            "requests": dict(self._access.requests),
        }

    def _space(self, namespace: str) -> _Namespace:
        space = self._namespaces.get(namespace)
        if space is None:
            raise RegistryRefused(f"namespace {namespace!r} is not configured")
        return space
