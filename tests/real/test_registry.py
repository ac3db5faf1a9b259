"""The edge to Nacos against a real one. The numbers of traps are those of docs/decisions.md."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from typing import TYPE_CHECKING

import pytest
import structlog

from fakes.loop import on_a_loop, until
from fakes.registry_listener import running
from nacosdns.core.model import Instance, ServiceKey, ServiceView
from nacosdns.edge.nacos import NacosRegistry
from nacosdns.edge.nacos_http import Settings
from nacosdns.edge.registrar import Registrar
from nacosdns.errors import RegistryDown, RegistryRefused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fakes.real_nacos import Provider, RealNacos

    StartNacos = Callable[..., RealNacos]
    StartProvider = Callable[..., Provider]

FIRST = {"ip": "10.0.0.1", "port": 80}
SECOND = {"ip": "10.0.0.2", "port": 80}


def registry(nacos: RealNacos, *namespaces: str, **settings: object) -> NacosRegistry:
    made = Settings(servers=(nacos.address,), **settings)
    return NacosRegistry(made, namespaces or ("public",), structlog.get_logger(), rng=random.Random(1))


def key_of(service: str, group: str = "DEFAULT_GROUP", namespace: str = "public") -> ServiceKey:
    return ServiceKey(namespace, group, service)


def instances(view: ServiceView | None) -> set[Instance]:
    return set(view.instances) if view else set()


def addresses(view: ServiceView | None) -> set[str]:
    return {instance.address for instance in instances(view)}


# ---- lists and pushes


@on_a_loop
async def test_what_is_registered_is_found_as_it_was_given(
    nacos: RealNacos, provider: StartProvider, service: str
) -> None:
    provider(service, {**FIRST, "weight": 2.5, "metadata": {"b": "2", "a": "1"}, "cluster_name": "BJ"})
    edge = registry(nacos)
    async with running(edge):
        view = await edge.query(key_of(service))

    assert view == ServiceView((Instance("10.0.0.1", 80, 2.5, cluster="BJ", metadata=(("a", "1"), ("b", "2"))),))


@on_a_loop
async def test_every_kind_of_change_is_pushed(nacos: RealNacos, provider: StartProvider, service: str) -> None:
    changes = [
        ({"weight": 3.0}, Instance("10.0.0.1", 80, 3.0)),
        ({"weight": 0.0}, Instance("10.0.0.1", 80, 0.0)),
        ({"healthy": False}, Instance("10.0.0.1", 80, healthy=False)),
        ({"metadata": {"zone": "a"}}, Instance("10.0.0.1", 80, metadata=(("zone", "a"),))),
    ]
    program = provider(service, FIRST, SECOND)
    edge, key = registry(nacos), key_of(service)
    async with running(edge) as listener:
        first = await edge.subscribe(key)
        seen = []
        for change, expected in changes:
            await asyncio.to_thread(program.update, [{**FIRST, **change}, SECOND])
            await listener.until(
                lambda expected=expected: (view := listener.latest(key)) and expected in view.instances
            )
            seen.append(expected)
        await asyncio.to_thread(program.update, [{**FIRST, "enabled": False}, SECOND])
        await listener.until(lambda: addresses(listener.latest(key)) == {"10.0.0.2"})

    assert addresses(first) == {"10.0.0.1", "10.0.0.2"}
    assert len(seen) == len(changes)


@on_a_loop
async def test_the_last_instance_to_go_is_pushed_as_an_empty_list(  # trap 1
    nacos: RealNacos, provider: StartProvider, service: str
) -> None:
    program = provider(service, FIRST)
    edge, key = registry(nacos), key_of(service)
    async with running(edge) as listener:
        await edge.subscribe(key)
        await asyncio.to_thread(program.kill)
        await listener.until(lambda: listener.latest(key) == ServiceView(()))


@on_a_loop
async def test_a_persistent_instance_turns_unhealthy_when_its_port_closes(nacos: RealNacos, service: str) -> None:
    edge, key = registry(nacos), key_of(service)
    with socket.create_server(("127.0.0.9", 0)) as server:
        port = server.getsockname()[1]
        nacos.register(service, "127.0.0.9", port)
        async with running(edge) as listener:
            first = await edge.subscribe(key)
            server.close()
            unhealthy = ServiceView((Instance("127.0.0.9", port, healthy=False),))
            await listener.until(lambda: listener.latest(key) == unhealthy, within_s=20)
    nacos.deregister(service, "127.0.0.9", port)

    assert first == ServiceView((Instance("127.0.0.9", port),))


@on_a_loop
async def test_what_the_console_sets_is_pushed(nacos: RealNacos, service: str) -> None:
    edge, key = registry(nacos), key_of(service)
    with socket.create_server(("127.0.0.8", 0)) as server:
        port = server.getsockname()[1]
        nacos.register(service, "127.0.0.8", port)
        async with running(edge) as listener:
            await edge.subscribe(key)
            nacos.change(service, "127.0.0.8", port, ephemeral=False, weight=5)
            await listener.until(lambda: instances(listener.latest(key)) == {Instance("127.0.0.8", port, 5.0)})
            nacos.change(service, "127.0.0.8", port, ephemeral=False, enabled="false")
            await listener.until(lambda: listener.latest(key) == ServiceView(()))
    nacos.deregister(service, "127.0.0.8", port)


# ---- subscriptions


@on_a_loop
async def test_unsubscribing_leaves_the_list_of_the_server(nacos: RealNacos, service: str) -> None:
    edge, key = registry(nacos), key_of(service)
    async with running(edge) as listener:
        await edge.subscribe(key)
        during = nacos.subscribers(service)
        await edge.unsubscribe(key)
        after = nacos.subscribers(service)
        nacos.http("POST", "/v1/ns/instance", serviceName=service, ip="127.0.0.7", port=1)
        await asyncio.sleep(0.5)

    assert [(one["ip"], one["app"]) for one in during] == [("127.0.0.1", "nacosdns")]
    assert after == []
    assert addresses(listener.latest(key)) == set()


@on_a_loop
async def test_a_query_leaves_no_subscription(
    nacos: RealNacos, provider: StartProvider, service: str
) -> None:  # trap 12
    provider(service, FIRST)
    edge = registry(nacos)
    async with running(edge):
        view = await edge.query(key_of(service))
        subscribers = nacos.subscribers(service)

    assert addresses(view) == {"10.0.0.1"}
    assert subscribers == []


@on_a_loop
async def test_a_second_subscription_brings_the_present_list_again(  # trap 4
    nacos: RealNacos, provider: StartProvider, service: str
) -> None:
    provider(service, FIRST)
    edge, key = registry(nacos), key_of(service)
    async with running(edge):
        views = [await edge.subscribe(key) for _ in range(2)]

    assert [addresses(view) for view in views] == [{"10.0.0.1"}, {"10.0.0.1"}]


@on_a_loop
async def test_a_query_asks_the_server_and_no_cache_and_leaves_out_nobody(  # trap 5
    nacos: RealNacos, provider: StartProvider, service: str
) -> None:
    program = provider(service, FIRST, {**SECOND, "healthy": False})
    edge, key = registry(nacos), key_of(service)
    async with running(edge):
        before = await edge.subscribe(key)
        await asyncio.to_thread(program.update, [{**SECOND, "healthy": False}, {"ip": "10.0.0.3", "port": 80}])
        await until(lambda: {host["ip"] for host in nacos.instances(service)} == {"10.0.0.2", "10.0.0.3"})
        after = await edge.query(key)

    assert addresses(before) == {"10.0.0.1", "10.0.0.2"}
    assert addresses(after) == {"10.0.0.2", "10.0.0.3"}


@on_a_loop
async def test_a_missing_service_and_a_group_in_the_wrong_case_are_empty(  # trap 16
    nacos: RealNacos, provider: StartProvider, service: str
) -> None:
    provider(service, FIRST)
    edge = registry(nacos)
    async with running(edge):
        views = [await edge.query(key_of(f"{service}-nosuch")), await edge.query(key_of(service, "default_group"))]

    assert views == [ServiceView(()), ServiceView(())]


@on_a_loop
async def test_the_catalogue_lists_a_group_of_a_namespace_public_included(  # traps 13 and 14
    nacos: RealNacos, provider: StartProvider, service: str
) -> None:
    provider(service, FIRST)
    provider(f"{service}-b", FIRST, group="B")
    provider(f"{service}-dev", FIRST, namespace="dev")
    edge = registry(nacos, "public", "dev")
    async with running(edge) as listener:
        await listener.heard("connected dev")
        public = await edge.list_services("public", "DEFAULT_GROUP")
        group_b = await edge.list_services("public", "B")
        dev = await edge.list_services("dev", "DEFAULT_GROUP")

    assert service in public
    assert f"{service}-b" not in public
    assert group_b == (f"{service}-b",)
    assert dev == (f"{service}-dev",)


@on_a_loop
async def test_namespaces_and_groups_are_kept_apart(nacos: RealNacos, provider: StartProvider, service: str) -> None:
    keys = [key_of(service), key_of(service, "B"), key_of(service, namespace="dev")]
    for number, key in enumerate(keys):
        provider(service, {"ip": f"10.0.0.{number}", "port": 80}, group=key.group, namespace=key.namespace)
    edge = registry(nacos, "public", "dev")
    async with running(edge) as listener:
        await listener.heard("connected dev")
        views = [addresses(await edge.subscribe(key)) for key in keys]
        provider(service, {"ip": "10.0.0.9", "port": 80}, group="B")
        await listener.until(lambda: "10.0.0.9" in addresses(listener.latest(keys[1])), within_s=10)

    assert views == [{"10.0.0.0"}, {"10.0.0.1"}, {"10.0.0.2"}]
    assert "10.0.0.9" not in addresses(listener.latest(keys[0])) | addresses(listener.latest(keys[2]))


# ---- what it costs and leaves


@on_a_loop
async def test_every_request_is_counted_by_its_kind(nacos: RealNacos, service: str) -> None:
    edge, key = registry(nacos), key_of(service)
    async with running(edge):
        for _ in range(3):
            await edge.query(key)
        await edge.subscribe(key)
        await edge.unsubscribe(key)
        await edge.list_services("public", "DEFAULT_GROUP")
        requests = edge.status()["requests"]

    counted = {kind: requests[kind] for kind in ("query", "subscribe", "unsubscribe", "list", "login")}  # type: ignore[index]
    assert counted == {"query": 3, "subscribe": 1, "unsubscribe": 1, "list": 1, "login": 0}


@on_a_loop
async def test_a_connected_edge_writes_nothing_to_disk(  # trap 6
    nacos: RealNacos, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    edge, key = registry(nacos), key_of(service)
    async with running(edge) as listener:
        await edge.subscribe(key)
        nacos.http("POST", "/v1/ns/instance", serviceName=service, ip="127.0.0.7", port=1)
        await listener.until(lambda: addresses(listener.latest(key)) == {"127.0.0.7"})

    assert os.listdir(tmp_path) == []  # noqa: PTH208 - a blocking call either way


@on_a_loop
async def test_a_push_of_a_thousand_instances_comes_whole(nacos: RealNacos, service: str) -> None:
    thousand = [
        Instance(f"10.0.{number // 250}.{number % 250}", 80, metadata=(("zone", "a"),)) for number in range(1000)
    ]
    edge, key = registry(nacos), key_of(service)
    async with running(edge) as listener:
        await edge.subscribe(key)
        holding = asyncio.ensure_future(registrar(nacos, key, thousand, request_timeout_s=10.0).run())
        await listener.until(lambda: len(addresses(listener.latest(key))) == 1000, within_s=10)
        pushed = instances(listener.latest(key))
        holding.cancel()
        await asyncio.wait({holding})

    assert pushed == set(thousand)


# ---- losing Nacos


def registrar(nacos: RealNacos, key: ServiceKey, held: list[Instance], **settings: object) -> Registrar:
    made = Registrar(Settings(servers=(nacos.address,), **settings), key, held, structlog.get_logger())
    made.read_back_s = 1.0
    return made


@on_a_loop
async def test_after_kill_and_restart_of_nacos_all_begins_anew(  # traps 2, 9, 17
    start_nacos: StartNacos, service: str
) -> None:
    nacos = await asyncio.to_thread(start_nacos)
    edge, key = registry(nacos), key_of(service)
    holding = asyncio.ensure_future(registrar(nacos, key, [Instance("10.0.0.1", 80), Instance("10.0.0.2", 80)]).run())
    async with running(edge) as listener:
        await edge.subscribe(key)
        await listener.until(lambda: len(addresses(listener.latest(key))) == 2)
        await asyncio.to_thread(nacos.kill)
        await listener.heard("disconnected public", within_s=3)
        began = time.monotonic()
        with pytest.raises(RegistryDown):
            await edge.query(key)
        failed_in_s = time.monotonic() - began
        await asyncio.to_thread(nacos.start)
        await listener.heard("connected public", times=2, within_s=15)
        subscribers = nacos.subscribers(service)
        await edge.subscribe(key)
        await until(lambda: len(nacos.instances(service)) == 2, within_s=15)
        await listener.until(lambda: len(addresses(listener.latest(key))) == 2, within_s=15)
    holding.cancel()
    await asyncio.wait({holding})
    await until(lambda: nacos.instances(service) == [])
    nacos.kill()

    assert failed_in_s < 2.0
    assert subscribers == []
    assert listener.events == ["connected public", "disconnected public", "connected public"]


@on_a_loop
async def test_a_nacos_frozen_for_half_a_minute_is_noticed_and_found_again(
    nacos: RealNacos, service: str
) -> None:  # trap 2
    edge, key = registry(nacos, silence_s=5.0), key_of(service)
    async with running(edge) as listener:
        await edge.subscribe(key)
        nacos.freeze()
        frozen_at = time.monotonic()
        try:
            await listener.heard("disconnected public", within_s=20)
            noticed_in_s = time.monotonic() - frozen_at
            with pytest.raises(RegistryDown):
                await edge.query(key)
            await asyncio.sleep(max(0.0, frozen_at + 30 - time.monotonic()))
        finally:
            nacos.thaw()
        await listener.heard("connected public", times=2, within_s=20)
        await edge.subscribe(key)
        nacos.http("POST", "/v1/ns/instance", serviceName=service, ip="127.0.0.7", port=1)
        await listener.until(lambda: addresses(listener.latest(key)) == {"127.0.0.7"}, within_s=10)

    assert noticed_in_s < 13


# ---- a Nacos that wants a user, and pushes as Nacos does by default


@pytest.fixture(scope="module")
def nacos_with_auth(start_nacos: StartNacos) -> RealNacos:
    return start_nacos(auth=True, push_delay_ms=None)


@on_a_loop
async def test_a_push_comes_in_half_a_second_as_nacos_is_by_default(nacos_with_auth: RealNacos, service: str) -> None:
    user = {"username": "nacos", "password": "nacos"}
    edge, key = registry(nacos_with_auth, **user), key_of(service)
    made = registrar(nacos_with_auth, key, [Instance("10.0.0.1", 80)], **user)
    holding = asyncio.ensure_future(made.run())
    async with running(edge) as listener:
        await edge.subscribe(key)
        await listener.until(lambda: addresses(listener.latest(key)) == {"10.0.0.1"})
        began = time.monotonic()
        made.update(0, Instance("10.0.0.1", 80, 7.0))
        await listener.until(lambda: instances(listener.latest(key)) == {Instance("10.0.0.1", 80, 7.0)})
        took = time.monotonic() - began
    holding.cancel()
    await asyncio.wait({holding})

    assert 0.4 < took < 4.0


@on_a_loop
async def test_the_right_password_works(nacos_with_auth: RealNacos, service: str) -> None:
    edge, key = registry(nacos_with_auth, username="nacos", password="nacos"), key_of(service)
    async with running(edge):
        views = [await edge.subscribe(key), await edge.query(key)]
        await edge.list_services("public", "DEFAULT_GROUP")

    assert views == [ServiceView(()), ServiceView(())]
    assert edge.status()["requests"]["login"] == 1  # type: ignore[index]


@on_a_loop
async def test_the_wrong_password_is_refused_until_it_is_replaced(  # trap 11
    nacos_with_auth: RealNacos, service: str, capfd: pytest.CaptureFixture[str]
) -> None:
    edge, key = registry(nacos_with_auth, username="nacos", password="wrong"), key_of(service)
    async with running(edge, connected="") as listener:
        await listener.heard("disconnected public")
        with pytest.raises(RegistryRefused, match="refuses the user 'nacos'"):
            await edge.query(key)
        connected_before = edge.is_connected("public")
        edge.set_password("nacos")
        await listener.heard("connected public")
        view = await edge.query(key)
    errors = capfd.readouterr().err

    assert not connected_before
    assert view == ServiceView(())
    assert "never retrieved" not in errors


@on_a_loop
async def test_without_a_user_a_nacos_that_wants_one_refuses(nacos_with_auth: RealNacos, service: str) -> None:
    edge, key = registry(nacos_with_auth), key_of(service)
    async with running(edge):
        for call in (edge.query(key), edge.subscribe(key), edge.list_services("public", "DEFAULT_GROUP")):
            with pytest.raises(RegistryRefused, match="403"):
                await call


# ---- registering (trap 3)


@on_a_loop
async def test_several_instances_of_one_service_are_held_by_one_client(nacos: RealNacos, service: str) -> None:
    """S90."""
    three = [Instance(f"10.0.0.{number}", 80, float(number), cluster="BJ") for number in (1, 2, 3)]
    edge, key = registry(nacos), key_of(service)
    made = registrar(nacos, key, three)
    async with running(edge) as listener:
        await edge.subscribe(key)
        task = asyncio.ensure_future(made.run())
        await listener.until(lambda: instances(listener.latest(key)) == set(three))
        made.set_healthy(1, healthy=False)
        await listener.until(lambda: addresses(listener.latest(key)) == {"10.0.0.1", "10.0.0.3"})
        made.update(0, Instance("10.0.0.1", 80, 9.0, cluster="BJ"))
        await listener.until(lambda: Instance("10.0.0.1", 80, 9.0, cluster="BJ") in instances(listener.latest(key)))
        task.cancel()
        await listener.until(lambda: listener.latest(key) == ServiceView(()))
        await asyncio.wait({task})

    assert len(made.status()["clients"]) == 1  # type: ignore[arg-type]


@on_a_loop
async def test_a_service_of_persistent_instances_refuses_ours_in_words(nacos: RealNacos, service: str) -> None:
    nacos.register(service, "127.0.0.6", 1)
    with pytest.raises(RegistryRefused, match="persistent"):
        await asyncio.wait_for(registrar(nacos, key_of(service), [Instance("10.0.0.1", 80)]).run(), 10)
    nacos.deregister(service, "127.0.0.6", 1)
