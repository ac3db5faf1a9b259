"""Server CPU per query, against a plain C echo and the peers that are installed: ``python bench/bench.py [--rounds 5] [--json]``.

Builds the echo and the load generator (bench/c), starts the real program with a real configuration and whatever of unbound
and dnsmasq is on this machine, each pinned to core 0, the load to core 1; rounds are interleaved. CPU is that of all
processes of a server (from /proc), less what they use when idle, over the queries that it answered right. Only ratios within
one run mean something: machines differ and are shared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

C = Path(__file__).parent / "c"
NAMES = 100
TICKS = os.sysconf("SC_CLK_TCK")
STATIC = '[[static]]\nname = "svc{0:03d}"\ninstances = [{{ ip = "10.0.0.1", port = 80 }}, {{ ip = "10.0.0.2", port = 80 }}, {{ ip = "10.0.0.3", port = 80 }}]\n'


@dataclass
class Server:
    """One server under test: its processes, its port, what it is asked."""

    label: str
    port: int
    pids: list[int]
    names: Path
    words: tuple[str, ...] = ()
    wanted: str = "right"
    idle: float = 0.0
    cpu_us: list[float] = field(default_factory=list)
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    qps: list[float] = field(default_factory=list)
    lost: int = 0
    wrong: int = 0

    def cpu_s(self) -> float:
        """CPU seconds of all its processes."""
        total = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS


class Bench:
    """Everything that was built and started."""

    def __init__(self, place: Path, seconds: float) -> None:
        self.place = place
        self.seconds = seconds
        self.servers: list[Server] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def build(self) -> None:
        for name in ("echo", "load"):
            subprocess.run(["cc", "-O2", "-o", self.place / name, C / f"{name}.c"], check=True)

    def start(self, *command: object, core: str = "0") -> int:
        words = ["taskset", "-c", core, *map(str, command)]
        self._processes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return self._processes[-1].pid

    def names(self, kind: str, pattern: str) -> Path:
        path = self.place / f"names-{kind}-{pattern.replace('/', '_')}"
        path.write_text("".join(f"{pattern.format(number)} {kind}\n" for number in range(NAMES)))
        return path

    def start_echo(self) -> None:
        port = free_port()
        pid = self.start(self.place / "echo", port)
        self.servers.append(Server("C echo", port, [pid], self.names("A", "svc{0:03d}.nacos")))

    def start_ourselves(self) -> None:
        port = free_port()
        config = self.place / "bridge.toml"
        config.write_text(
            f'[server]\nlisten = ["127.0.0.1:{port}"]\nuser = ""\n[nacos]\nservers = []\n[forward]\nupstreams = []\n'
            f'[web]\nlisten = "127.0.0.1:{free_port()}"\n[cache]\ndir = "{self.place}/state"\n[log]\nlevel = "error"\n'
            + "".join(STATIC.format(number) for number in range(NAMES))
        )
        supervisor = self.start(sys.executable, "-m", "nacosdns.cli", "run", "-c", config)
        wait_for(port, "svc000.nacos")
        time.sleep(3)
        pids = [supervisor, *map(int, Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split())]
        svc = "svc{0:03d}.nacos"
        for label, kind, pattern, words, wanted in (
            ("service A", "A", svc, (), "right"),
            ("service A, EDNS", "A", svc, ("edns",), "right"),
            ("service SRV", "SRV", svc, (), "right"),
            ("service A, random case", "A", svc, ("case",), "right"),
            ("NXDOMAIN in zone", "A", "nosuch{0:03d}.nacos", (), "nxdomain"),
        ):
            self.servers.append(Server(f"nacosdns, {label}", port, pids, self.names(kind, pattern), words, wanted))

    def start_peers(self) -> None:
        zone = [f"svc{number:03d}.nacos" for number in range(NAMES)]
        if shutil.which("unbound"):
            port = free_port()
            config = self.place / "unbound.conf"
            data = "".join(f'local-data: "{name}. 5 A 10.0.0.{n}"\n' for name in zone for n in (1, 2, 3))
            config.write_text(
                f'server:\ninterface: 127.0.0.1@{port}\nuse-syslog: no\nusername: ""\nchroot: ""\npidfile: ""\n'
                f'do-daemonize: no\nnum-threads: 1\nlocal-zone: "nacos." static\n{data}remote-control:\ncontrol-enable: no\n'
            )
            self.servers.append(
                Server(
                    "unbound, local data",
                    port,
                    [self.start("unbound", "-c", config)],
                    self.names("A", "svc{0:03d}.nacos"),
                )
            )
        if shutil.which("dnsmasq"):
            port = free_port()
            hosts = self.place / "hosts"
            hosts.write_text("".join(f"10.0.0.{n} {name}\n" for name in zone for n in (1, 2, 3)))
            command = (
                "dnsmasq",
                "-k",
                "-p",
                port,
                "-a",
                "127.0.0.1",
                "-z",
                "-h",
                "-R",
                "-H",
                hosts,
                "-u",
                "root",
                "-x",
                self.place / "dnsmasq.pid",
            )
            self.servers.append(
                Server("dnsmasq, hosts", port, [self.start(*command)], self.names("A", "svc{0:03d}.nacos"))
            )

    def measure_idle(self) -> None:
        before = {id(server): server.cpu_s() for server in self.servers}
        time.sleep(5)
        for server in self.servers:
            server.idle = (server.cpu_s() - before[id(server)]) / 5

    def round(self) -> None:
        for server in self.servers:
            saturated = self.load(server, window=100, sockets=8)
            server.lost += int(saturated["lost"])
            server.wrong += int(saturated["wrong"]) + int(saturated["received"] - saturated[server.wanted])
            server.cpu_us.append(saturated["cpu_us"])
            server.qps.append(saturated["qps"])
            closed = self.load(server, window=1, sockets=1)
            server.p50_us.append(closed["p50_us"])
            server.p99_us.append(closed["p99_us"])

    def load(self, server: Server, *, window: int, sockets: int) -> dict[str, float]:
        command = [self.place / "load", server.port, server.names, self.seconds, window, sockets, *server.words]
        before, began = server.cpu_s(), time.monotonic()
        done = subprocess.run(["taskset", "-c", "1", *map(str, command)], capture_output=True, text=True, check=True)
        used = server.cpu_s() - before - server.idle * (time.monotonic() - began)
        words = done.stdout.split()
        found = dict(zip(words[::2], map(float, words[1::2]), strict=True))
        return {**found, "cpu_us": used / max(found["received"], 1) * 1e6}

    def end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, name: str) -> None:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.3)
        for _ in range(100):
            with contextlib.suppress(OSError):
                sock.connect(("127.0.0.1", port))
                sock.send(b"\0\1\1\0\0\1\0\0\0\0\0\0" + labels + b"\0\0\1\0\1")
                if sock.recv(2048)[7]:
                    return
            time.sleep(0.1)
    raise SystemExit("the bridge does not answer")


def rows(servers: list[Server]) -> list[dict[str, object]]:
    echo_cpu, echo_p50 = statistics.median(servers[0].cpu_us), statistics.median(servers[0].p50_us)
    return [
        {
            "server": server.label,
            "cpu_us": round(statistics.median(server.cpu_us), 2),
            "cpu_ratio": round(statistics.median(server.cpu_us) / echo_cpu, 2),
            "qps": round(statistics.median(server.qps)),
            "p50_us": round(statistics.median(server.p50_us), 1),
            "p50_ratio": round(statistics.median(server.p50_us) / echo_p50, 2),
            "p99_us": round(statistics.median(server.p99_us), 1),
            "lost": server.lost,
            "wrong": server.wrong,
        }
        for server in servers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place), options.seconds)
        try:
            bench.build()
            bench.start_echo()
            bench.start_ourselves()
            bench.start_peers()
            time.sleep(1)
            bench.measure_idle()
            for _ in range(options.rounds):
                bench.round()
            table = rows(bench.servers)
        finally:
            bench.end()
    if options.json:
        print(json.dumps(table, indent=1))
        return
    print(
        f"{'server':<34}{'CPU µs':>8}{'÷ echo':>8}{'qps':>9}{'p50 µs':>8}{'÷ echo':>8}{'p99 µs':>9}{'lost':>6}{'wrong':>7}"
    )
    for row in table:
        print(
            f"{row['server']:<34}{row['cpu_us']:>8}{row['cpu_ratio']:>8}{row['qps']:>9}{row['p50_us']:>8}"
            f"{row['p50_ratio']:>8}{row['p99_us']:>9}{row['lost']:>6}{row['wrong']:>7}"
        )


if __name__ == "__main__":
    main()
