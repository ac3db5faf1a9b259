"""What many services cost: ``python bench/scale.py [--sizes 100,1000,10000,100000] [--rounds 5] [--shared] [--json]``.

The program's own store is filled with services of 10 instances each, Nacos is down, and every service is answered from
disk. For each size: the time from exec to the first right answer (three starts), the time in which the keeper tells its
full state over the link (to a client of ours that speaks as a front does), the memory of each process when 100 names and
when all names were asked, and the longest wait that 1,000 questions a second see at rest (first and last size only), and while the keeper is killed
and its successor tells everything anew. Then all sizes run side by side and rounds are interleaved: CPU of all processes, less
what they use when idle, over the questions answered right, for 100 hot names and for all names evenly.
``--shared``: the machine does other work meanwhile; the front that is probed gets real-time priority too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from measure import Bridge, build, cpu_s, memory_mb, positive, run_tool, stolen_s, until_answered

from nacosdns.core.frames import VERSION, Hello, Synced, Updates, known
from nacosdns.core.model import Instance, ServiceKey, Snapshot, Source
from nacosdns.edge import link
from nacosdns.edge.store import SqliteStore

if TYPE_CHECKING:
    from nacosdns.core.frames import LinkFrame
    from nacosdns.ports import Link

SIZES = (100, 1000, 10_000, 100_000)
HOT, INSTANCES, ROWS_A_WRITE = 100, 10, 1000
STARTS, REST_S, RESYNC_S, PROBE_QPS, LOAD_S, IDLE_S = 3, 40, 8, 1000, 2.0, 5.0
WARM_MAX = 12
WARM_S_MAX = 20.0
SETTLE_S_MAX = 240.0
CONFIRMED_AGO_S = 3600.0
"""Longer than disk_fresh_s: the harder case, for Nacos is waited for until it is known to be down."""
NO_NACOS = '[nacos]\nservers = ["127.0.0.1:1"]\n'


def name(number: int) -> str:
    return f"svc-{number:06d}"


def snapshot(number: int) -> Snapshot:
    third, fourth = divmod(number * INSTANCES, 250)
    second, third = divmod(third, 250)
    instances = tuple(Instance(f"10.{second}.{third}.{fourth + at + 1}", 8080) for at in range(INSTANCES))
    key = ServiceKey("public", "DEFAULT_GROUP", name(number))
    return Snapshot(key, instances, source=Source.PUSH, confirmed_at=time.time() - CONFIRMED_AGO_S)


async def fill(directory: Path, size: int) -> None:
    """Writes the services as the keeper does."""
    store = SqliteStore(str(directory), external_entries=1, log=structlog.get_logger())
    await store.load()
    for start in range(0, size, ROWS_A_WRITE):
        store.put_services([(known(snapshot(n)), time.time()) for n in range(start, min(size, start + ROWS_A_WRITE))])
    await store.flush()
    await store.close()


class Reader:
    """Speaks as a front and takes the full state; how long that took and how much it was."""

    def __init__(self) -> None:
        self.began = self.took_s = 0.0
        self.services = 0
        self.synced = asyncio.Event()

    def joined(self, to: Link, peer: Hello) -> None:
        del to, peer
        self.began = time.perf_counter()

    def received(self, to: Link, frame: LinkFrame) -> None:
        del to
        if isinstance(frame, Updates):
            self.services += len(frame.items)
        if isinstance(frame, Synced):
            self.took_s = time.perf_counter() - self.began
            self.synced.set()

    def drained(self, to: Link) -> None: ...

    def left(self, to: Link) -> None: ...


async def take_state(path: Path, size: int) -> float:
    """Seconds from the link's hello to Synced."""
    reader = Reader()
    log = structlog.get_logger()
    linking = asyncio.create_task(link.connect(str(path), reader, Hello(VERSION, "front"), log))
    async with asyncio.timeout(60):
        await reader.synced.wait()
    linking.cancel()
    await asyncio.gather(linking, return_exceptions=True)
    if reader.services < size:
        raise SystemExit(f"the keeper told {reader.services} services of {size}")
    return reader.took_s


@dataclass
class Subject:
    """The program with so many services."""

    size: int
    place: Path
    bridge: Bridge
    pids: dict[str, int] = field(default_factory=dict)
    idle: float = 0.0
    loaded_s: dict[str, float] = field(default_factory=lambda: {"hot": LOAD_S, "all": LOAD_S})
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: {"hot": [], "all": []})
    found: dict[str, Any] = field(default_factory=dict)

    def start(self, *, shared: bool = False) -> None:
        self.bridge.start()
        self.pids = self.bridge.set_apart()
        if shared:
            os.sched_setscheduler(self.pids["front"], os.SCHED_FIFO, os.sched_param(1))

    def settle(self) -> None:
        """Waits until the keeper has written down when each name was asked for."""
        ends = time.monotonic() + SETTLE_S_MAX
        while self.bridge.status()["keeper"]["store"]["waiting"]:
            if time.monotonic() > ends:
                raise SystemExit(f"with {self.size} services the keeper still writes after {SETTLE_S_MAX:.0f} s")
            time.sleep(1.0)

    def names(self, which: str) -> Path:
        return self.place / f"names-{which}"

    def load(self, tools: Path, which: str, seconds: float) -> dict[str, float]:
        found = run_tool(tools / "load", self.bridge.port, self.names(which), seconds, 100, 8)
        for word in ("lost", "wrong"):
            self.found[word] = self.found.get(word, 0) + found[word]
        self.found["wrong"] += found["received"] - found["right"]
        return found

    def warm(self, tools: Path, which: str) -> None:
        """Asks every name three times, unless that takes very long: what is prepared is prepared by then."""
        asked, count = 0.0, HOT if which == "hot" else self.size
        seconds = LOAD_S
        for _ in range(WARM_MAX):
            found = self.load(tools, which, seconds)
            asked += found["right"]
            if found["right"] > count + 1000 and asked > 3 * count:
                return
            seconds = min(1.5 * seconds, WARM_S_MAX)  # each run begins with the first name

    def round(self, tools: Path, which: str) -> None:
        used, began = cpu_s(self.pids.values()), time.monotonic()
        found = self.load(tools, which, self.loaded_s[which])
        used = cpu_s(self.pids.values()) - used - self.idle * (time.monotonic() - began)
        self.cpu_us[which].append(used / max(found["right"], 1) * 1e6)
        self.loaded_s[which] = min(8.0, max(LOAD_S, 1.1 * self.size / found["qps"])) if which == "all" else LOAD_S


def make(place: Path, size: int) -> Subject:
    here = place / str(size)
    (here / "state").mkdir(parents=True)
    asyncio.run(fill(here / "state", size))
    subject = Subject(size, here, Bridge(here, NO_NACOS))
    step = max(1, size // HOT)
    subject.names("hot").write_text("".join(f"{name(n * step)}.nacos A\n" for n in range(HOT)))
    subject.names("all").write_text("".join(f"{name(n)}.nacos A\n" for n in range(size)))
    subject.found["services"] = size
    return subject


def first_answers(subject: Subject) -> list[float]:
    """Seconds from exec to the first right answer, several times."""
    took = []
    for _ in range(STARTS):
        subject.bridge.start()
        took.append(until_answered(subject.bridge.port, f"{name(subject.size - 1)}.nacos") - subject.bridge.began)
        subject.bridge.end()
    return took


def memory(subject: Subject) -> dict[str, dict[str, float]]:
    found = {word: dict(zip(("pss_mb", "rss_mb"), memory_mb(pid), strict=True)) for word, pid in subject.pids.items()}
    found["all"] = {kind: sum(one[kind] for one in found.values()) for kind in ("pss_mb", "rss_mb")}
    return {word: {kind: round(value, 1) for kind, value in one.items()} for word, one in found.items()}


def probe(subject: Subject, tools: Path, seconds: float) -> dict[str, float]:
    stolen = stolen_s()
    found = run_tool(tools / "steady", subject.bridge.port, subject.names("hot"), seconds, PROBE_QPS)
    kept = {word: found[word] for word in ("p50_us", "p99_us", "p999_us", "max_us", "over5ms", "lost", "wrong")}
    return {**kept, "stolen_ms_a_s": round((stolen_s() - stolen) / seconds * 1000, 1)}


def alone(subject: Subject, tools: Path, *, rests: bool, shared: bool) -> None:
    """What is measured while no other size runs; ``rests``: also the probe at rest, which is the longest part."""
    found = subject.found
    found["first_answer_s"] = round(statistics.median(first_answers(subject)), 3)
    subject.start(shared=shared)
    found["full_state_s"] = round(asyncio.run(take_state(subject.bridge.directory / "link.sock", subject.size)), 3)
    subject.warm(tools, "hot")
    found["memory_hot"] = memory(subject)
    subject.warm(tools, "all")
    time.sleep(2)
    found["memory_all"] = memory(subject)
    if rests:
        found["rest"] = probe(subject, tools, REST_S)
    found["resync"] = probe_resync(subject, tools)
    subject.bridge.end()


def probe_resync(subject: Subject, tools: Path) -> dict[str, float]:
    """The keeper is killed a second after the probe began."""

    async def both() -> dict[str, float]:
        probing = asyncio.create_task(asyncio.to_thread(probe, subject, tools, RESYNC_S))
        await asyncio.sleep(1)
        os.kill(subject.pids["keeper"], signal.SIGKILL)
        return await probing

    return asyncio.run(both())


def together(subjects: list[Subject], tools: Path, rounds: int) -> None:
    """The interleaved rounds, and what is made of them."""
    for subject in subjects:
        subject.start()
        for which in ("hot", "all"):
            subject.warm(tools, which)
            subject.round(tools, which)
            subject.cpu_us[which].clear()
    for subject in subjects:
        subject.settle()
    before = [cpu_s(subject.pids.values()) for subject in subjects]
    time.sleep(IDLE_S)
    for subject, used in zip(subjects, before, strict=True):
        subject.idle = (cpu_s(subject.pids.values()) - used) / IDLE_S
    for _ in range(rounds):
        for which in ("hot", "all"):
            for subject in subjects:
                subject.round(tools, which)
    for subject in subjects:
        for which in ("hot", "all"):
            ratios = [own / least for own, least in zip(subject.cpu_us[which], subjects[0].cpu_us[which], strict=True)]
            subject.found[f"{which}_cpu_us"] = round(statistics.median(subject.cpu_us[which]), 2)
            subject.found[f"{which}_ratio"] = round(statistics.median(ratios), 2)
        subject.found["idle_percent"] = round(subject.idle * 100, 2)


def measure_all(sizes: list[int], rounds: int, place: Path, *, shared: bool) -> list[dict[str, Any]]:
    build(place, "load", "steady")
    subjects = [make(place, size) for size in sizes]
    try:
        for subject in subjects:
            alone(subject, place, rests=subject in (subjects[0], subjects[-1]), shared=shared)
        together(subjects, place, rounds)
    finally:
        for subject in subjects:
            subject.bridge.end()
    return [subject.found for subject in subjects]


def show(rows: list[dict[str, Any]]) -> None:
    lines: list[tuple[str, Any]] = [
        ("CPU a query, 100 hot names, µs", lambda row: row["hot_cpu_us"]),
        ("  ÷ the first size", lambda row: row["hot_ratio"]),
        ("CPU a query, all names evenly, µs", lambda row: row["all_cpu_us"]),
        ("  ÷ the first size", lambda row: row["all_ratio"]),
        ("exec to first answer, s", lambda row: row["first_answer_s"]),
        ("full state over the link, s", lambda row: row["full_state_s"]),
        ("at rest: p99 / longest wait, ms", lambda row: waits(row.get("rest"))),
        ("  over 5 ms, of 40,000", lambda row: int(row["rest"]["over5ms"]) if "rest" in row else "-"),
        ("keeper killed: p99 / longest wait, ms", lambda row: waits(row["resync"])),
        ("front PSS, 100 names asked, MB", lambda row: row["memory_hot"]["front"]["pss_mb"]),
        *((f"{word} PSS, all asked, MB", lambda row, w=word: row["memory_all"][w]["pss_mb"]) for word in MEMORY),
        ("front RSS, all asked, MB", lambda row: row["memory_all"]["front"]["rss_mb"]),
        ("idle, % of a core", lambda row: row["idle_percent"]),
        ("lost / wrong", lambda row: f"{row['lost']:.0f} / {row['wrong']:.0f}"),
    ]
    print(f"{'services':<40}" + "".join(f"{row['services']:>16}" for row in rows))
    for words, value in lines:
        print(f"{words:<40}" + "".join(f"{value(row):>16}" for row in rows))


MEMORY = ("front", "standby", "keeper", "supervisor", "web", "all")


def waits(probed: dict[str, float] | None) -> str:
    if probed is None:
        return "-"
    return f"{probed['p99_us'] / 1000:.2f} / {probed['max_us'] / 1000:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--shared", action="store_true", help="real-time priority for the probed front")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        sizes = [int(word) for word in options.sizes.split(",")]
        rows = measure_all(sizes, options.rounds, Path(place), shared=options.shared)
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows)


if __name__ == "__main__":
    main()
