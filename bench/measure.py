"""What the measurements share: the program as a process, what its processes use, the C tools, a real Nacos.

Must not know: what is measured, and how it is shown. Rule: whatever was started is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fakes.seen import pids

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).parents[1]
C = Path(__file__).parent / "c"
DEPLOY = ROOT / "deploy" / "nacos"
TICKS = os.sysconf("SC_CLK_TCK")
SERVER_CORE, LOAD_CORE = 0, 1


def build(place: Path, *names: str) -> None:
    """Compiles tools of bench/c into ``place``."""
    for name in names:
        subprocess.run(["cc", "-O2", "-o", place / name, C / f"{name}.c"], check=True)


def free_port() -> int:
    """A port that is free for TCP now, and so most likely for UDP."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def question(name: str, kind: int = 1, query_id: int = 1) -> bytes:
    """A query packet."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return query_id.to_bytes(2, "big") + b"\1\0\0\1\0\0\0\0\0\0" + labels + b"\0" + kind.to_bytes(2, "big") + b"\0\1"


def until_answered(port: int, name: str, deadline_s: float = 30.0, every_s: float = 0.02) -> float:
    """Asks until there is an answer with a record; when that came (``time.perf_counter``)."""
    packet, ends = question(name), time.perf_counter() + deadline_s
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(every_s)
        sock.connect(("127.0.0.1", port))
        while time.perf_counter() < ends:
            with contextlib.suppress(OSError):
                sock.send(packet)
                reply = sock.recv(4096)
                now = time.perf_counter()
                if not reply[3] & 15 and reply[7]:
                    return now
            time.sleep(0.001)
    raise SystemExit(f"no answer for {name} within {deadline_s:g} s")


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds that these processes used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def positive(text: str) -> int:
    """A number of at least one, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def stolen_s() -> float:
    """CPU seconds, over all cores, that the host gave to others while this (virtual) machine wanted them."""
    return int(Path("/proc/stat").read_text().split()[8]) / TICKS


def memory_mb(pid: int) -> tuple[float, float]:
    """PSS and RSS of a process in MB (10^6 bytes)."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
    return int(found["Pss"]) * 1024 / 1e6, int(found["Rss"]) * 1024 / 1e6


def pin(pid: int, core: int) -> None:
    """Puts all threads of a process on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), {core})


def run_tool(*command: object) -> dict[str, float]:
    """Runs a C tool on the load's core; the words and numbers that it prints."""
    words = ["taskset", "-c", str(LOAD_CORE), *map(str, command)]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(printed[::2], map(float, printed[1::2]), strict=True))


class BridgeAwayError(Exception):
    """`nacosdns status` found nobody."""


class Bridge:
    """The real program: ``config`` is what stands behind its ports and its directory."""

    def __init__(self, place: Path, config: str) -> None:
        self.port, self.web_port = free_port(), free_port()
        self.directory = place / "state"
        self._file = place / "bridge.toml"
        self._file.write_text(
            f'[server]\nlisten = ["127.0.0.1:{self.port}"]\nuser = ""\n[web]\nlisten = "127.0.0.1:{self.web_port}"\n'
            f'[cache]\ndir = "{self.directory}"\n[log]\nlevel = "warning"\n[forward]\nupstreams = []\n{config}'
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.began = 0.0

    def start(self) -> Self:
        """Starts it; ``began`` is the moment right before its exec."""
        self.began = time.perf_counter()
        self._process = subprocess.Popen([sys.executable, "-m", "nacosdns.cli", "run", "-c", self._file])
        return self

    def status(self) -> dict[str, Any]:
        """What `nacosdns status` says."""
        command = [sys.executable, "-m", "nacosdns.cli", "status", "--json", "-c", self._file]
        done = subprocess.run(command, capture_output=True, check=False)
        if not done.stdout:
            raise BridgeAwayError(done.stderr.decode())
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def processes(self) -> dict[str, int]:
        """The pid of each process by what it is: supervisor, keeper, front (the one that answers), standby, web."""
        return pids(self.status()["supervisor"])

    def until_complete(self, deadline_s: float = 60.0) -> dict[str, int]:
        """Waits until every process is set up; their pids."""
        ends = time.monotonic() + deadline_s
        while time.monotonic() < ends:
            with contextlib.suppress(BridgeAwayError, KeyError):
                children = self.status()["supervisor"]["children"]
                if len(children) > 3 and all(child["phase"] == "ready" for child in children):
                    return self.processes()
            time.sleep(0.3)
        raise SystemExit("the bridge does not come up; see its messages")

    def set_apart(self) -> dict[str, int]:
        """The front that answers alone on the server's core, all others with the load; their pids."""
        found = self.until_complete()
        for word, pid in found.items():
            pin(pid, SERVER_CORE if word == "front" else LOAD_CORE)
        return found

    def metric(self, name: str) -> float:
        """The sum of all series of a metric."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))

    def end(self) -> None:
        """Stops it."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class Nacos:
    """A real Nacos (deploy/nacos). ``push_delay_ms`` None is the server's own half second."""

    def __init__(self, place: Path, port: int, push_delay_ms: int | None) -> None:
        self.port = port
        self._data = place / "nacos"
        self._delay_ms = push_delay_ms
        self.pid = 0

    @property
    def address(self) -> str:
        """As it stands in a configuration."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Starts it and waits until it is ready."""
        if missing := [tool for tool in ("java", "mvn", "curl") if shutil.which(tool) is None]:
            raise SystemExit(f"a real Nacos needs {', '.join(missing)}")
        environment = {**os.environ, "NACOS_DATA": str(self._data)}
        if self._delay_ms is not None:
            environment["NACOS_PUSH_DELAY_MS"] = str(self._delay_ms)
        command: Sequence[object] = ["bash", DEPLOY / "start-nacos.sh", self.port]
        done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"Nacos did not start:\n{done.stderr[-2000:]}")
        self.pid = int(done.stdout.split()[-1])
        return self

    def http(self, method: str, **query: object) -> None:
        """One request about an instance."""
        words = "&".join(f"{key}={value}" for key, value in query.items())
        url = f"http://{self.address}/nacos/v1/ns/instance?{words}"
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as answer:
            answer.read()

    def end(self) -> None:
        """Stops it."""
        if self.pid:
            subprocess.run(["bash", DEPLOY / "stop-nacos.sh", str(self._data), "-9"], check=False, capture_output=True)
            self.pid = 0
