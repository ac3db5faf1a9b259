"""A bridge that runs as a process of its own, for tests: started, asked, signalled, read and always ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nacosdns.core.dnsname import text_name

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

TESTS = Path(__file__).parents[1]
FAKES = {"keeper": "fakes.child_idle", "front": "fakes.front_fixed", "web": "fakes.child_idle"}


TWO_ORDERS = """[nacos]
servers = []
[forward]
upstreams = []
[[static]]
name = "orders"
instances = [{ ip = "10.0.0.1", port = 80 }, { ip = "10.0.0.2", port = 81 }]
"""
"""A configuration that needs nobody: one service of two instances."""


def free_port() -> int:
    """A port that is free for UDP and TCP on every loopback address."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
            tcp.bind(("0.0.0.0", 0))
            try:
                udp.bind(("0.0.0.0", tcp.getsockname()[1]))
            except OSError:
                continue
            return tcp.getsockname()[1]


def until(condition: Callable[[], object], seconds: float = 15.0, what: str = "it") -> None:
    """Waits for something in another process; fails with ``what`` when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.01)


def packet(name: str, query_id: int = 1) -> bytes:
    """A query of type A."""
    header = query_id.to_bytes(2, "big") + b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    return header + text_name(name) + b"\x00\x01\x00\x01"


def exchange(query: bytes, port: int, host: str = "127.0.0.1", seconds: float = 5.0) -> bytes:
    """One query over UDP; TimeoutError without a reply. The socket is connected: a reply from elsewhere is no reply."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(seconds)
        sock.connect((host, port))
        sock.send(query)
        return sock.recv(65535)


class Bridge:
    """The supervisor of nacosdns over fake children, or with ``modules={}`` the program itself."""

    def __init__(  # a test names the one thing that it changes
        self,
        tmp_path: Path,
        *,
        text: str = "",
        modules: dict[str, str] | None = None,
        port: int | None = None,
        web_port: int | None = None,
        listen: str = "",
        directory: Path | None = None,
        python: str = sys.executable,
        before: tuple[str, ...] = (),
        given: tuple[int, ...] = (),
        top: str = "",
    ) -> None:
        self.port = port or free_port()
        self.web_port = web_port or free_port()
        self.directory = directory or tmp_path / "state"
        self.file = tmp_path / "bridge.toml"
        self.top = top
        self.write(text, listen)
        chosen = FAKES if modules is None else modules
        verb = ["fakes.bridge", str(self.file)] if chosen else ["nacosdns.cli", "run", "-c", str(self.file)]
        paths = [str(TESTS), *filter(None, sys.path)]
        if python != sys.executable:  # it has a library of its own
            paths = [path for path in paths if not path.startswith(sys.base_prefix + "/")]
        self.process = subprocess.Popen(
            [*before, python, "-m", *verb, *(f"{role}={module}" for role, module in chosen.items())],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=given,
            env=os.environ | {"PYTHONPATH": ":".join(paths)},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def write(self, text: str, listen: str = "") -> None:
        """The configuration: our ports and directory, then ``text``, which goes on in [server]; ``top`` before all."""
        web = f'[web]\nlisten = "127.0.0.1:{self.web_port}"\n[cache]\ndir = "{self.directory}"\n'
        own = f'"127.0.0.1:{self.port}"'
        server = f"[server]\nlisten = [{listen or own}]\n"
        user = "" if "user =" in text else 'user = ""\n'
        self.file.write_text(f"{self.top}{web}{server}{user}{text}\n", encoding="utf-8")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def said(self, *parts: str) -> list[str]:
        """The log lines with all of these parts."""
        return [line for line in list(self.lines) if all(part in line for part in parts)]

    def wait_for(self, *parts: str, times: int = 1, seconds: float = 15.0) -> None:
        """Waits until so many log lines have all of these parts."""
        until(lambda: len(self.said(*parts)) >= times, seconds, f"log line {parts}")

    def up(self, children: int = 4) -> Bridge:
        """Waits until every child is set up."""
        self.wait_for("child.ready", times=children, seconds=30.0)
        return self

    def pid_of_reader(self) -> int:
        """The process id of the fake front that answers now."""
        return int.from_bytes(exchange(packet("who.nacos"), self.port)[-4:], "big")

    def children(self) -> list[int]:
        """The process ids of all children that run."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="utf-8")
        return [int(pid) for pid in text.split()]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 10.0) -> int:
        """The exit code."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def close(self) -> None:
        """Ends everything, whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
