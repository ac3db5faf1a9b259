"""The program takes the place of itself: upgrades, restarts with sockets that somebody else keeps, mixed versions."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.ground import answers, collect, kill, status
from chaos.steady import Steady
from fakes.running import TESTS, TWO_ORDERS, exchange, free_port, packet, until
from fakes.seen import lives

if TYPE_CHECKING:
    from chaos.ground import Drill, Ground
    from fakes.running import Bridge

DRILLS: list[Drill] = []
QUEUED = 200


def _upgrade(running: Bridge) -> dict[str, object]:
    command = [sys.executable, "-m", "nacosdns.cli", "upgrade", "--json", "-c", str(running.file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found: dict[str, object] = json.loads(done.stdout or "{}")
    return found | {"exit": done.returncode, "stderr": done.stderr}


@collect(DRILLS, needs=["cc"])
def upgraded(ground: Ground) -> None:
    """Ten upgrades in a row at 5,000 questions a second: the same pid, nothing lost, nothing wrong, no process left behind."""
    running = ground.bridge(TWO_ORDERS)
    upgrades, qps = int(ground.span(10, 2)), int(ground.span(5000, 1000))
    load = Steady(ground, running.port, ["orders.nacos"], qps, upgrades * 8.0)
    took = []
    for _ in range(upgrades):
        began = time.monotonic()
        said = _upgrade(running)
        took.append(round(time.monotonic() - began, 1))
        ground.hold(said["exit"] == 0, f"it was refused: {said}")
    ground.require(load.end())
    overview = status(running)["supervisor"]
    ground.hold(overview["pid"] == running.process.pid, "the pid changed")
    pids = {child["pid"] for child in overview["children"]}
    ground.hold(set(running.children()) == pids, f"{set(running.children()) ^ pids} are no children that it knows")
    ground.found(upgrades=upgrades, qps=qps, longest_s=max(took))


@collect(DRILLS)
def upgrade_refused(ground: Ground) -> None:
    """New code that fails its check, and a configuration that is refused, leave the old one running and say why."""
    running = ground.bridge(TWO_ORDERS)
    load = ground.load(running.port).expect_orders()
    good = running.file.read_text(encoding="utf-8")
    with ground.under_load(load):
        running.file.write_text(good + '\n[policy]\nanswers = "some"\n', encoding="utf-8")
        running.signal(signal.SIGUSR2)
        until(lambda: running.said("upgrade.", "policy.answers"), 60, "a refusal that names the key")
        running.file.write_text(good, encoding="utf-8")
    ground.hold(answers(running.port, "orders.nacos"), "it does not answer")


class Manager:
    """Plays systemd: holds the sockets, starts the program with them as descriptors 3 and 4 (sd_listen_fds(3))."""

    def __init__(self, ground: Ground, port: int) -> None:
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", port))
        self.tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.tcp.bind(("127.0.0.1", port))
        self.tcp.listen(128)
        self._ground = ground
        self.process: subprocess.Popen[bytes] | None = None
        ground.at_end(self.close)

    def start(self, file: Path, python: str = "") -> int:
        """The program; its pid. ``python`` is that of an installed release."""
        python = python or sys.executable
        sources = self.udp.fileno(), self.tcp.fileno()
        code = (
            "import os, sys\n"
            f"high = [os.dup2(fd, 60 + at) for at, fd in enumerate({sources!r})]\n"
            "for at, fd in enumerate(high): os.dup2(fd, 3 + at, inheritable=True)\n"
            "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '2'}\n"
            f"os.execv({python!r}, [{python!r}, '-m', 'nacosdns.cli', 'run', '-c', {str(file)!r}])\n"
        )
        paths = "" if python != sys.executable else f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=sources,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": paths},
        )
        return self.process.pid

    def stop(self) -> None:
        """Ends the program; the sockets stay."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Ends everything."""
        self.stop()
        self.udp.close()
        self.tcp.close()


def children_of(pid: int) -> list[int]:
    """The processes that it started, or took over."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def _managed(ground: Ground) -> tuple[int, Path, Manager]:
    """A port, the configuration of a bridge that answers on it, and who holds its sockets."""
    place, port = ground.directory(), free_port()
    file = place / "bridge.toml"
    text = (
        f'[server]\nlisten = ["127.0.0.1:{port}"]\nuser = ""\n[web]\nlisten = ""\n[cache]\ndir = "{place / "state"}"\n'
    )
    file.write_text(text + TWO_ORDERS, encoding="utf-8")
    return port, file, Manager(ground, port)


def _queued_over_a_start(manager: Manager, file: Path, port: int) -> int:
    """How many of the questions that are asked while nobody runs the next start answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("127.0.0.1", port))
        asking.settimeout(10)
        for number in range(QUEUED):
            asking.send(packet("orders.nacos", number))
        manager.start(file)
        return len({asking.recv(512)[:2] for _ in range(QUEUED)})


@collect(DRILLS)
def supervisor_killed_with_sockets_of_systemd(ground: Ground) -> None:
    """What is queued while nobody runs is answered by the next start: the sockets are the service manager's."""
    port, file, manager = _managed(ground)
    for _ in range(int(ground.span(5, 2))):
        pid = manager.start(file)
        until(lambda: answers(port, "orders.nacos"), 20, "an answer")
        kill(pid)
        assert manager.process is not None
        manager.process.wait()
        time.sleep(1.0)  # its children end by themselves
        answered = _queued_over_a_start(manager, file, port)
        ground.hold(answered == QUEUED, f"{answered} of {QUEUED} answered")
        ground.hold(exchange(packet("orders.nacos"), port)[3] & 15 == 0, "it does not answer")
        manager.stop()
    ground.found(queued=QUEUED, answered=answered)


@collect(DRILLS)
def supervisor_killed_in_an_upgrade(ground: Ground) -> None:
    """Killed at any moment of an upgrade it leaves no process behind; the next start answers what the sockets hold."""
    port, file, manager = _managed(ground)
    rounds = int(ground.span(24, 4))
    moments = [2.4 * number / rounds for number in range(rounds)]
    for moment in moments:
        pid = manager.start(file)
        until(lambda: answers(port, "orders.nacos"), 20, "an answer")
        os.kill(pid, signal.SIGUSR2)
        time.sleep(moment)
        group = children_of(pid)
        kill(pid)
        manager.stop()
        until(lambda: not any(map(lives, group)), 3.0, f"the end of every child, {moment:.1f} s after")  # noqa: B023
        answered = _queued_over_a_start(manager, file, port)
        ground.hold(answered == QUEUED, f"{answered} of {QUEUED} answered, {moment:.1f} s after")
        manager.stop()
    ground.found(killed=len(moments), queued=QUEUED)
