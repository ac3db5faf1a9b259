"""Three real Nacos servers that are one cluster, as processes that a test starts, kills and starts again one by one."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from fakes.real_nacos import START, RealNacos, _is_free

if TYPE_CHECKING:
    from pathlib import Path

MEMBERS = (0, 10, 20)


def free_cluster_port() -> int:
    """A port with which every member finds its own free."""
    while True:
        port = random.randrange(12_000, 30_000)
        if all(_is_free(port + member + offset) for member in MEMBERS for offset in (0, 1000, 1001, -1000)):
            return port


@dataclass
class Cluster:
    """Started by deploy/nacos/start-cluster.sh below ``data``. ``address`` is what a client is told: all of them."""

    data: Path
    base: int = field(default_factory=free_cluster_port)
    _members: dict[int, RealNacos] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(self.base + member for member in MEMBERS)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def address(self) -> str:
        return ",".join(self.addresses)

    def start(self) -> Self:
        """Starts all, and waits until each sees the others."""
        self._members = {port: RealNacos(self.data / str(port), port=port) for port in self.ports}
        said = self._run("start-cluster.sh", self.base, NACOS_DATA=str(self.data), NACOS_PUSH_DELAY_MS="0")
        for line in said.splitlines():
            port, pid = map(int, line.split())
            self._members[port].pid = pid
        return self

    def kill(self, *ports: int) -> None:
        """Kill -9 of these members, or of all."""
        for port in ports or tuple(self._members):
            self._members[port].kill()

    def start_again(self, *ports: int) -> None:
        """Starts these members with the data of their last life; waits until the last one is ready."""
        for port in ports:
            place = str(self.data / str(port))
            more = {} if port == ports[-1] else {"NACOS_NOWAIT": "1"}
            members = ",".join(self.addresses)
            said = self._run(
                "start-nacos.sh", port, NACOS_DATA=place, NACOS_MEMBERS=members, NACOS_PUSH_DELAY_MS="0", **more
            )
            self._members[port].pid = int(said.split()[-1])

    def listed(self, service: str) -> list[set[str]]:
        """The addresses of a service, as each member tells."""
        return [{one["ip"] for one in member.instances(service)} for member in self._members.values()]

    def _run(self, script: str, port: int, **settings: str) -> str:
        command = ["bash", str(START.with_name(script)), str(port)]
        done = subprocess.run(
            command, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise RuntimeError(f"{script} did not start it: {done.stderr[-2000:]}")
        return done.stdout
