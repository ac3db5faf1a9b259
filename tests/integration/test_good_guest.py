"""What the bridge takes of its host, whom it answers, and what it tells: floods, strangers, secrets, the control socket."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fakes.hosts import Hosts, can_be_made
from fakes.nacos_server import FakeNacos
from fakes.running import TWO_ORDERS, exchange, packet, until
from nacosdns.core import frames
from nacosdns.edge import admin
from nacosdns.errors import ControlError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fakes.running import Bridge

ROOT_ONLY = pytest.mark.skipif(not can_be_made(), reason="needs root")
SECRET = "hunter2-and-a-half"  # noqa: S105  # of this test


# One client floods; tests/unit/test_shares.py has more of it


def test_a_client_that_opens_connections_without_end_closes_nobody_elses(bridge):
    running = bridge(text=f"tcp_connections = 20\n{TWO_ORDERS}", modules={}).up()
    place = ("127.0.0.1", running.port)
    quiet = socket.create_connection(place, source_address=("127.0.0.3", 0), timeout=5)
    flood = [socket.create_connection(place, source_address=("127.0.0.2", 0), timeout=5) for _ in range(100)]
    question = packet("orders.nacos")
    quiet.sendall(len(question).to_bytes(2, "big") + question)
    size = int.from_bytes(quiet.recv(2), "big")

    assert size > len(question)

    for sock in (quiet, *flood):
        sock.close()


# Strangers


STRANGER = "203.0.113.9"
ASK = """
import sys, dns.message, dns.query, dns.rcode
for name in ("orders.nacos", "www.example.com", "canary.nacosdns.invalid"):
    for send in (dns.query.udp, dns.query.tcp):
        reply = send(dns.message.make_query(name, "A"), "10.77.0.1", timeout=5, source=sys.argv[1])
        print(dns.rcode.to_text(reply.rcode()), len(reply.answer))
"""


@pytest.fixture
def far_away() -> Iterator[tuple[object, object]]:
    """A host for the bridge, and one that has an address of the world beside its own."""
    with Hosts() as hosts:
        ours, theirs = hosts.add("10.77.0.1"), hosts.add("10.77.0.2")
        theirs.run("ip", "addr", "add", f"{STRANGER}/32", "dev", "lo")
        ours.run("ip", "route", "add", STRANGER, "via", "10.77.0.2")
        yield ours, theirs


@ROOT_ONLY
def test_it_is_no_open_resolver_unless_it_is_told_so_and_then_it_says_so(bridge, far_away):
    ours, theirs = far_away
    listen = '"0.0.0.0:53"'
    running = bridge(text=TWO_ORDERS, modules={}, port=53, listen=listen, before=ours.inside).up()
    as_neighbour = theirs.run(sys.executable, "-c", ASK, "10.77.0.2").split()
    as_stranger = theirs.run(sys.executable, "-c", ASK, STRANGER).split()
    warned_before = running.said("access.open")
    running.write(f'allow = ["all"]\n{TWO_ORDERS}', listen)
    running.signal(signal.SIGHUP)
    running.wait_for("event=reloaded")
    until(lambda: theirs.run(sys.executable, "-c", ASK, STRANGER).split()[0] == "NOERROR", 10, "an answer")

    assert as_neighbour[:4] == ["NOERROR", "1"] * 2
    assert as_stranger == ["REFUSED", "0"] * 6
    assert warned_before == []
    assert running.said("access.open", "level=warning", "allow=all")


# Secrets


def environments(pids: list[int]) -> str:
    return "\n".join(
        Path(f"/proc/{pid}/{what}").read_bytes().decode(errors="replace")
        for pid in pids
        for what in ("cmdline", "environ")
    )


def command(running: Bridge, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "nacosdns.cli", *words, "-c", str(running.file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.stdout + done.stderr


def everything_said(running: Bridge) -> str:
    """Whatever anybody can read of a running bridge."""
    url = f"http://127.0.0.1:{running.web_port}"
    pages = [urllib.request.urlopen(url + path, timeout=5).read().decode() for path in ("/metrics", "/healthz")]
    verbs = (["status"], ["services"], ["ask", "orders.nacos"], ["cache", "list"], ["doctor"], ["plugins"], ["check"])
    told = [command(running, *verb, "--json") for verb in verbs]
    kept = [path.read_bytes().decode(errors="replace") for path in running.directory.iterdir() if path.is_file()]
    pids = [running.process.pid, *running.children()]
    return "\n".join([*running.lines, *pages, *told, *kept, environments(pids)])


@pytest.mark.parametrize("password", [SECRET, f"wrong-{SECRET}"], ids=["right", "wrong"])
def test_a_password_and_what_it_buys_are_told_to_nobody(bridge, tmp_path, password):
    file = tmp_path / "password"
    file.write_text(f"{password}\n", encoding="utf-8")
    file.chmod(0o600)

    async def scenario() -> str:
        async with FakeNacos(users={"dns": SECRET}).running() as nacos:
            text = f'[nacos]\nservers = ["{nacos.address}"]\nusername = "dns"\npassword_file = "{file}"\n[log]\nlevel = "debug"\n'
            running = await asyncio.to_thread(lambda: bridge(text=text, modules={}).up())
            await asyncio.to_thread(until, lambda: nacos.logins, 20, "a login")
            await asyncio.to_thread(exchange, packet("orders.nacos"), running.port)
            running.signal(signal.SIGUSR2)
            await asyncio.to_thread(running.wait_for, "upgrade.done", seconds=60)
            await asyncio.to_thread(until, lambda: len(nacos.logins) > 1, 20, "a login of the new keeper")
            said = await asyncio.to_thread(everything_said, running)
            assert all(form["password"] == password for form in nacos.logins)
            return said

    said = asyncio.run(scenario())

    assert "event=upgrade.done" in said
    assert "nacosdns_queries_total" in said
    assert SECRET not in said
    assert not re.search(r"\btoken-\d", said)


# The control socket


def request(running: Bridge, body: bytes) -> frames.Told:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        sock.connect(str(running.directory / "control.sock"))
        sock.sendall(len(body).to_bytes(frames.LENGTH_BYTES, "big") + body)
        with sock.makefile("rb") as file:
            told = frames.decode_channel(file.read(int.from_bytes(file.read(frames.LENGTH_BYTES), "big")))
    assert isinstance(told, frames.Told)
    return told


def test_a_command_of_another_version_is_told_that_it_is_one(bridge):
    running = bridge().up()
    told = request(running, msgspec.msgpack.encode(["ask", 1, "status", {}, frames.CONTROL_VERSION + 1]))

    assert f"version {frames.CONTROL_VERSION} of the control protocol" in told.error
    assert request(running, frames.encode(frames.Ask(1, "status"))).error == ""


def test_a_bridge_that_does_not_understand_a_command_at_all_may_be_of_another_release(tmp_path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "control.sock"))
        sock.listen()

        def refuse() -> None:
            sock.accept()[0].close()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(refuse)
            with pytest.raises(ControlError, match="of another release"):
                admin.call(tmp_path / "control.sock", "status", {})


KNOCK = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


@ROOT_ONLY
def test_the_control_socket_is_for_its_group_only(bridge):
    group = grp.getgrgid(65534).gr_name
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        running = bridge(text=f'control_group = "{group}"', directory=Path(directory) / "state").up()
        place = str(running.directory / "control.sock")

        def may(uid: int, gid: int) -> bool:
            rights = ("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups")
            python = f"/usr/bin/python3.{sys.version_info.minor}"
            done = subprocess.run([*rights, python, "-c", KNOCK, place], check=False, capture_output=True, text=True)
            assert done.returncode == 0 or "PermissionError" in done.stderr, done.stderr
            return done.returncode == 0

        if not os.path.exists(f"/usr/bin/python3.{sys.version_info.minor}"):  # noqa: PTH110
            pytest.skip("no Python of this version that every user may run")

        assert Path(place).stat().st_mode & 0o777 == 0o660
        assert may(10053, 65534)
        assert not may(10053, 10053)


def test_many_who_ask_the_control_socket_and_say_nothing_stop_nobody(bridge):
    running = bridge(text=TWO_ORDERS, modules={}).up()
    silent = []
    for _ in range(10):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(running.directory / "control.sock"))
        silent.append(sock)
    status = json.loads(command(running, "status", "--json"))

    assert len(status["supervisor"]["children"]) == 4

    for sock in silent:
        sock.close()
