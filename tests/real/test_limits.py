"""Much of everything, and nothing at all: a thousand services, floods, kills under load, idleness."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.asking import addresses, cli, until_says
from fakes.checker import check
from fakes.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fakes.checker import Report
    from fakes.real_nacos import Provider, RealNacos
    from fakes.running import Bridge

    StartBridge = Callable[..., Bridge]
    StartProvider = Callable[..., Provider]

pytestmark = pytest.mark.timeout(300)

TESTS = Path(__file__).parents[1]


def test_a_thousand_services_are_answered(nacos: RealNacos, bridge: StartBridge, tmp_path: Path) -> None:
    many = subprocess.Popen(
        [sys.executable, "-m", "fakes.many", nacos.address, "1000", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    try:
        assert many.stdout is not None
        assert many.stdout.readline() == "ready\n"
        running = bridge(nacos)
        for number in range(1000):
            expected = f"10.1.{number // 250}.{number % 250 + 1}"
            assert addresses(running.port, f"many-{number}.nacos") == [expected]
        until(lambda: cli(running, "status")["keeper"]["subscribed"] == 1000, 30, "1,000 subscriptions")
    finally:
        many.kill()
        many.communicate()


def test_a_keeper_killed_under_load_loses_nothing_and_a_front_loses_at_most_its_batch(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    provider(service, {"ip": "10.0.0.1", "port": 80})
    running = bridge(nacos)
    until_says(running.port, f"{service}.nacos", {"10.0.0.1"})

    async def kill(role: str) -> Report:
        task = asyncio.create_task(check(running.port, [f"{service}.nacos"], {"10.0.0.1"}, rate=1000, seconds=6))
        await asyncio.sleep(2)
        pid = next(
            child["pid"]
            for child in cli(running, "status")["supervisor"]["children"]
            if child["role"] == role and child.get("active", True)
        )
        os.kill(pid, signal.SIGKILL)
        return await task

    keeper = asyncio.run(kill("keeper"))
    until(lambda: "error" not in cli(running, "status")["keeper"], 15, "a new keeper")
    front = asyncio.run(kill("front"))

    assert (keeper.lost, keeper.wrong, keeper.empty, keeper.failed) == (0, 0, 0, 0), keeper.samples
    assert front.lost <= 64
    assert (front.wrong, front.empty, front.failed) == (0, 0, 0), front.samples


def test_unknown_names_in_flood_leave_no_subscription_and_a_bounded_number_of_calls(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    """S50: 100,000 random names inside and outside the zone, random groups and namespaces among them."""
    provider(service, {"ip": "10.0.0.1", "port": 80})
    running = bridge(nacos, text='[forward]\nupstreams = ["127.0.0.1:9"]\n')
    until_says(running.port, f"{service}.nacos", {"10.0.0.1"})
    before = cli(running, "status")["keeper"]["registry"]
    began = time.monotonic()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", running.port))
    sock.setblocking(False)
    forms = ("{0}.nacos", "{0}.g{0}.group.nacos", "{0}.n{0}.ns.nacos", "{0}.ext.test", "{0}.c{0}.cluster.nacos")
    sizes: list[int] = []
    for number in range(100_000):
        if number in {30_000, 99_999}:
            sizes.append(sum(map(resident_kb, running.children())))
        name = forms[number % len(forms)].format(f"rnd{number}")
        wire = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0\0\1\0\1"
        try:
            sock.send(number.to_bytes(4, "big")[2:] + b"\1\0\0\1\0\0\0\0\0\0" + wire)
        except (BlockingIOError, ConnectionRefusedError):
            time.sleep(0.01)
        if number % 50 == 0:
            time.sleep(max(0.0, began + number / 3000 - time.monotonic()))
            while _drained(sock):
                pass
    took = time.monotonic() - began
    sock.close()
    until_says(running.port, f"{service}.nacos", {"10.0.0.1"}, seconds=30)
    after = cli(running, "status")["keeper"]["registry"]
    calls = sum(after["requests"].values()) - sum(before["requests"].values())
    clients = json.loads(nacos.http("GET", "/v2/ns/client/list"))["data"]
    subscribed = set()
    for client in clients:
        listed = json.loads(nacos.http("GET", "/v2/ns/client/subscribe/list", clientId=client))["data"]
        subscribed |= {item["serviceName"] for item in listed}

    assert not {name for name in subscribed if name.startswith("rnd")}
    assert sizes[1] - sizes[0] < 20_000, sizes
    assert calls <= 20 * 3 * (took + 5) + 20
    assert after["requests"]["connect"] == before["requests"]["connect"]


def resident_kb(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def _drained(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(4096))
    except (BlockingIOError, ConnectionRefusedError):
        return False


def test_an_idle_agent_asks_nacos_less_than_once_in_two_seconds(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    provider(service, {"ip": "10.0.0.1", "port": 80})
    running = bridge(nacos)
    until_says(running.port, f"{service}.nacos", {"10.0.0.1"})
    time.sleep(2)
    before = sum(cli(running, "status")["keeper"]["registry"]["requests"].values())
    time.sleep(40)
    after = sum(cli(running, "status")["keeper"]["registry"]["requests"].values())

    assert after - before <= 20
