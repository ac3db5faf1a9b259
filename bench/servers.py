"""Servers under test: their processes, what they use of the machine, and the ground on which they are started and ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
SERVER_CORE, LOAD_CORE = "0", "1"
START_S = 20.0
END_S = 10.0
NAMES = 100
SOURCES = ("echo", "load", "upstream")


class Failed(Exception):
    """The bench cannot go on: a server did not start, died, or answered wrong."""


@dataclass
class Server:
    """One server: its first process, where it listens, where it writes what went wrong."""

    label: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    idle: float = field(default=0.0)

    def pids(self) -> list[int]:
        """Its first process and all that descend from it."""
        found = [self.process.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                for children in Path(f"/proc/{pid}/task").glob("*/children"):
                    found += map(int, children.read_text().split())
        return found

    def cpu_s(self) -> float:
        """Seconds of CPU that its processes have used, in user and kernel mode, by the scheduler's own count."""
        if self.process.poll() is not None:
            raise Failed(f"{self.label} has died: {self.last_words()}")
        spent_ns = 0
        for pid in self.pids():
            for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    spent_ns += int(thread.read_text().split()[0])
        return spent_ns / 1e9

    def memory_mb(self) -> tuple[float, float]:
        """RSS and PSS, summed over its processes; pages that they share count once in PSS, in each of them in RSS."""
        kib = {"Rss:": 0, "Pss:": 0}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    word, *rest = line.split()
                    if word in kib:
                        kib[word] += int(rest[0])
        return kib["Rss:"] / 1024, kib["Pss:"] / 1024

    def last_words(self) -> str:
        """The end of its log."""
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-5:]) or "it wrote nothing"


class Ground:
    """A directory for this run, free ports, and every process that was started; ``end`` ends them by their ids."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.servers: list[Server] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ports: set[int] = set()

    def build(self) -> None:
        """Compile the C programs of the bench; Failed where it cannot run at all."""
        if not {int(SERVER_CORE), int(LOAD_CORE)} <= os.sched_getaffinity(0):
            raise Failed("the bench needs cores 0 and 1: one for the servers, one for the load")
        for program in ("cc", "taskset"):
            if not shutil.which(program):
                raise Failed(f"the bench needs {program}: on Debian apt install gcc libc6-dev util-linux")
        for name in SOURCES:
            command = ("cc", "-O2", "-o", str(self.place / name), str(HERE / "c" / f"{name}.c"))
            subprocess.run(command, check=True)

    def free_port(self) -> int:
        """A port of loopback that is free for UDP and TCP and was not handed out before."""
        while True:
            with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
                stream.bind(("127.0.0.1", 0))
                port = int(stream.getsockname()[1])
                with contextlib.suppress(OSError):
                    datagrams.bind(("127.0.0.1", port))
                    if port not in self._ports:
                        self._ports.add(port)
                        return port

    def write(self, name: str, text: str) -> Path:
        """A file of this run."""
        path = self.place / name
        path.write_text(text)
        return path

    def names(self, pattern: str, kind: str = "A", wanted: str = "") -> Path:
        """A file of names for the load generator: ``pattern`` with the numbers of NAMES names, and what is wanted."""
        name = f"names-{pattern}-{kind}-{wanted}".replace("/", "_")
        return self.write(name, "".join(f"{pattern.format(number)} {kind} {wanted}\n" for number in range(NAMES)))

    def spawn(self, *words: object, core: str, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command on one core."""
        command = ["taskset", "-c", core, *map(str, words)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env={**os.environ, **environment}
            )
        self._processes.append(process)
        return process

    def start(
        self,
        label: str,
        port: int,
        *words: object,
        core: str = SERVER_CORE,
        environment: Mapping[str, str] | None = None,
    ) -> Server:
        """Start a server; ``await_answer`` tells when it is there."""
        log = self.place / f"{label}.log"
        process = self.spawn(*words, core=core, log=log, environment=environment or {})
        self.servers.append(Server(label, port, process, log))
        return self.servers[-1]

    def end(self) -> None:
        """End every process that was started; returns when all are gone."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_S)

    def measure_idle(self, seconds: float) -> None:
        """What every server uses while nobody asks, in seconds of CPU a second."""
        before = [server.cpu_s() for server in self.servers]
        time.sleep(seconds)
        for server, spent in zip(self.servers, before, strict=True):
            server.idle = (server.cpu_s() - spent) / seconds


@dataclass
class Others:
    """What other processes took of the servers' core while rows were measured."""

    cpu_s: float = 0.0
    took_s: float = 0.0

    def add(self, cpu_s: float, took_s: float) -> None:
        """Take one measurement."""
        self.cpu_s += max(0.0, cpu_s)
        self.took_s += took_s

    def __str__(self) -> str:
        return f"others took {100 * self.cpu_s / max(self.took_s, 1e-9):.0f} % of the servers' core meanwhile"


def core_busy_s(core: str) -> float:
    """Seconds for which a core was not idle, since the machine was started."""
    line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} "))
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def await_answer(server: Server, name: str, *, tcp: bool = False) -> None:
    """Ask until the server answers with a record; Failed when it does not."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = b"\0\1\1\0\0\1\0\0\0\0\0\0" + labels + b"\0\0\1\0\1"
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise Failed(f"{server.label} ended at start: {server.last_words()}")
        with contextlib.suppress(OSError):
            if asked_once(server.port, query, tcp=tcp)[6:8] > b"\0\0":
                return
        time.sleep(0.1)
    raise Failed(f"{server.label} does not answer for {name}: {server.last_words()}")


def asked_once(port: int, query: bytes, *, tcp: bool) -> bytes:
    """The reply to one query."""
    with socket.socket(type=socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.5)
        sock.connect(("127.0.0.1", port))
        sock.send(len(query).to_bytes(2) + query if tcp else query)
        return sock.recv(2048)[2 if tcp else 0 :]
