"""Runs the program for long under everything at once: ``python tests/chaos/soak.py [--minutes 30] [--json]``.

A real Nacos whose providers change their instances all the time, questions for services, outside names old and new, and
unknown names, reloads, and in the first half also kills of keeper, front and web in turn. Answers are checked against the
truth as in the drills. In the second half nothing is killed: then memory (PSS), descriptors and threads of each process,
tasks of the keeper's loop and the size of the database must stay flat. Prints them all; exit 1 when something grew or an
answer was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.ground import BrokenError, Ground, kill, pid_of, status
from fakes.asking import until_says
from fakes.seen import pids
from fakes.upstream import StubUpstream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fakes.real_nacos import Provider

SERVICES, OUTSIDE = 4, 50
KEPT = 1000
"""So many outside answers fill the cache in the first minute: then it must not grow any more."""
CHANGE_S, RELOAD_S, KILL_S, SAMPLE_S = 2.0, 20.0, 15.0, 5.0
UNSURE_MAX = 50
"""Nobody knows whether there is such a service until a killed keeper is back: SERVFAIL after ``lookup_ms``, on a busy machine."""
ROLES = ("supervisor", "keeper", "front", "standby", "web")
GROWTH, GROWTH_MB, GROWTH_FDS, GROWTH_THREADS = 0.06, 3.0, 3.0, 1.0


@dataclass
class Samples:
    """What was seen of one figure, in order; each with the seconds since the start."""

    values: list[float] = field(default_factory=list)

    def parts(self) -> tuple[float, float]:
        """The medians of the first and of the last third."""
        third = max(1, len(self.values) // 3)
        return statistics.median(self.values[:third]), statistics.median(self.values[-third:])


class Soak:
    """One run. ``figures`` are those of the second half, by name."""

    def __init__(self, ground: Ground, minutes: float) -> None:
        self.ground = ground
        self.seconds = minutes * 60
        self.figures: dict[str, Samples] = {}
        self.counts = dict.fromkeys(("changes", "reloads", "kills"), 0)

    def run(self) -> None:
        """Everything; BrokenError says what did not hold."""
        ground = self.ground
        nacos = ground.nacos()
        self.holders = [
            ground.provider(nacos, f"soak{number}", f"10.0.{number}.1", f"10.0.{number}.2")
            for number in range(SERVICES)
        ]
        with StubUpstream() as stub:
            stub.answer_everything("192.0.2.1")
            text = f'[nacos]\nservers = ["{nacos.address}"]\n[forward]\nupstreams = ["{stub.address}"]\n'
            self.bridge = ground.bridge(text, before=("env", f"NACOSDNS_CACHE_EXTERNAL_ENTRIES={KEPT}"))
            for number in range(SERVICES):
                until_says(self.bridge.port, f"soak{number}.nacos", {f"10.0.{number}.1", f"10.0.{number}.2"})
            self._all()
        self._judge()

    def _all(self) -> None:
        ground, port = self.ground, self.bridge.port
        load = ground.load(port, 300)
        for number in range(SERVICES):
            load.expect(f"soak{number}.nacos", *(f"10.0.{number}.{last}" for last in range(1, 5)), at_least=2)
        for number in range(OUTSIDE):
            load.expect(f"n{number}.example", "192.0.2.1")
        unknown = ground.load(port, 5)
        unknown.expect("unknown.nacos", rcode=3)
        new = ground.load(port, 20)
        for number in range(int(20 * self.seconds) + 100):
            new.expect(f"once{number}.example", "192.0.2.1")
        with (
            ground.under_load(new, lost=1000, failed=1000),
            ground.under_load(load, lost=1000),
            ground.under_load(unknown, lost=1000, failed=UNSURE_MAX),
        ):
            for at, what in _calendar(self.seconds):
                time.sleep(max(0.0, self._began(at) - time.monotonic()))
                getattr(self, what)()
        self.load = load

    def _began(self, at: float) -> float:
        if not hasattr(self, "_began_at"):
            self._began_at = time.monotonic()
        return self._began_at + at

    def change(self) -> None:
        """The next provider has other instances: two or three of four."""
        number = self.counts["changes"] % SERVICES
        extra = 3 + (self.counts["changes"] // SERVICES) % 2
        holder: Provider = self.holders[number]
        holder.update({"ip": f"10.0.{number}.{last}", "port": 80} for last in (1, 2, extra))
        self.counts["changes"] += 1

    def reload(self) -> None:
        """SIGHUP."""
        self.bridge.signal(signal.SIGHUP)
        self.counts["reloads"] += 1

    def kill(self) -> None:
        """Kill -9 of the next part."""
        role, active = (("keeper", None), ("front", True), ("web", None), ("front", False))[self.counts["kills"] % 4]
        with contextlib.suppress(AssertionError):
            kill(pid_of(self.bridge, role, active=active))
        self.counts["kills"] += 1

    def sample(self) -> None:
        """Reads every figure."""
        seen = status(self.bridge)
        self._saw("keeper tasks", seen["keeper"].get("tasks", 0))
        self._saw("front tasks", max(front.get("tasks", 0) for front in seen["fronts"].values()))
        for role, pid in pids(seen["supervisor"]).items():
            proc = Path(f"/proc/{pid}")
            pss = re.search(r"^Pss:\s+(\d+)", (proc / "smaps_rollup").read_text(encoding="utf-8"), re.MULTILINE)
            self._saw(f"{role} PSS, MB", int(pss[1]) / 1024 if pss else 0.0)
            self._saw(f"{role} descriptors", len(list((proc / "fd").iterdir())))
            self._saw(f"{role} threads", len(list((proc / "task").iterdir())))
        sizes = (file.stat().st_size for file in self.bridge.directory.glob("cache.db*"))
        self._saw("database, MB", sum(sizes) / (1 << 20))

    def _saw(self, figure: str, value: float) -> None:
        self.figures.setdefault(figure, Samples()).values.append(value)

    def _judge(self) -> None:
        grown = []
        for name, samples in self.figures.items():
            first, last = samples.parts()
            least = (
                GROWTH_FDS
                if "descriptors" in name
                else GROWTH_THREADS
                if "threads" in name or "tasks" in name
                else GROWTH_MB
            )
            if last > first * (1 + GROWTH) + least:
                grown.append(f"{name} grew from {first:.1f} to {last:.1f}")
        if grown:
            raise BrokenError("; ".join(grown))

    def table(self) -> str:
        """All figures: median of the first and last third of the second half."""
        lines = [f"{'figure':28} {'first third':>12} {'last third':>12}"]
        for name, samples in self.figures.items():
            first, last = samples.parts()
            lines.append(f"{name:28} {first:12.1f} {last:12.1f}")
        found = self.ground.row.report
        asked = f"asked {found.sent}, right {found.right}, wrong {found.wrong + found.empty + found.few}"
        lines.append(f"{asked}, lost {found.lost}, no answer {found.failed}, slowest {found.slowest_ms:.0f} ms")
        lines.append(", ".join(f"{name} {count}" for name, count in self.counts.items()))
        return "\n".join(lines)


def _calendar(seconds: float) -> Iterator[tuple[float, str]]:
    """What is done when, in order."""
    half = seconds / 2
    plans = (
        ("change", 1.0, CHANGE_S, seconds),
        ("reload", 5.0, RELOAD_S, seconds),
        ("kill", 10.0, KILL_S, half - 10),
        ("sample", half + 10, SAMPLE_S, seconds),
    )
    events = [
        (at, what)
        for what, first, every, last in plans
        for at in itertools.takewhile(lambda at, last=last: at < last, itertools.count(first, every))
    ]
    return iter(sorted(events))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="nacosdns-soak-") as place,
        Ground("soak", Path(place), short=False) as ground,
    ):
        soak = Soak(ground, options.minutes)
        broken = ""
        try:
            soak.run()
        except BrokenError as error:
            broken = str(error)
        if options.json:
            print(json.dumps({name: samples.values for name, samples in soak.figures.items()}))  # noqa: T201
        print(soak.table(), f"\nBROKEN: {broken}" if broken else "\nholds", sep="")  # noqa: T201
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
