"""A Nacos server that does what a test tells it: the gRPC wire, login, version and address list, in this process.

Only for what a real Nacos cannot be brought to do: other generations, messages that come seldom, silence, odd data.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import grpc
import grpc.aio

from nacosdns.edge.nacos_wire import Payload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

Body = dict[str, Any]


def free_port(*offsets: int, host: str = "127.0.0.1") -> int:
    """A port that is free, and free at each of these offsets too."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        with socket.socket(family) as first:
            first.bind((host, 0))
            port = int(first.getsockname()[1])
        if 3000 < port < 60000 and all(_is_free(family, host, port + offset) for offset in offsets):
            return port


def _is_free(family: socket.AddressFamily, host: str, port: int) -> bool:
    with socket.socket(family) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


@dataclass
class Received:
    """A request that came: its type, body and headers."""

    kind: str
    body: Body
    headers: dict[str, str]


@dataclass
class FakeNacos:
    """``answers`` maps a request type to what makes its answer, (type, body); without one, plain Nacos behaviour."""

    host: str = "127.0.0.1"
    version: str = "2.3.2"
    speaks_grpc: bool = True
    negotiates: bool = False
    users: dict[str, str] = field(default_factory=dict)
    login_path: str = "/nacos/v1/auth/users/login"
    server_list: str = ""
    certificate: tuple[str, str] | None = None
    wants_certificate: bool = False
    port: int = 0
    services: dict[tuple[str, str, str], list[Body]] = field(default_factory=dict)
    answers: dict[str, Callable[[Body], Awaitable[tuple[str, Body]]]] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    logins: list[Body] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    setups: int = 0
    held: dict[tuple[str, tuple[str, str, str]], list[Body]] = field(default_factory=dict)
    _streams: dict[str, grpc.aio.ServicerContext] = field(default_factory=dict)
    _tokens: set[str] = field(default_factory=set)
    _ends: dict[str, asyncio.Event] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def kinds(self) -> list[str]:
        """The types of the requests that came, without those of connecting."""
        return [one.kind for one in self.received if one.kind not in ("ServerCheckRequest", "HealthCheckRequest")]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeNacos]:
        self.port = self.port or free_port(1000, host=self.host)
        web = await asyncio.start_server(self._http, self.host, self.port)
        server = grpc.aio.server()
        if self.speaks_grpc:
            server.add_generic_rpc_handlers((_Handlers(self),))
            target = f"[{self.host}]:{self.port + 1000}" if ":" in self.host else f"{self.host}:{self.port + 1000}"
            self._listen_on(server, target)
            await server.start()
        try:
            yield self
        finally:
            self.end_streams()
            await server.stop(None)
            web.close()
            await web.wait_closed()

    def _listen_on(self, server: grpc.aio.Server, target: str) -> None:
        if self.certificate is None:
            server.add_insecure_port(target)
            return
        chain, key = (Path(name).read_bytes() for name in self.certificate)
        roots = chain if self.wants_certificate else None
        credentials = grpc.ssl_server_credentials([(key, chain)], roots, require_client_auth=self.wants_certificate)
        server.add_secure_port(target, credentials)

    # ---- what a test does

    async def send(self, kind: str, body: Body) -> None:
        """Sends a message to every client."""
        for stream in list(self._streams.values()):
            await stream.write(_payload(kind, body))

    async def push(self, name: str, hosts: list[Body], *, group: str = "DEFAULT_GROUP", last_ref_time: int = 0) -> None:
        """Pushes a list to every client."""
        service = {"name": name, "groupName": group, "hosts": hosts, "lastRefTime": last_ref_time}
        await self.send("NotifySubscriberRequest", {"requestId": f"push-{name}", "serviceInfo": service})

    def end_streams(self) -> None:
        """Ends every client's stream without an error and forgets the clients."""
        for peer, end in self._ends.items():
            end.set()
            self._forget(peer)

    def forget_clients(self) -> None:
        """Forgets every client and leaves its stream open: what a server does to a client that was cut off."""
        self._streams.clear()

    def forget_tokens(self) -> None:
        """What a restart with another secret does."""
        self._tokens.clear()

    # ---- gRPC

    async def unary(self, payload: Payload, context: grpc.aio.ServicerContext) -> Payload:
        one = Received(payload.metadata.type, json.loads(payload.body.value), dict(payload.metadata.headers))
        self.received.append(one)
        return _payload(*await self._answer(one, context.peer()))

    async def _answer(self, one: Received, peer: str) -> tuple[str, Body]:
        if one.kind in self.answers:
            return await self.answers[one.kind](one.body)
        if one.kind == "ServerCheckRequest":
            return "ServerCheckResponse", {"connectionId": peer, "supportAbilityNegotiation": self.negotiates}
        if peer not in self._streams:
            return "ErrorResponse", _error(301, "Connection is unregistered.")
        if one.kind == "HealthCheckRequest":
            return "HealthCheckResponse", {}
        if self.users and one.headers.get("accessToken") not in self._tokens:
            return one.kind.replace("Request", "Response"), _error(403, "token invalid!")
        return self._naming(one, peer)

    def _naming(self, one: Received, peer: str) -> tuple[str, Body]:
        body = one.body
        if one.kind == "ServiceListRequest":
            names = [
                name for space, group, name in self.services if (space, group) == (body["namespace"], body["groupName"])
            ]
            return "ServiceListResponse", {"count": len(names), "serviceNames": names[: body["pageSize"]]}
        key = (body["namespace"], body["groupName"], body["serviceName"])
        if one.kind in ("InstanceRequest", "BatchInstanceRequest"):
            self._hold(peer, key, body)
        service = {"name": key[2], "groupName": key[1], "hosts": self.hosts(key)}
        kind = {"ServiceQueryRequest": "QueryServiceResponse"}.get(one.kind, one.kind.replace("Request", "Response"))
        return kind, {"serviceInfo": service}

    def _hold(self, peer: str, key: tuple[str, str, str], body: Body) -> None:
        """A client holds one list of a service: each registration replaces the one before."""
        self.held.pop((peer, key), None)
        if body["type"] != "deregisterInstance":
            self.held[peer, key] = body.get("instances") or [body["instance"]]

    def hosts(self, key: tuple[str, str, str]) -> list[Body]:
        """Every instance of a service."""
        held = [host for (_, held_key), hosts in self.held.items() if held_key == key for host in hosts]
        return self.services.get(key, []) + held

    def _forget(self, peer: str) -> None:
        self._streams.pop(peer, None)
        self.held = {(holder, key): hosts for (holder, key), hosts in self.held.items() if holder != peer}

    async def stream(self, requests: AsyncIterator[Payload], context: grpc.aio.ServicerContext) -> None:
        peer, end = context.peer(), asyncio.Event()
        self._ends[peer] = end
        reader = asyncio.ensure_future(self._listen(requests, context))
        await asyncio.wait({reader, asyncio.ensure_future(end.wait())}, return_when=asyncio.FIRST_COMPLETED)
        reader.cancel()
        end.set()
        self._forget(peer)

    async def _listen(self, requests: AsyncIterator[Payload], context: grpc.aio.ServicerContext) -> None:
        async for payload in requests:
            body = json.loads(payload.body.value)
            if payload.metadata.type == "ConnectionSetupRequest":
                self.setups += 1
                self._streams[context.peer()] = context
                if self.negotiates:
                    await context.write(_payload("SetupAckRequest", {"abilityTable": {"fuzzyWatch": True}}))
            else:
                self.acknowledged.append(f"{payload.metadata.type} {body['requestId']}")

    # ---- HTTP

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # a client may give up
            await self._serve_http(reader, writer)
        writer.close()

    async def _serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        _, path, _ = head.split("\r\n")[0].split(" ")
        size = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        form = {name: value[0] for name, value in parse_qs((await reader.readexactly(size)).decode()).items()}
        status, body = self._http_answer(path, form)
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()

    def _http_answer(self, path: str, form: Body) -> tuple[int, bytes]:
        if path == "/nacos/v1/console/server/state" and not self.version.startswith("3"):
            return 200, json.dumps({"version": self.version}).encode()
        if path == "/nacos/v3/admin/core/state" and self.version.startswith("3"):
            return 200, json.dumps({"code": 0, "data": {"version": self.version}}).encode()
        if path == "/nacos/serverlist" and self.server_list:
            return 200, self.server_list.encode()
        if path == self.login_path:
            return self._login(form)
        return 404, b"{}"

    def _login(self, form: Body) -> tuple[int, bytes]:
        self.logins.append(form)
        if self.users.get(form["username"]) != form["password"]:
            return 403, b"user not found!"
        token = f"token-{len(self.logins)}"
        self._tokens.add(token)
        return 200, json.dumps({"accessToken": token, "tokenTtl": 18000}).encode()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The two calls of a Nacos server."""

    def __init__(self, nacos: FakeNacos) -> None:
        wire = {"request_deserializer": Payload.FromString, "response_serializer": Payload.SerializeToString}
        self._handlers = {
            "/Request/request": grpc.unary_unary_rpc_method_handler(nacos.unary, **wire),
            "/BiRequestStream/requestBiStream": grpc.stream_stream_rpc_method_handler(nacos.stream, **wire),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(handler_call_details.method)


def _error(code: int, message: str) -> Body:
    return {"resultCode": 500, "errorCode": code, "message": message}


def _payload(kind: str, body: Body) -> Payload:
    payload = Payload()
    payload.metadata.type = kind
    payload.body.value = json.dumps({"resultCode": 200, **body}).encode()
    return payload
