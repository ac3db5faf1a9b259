"""What the conductors need from the world, as Protocols. Edges provide them; tests pass fakes.

Rule: nothing here names Unix, gRPC, SQLite or the SDK, so that an agent can take its state from a cluster node and
other registries can be added as further edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from nacosdns.core.frames import External, Hello, Known, LinkFrame
    from nacosdns.core.model import ServiceKey, ServiceView


class Clock(Protocol):
    """Time. ``now`` is seconds that never jump (boot time), ``wall`` seconds since 1970."""

    def now(self) -> float: ...

    def wall(self) -> float: ...


class Log(Protocol):
    """Events with their facts, one a line; ``exc_info`` among the facts is an exception to show."""

    def debug(self, event: str, **facts: object) -> None: ...

    def info(self, event: str, **facts: object) -> None: ...

    def warning(self, event: str, **facts: object) -> None: ...

    def error(self, event: str, **facts: object) -> None: ...

    def exception(self, event: str, **facts: object) -> None:
        """An error, with the exception that is being handled."""


class RegistryListener(Protocol):
    """Who hears what the registry says by itself. Called on the event loop, never awaited, must not block."""

    def pushed(self, key: ServiceKey, view: ServiceView) -> None:
        """A list arrived for a subscribed service."""

    def connected(self, namespace: str) -> None:
        """A new connection is up; the server knows nothing of us on it: subscriptions must be made again."""

    def disconnected(self, namespace: str) -> None:
        """The connection was lost or does not answer."""


class Registry(Protocol):
    """A service registry. Every call has a deadline; errors are RegistryDown, RegistryRefused, RegistryUnsupported."""

    async def run(self, listener: RegistryListener) -> None:
        """Connects a client for each configured namespace and keeps it connected until cancelled."""

    async def query(self, key: ServiceKey) -> ServiceView:
        """Asks once, without a subscription on the server. A missing service is an empty view."""

    async def subscribe(self, key: ServiceKey) -> ServiceView:
        """Subscribes on the present connection and returns the present list; further lists come by ``pushed``."""

    async def unsubscribe(self, key: ServiceKey) -> None: ...

    async def list_services(self, namespace: str, group: str) -> tuple[str, ...]:
        """The catalogue: names of all services of the group, those without instances among them."""

    def is_connected(self, namespace: str) -> bool: ...

    def problem(self, namespace: str) -> str:
        """Why there is no connection, or what the last request on it was refused for; ``""`` when all is well."""

    def set_password(self, password: str) -> None:
        """A new secret: used at the next login, and a login is tried now when the last one was refused."""

    def status(self) -> dict[str, object]:
        """For `nacosdns status`: per namespace connected, server, since, last error; requests sent by kind."""


class StoredService(Protocol):
    """A row of the store."""

    @property
    def known(self) -> Known: ...

    @property
    def asked_at(self) -> float: ...


class Store(Protocol):
    """The never-expiring cache on disk. Writes are queued and never block; failures are counted and logged, not raised."""

    async def load(self) -> tuple[Sequence[StoredService], Sequence[External]]: ...

    def put_services(self, items: Iterable[tuple[Known, float]]) -> None:
        """Remembers snapshots with the wall time at which they were last asked for."""

    def remove_services(self, keys: Iterable[ServiceKey]) -> None: ...

    def put_externals(self, items: Iterable[External]) -> None: ...

    def remove_externals(self, questions: Iterable[bytes]) -> None:
        """Forgets every entry of these questions, whatever their flags; an empty iterable forgets nothing."""

    def take_lost(self) -> bool:
        """Whether writes were lost since the last call, so that the owner should write everything again."""

    async def flush(self) -> None:
        """Returns when everything queued so far is on disk, or has failed."""

    async def close(self) -> None: ...

    def status(self) -> dict[str, object]: ...


class Link(Protocol):
    """One connection between two of our processes."""

    @property
    def congested(self) -> bool:
        """The peer reads too slowly: hold back what can be held back until ``drained`` is called."""

    @property
    def unread(self) -> bool:
        """Whether the peer has something of ours to read still; False where that cannot be told."""

    def send(self, frame: LinkFrame) -> None:
        """Queues a frame; never blocks."""

    def close(self) -> None: ...


class LinkListener(Protocol):
    """Who hears what happens on links. Called on the event loop, must not block."""

    def joined(self, link: Link, peer: Hello) -> None:
        """The peer said who it is; its version is one we speak."""

    def received(self, link: Link, frame: LinkFrame) -> None: ...

    def drained(self, link: Link) -> None:
        """The link is no longer congested."""

    def left(self, link: Link) -> None: ...


class Upstream(Protocol):
    """Other resolvers, by UDP and TCP. Sends and reports; decides nothing.

    ``address`` is ``host``, ``host:port`` or ``[v6]:port``. ``token`` is the caller's; the edge puts a random id that
    is free on its socket into the packet. A reply is handed to the callback given at construction as
    ``received(token, packet) -> bool``: False means "not the answer, go on waiting"; errors as ``failed(token, word)``.
    After a batch of such calls it calls ``settled()``.
    """

    def send(self, address: str, packet: bytes, *, over_tcp: bool, token: int) -> None: ...

    def release(self, token: int) -> None:
        """No answer is wanted any more for this token."""

    def close(self) -> None: ...


class Watcher(Protocol):
    """Tells when a file changes."""

    async def watch(self, path: str, changed: Callable[[], Awaitable[None] | None]) -> None:
        """Calls ``changed`` after each change of the file, until cancelled. The file may not exist yet."""
