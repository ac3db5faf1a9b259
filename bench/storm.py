"""Whether pushes disturb answers: ``python bench/storm.py [--seconds 20] [--rounds 2] [--shared] [--json] [--inside]``.

A real Nacos (deploy/nacos, push delay 0) holds services of 1,000 instances. A steady 2,000 questions a second, half for
these services and half for small quiet ones, are asked while Nacos pushes one of the big services 10 times a second, and
before and after that while nothing changes. The front that answers is alone on core 0; Nacos, the keeper, the other processes,
the providers and the load are on core 1, the load with real-time priority. Latencies end at the kernel's time stamps
(bench/c/steady.c). ``--shared`` is for a machine that does other work meanwhile: the front gets real-time priority too. Fails when fewer than 8 pushes a second reached the keeper.

``--inside`` prints instead, in seconds and without Nacos, how long a push keeps a front's loop (bench/storm_inside.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import storm_inside
from measure import LOAD_CORE, ROOT, Bridge, Nacos, build, cpu_s, pin, positive, run_tool, stolen_s, until_answered

FAKES = ROOT / "tests" / "fakes"
BIG, INSTANCES, QUIET = 5, 1000, 50
QPS, PUSHES_A_S, PUSHES_LEAST = 2000, 10, 8
PERIODS = ("quiet before", "storm", "quiet after")


def address(service: int, number: int) -> str:
    return f"10.{service}.{number // 250}.{number % 250 + 1}"


class Providers:
    """Programs that hold the services at Nacos, by its own SDK."""

    def __init__(self, nacos: Nacos, scratch: Path) -> None:
        self._nacos = nacos
        self._scratch = str(scratch)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> Self:
        for service in range(BIG):
            instances = [{"ip": address(service, number), "port": 8080} for number in range(INSTANCES)]
            order = {"server": self._nacos.address, "service": f"big-{service}", "group": "DEFAULT_GROUP"}
            self._start(
                "provider.py",
                json.dumps({**order, "namespace": "public", "scratch": self._scratch, "instances": instances}),
            )
        self._start("many.py", self._nacos.address, str(QUIET), self._scratch)
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != b"ready":
                raise SystemExit("a provider did not register")
            pin(process.pid, LOAD_CORE)
        return self

    def _start(self, script: str, *words: str) -> None:
        command = [sys.executable, FAKES / script, *words]
        pipe = subprocess.PIPE
        self._processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL))

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


class Storm(threading.Thread):
    """Changes one weight of one big service after the other, ``PUSHES_A_S`` times a second, until ended."""

    def __init__(self, nacos: Nacos) -> None:
        super().__init__(daemon=True)
        self._nacos = nacos
        self._over = threading.Event()
        self.error = ""

    def run(self) -> None:
        due, turn = time.monotonic(), 0
        while not self._over.wait(max(0.0, due - time.monotonic())):
            service, number = turn % BIG, random.randrange(INSTANCES)
            try:
                self._nacos.http(
                    "PUT",
                    serviceName=f"big-{service}", ip=address(service, number), port=8080, ephemeral="true",
                    weight=random.randrange(2, 1000),
                )  # fmt: skip
            except OSError as error:
                self.error = str(error)
            due, turn = due + 1 / PUSHES_A_S, turn + 1

    def end(self) -> None:
        self._over.set()
        self.join()


def measure(place: Path, bridge: Bridge, seconds: float) -> dict[str, float]:
    """One period of the steady load, with what the keeper and the front did in it."""
    pids = bridge.processes()
    pushes, used, began = bridge.metric("nacosdns_pushes_total"), cpu_s([pids["front"]]), time.monotonic()
    stolen = stolen_s()
    found = run_tool(place / "steady", bridge.port, place / "names", seconds, QPS)
    took = time.monotonic() - began
    found["front_cpu_percent"] = (cpu_s([pids["front"]]) - used) / took * 100
    found["stolen_ms_a_s"] = (stolen_s() - stolen) / took * 1000
    time.sleep(0.6)  # counters reach their page four times a second
    found["pushes_a_s"] = (bridge.metric("nacosdns_pushes_total") - pushes) / took
    return found


def periods(place: Path, bridge: Bridge, nacos: Nacos, seconds: float) -> list[dict[str, float]]:
    before = measure(place, bridge, seconds)
    storm = Storm(nacos)
    storm.start()
    time.sleep(1)
    during = measure(place, bridge, seconds)
    storm.end()
    if during["pushes_a_s"] < PUSHES_LEAST:
        raise SystemExit(f"only {during['pushes_a_s']:.1f} pushes/s reached the keeper {storm.error}")
    time.sleep(1)
    return [before, during, measure(place, bridge, seconds)]


def measure_all(place: Path, seconds: float, rounds: int, *, shared: bool) -> list[list[dict[str, float]]]:
    build(place, "steady")
    names = [f"big-{n % BIG}.nacos A 0\nmany-{n}.nacos A 1\n" for n in range(QUIET)]
    (place / "names").write_text("".join(names))
    nacos = Nacos(place, random.randrange(12_000, 30_000), 0)
    providers = Providers(nacos, place)
    bridge = Bridge(place, f'[nacos]\nservers = ["{nacos.address}"]\n')
    try:
        nacos.start()
        pin(nacos.pid, LOAD_CORE)
        providers.start()
        front = bridge.start().set_apart()["front"]
        if shared:
            os.sched_setscheduler(front, os.SCHED_FIFO, os.sched_param(1))
        for line in "".join(names).splitlines():
            until_answered(bridge.port, line.split()[0])
        run_tool(place / "steady", bridge.port, place / "names", 3, QPS)
        return [periods(place, bridge, nacos, seconds) for _ in range(rounds)]
    finally:
        bridge.end()
        providers.end()
        nacos.end()


def table(rounds: list[list[dict[str, float]]]) -> dict[str, object]:
    """Medians over the rounds for each period; the ratio is taken within each round."""
    rows = {
        period: {word: round(statistics.median(one[at][word] for one in rounds), 1) for word in rounds[0][at]}
        for at, period in enumerate(PERIODS)
    }
    for row in rows.values():
        row["lost"] = sum(
            one[PERIODS.index(period)]["lost"] for one in rounds for period in PERIODS if rows[period] is row
        )
        row["wrong"] = sum(
            one[PERIODS.index(period)]["wrong"] for one in rounds for period in PERIODS if rows[period] is row
        )
    ratios = [storm["p99_us"] / max(1.0, (before["p99_us"] + after["p99_us"]) / 2) for before, storm, after in rounds]
    return {"periods": rows, "p99_ratio": round(statistics.median(ratios), 2), "rounds": len(rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the three periods")
    parser.add_argument("--rounds", type=positive, default=2)
    parser.add_argument(
        "--shared", action="store_true", help="real-time priority for the front: others use this machine"
    )
    parser.add_argument(
        "--inside", action="store_true", help="only how long a push keeps a front's loop, without Nacos"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.inside:
        inside = storm_inside.measured()
        print(json.dumps(inside, indent=1) if options.json else storm_inside.table(inside))
        return
    os.sched_setaffinity(0, {LOAD_CORE})
    with tempfile.TemporaryDirectory() as place:
        found = table(measure_all(Path(place), options.seconds, options.rounds, shared=options.shared))
    if options.json:
        print(json.dumps(found, indent=1))
        return
    words = (
        "p50_us",
        "p99_us",
        "p999_us",
        "max_us",
        "group0_p99_us",
        "group1_p99_us",
        "lost",
        "wrong",
        "pushes_a_s",
        "front_cpu_percent",
        "stolen_ms_a_s",
        "late_us",
    )
    print(f"{'':<14}" + "".join(f"{word:>18}" for word in words))
    for period, row in found["periods"].items():
        print(f"{period:<14}" + "".join(f"{row[word]:>18}" for word in words))
    print(f"storm p99 / quiet p99: {found['p99_ratio']}   ({QPS} q/s; group0: pushed services, group1: quiet ones)")


if __name__ == "__main__":
    main()
