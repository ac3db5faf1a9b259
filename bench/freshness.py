"""How fresh an answer is: from the registry's push to the first changed answer, and from a registration to its first answer.

Starts a real Nacos (deploy/nacos) and the real program, changes an instance's weight TIMES times over Nacos's HTTP API,
and hears the same pushes with a client of its own: the time of that client's callback is the start, the first DNS answer
with the new weight the end. Usage: ``python bench/freshness.py [TIMES] [PUSH_DELAY_MS]`` (100, 0; "default" is Nacos's own).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import structlog

from nacosdns.core.dnsname import text_name
from nacosdns.core.model import ServiceKey
from nacosdns.edge.nacos import NacosRegistry
from nacosdns.edge.nacos_http import Settings

if TYPE_CHECKING:
    from nacosdns.core.model import ServiceView

DEPLOY = Path(__file__).parents[1] / "deploy" / "nacos"
KEY = ServiceKey("public", "DEFAULT_GROUP", "fresh")
ADDRESS = "127.0.0.9"  # a persistent instance: the server itself connects to it
DEADLINE_S = 10.0


class Ear:
    """Hears pushes; ``at`` is when the list with each weight arrived."""

    def __init__(self) -> None:
        self.at: dict[float, float] = {}
        self.up = asyncio.Event()

    def connected(self, namespace: str) -> None:
        del namespace
        self.up.set()

    def disconnected(self, namespace: str) -> None:
        del namespace
        self.up.clear()

    def pushed(self, key: ServiceKey, view: ServiceView) -> None:
        del key
        for instance in view.instances:
            self.at.setdefault(instance.weight, time.perf_counter())


def call(port: int, method: str, service: str, **more: object) -> None:
    query = urlencode({"serviceName": service, "ip": ADDRESS, "port": 80, "ephemeral": "false", **more})
    url = f"http://127.0.0.1:{port}/nacos/v1/ns/instance?{query}"
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as answer:
        answer.read()


def question(name: str, kind: int) -> bytes:
    return b"\0\1\1\0\0\1\0\0\0\0\0\0" + text_name(name) + kind.to_bytes(2, "big") + b"\0\1"


class Asker:
    """Asks the bridge again and again until the answer is what it should be; the time of that answer."""

    def __init__(self, port: int) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.connect(("127.0.0.1", port))
        self._sock.settimeout(3.0)

    def weight(self, name: str) -> int:
        self._sock.send(question(name, 33))
        reply = self._sock.recv(4096)
        if not int.from_bytes(reply[6:8], "big"):
            return 0
        rdata = len(question(name, 33)) + 12
        return int.from_bytes(reply[rdata + 2 : rdata + 4], "big")

    def until(self, name: str, weight: int) -> float:
        ends = time.perf_counter() + DEADLINE_S
        while self.weight(name) != weight:
            if time.perf_counter() > ends:
                raise SystemExit(f"{name} never had weight {weight}")
        return time.perf_counter()


async def measure(nacos_port: int, dns_port: int, times: int) -> tuple[list[float], list[float]]:
    ear = Ear()
    registry = NacosRegistry(
        Settings(servers=(f"127.0.0.1:{nacos_port}",)), ["public"], structlog.wrap_logger(None, processors=[_drop])
    )
    listening = asyncio.create_task(registry.run(ear))
    await ear.up.wait()
    asker = Asker(dns_port)
    call(nacos_port, "POST", "fresh", weight=1)
    await asyncio.to_thread(asker.until, "fresh.nacos", 1)
    await registry.subscribe(KEY)
    await asyncio.sleep(2)
    callback_to_answer = []
    for weight in range(2, times + 2):
        ended = asyncio.create_task(asyncio.to_thread(asker.until, "fresh.nacos", weight))
        await asyncio.to_thread(call, nacos_port, "PUT", "fresh", weight=weight)
        answered = await ended
        callback_to_answer.append(answered - ear.at.get(weight, answered))
    registered_to_answer = []
    for number in range(min(times, 100)):
        name = f"fresh-{number}"
        asker.weight(f"{name}.nacos")
        await asyncio.to_thread(call, nacos_port, "POST", name, weight=7)
        began = time.perf_counter()
        registered_to_answer.append(await asyncio.to_thread(asker.until, f"{name}.nacos", 7) - began)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    return callback_to_answer, registered_to_answer


def _drop(_logger: object, _name: str, _event: dict[str, object]) -> str:
    raise structlog.DropEvent


def line(words: str, seconds: list[float]) -> str:
    ordered = sorted(second * 1000 for second in seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"{words:<48} n={len(ordered):<4} median {statistics.median(ordered):8.1f} ms   p99 {p99:8.1f} ms"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    delay = sys.argv[2] if len(sys.argv) > 2 else "0"
    with tempfile.TemporaryDirectory() as place:
        nacos_port, dns_port = random.randrange(12_000, 30_000), free_port()
        environment = {**os.environ, "NACOS_DATA": f"{place}/nacos"}
        if delay != "default":
            environment["NACOS_PUSH_DELAY_MS"] = delay
        subprocess.run(
            ["bash", DEPLOY / "start-nacos.sh", str(nacos_port)], env=environment, check=True, capture_output=True
        )
        config = Path(place, "bridge.toml")
        config.write_text(
            f'[server]\nlisten = ["127.0.0.1:{dns_port}"]\nuser = ""\n[nacos]\nservers = ["127.0.0.1:{nacos_port}"]\n'
            f'[cache]\ndir = "{place}/state"\n[web]\nlisten = ""\n[log]\nlevel = "error"\n'
        )
        bridge = subprocess.Popen([sys.executable, "-m", "nacosdns.cli", "run", "-c", config])
        try:
            time.sleep(4)
            changed, registered = asyncio.run(measure(nacos_port, dns_port, times))
        finally:
            bridge.send_signal(signal.SIGTERM)
            bridge.wait(10)
            subprocess.run(["bash", DEPLOY / "stop-nacos.sh", f"{place}/nacos", "-9"], check=False)
    print(f"Nacos push delay: {delay} ms")
    print(line("push heard by the SDK -> first changed answer", changed))
    print(line("registered, asked in vain before -> first answer", registered))


if __name__ == "__main__":
    main()
