"""A Nacos client that stays connected: connecting, watching, logging in again, saying why not.

Must not know: gRPC, the SDK, which services are wanted. Rules: one coroutine owns a connection from first byte to last;
whatever goes wrong on it ends it and says why; after a reconnect nothing is subscribed or registered by itself.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from nacosdns.edge.nacos_http import Account, Backoff, Web
from nacosdns.edge.nacos_wire import INVALID_PARAM, NO_HANDLER, NO_RIGHT, PUSH, RESET, UN_REGISTER, Dialer, LostError
from nacosdns.errors import RegistryDown, RegistryError, RegistryNameRefused, RegistryRefused, RegistryUnsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nacosdns.edge.nacos_http import Server, Settings
    from nacosdns.edge.nacos_wire import Connection, Message, Request, ServiceInfo
    from nacosdns.ports import Log

KINDS = (
    *("query", "subscribe", "unsubscribe", "list", "register", "deregister"),
    *("login", "connect", "health", "version", "endpoint"),
)
_STEADY_S = 10.0  # a connection that lived this long starts the ladder of waits anew
_FIRST_WAIT_S, _LAST_WAIT_S = 0.2, 8.0
_EXPLAIN_S = 1.0
_HEALTH = "health check"
REPEAT_LOG_S = 60.0


class ClientListener(Protocol):
    """Who hears what happens on a client. Called on the event loop; must not block."""

    def connected(self) -> None:
        """A new connection is up, and the server knows nothing of us on it."""

    def disconnected(self) -> None:
        """The connection was lost, or the first attempt failed."""

    def pushed(self, service: ServiceInfo) -> None:
        """A list of a subscribed service came."""


class Quiet:
    """A log in which one event (for one namespace) appears at most once a minute, with the number left out."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def forget(self, event: str, namespace: str = "") -> None:
        """The next one is news again."""
        self._seen.pop((event, namespace), None)

    def warning(self, event: str, *, namespace: str = "", **fields: object) -> bool:
        """Logs the event, or counts it as left out; whether it was logged."""
        now = self._clock()
        since, left_out = self._seen.get((event, namespace), (now - REPEAT_LOG_S, 0))
        if now - since < REPEAT_LOG_S:
            self._seen[event, namespace] = (since, left_out + 1)
            return False
        self._seen[event, namespace] = (now, 0)
        if left_out:
            fields["left_out"] = left_out
        self._log.warning(event, namespace=namespace, **fields)
        return True


class Access:
    """What all clients of one Nacos share: settings, user, servers, certificates, counts, log, chance.

    ``requests`` counts everything that is sent, by kind. ConfigError when the settings cannot be used.
    """

    def __init__(self, settings: Settings, log: Log, rng: random.Random | None = None) -> None:
        self.settings = settings
        self.log = log
        self.quiet = Quiet(log)
        self.rng = rng or random.Random()  # noqa: S311 - spreads reconnects, guards nothing
        self.requests: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.web = Web(settings, self.requests)
        self.account = Account(settings, self.web, log, self.rng)
        self.dialer = Dialer(settings, self.requests)


class Client:
    """A client for one namespace, connected while ``run`` runs.

    ``error``: why it is not, or what the last request on the connection was refused for; None when all is well.
    """

    def __init__(self, access: Access, namespace: str) -> None:
        self.namespace = namespace
        self._access = access
        self._connection: Connection | None = None
        self._since = time.time()
        self.error: RegistryError | None = None
        self._refusal = ""
        self._told_refusal = ""
        self._announced = False
        self._took_s: float | None = None
        self._wake = asyncio.Event()
        self._turn = access.rng.randrange(1 << 16)
        self._preferred: Server | None = None
        self._explained: set[Server] = set()

    def __repr__(self) -> str:
        return f"<Client {self.namespace}: {self._connection or self.error}>"

    @property
    def connected(self) -> bool:
        """Whether requests can be sent."""
        return self._connection is not None and not self._connection.lost.is_set()

    def wake(self) -> None:
        """Ends the present wait before the next attempt to connect."""
        self._wake.set()

    def status(self) -> dict[str, object]:
        """Connected or not and since when (wall clock), server, generation, version, last error; ``""`` is unknown.

        ``refused``: what Nacos refuses us for on a connection that holds; ``took_ms``: the last answer, None before one.
        """
        connection = self._connection
        return {
            "connected": self.connected,
            "server": str(connection.server) if connection else "",
            "since": self._since,
            "generation": _generation(connection) if connection else "",
            "version": connection.version if connection else "",
            "last_error": str(self.error or ""),
            "refused": self._refusal if connection else "",
            "took_ms": None if self._took_s is None else round(self._took_s * 1000, 1),
        }

    async def run(self, listener: ClientListener) -> None:
        """Connects and stays connected until cancelled."""
        backoff = Backoff(_FIRST_WAIT_S, _LAST_WAIT_S, self._access.rng)
        while True:
            began_at = time.monotonic()
            try:
                connection = await self._connect()
            except RegistryError as error:
                self._down(error, listener, told=self.error is not None)
            else:
                await self._live(connection, listener)
                if time.monotonic() - began_at > _STEADY_S:
                    backoff.reset()
            await self._pause(max(backoff.next_s(), self._access.account.wait_s))

    async def _pause(self, wait_s: float) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()

    def _down(self, error: RegistryError, listener: ClientListener, *, told: bool) -> None:
        self.error = error
        self._access.quiet.warning("registry.down", namespace=self.namespace, reason=str(error))
        if not told:
            self._tell(listener.disconnected)

    def _tell(self, callback: Callable[..., None], *news: ServiceInfo) -> None:
        try:
            callback(*news)
        except Exception as error:  # noqa: BLE001 - whoever listens must not end the connection
            self._access.quiet.warning("registry.listener_failed", namespace=self.namespace, exc_info=error)

    # ---- connecting

    async def _connect(self) -> Connection:
        access = self._access
        await access.web.refresh()
        await access.account.token()
        server = self._next_server()
        connection = access.dialer.dial(server, await access.web.addresses(server))
        try:
            async with asyncio.timeout(access.settings.connect_timeout_s):
                await connection.set_up(self.namespace)
        except (ConnectionError, TimeoutError) as error:
            await connection.close()
            raise await self._explain(server, error) from error
        except BaseException:
            await connection.close()
            raise
        self._explained.clear()
        return connection

    def _next_server(self) -> Server:
        servers = self._access.web.servers
        preferred, self._preferred = self._preferred, None
        if preferred in servers:
            return preferred
        self._turn += 1
        return servers[self._turn % len(servers)]

    async def _explain(self, server: Server, error: ConnectionError | TimeoutError) -> RegistryError:
        """Why a server cannot be reached by gRPC, with the help of its HTTP side; only once when that may hang too."""
        hangs = isinstance(error, TimeoutError)
        detail = f"no answer within {self._access.settings.connect_timeout_s:g} s" if hangs else str(error)
        version = ""
        if not hangs or server not in self._explained:
            with suppress(TimeoutError):
                async with asyncio.timeout(_EXPLAIN_S):
                    version = await self._access.web.version(server)
        self._explained.add(server)
        if version.startswith(("0.", "1.")):
            return RegistryUnsupported(f"Nacos {version} at {server} has no gRPC; 2.0 or later is needed")
        if version:
            where = f"Nacos {version} answers at {server}, but not by gRPC at {server.grpc_target}"
            return RegistryDown(f"{where}: is that port open? ({detail})")
        return RegistryDown(f"{server}: its gRPC port {server.grpc_port}: {detail}")

    # ---- a connection's life

    async def _live(self, connection: Connection, listener: ClientListener) -> None:
        """Serves a connection until it is lost, closes it and tells."""
        self._connection = connection
        self._since = time.time()
        self.error = None
        self._access.quiet.forget("registry.down", self.namespace)  # every outage says why its first way back failed
        self._access.log.info("registry.connected", namespace=self.namespace, server=str(connection.server))
        self._tell(listener.connected)
        works = (self._read(connection, listener), self._watch(connection), self._learn_version(connection))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._until_lost(connection, work)) for work in works]
                await connection.lost.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self._connection = None
            self._since = time.time()
            await connection.close()
        self.error = RegistryDown(f"{connection.server}: {connection.reason}")
        self._refusal, self._announced = "", False
        self._access.log.warning("registry.disconnected", namespace=self.namespace, reason=str(self.error))
        self._tell(listener.disconnected)

    async def _until_lost(self, connection: Connection, work: Coroutine[None, None, None]) -> None:
        """Whatever ends this work ends the connection. Nothing is raised: in a task group an error hides a cancellation."""
        try:
            await work
        except LostError as error:
            connection.lose(str(error))
        except Exception as surprise:  # noqa: BLE001 - nothing that a server sends may end the process
            connection.lose(f"surprise: {type(surprise).__name__}")
            self._access.quiet.warning("registry.surprise", namespace=self.namespace, exc_info=surprise)

    async def _read(self, connection: Connection, listener: ClientListener) -> None:
        """Hears what the server sends by itself; pushes go straight on, in order, whatever time they bear."""
        timeout_s = self._access.settings.request_timeout_s
        while True:
            try:
                kind, message = await connection.receive()
            except RegistryDown as error:
                self._access.quiet.warning("registry.unreadable", namespace=self.namespace, error=str(error))
                continue
            service = message.service_info
            if kind == PUSH and service is not None:
                self._tell(listener.pushed, service)
            if not await connection.reply(kind, message, timeout_s=timeout_s):
                self._access.quiet.warning("registry.unknown_message", namespace=self.namespace, kind=kind)
            if kind == RESET:
                self._preferred = self._recommended(message)
                raise LostError("the server asked us to move")

    def _recommended(self, message: Message) -> Server | None:
        """The server that a reset recommends, when it is one of ours: another is not believed."""
        servers = [server for server in self._access.web.servers if server.host == message.server_ip]
        exact = [server for server in servers if str(server.port) == str(message.server_port)]
        return next(iter(exact or servers), None)

    async def _watch(self, connection: Connection) -> None:
        """Checks the connection when nothing was heard for a while; leaves a server that is listed no more."""
        silence_s = self._access.settings.silence_s
        while True:
            await asyncio.sleep(max(0.0, connection.heard_at + silence_s - time.monotonic()))
            await self._access.web.refresh()
            if connection.server not in self._access.web.servers:
                raise LostError("the address server does not list it any more")
            if time.monotonic() - connection.heard_at >= silence_s:
                await self._check(connection)

    async def _check(self, connection: Connection) -> None:
        with suppress(RegistryError):
            self._judge(connection, await connection.check(self._access.settings.request_timeout_s), _HEALTH)

    async def _learn_version(self, connection: Connection) -> None:
        connection.version = await self._access.web.version(connection.server)

    # ---- requests

    async def request(self, request: Request, kind: str, *, timeout_s: float = 0.0) -> Message:
        """One request on the present connection and its good answer; ``kind`` is the word that it is counted under.

        At most ``timeout_s`` (0: the usual) for an answer; a login that falls due has its own deadline. RegistryDown,
        RegistryRefused or RegistryUnsupported; a rejected token is replaced once.
        """
        connection = self._connection
        if connection is None:
            raise type(self.error)(str(self.error)) if self.error else RegistryDown("not connected yet")
        if connection.lost.is_set():
            raise RegistryDown(f"{connection.server}: {connection.reason}")
        timeout_s = timeout_s or self._access.settings.request_timeout_s
        token = await self._token()
        began_at = time.monotonic()
        message = await connection.ask(request, kind, token=token, timeout_s=timeout_s)
        if kind != "list":  # a large one takes its time
            self._took_s = time.monotonic() - began_at
        if message.error_code == NO_RIGHT and (token := await self._other_token(connection, token)):
            message = await connection.ask(request, kind, token=token, timeout_s=timeout_s)
        self._judge(connection, message, kind)
        return message

    async def _token(self) -> str:
        """The token to send; that there is none to be had is a problem while the connection holds."""
        try:
            return await self._access.account.token()
        except RegistryRefused as error:
            self._refused(error, str(error))
            raise
        except RegistryError as error:
            self.error = error
            raise

    async def _other_token(self, connection: Connection, rejected: str) -> str:
        try:
            return await self._access.account.replace(rejected)
        except RegistryRefused as error:
            connection.lose(str(error))
            raise
        except RegistryError as error:
            self.error = error
            raise

    def _judge(self, connection: Connection, message: Message, kind: str) -> None:
        """Turns an answer of no into an error."""
        if message.good:
            if kind != _HEALTH:
                self._permitted()
            return
        text = f"{connection.server} answered a {kind} with {message.complaint}"
        if message.error_code == UN_REGISTER:
            connection.lose("the server does not know this connection any more")
        if message.error_code == NO_HANDLER:
            raise RegistryUnsupported(text)
        if message.error_code == INVALID_PARAM:
            raise RegistryNameRefused(text)
        if message.error_code == NO_RIGHT:
            username = self._access.settings.username
            who = f"user {username!r}" if username else "no nacos.username is set"
            raise self._refused(RegistryRefused(f"{text} ({who})"), f"{message.complaint} ({who})")
        raise RegistryDown(text)

    def _refused(self, error: RegistryRefused, why: str) -> RegistryRefused:
        """Notes it and says it in the log: once, and at most once a minute when every other request is let through."""
        self.error = error
        if why != self._refusal:
            self._refusal = why
            if why != self._told_refusal:
                self._access.quiet.forget("registry.forbidden", self.namespace)
            self._announced = self._access.quiet.warning("registry.forbidden", namespace=self.namespace, reason=why)
            self._told_refusal = why if self._announced else self._told_refusal
        return error

    def _permitted(self) -> None:
        self.error = None
        if self._announced:
            self._access.log.info("registry.permitted", namespace=self.namespace)
        self._refusal, self._announced = "", False


def _generation(connection: Connection) -> str:
    if connection.version:
        return connection.version.partition(".")[0]
    return "3 or late 2" if connection.negotiates else "2"
