"""What an operator is told by status, doctor, ask and the log while Nacos answers, but not with what is meant."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes import host_tree
from fakes.loop import on_a_loop
from fakes.nacos_server import FakeNacos, free_port
from fakes.running import Bridge, until
from nacosdns import doctoring
from nacosdns.config import Cache, Config, Forward, Nacos
from nacosdns.core import doctor
from nacosdns.edge.hostfacts import Tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nacosdns.core.finding import Finding

HOST = {"ip": "127.0.0.1", "port": 80, "weight": 1.0, "healthy": True, "enabled": True, "clusterName": "DEFAULT"}


class Told:
    """The commands of a bridge that runs against a Nacos of this process."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge

    def command(self, *words: str) -> str:
        command = [sys.executable, "-m", "nacosdns.cli", *words, "-c", str(self.bridge.file)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout

    def head(self) -> str:
        return self.command("status").partition("\n\n")[0]

    def findings(self) -> dict[str, dict[str, str]]:
        return {row["id"]: row for row in json.loads(self.command("doctor", "--json"))["findings"]}


async def told(tmp_path: Path, nacos: FakeNacos, look: Callable[[Told], None], more: str = "", top: str = "") -> None:
    """Runs a bridge against this Nacos and looks, beside its loop."""

    def run() -> None:
        text = f'{more}[nacos]\nservers = ["{nacos.address}"]\n[forward]\nupstreams = []\n'
        bridge = Bridge(tmp_path, text=text, modules={}, top=top).up()
        try:
            look(Told(bridge))
        finally:
            bridge.close()

    async with nacos.running():
        await asyncio.to_thread(run)


@on_a_loop
async def test_a_nacos_that_wants_a_login_is_not_green_anywhere(tmp_path: Path) -> None:
    def look(told: Told) -> None:
        until(lambda: "NACOS REFUSES: 403 token invalid! (no nacos.username is set)" in told.head())
        login = told.findings()["nacos.login"]

        assert login["severity"] == "error"
        assert "403 token invalid!" in login["seen"]
        assert "nacos.username" in login["todo"]
        assert "Nacos told nothing (" in told.command("ask", "unknown.nacos")
        assert "in time" not in told.command("ask", "unknown.nacos")
        assert len(told.bridge.said("registry.forbidden", "no nacos.username is set")) == 1

    await told(tmp_path, FakeNacos(users={"dns": "right"}), look)


@on_a_loop
async def test_a_namespace_that_holds_nothing_is_told_and_so_is_where_a_missing_name_was_looked_for(
    tmp_path: Path,
) -> None:
    def look(told: Told) -> None:
        until(lambda: "nacos.namespace" in told.findings())
        seen = told.findings()["nacos.namespace"]["seen"]

        assert seen.startswith("namespace prod-typo holds no service at all in group DEFAULT_GROUP")
        assert "in namespace prod-typo, group DEFAULT_GROUP: none is" in told.command("ask", "orders.nacos")
        empty = "lists no service at all in namespace prod-typo (group DEFAULT_GROUP)"
        assert f"NACOS EMPTY: it {empty}" in told.head()
        assert f"Nacos {empty}" in told.command("ask", "orders.nacos")

    nacos = FakeNacos(services={("prod", "DEFAULT_GROUP", "orders"): [HOST]})
    await told(tmp_path, nacos, look, '[[zone]]\nname = "nacos"\nnamespace = "prod-typo"\n')


@on_a_loop
async def test_services_without_a_healthy_instance_are_told(tmp_path: Path) -> None:
    def look(told: Told) -> None:
        told.command("ask", "orders.nacos")
        until(lambda: "1 service without a healthy instance" in told.head())
        found = told.findings()

        assert "orders (none healthy: all of them by policy)" in found["services.unhealthy"]["seen"]
        assert "nacos.namespace" not in found
        assert " ms" in found["nacos.reachable"]["seen"]

    await told(tmp_path, FakeNacos(services={("public", "DEFAULT_GROUP", "orders"): [HOST | {"healthy": False}]}), look)


@on_a_loop
async def test_a_static_file_that_is_refused_while_running_is_told_until_it_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "static.toml"
    good = '[[static]]\nname = "db"\ninstances = [{ ip = "10.0.0.9", port = 1 }]\n'
    file.write_text(good)

    def look(told: Told) -> None:
        for spoil in (lambda: file.write_text("junk ="), file.unlink):
            spoil()
            until(lambda: f"STATIC FILE REFUSED: {file}" in told.head())

            assert "10.0.0.9" in told.command("ask", "db.nacos")

            file.write_text(good)
            until(lambda: "STATIC FILE" not in told.head())

    nacos = FakeNacos(services={("public", "DEFAULT_GROUP", "orders"): [HOST]})
    await told(tmp_path, nacos, look, top=f'static_file = "{file}"\n')


# Who is asked by doctor itself


async def findings(root: Path, section: Nacos, password: str = "") -> dict[str, Finding]:
    config = Config(nacos=section, cache=Cache(dir="/state"), forward=Forward(upstreams=()))
    facts = await doctoring.examine(
        config, password, Tree(str(host_tree.make(root, {}))), Path("/nowhere/control.sock")
    )
    return {one.id: one for one in doctor.judge(facts, doctoring.setting(config))}


@on_a_loop
async def test_a_password_file_that_is_gone_is_not_called_a_refused_login(tmp_path: Path) -> None:
    async with FakeNacos(users={"dns": "right"}).running() as nacos:
        section = Nacos(servers=(nacos.address,), username="dns", password_file="/etc/nacosdns/password")
        found = await findings(tmp_path, section)

    assert not nacos.logins
    assert found["nacos.login"].severity.value == "warning"
    assert "no password can be read" in found["nacos.login"].seen
    assert "secret.file" in found["nacos.login"].todo
    assert found["secret.file"].severity.value == "error"


@pytest.mark.parametrize("mute", ["http", "grpc"])
@on_a_loop
async def test_a_slow_nacos_is_called_slow_with_its_time_and_no_port_of_it_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mute: str
) -> None:
    monkeypatch.setattr(doctoring, "NACOS_S", 1.6)
    answers = {
        "http": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        "grpc": b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    }

    def speaking(way: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if way == mute:
                await reader.read()  # until whoever asks gives up
            else:
                await asyncio.sleep(0.6)
                writer.write(answers[way])
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

        return speak

    port = free_port(1000)
    web = await asyncio.start_server(speaking("http"), "127.0.0.1", port)
    rpc = await asyncio.start_server(speaking("grpc"), "127.0.0.1", port + 1000)
    async with web, rpc:
        found = await findings(tmp_path, Nacos(servers=(f"127.0.0.1:{port}",)))

    assert not {"nacos.http", "nacos.grpc", "nacos.reachable"} & found.keys()
    assert found["nacos.slow"].severity.value == "warning"
    assert re.search(rf"took [01]\.\d s to answer by {'gRPC' if mute == 'http' else 'HTTP'}", found["nacos.slow"].seen)
