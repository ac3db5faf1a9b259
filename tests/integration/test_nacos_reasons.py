"""What the edge to Nacos says of a Nacos that refuses, went away or is slow: the reason, once, in one plain sentence."""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import structlog
from structlog.testing import CapturingLogger

from fakes.loop import on_a_loop, until
from fakes.nacos_server import FakeNacos, free_port
from fakes.registry_listener import running
from nacosdns.core.model import ServiceKey
from nacosdns.edge.nacos import NacosRegistry
from nacosdns.edge.nacos_http import Settings, in_plain_words
from nacosdns.edge.nacos_wire import plain
from nacosdns.errors import ConfigError, RegistryDown, RegistryRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ORDERS = ServiceKey("public", "DEFAULT_GROUP", "orders")


class Heard:
    """A log that is read back: the facts of every line of an event."""

    def __init__(self) -> None:
        self._sink = CapturingLogger()
        self.log = structlog.wrap_logger(
            self._sink, processors=[], wrapper_class=structlog.make_filtering_bound_logger(0)
        )

    def of(self, event: str) -> list[dict[str, Any]]:
        return [call.kwargs for call in self._sink.calls if call.kwargs.get("event") == event]


def registry(*servers: str, log: object, **settings: object) -> NacosRegistry:
    quick = {"connect_timeout_s": 1.0, "request_timeout_s": 3.0, "silence_s": 10.0, **settings}
    return NacosRegistry(Settings(servers=servers, **quick), ("public",), log, rng=random.Random(1))


def state(edge: NacosRegistry) -> dict[str, Any]:
    found: dict[str, Any] = edge.status()["namespaces"]["public"]  # type: ignore[index]
    return found


def refusing(words: str) -> Callable[[object], Awaitable[tuple[str, dict[str, object]]]]:
    async def refuse(_: object) -> tuple[str, dict[str, object]]:
        return "ErrorResponse", {"resultCode": 500, "errorCode": 403, "message": words}

    return refuse


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({}, "403 user not found! (no nacos.username is set)"),
        ({"username": "dns", "password": "right"}, "403 user not found! (user 'dns')"),
    ],
)
@on_a_loop
async def test_a_refusal_is_told_in_status_and_once_in_the_log_and_so_is_its_end(
    user: dict[str, str], said: str
) -> None:
    heard = Heard()
    nacos = FakeNacos(users={"dns": "right"} if user else {})
    nacos.answers["ServiceQueryRequest"] = refusing("user not found!")
    async with nacos.running():
        edge = registry(nacos.address, log=heard.log, **user)
        async with running(edge):
            for _ in range(3):
                with pytest.raises(RegistryRefused):
                    await edge.query(ORDERS)

            assert state(edge)["connected"]
            assert state(edge)["refused"] == said
            assert [line["reason"] for line in heard.of("registry.forbidden")] == [said]

            nacos.answers.clear()
            await edge.query(ORDERS)
            await edge.query(ORDERS)

            assert state(edge)["refused"] == ""
            assert len(heard.of("registry.permitted")) == 1


@pytest.mark.parametrize("down", [False, True])
@on_a_loop
async def test_a_login_that_fails_while_the_connection_holds_is_a_problem_until_one_is_let_in(*, down: bool) -> None:
    heard = Heard()
    async with FakeNacos(users={"dns": "right"}).running() as nacos:
        edge = registry(nacos.address, log=heard.log, username="dns", password="right")
        async with running(edge):
            path = nacos.login_path
            if down:
                nacos.login_path = "/elsewhere"
            else:
                nacos.users["dns"] = "changed"
            edge._access.account._issued_at -= 20_000
            with pytest.raises((RegistryRefused, RegistryDown)):
                await edge.query(ORDERS)

            assert state(edge)["connected"]
            assert bool(state(edge)["refused"]) is not down
            assert "login" in edge.problem("public") if down else "refuses the user 'dns'" in edge.problem("public")

            nacos.users["dns"], nacos.login_path = "right", path
            edge.set_password("right")
            await edge.query(ORDERS)

            assert edge.problem("public") == ""


@on_a_loop
async def test_every_outage_says_why_the_way_back_fails_and_only_once_a_minute_after_that() -> None:
    heard = Heard()
    nacos = FakeNacos(port=free_port(1000))
    edge = registry(nacos.address, log=heard.log)
    async with AsyncExitStack() as nacos_runs:
        await nacos_runs.enter_async_context(nacos.running())
        async with running(edge) as listener:
            for outage in (1, 2):
                await listener.heard("connected public", times=outage, within_s=15)
                await nacos_runs.aclose()
                await listener.heard("disconnected public", times=outage)
                await until(lambda outage=outage: len(heard.of("registry.down")) == outage)  # type: ignore[misc]
                await nacos_runs.enter_async_context(nacos.running())

    said = [line["reason"] for event in ("registry.disconnected", "registry.down") for line in heard.of(event)]

    assert len(said) == 4
    assert [reason.endswith("connection refused") for reason in said[2:]] == [True, True]
    assert all(reason.startswith(nacos.address) and "\n" not in reason for reason in said)


FAILED = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.5:9848: Failed to connect to remote host: "
)


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (f"{FAILED}connect: Connection refused (111)", "connection refused"),
        (f"{FAILED}connect: No route to host (113)", "no route to host"),
        ("Socket closed", "the connection was closed"),
        ("recvmsg:Connection reset by peer", "connection reset by peer"),
        ("keepalive watchdog timeout", "UNAVAILABLE: keepalive watchdog timeout"),
        ("two\nlines", "UNAVAILABLE: two lines"),
    ],
)
def test_what_grpc_says_becomes_one_plain_sentence(details: str, said: str) -> None:
    metadata = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, metadata, metadata, details=details, debug_error_string="x"
    )

    assert plain(error) == said


@on_a_loop
async def test_a_stream_that_breaks_under_an_answer_is_no_dump_of_an_object() -> None:
    heard = Heard()
    async with FakeNacos().running() as nacos:
        edge = registry(nacos.address, log=heard.log)
        async with running(edge) as listener:
            connection = edge._namespaces["public"].client._connection
            assert connection is not None
            metadata = grpc.aio.Metadata()

            async def broken(_payload: object) -> None:
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, details="Socket closed")

            connection._stream.write = broken  # type: ignore[union-attr,method-assign]
            await nacos.push("orders", [])
            await listener.heard("disconnected public")

            assert edge.problem("public") == f"{nacos.address}: the stream broke: the connection was closed"


@on_a_loop
async def test_how_long_the_last_answer_took_is_told() -> None:
    heard = Heard()
    async with FakeNacos().running() as nacos:
        edge = registry(nacos.address, log=heard.log)
        async with running(edge):
            await edge.query(ORDERS)

            assert 0 < state(edge)["took_ms"] < 3000


@on_a_loop
async def test_where_no_nacos_answers_but_another_web_server_the_port_that_refused_is_named() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    port = free_port(1000)
    async with await asyncio.start_server(serve, "127.0.0.1", port):
        edge = registry(f"127.0.0.1:{port}", log=Heard().log)
        async with running(edge, connected="") as listener:
            await listener.heard("disconnected public")

            assert edge.problem("public") == f"127.0.0.1:{port}: its gRPC port {port + 1000}: connection refused"


@on_a_loop
async def test_a_password_that_could_not_be_read_is_not_called_refused() -> None:
    async with FakeNacos(users={"dns": "right"}).running() as nacos:
        edge = registry(nacos.address, log=Heard().log, username="dns", password_file="/etc/nacosdns/password")
        async with running(edge, connected="") as listener:
            await listener.heard("disconnected public")

            assert edge.problem("public") == "the password file /etc/nacosdns/password cannot be read or is empty"
            assert nacos.logins == []

            edge.set_password("right")
            await listener.heard("connected public")


@on_a_loop
async def test_a_password_file_that_is_gone_when_the_password_is_refused_ends_nothing() -> None:
    def gone() -> str:
        raise ConfigError("/etc/nacosdns/password cannot be read")

    heard = Heard()
    async with FakeNacos(users={"dns": "right"}).running() as nacos:
        edge = registry(nacos.address, log=heard.log, username="dns", password="wrong", reread_password=gone)
        async with running(edge, connected="") as listener:
            await listener.heard("disconnected public")

    assert [line["error"] for line in heard.of("registry.password_unreadable")] == [
        "/etc/nacosdns/password cannot be read"
    ]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(111, "Connect call failed ('127.0.0.1', 28848)"), "connection refused"),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] Connect call failed ('127.0.0.1', 1)"
            ),
            "connection refused",
        ),
        (socket.gaierror(-2, "Name or service not known"), "name or service not known"),
        (ValueError("SSH is no HTTP"), "SSH is no HTTP"),
    ],
)
def test_an_error_of_the_network_is_said_in_the_words_of_the_kernel(error: Exception, words: str) -> None:
    assert in_plain_words(error) == words


@on_a_loop
async def test_a_login_and_an_address_server_that_cannot_be_asked_are_said_in_plain_words() -> None:
    port = free_port(1000)
    for settings in ({"username": "dns", "password": "x"}, {"endpoint": f"127.0.0.1:{port}"}):
        edge = registry(f"127.0.0.1:{port}", log=Heard().log, **settings)
        async with running(edge, connected="") as listener:
            await listener.heard("disconnected public")

            assert edge.problem("public").endswith(f"127.0.0.1:{port} cannot be asked: connection refused")
