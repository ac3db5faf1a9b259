"""The edge to Nacos where no real server is needed, or none can be brought to it."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import CapturingLogger

from fakes.loop import on_a_loop, until
from fakes.nacos_server import FakeNacos, free_port
from fakes.registry_listener import Listener, running
from nacosdns.core.model import Instance, ServiceKey, ServiceView
from nacosdns.edge.nacos import NacosRegistry, to_instance, to_view
from nacosdns.edge.nacos_client import Quiet
from nacosdns.edge.nacos_http import Backoff, Server, Settings, fetch, parse_server
from nacosdns.edge.nacos_wire import Host, ServiceInfo
from nacosdns.errors import ConfigError, RegistryDown, RegistryRefused, RegistryUnsupported

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = ServiceKey("public", "DEFAULT_GROUP", "orders")
HOST = {"ip": "10.0.0.1", "port": 80, "weight": 1.0, "healthy": True, "enabled": True, "clusterName": "DEFAULT"}
ONE = ServiceView((Instance("10.0.0.1", 80),))


def registry(
    *servers: str, namespaces: tuple[str, ...] = ("public",), log: object = None, **settings: object
) -> NacosRegistry:
    quick = {"connect_timeout_s": 1.0, "request_timeout_s": 3.0, "silence_s": 10.0, **settings}
    return NacosRegistry(
        Settings(servers=servers, **quick), namespaces, log or structlog.get_logger(), rng=random.Random(1)
    )


def capturing() -> tuple[CapturingLogger, structlog.typing.FilteringBoundLogger]:
    sink = CapturingLogger()
    return sink, structlog.wrap_logger(sink, processors=[], wrapper_class=structlog.make_filtering_bound_logger(0))


# ---- instances


@pytest.mark.parametrize(
    ("host", "instance"),
    [
        ({"ip": "10.0.0.1", "port": 80}, Instance("10.0.0.1", 80)),
        ({"ip": " 10.0.0.1 ", "port": 0}, Instance("10.0.0.1", 0)),
        ({"ip": "db.example.com", "port": 65535}, Instance("db.example.com", 65535)),
        ({"ip": "2001:db8::1", "port": 80}, Instance("2001:db8::1", 80)),
        ({"port": 80}, None),
        ({"ip": "  ", "port": 80}, None),
        ({"ip": 7, "port": 80}, None),
        ({"ip": "10.0.0.1", "port": -1}, None),
        ({"ip": "10.0.0.1", "port": 65536}, None),
        ({"ip": "10.0.0.1", "port": "80"}, None),
        ({"ip": "10.0.0.1", "port": True}, None),
        ({"ip": "10.0.0.1", "port": 80, "healthy": False}, Instance("10.0.0.1", 80, healthy=False)),
        ({"ip": "10.0.0.1", "port": 80, "enabled": False}, Instance("10.0.0.1", 80, enabled=False)),
        ({"ip": "10.0.0.1", "port": 80, "cluster_name": "BJ"}, Instance("10.0.0.1", 80, cluster="BJ")),
        ({"ip": "10.0.0.1", "port": 80, "cluster_name": None}, Instance("10.0.0.1", 80)),
        (
            {"ip": "10.0.0.1", "port": 80, "metadata": {"b": "2", "a": "1", "c": None, "d": 4}},
            Instance("10.0.0.1", 80, metadata=(("a", "1"), ("b", "2"), ("d", "4"))),
        ),
        ({"ip": "10.0.0.1", "port": 80, "metadata": "odd"}, Instance("10.0.0.1", 80)),
    ],
)
def test_an_instance_is_taken_over_or_left_out(host: dict[str, object], instance: Instance | None) -> None:
    found = to_instance(Host(**host))

    assert found == instance


@pytest.mark.parametrize(
    ("weight", "taken"),
    [
        *((1, 1.0), (0.1, 0.1), (10000, 10000.0), (0, 0.0), (-1, 0.0), (None, 0.0), (True, 0.0), ("7", 0.0), ([], 0.0)),
        *(("NaN", 0.0), ("Infinity", 0.0), (math.nan, 0.0), (math.inf, 0.0), (-math.inf, 0.0)),
    ],
)
def test_a_weight_that_is_no_weight_counts_as_zero(weight: object, taken: float) -> None:
    instance = to_instance(Host(ip="10.0.0.1", port=80, weight=weight))

    assert instance is not None
    assert instance.weight == taken


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.lists(st.builds(Host, json_like, json_like, json_like, json_like, json_like, json_like, json_like), max_size=5)
)
def test_whatever_a_server_writes_the_instances_are_sane(hosts: list[Host]) -> None:
    view = to_view(ServiceInfo(name="orders", hosts=hosts))

    for instance in view.instances:
        assert instance.address
        assert 0 <= instance.port <= 65535
        assert 0 <= instance.weight < math.inf
        assert list(instance.metadata) == sorted(instance.metadata)


def test_a_missing_service_is_an_empty_view() -> None:
    assert to_view(None) == ServiceView(())


def test_one_odd_instance_spoils_nothing_else_and_the_threshold_flag_is_kept() -> None:
    """S28."""
    view = to_view(ServiceInfo(hosts=[Host(ip="10.0.0.1", port=80), Host()], reach_protection_threshold=True))

    assert view == ServiceView((Instance("10.0.0.1", 80),), threshold_reached=True)


# ---- servers


@pytest.mark.parametrize(
    ("text", "server", "grpc_target", "url"),
    [
        ("nacos", Server("nacos", 8848), "nacos:9848", "http://nacos:8848"),
        ("10.0.0.1:80", Server("10.0.0.1", 80), "10.0.0.1:1080", "http://10.0.0.1:80"),
        ("[::1]", Server("::1", 8848), "[::1]:9848", "http://[::1]:8848"),
        ("[2001:db8::1]:80", Server("2001:db8::1", 80), "[2001:db8::1]:1080", "http://[2001:db8::1]:80"),
        ("http://nacos:80/", Server("nacos", 80), "nacos:1080", "http://nacos:80"),
        ("https://nacos", Server("nacos", 8848, secure=True), "nacos:9848", "https://nacos:8848"),
    ],
)
def test_a_server_is_read_in_every_spelling(text: str, server: Server, grpc_target: str, url: str) -> None:
    found = parse_server(text)

    assert (found, found.grpc_target, found.url) == (server, grpc_target, url)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("::1", "[::1]:8848"),
        ("fe80::1:8848", "brackets"),
        ("", "host:8848"),
        ("nacos:port", "host:8848"),
        ("nacos:70000", "host:8848"),
        ("nacos:8848/nacos", "context_path"),
        ("ftp://nacos", "host:8848"),
        ("user@nacos", "host:8848"),
        ("two names", "host:8848"),
        ("[::1", "host:8848"),
    ],
)
def test_what_is_no_server_is_refused_with_a_remedy(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_server(text)

    assert caught.value.key == "nacos.servers"
    assert remedy in caught.value.remedy


def test_a_certificate_file_that_is_missing_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"nacos\.ca_file"):
        registry("127.0.0.1:8848", ca_file="/nonexistent/ca.pem")


def test_a_client_certificate_needs_its_key() -> None:
    with pytest.raises(ConfigError, match=r"nacos\.cert_file"):
        registry("127.0.0.1:8848", cert_file="/nonexistent/cert.pem")


def test_no_server_at_all_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"nacos\.servers"):
        registry()


@on_a_loop
async def test_a_server_at_an_ipv6_address_works() -> None:
    async with FakeNacos(host="::1", services={("public", "DEFAULT_GROUP", "orders"): [HOST]}).running() as nacos:
        edge = registry(nacos.address)
        async with running(edge):
            view = await edge.query(ORDERS)

    assert view == ONE


@on_a_loop
async def test_the_servers_come_from_the_address_server_when_there_is_one() -> None:
    async with (
        FakeNacos(services={("public", "DEFAULT_GROUP", "orders"): [HOST]}).running() as nacos,
        FakeNacos(server_list=f"{nacos.address}\n\n").running() as addresses,
    ):
        edge = registry(endpoint=addresses.address)
        async with running(edge):
            view = await edge.query(ORDERS)

    assert view == ONE


@on_a_loop
async def test_many_namespaces_wait_for_the_one_reading_of_the_list() -> None:
    async with FakeNacos(users={"nacos": "right"}).running() as nacos:
        nacos.server_list = nacos.address
        edge = registry(endpoint=nacos.address, namespaces=("public", "a", "b"), **account("right"))
        async with running(edge) as listener:
            for namespace in ("a", "b"):
                await listener.heard(f"connected {namespace}")

    assert sorted(listener.events) == ["connected a", "connected b", "connected public"]
    assert edge.status()["requests"]["endpoint"] == 1  # type: ignore[index]


@on_a_loop
async def test_a_server_that_is_listed_no_more_is_left() -> None:
    async with FakeNacos().running() as old, FakeNacos().running() as new, FakeNacos().running() as addresses:
        addresses.server_list = old.address
        edge = registry(endpoint=addresses.address, silence_s=0.1)
        async with running(edge) as listener:
            addresses.server_list = new.address
            edge._access.web._listed_at -= 60
            await listener.heard("connected public", times=2)

    assert (old.setups, new.setups) == (1, 1)


@on_a_loop
async def test_an_address_server_that_fails_later_leaves_its_last_list() -> None:
    async with FakeNacos().running() as nacos, FakeNacos().running() as addresses:
        addresses.server_list = nacos.address
        edge = registry(endpoint=addresses.address, silence_s=0.1)
        async with running(edge) as listener:
            addresses.server_list = ""
            edge._access.web._listed_at -= 60
            nacos.end_streams()
            await listener.heard("connected public", times=2)

    assert edge.status()["requests"]["endpoint"] == 2  # type: ignore[index]


# ---- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    where = tmp_path_factory.mktemp("tls")
    cert, key = str(where / "cert.pem"), str(where / "key.pem")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=nacos", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize("files", [("ca_file",), ("ca_file", "cert_file", "key_file")])
@on_a_loop
async def test_tls_is_spoken_with_the_certificates_of_the_settings(
    certificate: tuple[str, str], files: tuple[str, ...]
) -> None:
    cert, key = certificate
    own = {name: key if name == "key_file" else cert for name in files}
    async with FakeNacos(certificate=certificate, wants_certificate="cert_file" in own).running() as nacos:
        async with running(registry(nacos.address, **own)) as listener:
            pass
        async with running(registry(nacos.address), connected="") as without:
            await without.heard("disconnected public")

    assert listener.events == ["connected public"]
    assert without.events == ["disconnected public"]


# ---- Nacos is not there


@on_a_loop
async def test_without_a_server_every_call_fails_at_once_and_the_listener_hears_it() -> None:
    edge = registry(f"127.0.0.1:{(port := free_port(1000))}")
    async with running(edge, connected="") as listener:
        await listener.heard("disconnected public")
        began = time.monotonic()
        for call in (
            edge.query(ORDERS),
            edge.subscribe(ORDERS),
            edge.unsubscribe(ORDERS),
            edge.list_services("public", "g"),
        ):
            with pytest.raises(
                RegistryDown, match=f"^127.0.0.1:{port}: its gRPC port {port + 1000}: connection refused$"
            ):
                await call
        took = time.monotonic() - began

    assert took < 2.0  # one that is waited for takes 3 s
    assert not edge.is_connected("public")
    assert listener.events == ["disconnected public"]


@on_a_loop
async def test_a_server_that_accepts_and_says_nothing_is_down_within_the_deadline() -> None:
    listening = socket.create_server(("127.0.0.1", port := free_port(1000)))
    silent = socket.create_server(("127.0.0.1", port + 1000))
    began = time.monotonic()
    with listening, silent:
        edge = registry(f"127.0.0.1:{port}")
        async with running(edge, connected="") as listener:
            await listener.heard("disconnected public")
            with pytest.raises(RegistryDown, match="no answer within 1 s"):
                await edge.query(ORDERS)

    assert time.monotonic() - began < 3


@on_a_loop
async def test_a_query_that_is_not_answered_ends_at_its_deadline_and_the_second_one_ends_the_connection() -> None:
    async def never(_body: dict[str, object]) -> tuple[str, dict[str, object]]:
        await asyncio.sleep(60)
        return "", {}

    async with FakeNacos(answers={"ServiceQueryRequest": never}).running() as nacos:
        edge = registry(nacos.address, request_timeout_s=0.5)
        async with running(edge) as listener:
            began = time.monotonic()
            for _ in range(2):
                with pytest.raises(RegistryDown, match=r"did not answer a query within 0\.5 s"):
                    await edge.query(ORDERS)
            took = time.monotonic() - began
            await listener.heard("connected public", times=2)

    assert 0.9 < took < 5.0
    assert listener.events == ["connected public", "disconnected public", "connected public"]


@on_a_loop
async def test_a_call_under_way_when_the_connection_is_lost_fails_and_is_not_cancelled() -> None:
    async def never(_body: dict[str, object]) -> tuple[str, dict[str, object]]:
        await asyncio.sleep(60)
        return "", {}

    async with FakeNacos(answers={"ServiceQueryRequest": never}).running() as nacos:
        edge = registry(nacos.address, request_timeout_s=5.0)
        async with running(edge):
            asking = asyncio.ensure_future(edge.query(ORDERS))
            await until(lambda: "ServiceQueryRequest" in nacos.kinds())
            nacos.end_streams()
            with pytest.raises(RegistryDown, match="the server ended the stream"):
                await asking


@on_a_loop
async def test_a_caller_that_gives_up_is_cancelled_and_nothing_else_is() -> None:
    async def never(_body: dict[str, object]) -> tuple[str, dict[str, object]]:
        await asyncio.sleep(60)
        return "", {}

    async with FakeNacos(answers={"ServiceQueryRequest": never}).running() as nacos:
        edge = registry(nacos.address, request_timeout_s=5.0)
        async with running(edge) as listener:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(edge.query(ORDERS), 0.1)
            await edge.subscribe(ORDERS)

    assert listener.events == ["connected public"]


@on_a_loop
async def test_it_ends_when_told_to_even_in_the_moment_in_which_the_connection_is_lost() -> None:
    async with FakeNacos().running() as nacos:
        for turns in range(0, 40, 2):
            edge, listener = registry(nacos.address), Listener()
            task = asyncio.ensure_future(edge.run(listener))
            await listener.heard("connected public")
            nacos.end_streams()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=2.0)

            assert done == {task}


@on_a_loop
async def test_a_namespace_that_is_not_configured_makes_no_client() -> None:
    async with FakeNacos().running() as nacos:
        edge = registry(nacos.address)
        async with running(edge):
            with pytest.raises(RegistryRefused, match="not configured"):
                await edge.query(ServiceKey("other", "DEFAULT_GROUP", "orders"))

    assert nacos.setups == 1


# ---- generations


@on_a_loop
async def test_a_server_without_grpc_is_unsupported_and_its_version_is_named() -> None:
    """S41."""
    async with FakeNacos(version="1.4.2", speaks_grpc=False).running() as nacos:
        edge = registry(nacos.address)
        async with running(edge, connected="") as listener:
            await listener.heard("disconnected public")
            with pytest.raises(RegistryUnsupported, match=r"Nacos 1\.4\.2 at .* 2\.0 or later"):
                await edge.query(ORDERS)

    assert "1.4.2" in str(edge.status()["namespaces"])


@on_a_loop
async def test_a_closed_grpc_port_of_a_good_server_is_named() -> None:
    async with FakeNacos(version="2.3.2", speaks_grpc=False).running() as nacos:
        edge = registry(nacos.address)
        async with running(edge, connected="") as listener:
            await listener.heard("disconnected public")
            with pytest.raises(RegistryDown, match=f"not by gRPC at 127.0.0.1:{nacos.port + 1000}: is that port open"):
                await edge.query(ORDERS)


@pytest.mark.parametrize(("version", "generation"), [("2.3.2", "2"), ("3.1.0", "3")])
@on_a_loop
async def test_generation_and_version_are_told(version: str, generation: str) -> None:
    async with FakeNacos(version=version, negotiates=generation == "3").running() as nacos:
        edge = registry(nacos.address)
        async with running(edge):
            await until(lambda: edge.status()["namespaces"]["public"]["version"] != "")  # type: ignore[index]
            space = edge.status()["namespaces"]["public"]  # type: ignore[index]

    assert (space["connected"], space["server"]) == (True, nacos.address)
    assert (space["generation"], space["version"]) == (generation, version)


# ---- the traps of the SDK that no real server shows on demand


@on_a_loop
async def test_a_stream_that_ends_without_an_error_is_noticed_and_made_anew() -> None:  # trap 2
    """S36."""
    async with FakeNacos().running() as nacos, running(registry(nacos.address)) as listener:
        nacos.end_streams()
        await listener.heard("connected public", times=2)

    assert listener.events == ["connected public", "disconnected public", "connected public"]


@on_a_loop
async def test_a_client_that_the_server_forgot_learns_it_from_an_answer_and_connects_anew() -> None:  # trap 2
    sink, log = capturing()
    async with FakeNacos().running() as nacos:
        edge = registry(nacos.address, log=log)
        async with running(edge) as listener:
            nacos.forget_clients()
            with pytest.raises(RegistryDown, match="301"):
                await edge.query(ORDERS)
            await listener.heard("connected public", times=2)

    assert "does not know this connection" in str(sink.calls)
    assert edge.status()["namespaces"]["public"]["last_error"] == ""  # type: ignore[index]


@on_a_loop
async def test_a_client_that_the_server_forgot_learns_it_by_itself_when_nobody_asks() -> None:  # trap 2
    async with FakeNacos().running() as nacos, running(registry(nacos.address, silence_s=0.2)) as listener:
        nacos.forget_clients()
        await listener.heard("connected public", times=2)

    assert nacos.setups == 2


@on_a_loop
async def test_an_idle_client_sends_one_small_request_in_each_time_of_silence() -> None:
    async with FakeNacos().running() as nacos:
        edge = registry(nacos.address, silence_s=0.2)
        async with running(edge):
            await asyncio.sleep(0.1)
            before = dict(edge.status()["requests"])  # type: ignore[call-overload]
            await asyncio.sleep(1.0)
            after = edge.status()["requests"]

    more = {kind: count - before[kind] for kind, count in after.items() if count != before[kind]}  # type: ignore[attr-defined]
    assert set(more) == {"health"}
    assert 4 <= more["health"] <= 5


@on_a_loop
async def test_pushes_are_handed_on_whatever_time_they_bear() -> None:  # trap 7: the clock of the server was set back
    async with FakeNacos().running() as nacos, running(registry(nacos.address)) as listener:
        for time_ms, port in ((2000, 1), (1000, 2), (1000, 3)):
            await nacos.push("orders", [{**HOST, "port": port}], last_ref_time=time_ms)
        await listener.until(lambda: len(listener.pushes) == 3)

    assert [view.instances[0].port for _, view in listener.pushes] == [1, 2, 3]


@on_a_loop
async def test_an_empty_push_is_handed_on_too() -> None:  # trap 1
    async with FakeNacos().running() as nacos, running(registry(nacos.address)) as listener:
        await nacos.push("orders", [])
        await listener.until(lambda: len(listener.pushes) == 1)

    assert listener.pushes == [(ORDERS, ServiceView(()))]


@on_a_loop
async def test_every_push_is_acknowledged_by_its_id() -> None:
    async with FakeNacos().running() as nacos, running(registry(nacos.address)) as listener:
        await nacos.push("orders", [HOST])
        await nacos.send("ClientDetectionRequest", {"requestId": "7"})
        await until(lambda: len(nacos.acknowledged) == 2)

    assert nacos.acknowledged == ["NotifySubscriberResponse push-orders", "ClientDetectionResponse 7"]
    assert listener.events == ["connected public"]


@on_a_loop
async def test_an_answer_that_a_push_overtook_does_not_win_over_it() -> None:
    async def slow(_body: dict[str, object]) -> tuple[str, dict[str, object]]:
        await nacos.push("orders", [HOST])
        await asyncio.sleep(0.1)
        return "QueryServiceResponse", {"serviceInfo": {"name": "orders", "groupName": "DEFAULT_GROUP", "hosts": []}}

    nacos = FakeNacos(answers={"ServiceQueryRequest": slow})
    async with nacos.running():
        edge = registry(nacos.address)
        async with running(edge):
            view = await edge.query(ORDERS)

    assert view == ONE


@on_a_loop
async def test_a_reset_is_obeyed_and_the_server_that_it_names_is_taken() -> None:  # trap 8
    async with FakeNacos().running() as first, FakeNacos().running() as second, FakeNacos().running() as third:
        servers = [first, second, third]
        edge = registry(*(server.address for server in servers))
        async with running(edge) as listener:
            at = next(index for index, server in enumerate(servers) if server.setups)
            named = servers[(at + 2) % 3]  # the next in turn would be another
            reset = {"requestId": "9", "serverIp": "127.0.0.1", "serverPort": str(named.port)}
            await servers[at].send("ConnectResetRequest", reset)
            await listener.heard("connected public", times=2)
            server = edge.status()["namespaces"]["public"]["server"]  # type: ignore[index]

    assert server == named.address
    assert servers[at].acknowledged == ["ConnectResetResponse 9"]


@on_a_loop
async def test_a_reset_to_a_server_that_is_not_ours_only_ends_the_connection() -> None:
    async with FakeNacos().running() as nacos:
        edge = registry(nacos.address)
        async with running(edge) as listener:
            await nacos.send("ConnectResetRequest", {"requestId": "9", "serverIp": "192.0.2.1", "serverPort": "8848"})
            await listener.heard("connected public", times=2)

    assert nacos.setups == 2


@on_a_loop
async def test_after_a_reconnect_nothing_is_subscribed_by_itself() -> None:  # traps 4 and 17: the keeper's core decides
    async with FakeNacos().running() as nacos:
        edge = registry(nacos.address)
        async with running(edge) as listener:
            await edge.subscribe(ORDERS)
            nacos.end_streams()
            await listener.heard("connected public", times=2)
            await asyncio.sleep(0.3)

    assert nacos.kinds() == ["SubscribeServiceRequest"]


@on_a_loop
async def test_messages_that_are_odd_or_unknown_are_passed_over() -> None:
    sink, log = capturing()
    async with FakeNacos().running() as nacos, running(registry(nacos.address, log=log)) as listener:
        await nacos.send("NotifySubscriberRequest", {"requestId": "1", "serviceInfo": {"hosts": 7}})
        await nacos.send("NotifySubscriberRequest", {"requestId": "2", "serviceInfo": None})
        await nacos.send("NotOfThisWorldRequest", {"requestId": "3"})
        await nacos.push("orders", [HOST, {**HOST, "port": 70000}])
        await listener.until(lambda: len(listener.pushes) == 1)

    events = [call.args[0]["event"] if call.args else call.kwargs["event"] for call in sink.calls]
    assert listener.pushes == [(ORDERS, ONE)]
    assert {"registry.unreadable", "registry.unknown_message", "registry.instances_unusable"} <= set(events)
    assert listener.events == ["connected public"]


@on_a_loop
async def test_a_listener_that_fails_does_not_end_the_connection() -> None:
    async with FakeNacos().running() as nacos:
        edge = registry(nacos.address)
        async with running(edge) as listener:
            listener.pushes = None  # type: ignore[assignment]
            await nacos.push("orders", [HOST])
            await until(lambda: nacos.acknowledged != [])
            connected = edge.is_connected("public")

    assert connected


@on_a_loop
async def test_a_catalogue_larger_than_a_page_is_read_again_as_one_page() -> None:  # trap 14
    asked: list[int] = []

    async def catalogue(body: dict[str, int]) -> tuple[str, dict[str, object]]:
        asked.append(body["pageSize"])
        names = [f"s{number}" for number in range(30_000)]
        return "ServiceListResponse", {"count": len(names), "serviceNames": names[: body["pageSize"]]}

    async with FakeNacos(answers={"ServiceListRequest": catalogue}).running() as nacos:  # type: ignore[dict-item]
        edge = registry(nacos.address, list_timeout_s=5.0)
        async with running(edge):
            names = await edge.list_services("public", "DEFAULT_GROUP")

    assert len(names) == 30_000
    assert asked == [20_000, 50_000]


@on_a_loop
async def test_a_list_of_more_than_four_megabytes_is_taken() -> None:  # gRPC's own limit, which the SDK does not raise
    hosts = [{**HOST, "port": port, "metadata": {"note": "x" * 400}} for port in range(10_000)]
    async with FakeNacos(services={("public", "DEFAULT_GROUP", "orders"): hosts}).running() as nacos:
        edge = registry(nacos.address, request_timeout_s=10.0)
        async with running(edge):
            view = await edge.query(ORDERS)

    assert len(view.instances) == 10_000


# ---- the user


def account(password: str, **more: object) -> dict[str, object]:
    return {"username": "nacos", "password": password, **more}


@pytest.mark.parametrize("path", ["/nacos/v1/auth/users/login", "/nacos/v3/auth/user/login"])
@on_a_loop
async def test_a_user_logs_in_once_for_all_namespaces_by_the_path_that_the_server_has(path: str) -> None:
    async with FakeNacos(users={"nacos": "right"}, login_path=path).running() as nacos:
        edge = registry(nacos.address, namespaces=("public", "other"), **account("right"))
        async with running(edge) as listener:
            await listener.heard("connected other")
            await edge.query(ORDERS)

    assert nacos.logins == [{"username": "nacos", "password": "right"}]
    assert edge.status()["requests"]["login"] == (1 if "v1" in path else 2)  # type: ignore[index]


@on_a_loop
async def test_a_rejected_token_is_replaced_and_the_call_succeeds() -> None:
    """S38."""
    async with FakeNacos(users={"nacos": "right"}).running() as nacos:
        edge = registry(nacos.address, **account("right"))
        async with running(edge) as listener:
            edge._access.account._issued_at -= 60
            nacos.forget_tokens()
            await edge.query(ORDERS)

    assert len(nacos.logins) == 2
    assert listener.events == ["connected public"]


@on_a_loop
async def test_a_token_is_renewed_before_it_ends() -> None:
    """S38."""
    async with FakeNacos(users={"nacos": "right"}).running() as nacos:
        edge = registry(nacos.address, **account("right"))
        async with running(edge):
            edge._access.account._issued_at -= 0.85 * 18000
            await edge.query(ORDERS)
            await edge.query(ORDERS)

    assert len(nacos.logins) == 2


@on_a_loop
async def test_a_user_without_a_right_is_refused_and_does_not_log_in_again_for_every_call() -> None:
    async def no_right(_body: dict[str, object]) -> tuple[str, dict[str, object]]:
        return "QueryServiceResponse", {"resultCode": 500, "errorCode": 403, "message": "no right!"}

    async with FakeNacos(users={"nacos": "right"}, answers={"ServiceQueryRequest": no_right}).running() as nacos:
        edge = registry(nacos.address, **account("right"))
        async with running(edge) as listener:
            for _ in range(5):
                with pytest.raises(RegistryRefused, match="403 no right!"):
                    await edge.query(ORDERS)

    assert len(nacos.logins) == 1
    assert listener.events == ["connected public"]


@on_a_loop
async def test_a_wrong_password_is_refused_tried_seldom_and_never_told() -> None:  # trap 11
    """S38."""
    sink, log = capturing()
    async with FakeNacos(users={"nacos": "right"}).running() as nacos:
        edge = registry(nacos.address, namespaces=("public", "other"), log=log, **account("s3cret"))
        async with running(edge, connected="") as listener:
            for namespace in ("public", "other"):
                await listener.heard(f"disconnected {namespace}")
            for _ in range(5):
                with pytest.raises(RegistryRefused, match="refuses the user 'nacos'"):
                    await edge.query(ORDERS)

    assert len(nacos.logins) == 1
    assert nacos.setups == 0
    assert not edge.is_connected("public")
    assert str(sink.calls).count("registry.refused") == 1
    assert "s3cret" not in str(sink.calls) + repr(edge) + str(edge.status()) + repr(edge._access.settings)


@on_a_loop
async def test_a_new_password_is_tried_at_once() -> None:
    async with FakeNacos(users={"nacos": "right"}).running() as nacos:
        edge = registry(nacos.address, **account("wrong"))
        async with running(edge, connected="") as listener:
            await listener.heard("disconnected public")
            began = time.monotonic()
            edge.set_password("right")
            await listener.heard("connected public")

    assert time.monotonic() - began < 0.5
    assert [login["password"] for login in nacos.logins] == ["wrong", "right"]


@on_a_loop
async def test_the_password_file_is_read_again_when_the_password_is_refused() -> None:
    async with FakeNacos(users={"nacos": "right"}).running() as nacos:
        edge = registry(nacos.address, **account("old", reread_password=lambda: "right"))
        async with running(edge):
            await edge.query(ORDERS)

    assert [login["password"] for login in nacos.logins] == ["old", "right"]


@on_a_loop
async def test_a_password_changed_under_a_running_client_ends_the_connection_and_the_new_one_mends_it() -> None:
    async with FakeNacos(users={"nacos": "first"}).running() as nacos:
        edge = registry(nacos.address, **account("first"))
        async with running(edge) as listener:
            nacos.users["nacos"] = "second"
            nacos.forget_tokens()
            edge._access.account._issued_at -= 60
            with pytest.raises(RegistryRefused):
                await edge.query(ORDERS)
            await listener.heard("disconnected public")
            edge.set_password("second")
            await listener.heard("connected public", times=2)
            await edge.query(ORDERS)


@on_a_loop
async def test_neither_password_nor_token_stand_in_a_url_or_a_body_of_grpc() -> None:
    async with FakeNacos(users={"nacos": "right"}).running() as nacos:
        edge = registry(nacos.address, **account("right"))
        async with running(edge):
            await edge.query(ORDERS)

    query = next(one for one in nacos.received if one.kind == "ServiceQueryRequest")
    assert query.headers["accessToken"] == "token-1"
    assert "token" not in str(query.body).lower()


# ---- HTTP, waits and logs


@on_a_loop
async def test_a_chunked_answer_is_put_together() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        assert await fetch(f"http://127.0.0.1:{port}/x") == (200, b"abcde")


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"])
@on_a_loop
async def test_what_is_no_answer_is_an_error_of_ours(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        with pytest.raises(RegistryDown, match="cannot be asked"):
            await fetch(f"http://127.0.0.1:{port}/")


@given(st.integers(), st.integers(1, 20))
def test_waits_double_up_to_their_cap_and_differ_between_hosts(seed: int, steps: int) -> None:  # trap 15
    backoff = Backoff(0.2, 8.0, random.Random(seed))
    waits = [backoff.next_s() for _ in range(steps)]
    full = [min(8.0, 0.2 * 2**step) for step in range(steps)]

    assert all(most / 2 <= wait <= most for wait, most in zip(waits, full, strict=True))


def test_a_repeated_event_is_logged_once_a_minute_with_the_number_left_out() -> None:
    sink, log = capturing()
    now = [0.0]
    quiet = Quiet(log, clock=lambda: now[0])
    for second in (0, 1, 2, 61):
        now[0] = second
        quiet.warning("registry.down", namespace="public", reason="x")

    assert [call.kwargs.get("left_out", 0) for call in sink.calls] == [0, 2]


# ---- what it leaves on a machine


def test_nothing_is_written_to_disk_or_to_stderr_and_nothing_heavy_is_imported(
    tmp_path: Path,
) -> None:  # traps 6, 10, 11
    script = f"""
        import asyncio, logging, sys
        import structlog
        from nacosdns.core.model import ServiceKey
        from nacosdns.edge.nacos import NacosRegistry
        from nacosdns.edge.nacos_http import Settings
        from nacosdns.errors import RegistryError

        class Listener:
            def connected(self, namespace): pass
            def disconnected(self, namespace): pass
            def pushed(self, key, view): pass

        async def main():
            asyncio.get_running_loop().slow_callback_duration = 60
            for more in ({{"username": "nacos", "password": "wrong"}}, {{}}):
                settings = Settings(servers=("127.0.0.1:{free_port(1000)}",), **more)
                registry = NacosRegistry(settings, ("public",), structlog.get_logger())
                task = asyncio.ensure_future(registry.run(Listener()))
                await asyncio.sleep(0.5)
                try:
                    await registry.query(ServiceKey("public", "DEFAULT_GROUP", "orders"))
                except RegistryError as error:
                    print(type(error).__name__, *(kind for kind, sent in registry.status()["requests"].items() if sent))
                task.cancel()
                await asyncio.wait([task])

        asyncio.run(main(), debug=True)
        heavy = [name for name in ("a2a", "aiohttp", "requests", "alibabacloud_kms20160120", "v2.nacos") if name in sys.modules]
        handlers = [name for name in ("naming", "config") if logging.getLogger(name).handlers]
        print(heavy, handlers)
    """
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(script)],
        cwd=tmp_path, env={"HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    lines = [line for line in done.stdout.splitlines() if "registry.down" not in line]
    assert lines == ["RegistryDown login", "RegistryDown connect version", "[] []"]
    assert done.stderr == ""
    assert list(tmp_path.rglob("*")) == []


def test_the_sdk_itself_can_still_be_imported_in_the_same_process() -> None:
    script = "import warnings; warnings.simplefilter('ignore'); import nacosdns.edge.nacos; from v2.nacos import NacosNamingService as N; print(N.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "NacosNamingService"


@on_a_loop
async def test_a_problem_is_told_while_it_lasts_and_forgotten_when_it_is_over() -> None:
    async with FakeNacos(users={"nacos": "right"}).running() as nacos:
        edge = registry(nacos.address, **account("wrong"))
        async with running(edge, connected="") as listener:
            await listener.heard("disconnected public")

            assert "refuses the user 'nacos'" in edge.problem("public")

            edge.set_password("right")
            await listener.heard("connected public")

            assert edge.problem("public") == ""
            assert edge.status()["namespaces"]["public"]["last_error"] == ""  # type: ignore[index]


@on_a_loop
async def test_a_right_that_is_missing_is_a_problem_until_a_request_is_let_through() -> None:
    refused: tuple[str, dict[str, object]] = (
        "ErrorResponse",
        {"resultCode": 500, "errorCode": 403, "message": "no right!"},
    )

    async def refuse(_: object) -> tuple[str, dict[str, object]]:
        return refused

    nacos = FakeNacos(answers={"ServiceQueryRequest": refuse})
    async with nacos.running():
        edge = registry(nacos.address)
        async with running(edge):
            with pytest.raises(RegistryRefused, match="403"):
                await edge.query(ORDERS)

            assert "403 no right!" in edge.problem("public")

            nacos.answers.clear()
            await edge.query(ORDERS)

            assert edge.problem("public") == ""
