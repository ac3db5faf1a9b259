"""Keeping instances registered, against a Nacos that forgets, refuses and knows no batches."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from structlog.testing import CapturingLogger

from fakes.loop import on_a_loop, until
from fakes.nacos_server import FakeNacos, free_port
from nacosdns.core.model import Instance, ServiceKey
from nacosdns.edge.nacos_http import Settings
from nacosdns.edge.registrar import Registrar, http_probe, tcp_probe
from nacosdns.errors import RegistryRefused, RegistryUnsupported

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nacosdns.edge.registrar import Probe

DATABASE = ServiceKey("public", "DEFAULT_GROUP", "db")
KEY = ("public", "DEFAULT_GROUP", "db")
FIRST = Instance("10.0.0.1", 5432, weight=2.0, metadata=(("zone", "a"),))
SECOND = Instance("10.0.0.2", 5432)


def registrar(
    nacos: FakeNacos, *instances: Instance, probe: Probe | None = None, log: Any = None, **settings: object
) -> Registrar:
    quick = {"connect_timeout_s": 1.0, "request_timeout_s": 3.0, **settings}
    made = Registrar(
        Settings(servers=(nacos.address,), **quick), DATABASE, instances, log or structlog.get_logger(), probe=probe
    )
    made.read_back_s = 0.2
    made.probe_every_s = 0.05
    return made


@asynccontextmanager
async def running(made: Registrar) -> AsyncIterator[None]:
    task = asyncio.ensure_future(made.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})

    assert task.cancelled()


def addresses(nacos: FakeNacos) -> list[str]:
    return [host["ip"] for host in nacos.hosts(KEY)]


@on_a_loop
async def test_one_instance_is_registered_as_it_was_given_and_taken_out_at_the_end() -> None:
    async with FakeNacos().running() as nacos:
        made = registrar(nacos, FIRST)
        async with running(made):
            await until(lambda: addresses(nacos) == ["10.0.0.1"])
            host = nacos.hosts(KEY)[0]
            await until(lambda: made.registered)
        left = addresses(nacos)

    assert (host["port"], host["weight"], host["metadata"], host["ephemeral"]) == (5432, 2.0, {"zone": "a"}, True)
    assert left == []
    assert nacos.kinds()[-1] == "InstanceRequest"


@on_a_loop
async def test_several_instances_are_one_batch_of_one_client() -> None:
    """S90."""
    async with FakeNacos().running() as nacos, running(registrar(nacos, FIRST, SECOND)):
        await until(lambda: addresses(nacos) == ["10.0.0.1", "10.0.0.2"])

    assert nacos.setups == 1


@on_a_loop
async def test_where_there_are_no_batches_each_instance_has_a_client() -> None:  # trap 3: Nacos 2.0
    async def no_handler(_body: dict[str, object]) -> tuple[str, dict[str, object]]:
        return "ErrorResponse", {"resultCode": 500, "errorCode": 302, "message": "RequestHandler Not Found"}

    nacos = FakeNacos(answers={"BatchInstanceRequest": no_handler})
    async with nacos.running(), running(registrar(nacos, FIRST, SECOND)):
        await until(lambda: sorted(addresses(nacos)) == ["10.0.0.1", "10.0.0.2"])

    assert nacos.setups == 2


@on_a_loop
async def test_an_unhealthy_instance_is_taken_out_and_comes_back() -> None:  # trap 17: a smaller batch removes the rest
    async with FakeNacos().running() as nacos:
        made = registrar(nacos, FIRST, SECOND)
        async with running(made):
            await until(lambda: len(addresses(nacos)) == 2)
            made.set_healthy(0, healthy=False)
            await until(lambda: addresses(nacos) == ["10.0.0.2"])
            made.set_healthy(1, healthy=False)
            await until(lambda: addresses(nacos) == [])
            made.set_healthy(0, healthy=True)
            await until(lambda: addresses(nacos) == ["10.0.0.1"])


@on_a_loop
async def test_a_changed_weight_is_told() -> None:
    async with FakeNacos().running() as nacos:
        made = registrar(nacos, SECOND)
        async with running(made):
            await until(lambda: addresses(nacos) == ["10.0.0.2"])
            made.update(0, Instance("10.0.0.2", 5432, weight=7.0))
            await until(lambda: nacos.hosts(KEY)[0]["weight"] == 7.0)


@on_a_loop
async def test_after_a_reconnect_the_instances_are_registered_again() -> None:
    async with FakeNacos().running() as nacos, running(registrar(nacos, FIRST, SECOND)):
        await until(lambda: len(addresses(nacos)) == 2)
        nacos.end_streams()
        await until(lambda: addresses(nacos) == [])
        await until(lambda: len(addresses(nacos)) == 2)

    assert nacos.setups == 2


@on_a_loop
async def test_a_registration_that_was_lost_on_the_server_is_made_again() -> None:  # trap 9
    async with FakeNacos().running() as nacos, running(registrar(nacos, FIRST)):
        await until(lambda: addresses(nacos) == ["10.0.0.1"])
        nacos.held.clear()
        await until(lambda: addresses(nacos) == ["10.0.0.1"])

    assert nacos.setups == 1


@on_a_loop
async def test_an_instance_is_registered_while_its_probe_holds() -> None:
    holds = [False]

    async def probe(_instance: Instance) -> str:
        return "" if holds[0] else "down"

    async with FakeNacos().running() as nacos:
        made = registrar(nacos, FIRST, probe=probe)
        async with running(made):
            await asyncio.sleep(0.3)
            before = nacos.kinds()
            holds[0] = True
            await until(lambda: addresses(nacos) == ["10.0.0.1"])
            holds[0] = False
            await until(lambda: addresses(nacos) == [])

    assert before == []


@on_a_loop
async def test_what_a_probe_meets_is_said_once_with_the_address_and_again_when_it_changes() -> None:
    fault = ["connection refused"]
    sink = CapturingLogger()
    log = structlog.wrap_logger(sink, processors=[], wrapper_class=structlog.make_filtering_bound_logger(0))

    async def probe(_instance: Instance) -> str:
        asked.set()
        return fault[0]

    def said() -> list[tuple[str, str]]:
        lines = [call for call in sink.calls if call.kwargs.get("event") == "register.unhealthy"]
        return [
            (call.method_name, call.kwargs["reason"]) for call in lines if call.kwargs["instance"] == "10.0.0.1:5432"
        ]

    asked = asyncio.Event()
    async with FakeNacos().running() as nacos, running(registrar(nacos, FIRST, probe=probe, log=log)):
        await until(lambda: len(said()) == 1)
        for _ in range(4):
            asked.clear()
            await asyncio.wait_for(asked.wait(), 5)
        after_many = said()
        fault[0] = "no connection within 2 s"
        await until(lambda: len(said()) == 2)

    assert after_many == [("warning", "connection refused")]
    assert said()[1] == ("warning", "no connection within 2 s")


@on_a_loop
async def test_a_wrong_password_ends_it_before_anything_was_registered() -> None:
    async with FakeNacos(users={"nacos": "right"}).running() as nacos:
        made = registrar(nacos, FIRST, username="nacos", password="wrong")
        with pytest.raises(RegistryRefused, match="refuses the user 'nacos'"):
            await asyncio.wait_for(made.run(), 5)


@on_a_loop
async def test_a_server_without_grpc_ends_it() -> None:
    async with FakeNacos(version="1.4.2", speaks_grpc=False).running() as nacos:
        with pytest.raises(RegistryUnsupported, match=r"1\.4\.2"):
            await asyncio.wait_for(registrar(nacos, FIRST).run(), 5)


@on_a_loop
async def test_a_refusal_before_anything_was_registered_ends_it_and_says_what_the_server_said() -> None:
    async def refuse(_body: dict[str, object]) -> tuple[str, dict[str, object]]:
        return "InstanceResponse", {"resultCode": 500, "errorCode": 400, "message": "service is persistent"}

    async with FakeNacos(answers={"InstanceRequest": refuse}).running() as nacos:
        with pytest.raises(RegistryRefused, match="service is persistent"):
            await asyncio.wait_for(registrar(nacos, FIRST).run(), 5)


@on_a_loop
async def test_without_a_server_it_waits_for_one() -> None:
    nacos = FakeNacos(port=free_port(1000))
    async with running(registrar(nacos, FIRST)):
        await asyncio.sleep(0.3)
        async with nacos.running():
            await until(lambda: addresses(nacos) == ["10.0.0.1"])


@on_a_loop
async def test_the_tcp_probe_holds_while_the_port_is_open() -> None:
    probe = tcp_probe(timeout_s=0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        instance = Instance("127.0.0.1", server.getsockname()[1])
        while_open = await probe(instance)
    after = await probe(instance)

    assert (while_open, after) == ("", "connection refused")


@pytest.mark.parametrize(("status", "holds"), [(200, True), (302, True), (404, False), (500, False)])
@on_a_loop
async def test_the_http_probe_holds_while_the_status_is_good(status: int, holds: bool) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        held = await http_probe("/health")(Instance("127.0.0.1", server.sockets[0].getsockname()[1]))

    assert held == ("" if holds else f"/health is answered with status {status}")
    assert asked == [b"GET /health HTTP/1.1\r\n"]
