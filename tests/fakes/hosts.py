r"""Hosts in network namespaces on one switch, each with an address, a mount namespace and files of its own under /etc.

    with Hosts() as hosts:
        one, two = hosts.add("10.77.0.1"), hosts.add("10.77.0.2", **{"resolv.conf": "nameserver 10.77.0.1\n"})
        two.run("ping", "-c1", "10.77.0.1")
        one.unplug()

Nothing of this machine is touched: the switch is in a namespace too, and files are bound over those under /etc in a mount
namespace. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Self

TESTS = Path(__file__).parents[1]
SWITCH = """
set -e
ip link set lo up
ip link add switch0 type bridge forward_delay 0
ip link set switch0 up
echo ready
exec sleep infinity
"""
HOST = """
set -e
mount --make-rprivate /
for file in $(ls "$1"); do mount --bind "$1/$file" "/etc/$file"; done
ip link set lo up
echo ready
exec sleep infinity
"""
PLUG = """
set -e
ip link add "port$1" type veth peer name eth0 netns "$1"
ip link set "port$1" master switch0 up
nsenter -t "$1" -n ip addr add "$2/24" dev eth0
nsenter -t "$1" -n ip link set eth0 up
"""


def can_be_made() -> bool:
    """Whether this machine lets us make namespaces and what is in them."""
    return os.geteuid() == 0


class Host:
    """One host; ``inside`` stands before a command that runs on it."""

    def __init__(self, switch: int, pid: int, address: str, etc: Path) -> None:
        self.address = address
        self.inside = ("nsenter", "-t", str(pid), "-n", "-m")
        self._etc = etc
        self._switch = ("nsenter", "-t", str(switch), "-n")
        self._port = f"port{pid}"

    def __repr__(self) -> str:
        return f"<Host {self.address}>"

    def write(self, file: str, text: str) -> None:
        """Another text for a file under /etc that was given at the start."""
        (self._etc / file).write_text(text, encoding="utf-8")  # in place: it is bound

    def run(self, *command: str, seconds: float = 60.0) -> str:
        """What a program says that runs here; it has to end well."""
        done = subprocess.run(
            [*self.inside, *command], capture_output=True, text=True, check=False, timeout=seconds, env=environment()
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command: str) -> subprocess.Popen[str]:
        """A program that runs here, with its input and output as pipes."""
        pipe = subprocess.PIPE
        return subprocess.Popen([*self.inside, *command], stdin=pipe, stdout=pipe, text=True, env=environment())

    def unplug(self) -> None:
        """Nobody reaches this host any more, and nobody is told so."""
        subprocess.run([*self._switch, "ip", "link", "set", self._port, "down"], check=True)

    def plug(self) -> None:
        """It is on the switch again."""
        subprocess.run([*self._switch, "ip", "link", "set", self._port, "up"], check=True)


class Hosts:
    """See the module."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self._holders: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        try:
            self._switch = self._hold("unshare", "-n", "sh", "-c", SWITCH)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for holder in reversed(self._holders):
            holder.kill()
            holder.communicate()
        self._scratch.cleanup()

    def add(self, address: str, **files: str) -> Host:
        """A host with this address in a /24; ``files`` are texts by their names under /etc."""
        etc = Path(self._scratch.name) / address
        etc.mkdir()
        for name, text in files.items():
            (etc / name).write_text(text, encoding="utf-8")
        pid = self._hold("unshare", "-n", "-m", "sh", "-c", HOST, "sh", str(etc))
        command = ["nsenter", "-t", str(self._switch), "-n", "sh", "-c", PLUG, "sh", str(pid), address]
        subprocess.run(command, check=True)
        return Host(self._switch, pid, address, etc)

    def _hold(self, *command: str) -> int:
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n", command
        return holder.pid


def environment() -> dict[str, str]:
    """Ours, without proxies, and with the tests to import from."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return kept | {"PYTHONPATH": ":".join([str(TESTS), kept.get("PYTHONPATH", "")])}
