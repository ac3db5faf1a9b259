"""Each generation of Nacos by the fake of its wire; servers of an account that go; instances of one connection.

The real 2.x is asked the same in tests/real. What 1.x and 3.2 cannot do for us they say by name (test_nacos_edge).
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import structlog

from fakes.loop import on_a_loop, until
from fakes.nacos_server import FakeNacos
from fakes.registry_listener import running
from nacosdns.core.model import Instance, ServiceKey, ServiceView
from nacosdns.edge.nacos import NacosRegistry
from nacosdns.edge.nacos_http import Settings
from nacosdns.edge.registrar import Registrar

if TYPE_CHECKING:
    from fakes.nacos_server import Body

ORDERS = ServiceKey("public", "DEFAULT_GROUP", "orders")
KEY = ("public", "DEFAULT_GROUP", "orders")
QUICK = {"connect_timeout_s": 1.0, "request_timeout_s": 3.0}
THREE = (Instance("10.0.0.1", 80), Instance("10.0.0.2", 80), Instance("10.0.0.3", 80))


class _Server(FakeNacos):
    """One that can be a key."""

    __hash__ = object.__hash__


def host(address: str) -> dict[str, object]:
    return {"ip": address, "port": 80, "weight": 1.0, "healthy": True, "enabled": True, "clusterName": "DEFAULT"}


def registry(*servers: str, **settings: object) -> NacosRegistry:
    made = Settings(servers=servers, silence_s=10.0, **QUICK, **settings)  # type: ignore[arg-type]
    return NacosRegistry(made, ("public",), structlog.get_logger(), rng=random.Random(1))


def registrar(nacos: FakeNacos) -> Registrar:
    made = Registrar(Settings(servers=(nacos.address,), **QUICK), ORDERS, THREE, structlog.get_logger())  # type: ignore[arg-type]
    made.read_back_s = 0.2
    return made


@pytest.mark.parametrize(
    ("version", "negotiates"),
    [("2.0.4", False), ("2.3.2", False), ("2.5.1", False), ("3.0.3", True), ("3.1.1", True), ("3.2.0", True)],
)
@on_a_loop
async def test_a_service_is_found_followed_and_changed_whatever_the_generation(version: str, negotiates: bool) -> None:
    """S41: by the wire of 2.x and of 3.x; which path is in use is told."""
    async with FakeNacos(version=version, negotiates=negotiates).running() as nacos:
        nacos.services[KEY] = [host("10.0.0.1")]
        edge = registry(nacos.address)
        async with running(edge) as listener:
            found = await edge.query(ORDERS)
            followed = await edge.subscribe(ORDERS)
            await nacos.push("orders", [host("10.0.0.2")])
            await listener.until(lambda: listener.latest(ORDERS) is not None)
            await until(lambda: edge.status()["namespaces"]["public"]["version"] == version)  # type: ignore[index]
            space = edge.status()["namespaces"]["public"]  # type: ignore[index]

    assert found == followed == ServiceView((Instance("10.0.0.1", 80),))
    assert listener.latest(ORDERS) == ServiceView((Instance("10.0.0.2", 80),))
    assert space["generation"] == version[0]


@on_a_loop
async def test_when_the_server_of_the_login_is_gone_the_other_one_is_logged_into() -> None:
    """S38: the login goes to a server of today that answers, not to the one of the first login."""
    users = {"nacos": "right"}
    ends = {server: AsyncExitStack() for server in (_Server(users=users), _Server(users=users))}
    for server, end in ends.items():
        await end.enter_async_context(server.running())
    edge = registry(*(server.address for server in ends), username="nacos", password="right")
    async with running(edge) as listener:
        goes, stays = sorted(ends, key=lambda server: not server.logins)
        stays.services[KEY] = [host("10.0.0.1")]
        await ends[goes].aclose()
        edge._access.account._issued_at -= 60
        await listener.heard("connected public", times=2)
        view = await edge.query(ORDERS)
    await ends[stays].aclose()

    assert view == ServiceView((Instance("10.0.0.1", 80),))
    assert (len(goes.logins), len(stays.logins)) == (1, 1)


@on_a_loop
async def test_three_instances_of_one_connection_are_all_there_and_again_after_a_cut() -> None:
    """S90: the second and third do not replace the first; all come back after the connection was lost."""
    async with FakeNacos().running() as nacos:
        made = registrar(nacos)
        task = asyncio.ensure_future(made.run())
        wanted = [one.address for one in THREE]
        await until(lambda: sorted(one["ip"] for one in nacos.hosts(KEY)) == wanted)
        nacos.end_streams()
        lost = nacos.hosts(KEY)
        await until(lambda: sorted(one["ip"] for one in nacos.hosts(KEY)) == wanted)
        task.cancel()
        await asyncio.wait({task})

    assert lost == []
    assert nacos.setups == 2


@dataclass
class _ShortLived(FakeNacos):
    """A server whose tokens live so long."""

    life_s: int = 0

    def _login(self, form: Body) -> tuple[int, bytes]:
        status, body = super()._login(form)
        return status, body.replace(b"18000", str(self.life_s).encode())


@pytest.mark.parametrize("life_s", [5, 1, 0, -1])
@on_a_loop
async def test_short_lived_tokens_cost_no_login_for_each_call(life_s: int) -> None:
    """S38: whatever life a server gives its tokens."""
    async with _ShortLived(users={"nacos": "right"}, life_s=life_s).running() as nacos:
        edge = registry(nacos.address, username="nacos", password="right")
        async with running(edge):
            for _ in range(50):
                await edge.query(ORDERS)

    assert 1 <= len(nacos.logins) <= 3
