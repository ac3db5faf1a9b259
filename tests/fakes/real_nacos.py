"""A real Nacos server as a process that a test starts, asks over HTTP, freezes and kills; and providers for it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from fakes.seen import lives

if TYPE_CHECKING:
    from collections.abc import Iterable

START = Path(__file__).parents[2] / "deploy" / "nacos" / "start-nacos.sh"
PROVIDER = Path(__file__).with_name("provider.py")


def missing_tools() -> list[str]:
    """What a real Nacos needs and this machine lacks."""
    return [tool for tool in ("java", "mvn", "curl", "bash") if shutil.which(tool) is None]


def free_nacos_port() -> int:
    """A port P with P+1000, P+1001 and P-1000 free, below the range that the kernel gives to clients."""
    while True:
        port = random.randrange(12_000, 30_000)
        if all(_is_free(port + offset) for offset in (0, 1000, 1001, -1000)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


@dataclass
class RealNacos:
    """One server. ``push_delay_ms`` None is the server's own half second."""

    data: Path
    auth: bool = False
    push_delay_ms: int | None = 0
    version: str = "2.3.2"
    port: int = field(default_factory=free_nacos_port)
    pid: int = 0
    _token: str = ""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Starts it, with the data of its last life, and waits until it is ready."""
        environment = {**os.environ, "NACOS_DATA": str(self.data), "NACOS_VERSION": self.version}
        environment["NACOS_AUTH"] = "on" if self.auth else "off"
        if self.push_delay_ms is not None:
            environment["NACOS_PUSH_DELAY_MS"] = str(self.push_delay_ms)
        command = ["bash", str(START), str(self.port)]
        complaint = ""
        for _ in range(2):  # on a busy machine a first start can time out in its database
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
            if done.returncode == 0:
                self.pid = int(done.stdout.split()[-1])
                return self
            complaint = done.stderr[-3000:]
        raise RuntimeError(f"Nacos did not start: {complaint}")

    def kill(self) -> None:
        """Kill -9, and waits until it is gone."""
        if self.pid and lives(self.pid):
            os.kill(self.pid, signal.SIGKILL)
            while lives(self.pid):
                time.sleep(0.02)
        self.pid = 0
        (self.data / "pid").unlink(missing_ok=True)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    # ---- HTTP

    def http(self, method: str, path: str, **query: object) -> str:
        """One request below /nacos; the body, or HTTPError."""
        if self.auth and not self._token and "login" not in path:
            login = self.http("POST", "/v1/auth/users/login", username="nacos", password="nacos")
            self._token = json.loads(login)["accessToken"]
        if self._token:
            query["accessToken"] = self._token
        url = f"http://{self.address}/nacos{path}?{urlencode(query)}"
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as answer:
            return str(answer.read().decode())

    def subscribers(
        self, service: str, group: str = "DEFAULT_GROUP", namespace: str = "public"
    ) -> list[dict[str, Any]]:
        """Who subscribes to a service, as the server tells."""
        query = {"serviceName": service, "groupName": group, "namespaceId": namespace}
        found: list[dict[str, Any]] = json.loads(self.http("GET", "/v1/ns/service/subscribers", **query))["subscribers"]
        return found

    def instances(self, service: str, group: str = "DEFAULT_GROUP", namespace: str = "public") -> list[dict[str, Any]]:
        """The instances of a service, as the server tells over HTTP."""
        query = {"serviceName": service, "groupName": group, "namespaceId": namespace}
        hosts: list[dict[str, Any]] = json.loads(self.http("GET", "/v1/ns/instance/list", **query))["hosts"]
        return hosts

    def register(self, service: str, ip: str, port: int, **more: object) -> None:
        """Registers a persistent instance. The server opens connections to it: 127.x addresses only."""
        if not ip.startswith("127."):
            raise ValueError(f"{ip} is not on this machine")
        self.http("POST", "/v1/ns/instance", serviceName=service, ip=ip, port=port, ephemeral="false", **more)

    def change(self, service: str, ip: str, port: int, *, ephemeral: bool, **more: object) -> None:
        """Sets weight, enabled or metadata of an instance, as the console does."""
        kind = str(ephemeral).lower()
        self.http("PUT", "/v1/ns/instance", serviceName=service, ip=ip, port=port, ephemeral=kind, **more)

    def deregister(self, service: str, ip: str, port: int, **more: object) -> None:
        """Removes a persistent instance."""
        self.http("DELETE", "/v1/ns/instance", serviceName=service, ip=ip, port=port, ephemeral="false", **more)


@dataclass
class Provider:
    """A program that holds instances of one service over gRPC."""

    nacos: RealNacos
    scratch: Path
    service: str
    group: str = "DEFAULT_GROUP"
    namespace: str = "public"
    _process: subprocess.Popen[str] | None = None

    def start(self, *instances: dict[str, Any]) -> Self:
        """Registers ``{"ip": …, "port": …}`` and more, and waits until that is done."""
        order = {
            "server": self.nacos.address, "service": self.service, "group": self.group,
            "namespace": self.namespace, "scratch": str(self.scratch), "instances": instances,
        }  # fmt: skip
        command = [sys.executable, str(PROVIDER), json.dumps(order)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        self._expect("ready")
        return self

    def update(self, instances: Iterable[dict[str, Any]]) -> None:
        """Registers these in place of the former ones."""
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("not started")
        self._process.stdin.write(json.dumps(list(instances)) + "\n")
        self._process.stdin.flush()
        self._expect("done")

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _expect(self, word: str) -> None:
        line = self._process.stdout.readline() if self._process and self._process.stdout else ""
        if line.strip() != word:
            raise RuntimeError(f"the provider says {line!r}, not {word}")
