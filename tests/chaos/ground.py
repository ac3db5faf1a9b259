"""What a drill stands on: starts the real program and its surroundings, loads it, ends everything, keeps the figures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from fakes.checker import Report
from fakes.crowd import Crowd
from fakes.proxy import Proxy
from fakes.real_nacos import Provider, RealNacos
from fakes.running import TESTS, Bridge, exchange, packet, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fakes.cluster import Cluster

ROOT = TESTS.parent
LOAD_S_MAX = 3600.0
BATCH = 64
"""What one recvmmsg of a front takes; what it had in hand when it was killed is lost."""


class BrokenError(AssertionError):
    """Something that had to hold did not."""


@dataclass(frozen=True)
class Drill:
    """``holds``: what must hold, in words; ``needs``: programs beside those of every drill; ``full_only``: not in CI, and why."""

    name: str
    holds: str
    run: Callable[[Ground], None]
    needs: tuple[str, ...] = ()
    full_only: str = ""


def collect(
    drills: list[Drill], *, needs: Sequence[str] = (), full_only: str = ""
) -> Callable[..., Callable[..., None]]:
    """A decorator: the function's name names the drill, the first paragraph of its docstring says what holds."""

    def take(function: Callable[[Ground], None]) -> Callable[[Ground], None]:
        assert function.__doc__
        holds = " ".join(function.__doc__.split("\n\n")[0].split())
        drills.append(Drill(function.__name__.replace("_", "-"), holds, function, tuple(needs), full_only))
        return function

    return take


@dataclass
class Row:
    """What one drill found: the sums of its loads, and figures of its own."""

    name: str
    seconds: float = 0.0
    report: Report = field(default_factory=Report)
    figures: dict[str, object] = field(default_factory=dict)
    broken: str = ""

    def add(self, report: Report) -> None:
        """Sums up."""
        own = self.report
        for word in ("sent", "right", "wrong", "empty", "few", "failed", "lost"):
            setattr(own, word, getattr(own, word) + getattr(report, word))
        own.slowest_ms = max(own.slowest_ms, report.slowest_ms)
        own.longest_gap_ms = max(own.longest_gap_ms, report.longest_gap_ms)
        own.samples += report.samples


class Load:
    """Questions at a steady rate from a process of its own that knows the truth (``fakes.checker``)."""

    def __init__(self, ground: Ground, port: int, rate: float, host: str, prefix: Sequence[str]) -> None:
        self._ground = ground
        command = [*prefix, sys.executable, "-m", "fakes.checker", str(port), str(rate), str(LOAD_S_MAX), host]
        environment = os.environ | {"PYTHONPATH": str(TESTS)}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.report: Report | None = None

    def expect(self, name: str, *truth: str, at_least: int | None = None, rcode: int = 0) -> Self:
        """A question, or a new truth of one: all of these addresses unless ``at_least`` says fewer; none: NODATA, or ``rcode``."""
        told = {"name": name, "truth": truth, "at_least": len(truth) if at_least is None else at_least, "rcode": rcode}
        self._say(json.dumps(told))
        return self

    def expect_orders(self) -> Self:
        """The service of TWO_ORDERS."""
        return self.expect("orders.nacos", "10.0.0.1", "10.0.0.2")

    def go(self) -> Self:
        """Begins to ask."""
        self._say("go")
        return self

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end(self) -> Report:
        """Stops asking, waits for what is under way; what was found, which also goes into the drill's row."""
        if self.report is None:
            out, _ = self._process.communicate(timeout=30)
            self.report = Report(**json.loads(out))
            self._ground.row.add(self.report)
        return self.report

    def kill(self) -> None:
        """Ends it without a word, when a drill broke."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


class Ground:
    """Given to a drill. ``short``: waits and settle times are turned down, for CI."""

    def __init__(self, name: str, place: Path, *, short: bool) -> None:
        self.row = Row(name)
        self.place = place
        self.short = short
        self._ends = contextlib.ExitStack()
        self._bridges: list[Bridge] = []
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.close()

    def span(self, full: float, short: float) -> float:
        """The seconds of something that the short form turns down."""
        return short if self.short else full

    def last_words(self, lines: int = 15) -> str:
        """The end of each bridge's log, for a drill that broke."""
        return "\n".join(line for running in self._bridges for line in running.lines[-lines:])

    def at_end(self, end: Callable[..., object], *arguments: object) -> None:
        """Called when the drill is over, last first."""
        self._ends.callback(end, *arguments)

    def directory(self) -> Path:
        """A new one."""
        self._count += 1
        place = self.place / f"d{self._count}"
        place.mkdir(parents=True)
        return place

    def bridge(self, text: str = "", *, wait: bool = True, **how: Any) -> Bridge:
        """The real program; ``how`` as in fakes.running."""
        running = Bridge(self.directory(), text=text, modules={}, **how)
        self._bridges.append(running)
        self.at_end(running.close)
        return running.up() if wait else running

    def nacos(self, **how: Any) -> RealNacos:
        """A real Nacos that runs."""
        server = RealNacos(self.directory(), **how)
        self.at_end(server.kill)
        return server.start()

    def provider(self, nacos: RealNacos, service: str, *addresses: str, **where: Any) -> Provider:
        """A process that holds instances of a service; each address at port 80."""
        holder = Provider(nacos, self.directory(), service, **where)
        self.at_end(holder.kill)
        return holder.start(*({"ip": ip, "port": 80} for ip in addresses))

    def crowd(self, nacos: RealNacos | Cluster) -> Crowd:
        """A process that holds many services, and has none yet."""
        holder = Crowd(nacos.address, self.directory())
        self.at_end(holder.kill)
        return holder

    def proxy(self, nacos: RealNacos) -> Proxy:
        """A way to Nacos that can be broken."""
        return self._ends.enter_context(Proxy(nacos.port))

    def load(self, port: int, rate: float = 500, *, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Load:
        """Not yet begun: say what to expect, then ``go``."""
        asking = Load(self, port, rate, host, prefix)
        self.at_end(asking.kill)
        return asking

    @contextlib.contextmanager
    def under_load(self, load: Load, **allowed: int) -> Iterator[Load]:
        """Loads while the body runs, a second longer at each end, and then requires that nothing but ``allowed`` went wrong."""
        load.go()
        time.sleep(1.0)
        yield load
        time.sleep(1.0)
        self.require(load.end(), **allowed)

    def require(self, report: Report, **allowed: int) -> None:
        """That nothing was wrong, empty, few, failed or lost, ``allowed`` numbers of them apart."""
        for word in ("wrong", "empty", "few", "failed", "lost"):
            if getattr(report, word) > allowed.get(word, 0):
                raise BrokenError(f"{getattr(report, word)} {word} (allowed {allowed.get(word, 0)}): {report.samples}")
        if not report.right:
            raise BrokenError(f"no right answer at all: {report.samples}")

    def hold(self, holds: object, what: str) -> None:
        """``what`` is said when it does not hold."""
        if not holds:
            raise BrokenError(what)

    def found(self, **figures: object) -> None:
        """Figures for the report."""
        self.row.figures.update(figures)


def status(running: Bridge) -> dict[str, Any]:
    """What ``nacosdns status --json`` says."""
    command = [sys.executable, "-m", "nacosdns.cli", "status", "--json", "-c", str(running.file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    found: dict[str, Any] = json.loads(done.stdout or "{}")
    return found


def children(running: Bridge, role: str, *, active: bool | None = None) -> list[int]:
    """Process ids of the children with this role; of fronts only those that answer, or only standbys."""
    return [
        int(child["pid"])
        for child in status(running).get("supervisor", {}).get("children", [])
        if child["role"] == role and child["pid"] and (active is None or bool(child["sockets"]) == active)
    ]


def pid_of(running: Bridge, role: str, *, active: bool | None = None) -> int:
    """The one child of this role, as soon as there is one."""
    until(lambda: children(running, role, active=active), 20, f"a {role}")
    return children(running, role, active=active)[0]


def await_new(running: Bridge, role: str, old: int, *, active: bool | None = None, seconds: float = 30.0) -> int:
    """The process that came in the place of ``old``."""
    until(lambda: any(pid != old for pid in children(running, role, active=active)), seconds, f"another {role}")
    return next(pid for pid in children(running, role, active=active) if pid != old)


def answers(port: int, name: str, host: str = "127.0.0.1") -> bool:
    """Whether a question gets any reply within a second."""
    try:
        exchange(packet(name), port, host, 1.0)
    except OSError:
        return False
    return True


def freeze(pid: int) -> None:
    """SIGSTOP."""
    os.kill(pid, signal.SIGSTOP)


def thaw(pid: int) -> None:
    """SIGCONT; nothing when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    """Kill -9."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
