"""The disk is full, read-only, slow, damaged, gone; the database is of another version."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from chaos.ground import answers, await_new, collect, kill, pid_of, status
from chaos.stored import NO_NACOS, addresses_of, fill
from fakes.asking import ask, values
from fakes.running import until
from fakes.upstream import StubUpstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from chaos.ground import Drill, Ground, Load
    from fakes.running import Bridge

DRILLS: list[Drill] = []
PAGE_BYTES = 4096
SERVFAIL = 2
SMALL = "size=1500k"


@contextlib.contextmanager
def _mounted(ground: Ground, options: str, kind: str = "tmpfs", source: str = "nacosdns") -> Iterator[Path]:
    place = ground.directory()
    subprocess.run(["mount", "-t", kind, "-o", options, source, str(place)], check=True)
    ground.at_end(subprocess.run, ["umount", "-l", str(place)])
    yield place


def _store(running: Bridge) -> dict[str, object]:
    found: dict[str, object] = status(running).get("keeper", {}).get("store", {})
    return found


def _with_services(ground: Ground, directory: Path, services: int = 20, more: str = "") -> Bridge:
    """A bridge with services on its disk and no Nacos."""
    fill(directory, services)
    return ground.bridge(NO_NACOS + more, directory=directory)


def _expect_services(ground: Ground, running: Bridge, services: int = 20, rate: float = 500) -> Load:
    load = ground.load(running.port, rate)
    for number in range(services):
        load.expect(f"svc-{number}.nacos", *addresses_of(number))
    return load


@collect(DRILLS, needs=["root"])
def disk_full(ground: Ground) -> None:
    """With the disk full everything is answered, old and new; as soon as there is room what was not written is written."""
    with _mounted(ground, SMALL) as place, StubUpstream() as stub:
        for number in range(200):
            stub.answer(f"n{number}.example", "A", "192.0.2.1", ttl_s=600)
        forward = f'[forward]\nupstreams = ["{stub.address}"]\n'
        running = _with_services(ground, place / "state", more=forward)
        load = _expect_services(ground, running)
        with ground.under_load(load):
            ballast = place / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb") as file:
                while True:
                    file.write(bytes(1024))
                    file.flush()
            for number in range(200):
                load.expect(f"n{number}.example", "192.0.2.1")
            time.sleep(ground.span(30, 3))
            ground.hold(_store(running)["failures"], "no write failed: the disk was not full")
            ballast.unlink()
            failures = _store(running)["failures"]
            time.sleep(ground.span(70, 3))
        running.signal(signal.SIGTERM)
        ground.hold(running.wait(20) == 0, "it did not end well")
        with contextlib.closing(sqlite3.connect(place / "state" / "cache.db")) as database:
            known = database.execute("SELECT count(*) FROM services").fetchone()[0]
            learned = database.execute("SELECT count(*) FROM externals").fetchone()[0]
    ground.hold(known == 20, f"{known} services of 20 on disk")
    ground.hold(learned == 200, f"{learned} outside answers of 200 on disk")
    ground.found(writes_that_failed=failures)


@collect(DRILLS, needs=["root"])
def disk_read_only(ground: Ground) -> None:
    """A disk that turns read-only while the bridge runs changes no answer, nor does a restart of keeper and fronts on it."""
    with _mounted(ground, SMALL) as place:
        running = _with_services(ground, place / "state")
        load = _expect_services(ground, running)
        with ground.under_load(load, lost=64):
            subprocess.run(["mount", "-o", "remount,ro", str(place)], check=False)
            for role, active in (("keeper", None), ("front", True), ("front", False)):
                old = pid_of(running, role, active=active)
                kill(old)
                await_new(running, role, old, active=active)
                time.sleep(ground.span(5, 1))
            subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)


@collect(DRILLS)
def database_deleted(ground: Ground) -> None:
    """Its files are deleted while it runs: nobody notices, and everything is on disk again when it stops."""
    place = ground.directory() / "state"
    running = _with_services(ground, place)
    load = _expect_services(ground, running)
    with ground.under_load(load):
        for file in place.glob("cache.db*"):
            file.unlink()
        time.sleep(ground.span(40, 3))
    running.signal(signal.SIGTERM)
    ground.hold(running.wait(20) == 0, "it did not end well")
    with contextlib.closing(sqlite3.connect(place / "cache.db")) as database:
        known = database.execute("SELECT count(*) FROM services").fetchone()[0]
    ground.hold(known == 20, f"{known} services of 20 on disk")


@collect(DRILLS)
def database_damaged(ground: Ground) -> None:
    """With any page overwritten by noise it starts, no answer is wrong, and what was readable is answered."""
    whole = ground.directory() / "state"
    services = ground.span(400, 60)
    fill(whole, int(services))
    pages = (whole / "cache.db").stat().st_size // PAGE_BYTES
    noise, kept = random.Random(6), []
    chosen = range(pages) if not ground.short else sorted({0, 1, pages // 2, pages - 1})
    for page in chosen:
        place = ground.directory() / "state"
        shutil.copytree(whole, place)
        with (place / "cache.db").open("r+b") as file:
            file.seek(page * PAGE_BYTES)
            file.write(noise.randbytes(PAGE_BYTES))
        running = ground.bridge(NO_NACOS, directory=place)
        answered = 0
        for number in range(int(services)):
            name = f"svc-{number}.nacos"
            reply = ask(running.port, name)
            said = values(reply)
            ground.hold(
                set(said) == set(addresses_of(number)) or reply.rcode() == SERVFAIL,
                f"page {page}: {name} is {said}",
            )
            answered += bool(said)
        kept.append(answered)
        running.close()
    ground.found(
        pages=len(kept), services=int(services), fewest_kept=min(kept), pages_with_all_kept=kept.count(services)
    )


@collect(DRILLS)
def schema_newer(ground: Ground) -> None:
    """A database of a later version is left as it is, and that is said; every question gets its answer all the same."""
    place = ground.directory() / "state"
    fill(place, 20)
    with contextlib.closing(sqlite3.connect(place / "cache.db")) as database:
        database.execute("PRAGMA user_version = 99")
        database.execute("CREATE TABLE later (x)")
        database.commit()
    before = (place / "cache.db").read_bytes()
    running = ground.bridge(NO_NACOS, directory=place)
    until(lambda: answers(running.port, "svc-0.nacos"), 10, "an answer")  # the first look-up waits for Nacos
    ground.hold(_store(running)["not_used"], "status does not say that the database is not used")
    running.signal(signal.SIGTERM)
    ground.hold(running.wait(20) == 0, "it did not end well")
    ground.hold((place / "cache.db").read_bytes() == before, "the database was changed")


@collect(DRILLS, needs=["root", "mkfs.ext4", "fsfreeze"])
def disk_hangs(ground: Ground) -> None:
    """A disk on which every write hangs (a frozen file system) changes no answer; the rows are written when it comes back."""
    image = ground.directory() / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with _mounted(ground, "loop", "ext4", str(image)) as place:
        running = _with_services(ground, place / "state")
        load = _expect_services(ground, running)
        thaw = threading.Timer(ground.span(60, 6), subprocess.run, [["fsfreeze", "-u", str(place)]])
        ground.at_end(thaw.join)
        with ground.under_load(load):
            subprocess.run(["fsfreeze", "-f", str(place)], check=True)
            thaw.start()
            thaw.join()
        until(lambda: not _store(running)["waiting"], 60, "everything written")
