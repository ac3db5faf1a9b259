"""The disk: what is written is read again, whatever happens to file, directory or rows (S40)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import structlog

from nacosdns.core.frames import External, decode_snapshot, known
from nacosdns.core.model import Instance, ServiceKey, Snapshot
from nacosdns.edge.store import FILE, SqliteStore, read, reading
from nacosdns.errors import StoreDamaged, StoreError

LOG = structlog.get_logger()


def snapshot(number: int) -> Snapshot:
    key = ServiceKey("public", "DEFAULT_GROUP", f"s{number}")
    return Snapshot(key, (Instance(f"10.0.{number // 250}.{number % 250}", 80),), confirmed_at=5.0)


def external(number: int) -> External:
    return External(b"\x01%d\x00\x00\x01\x00\x01" % (number % 10), number // 10, b"reply", float(number), 60)


async def write(directory: Path, count: int = 20, entries: int = 100) -> SqliteStore:
    store = SqliteStore(str(directory), external_entries=entries, log=LOG)
    await store.load()
    store.put_services((known(snapshot(number)), 7.0) for number in range(count))
    store.put_externals(external(number) for number in range(count))
    await store.flush()
    return store


async def fill(directory: Path, count: int = 20) -> None:
    await (await write(directory, count)).close()


def services(directory: Path) -> set[str]:
    return {row.known.key.service for row in read(str(directory)).services}


def test_what_is_written_is_read_with_its_times(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path, 3))
    contents = read(str(tmp_path))

    assert sorted(map(repr, (decode_snapshot(row.known.body) for row in contents.services))) == [
        repr(snapshot(n)) for n in range(3)
    ]
    assert {row.asked_at for row in contents.services} == {7.0}
    assert contents.externals == tuple(external(n) for n in range(3))


def test_removed_rows_are_gone(tmp_path: Path) -> None:
    async def work() -> None:
        store = await write(tmp_path, 3)
        store.remove_services([snapshot(1).key])
        store.remove_externals([external(2).question])
        await store.close()

    asyncio.run(work())

    assert services(tmp_path) == {"s0", "s2"}
    assert len(read(str(tmp_path)).externals) == 2


def test_outside_answers_are_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    async def work() -> None:
        await (await write(tmp_path, 20, entries=5)).close()

    asyncio.run(work())

    assert [item.stored_at for item in read(str(tmp_path)).externals] == [15.0, 16.0, 17.0, 18.0, 19.0]


def test_outside_answers_stay_bounded_when_they_come_one_by_one(tmp_path: Path) -> None:
    counts = []

    async def work() -> None:
        store = await write(tmp_path, 0, entries=200)
        for start in range(0, 1000, 7):
            store.put_externals(
                External(b"\x03%03d\x00\x00\x01\x00\x01" % n, 0, b"reply", float(n), 60)
                for n in range(start, start + 7)
            )
            await store.flush()
            counts.append(len(read(str(tmp_path)).externals))
        await store.close()

    asyncio.run(work())

    assert max(counts) <= 200
    assert min(counts[30:]) >= 198 - 7
    assert max(item.stored_at for item in read(str(tmp_path)).externals) == 1000.0


def test_a_bad_row_is_skipped_and_counted_and_the_others_are_served(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path, 5))
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("UPDATE services SET body = x'00ff' WHERE service = 's1'")
        connection.execute("UPDATE services SET crc = 1 WHERE service = 's2'")
        connection.execute("UPDATE services SET body = NULL WHERE service = 's3'")
    connection.close()
    contents = read(str(tmp_path))

    assert {row.known.key.service for row in contents.services} == {"s0", "s4"}
    assert contents.damaged == 3


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\0" + bytes(4096), os.urandom(8192)])
def test_a_file_that_is_no_database_is_set_aside_and_a_new_one_begun(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    asyncio.run(fill(tmp_path, 2))

    assert services(tmp_path) == {"s0", "s1"}
    assert bool(list(tmp_path.glob(f"{FILE}.damaged-*"))) == bool(content)


@pytest.mark.parametrize("part", range(8))
def test_a_file_cut_or_damaged_anywhere_never_stops_the_start(tmp_path: Path, part: int) -> None:
    asyncio.run(fill(tmp_path, 200))
    path = tmp_path / FILE
    content = path.read_bytes()
    at = len(content) * part // 8
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / FILE).write_bytes(content[:at] + os.urandom(2048) + content[at + 2048 :])
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / FILE).write_bytes(content[: at + 100])
    for directory in (damaged, cut):
        asyncio.run(fill(directory, 3))

        assert services(directory) >= {"s0", "s1", "s2"}


def test_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path, 2))
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = (tmp_path / FILE).read_bytes()
    asyncio.run(fill(tmp_path, 5))

    assert (tmp_path / FILE).read_bytes() == before
    with pytest.raises(StoreError, match="schema 99, newer than ours"):
        read(str(tmp_path))


def test_what_could_not_be_read_is_written_again_when_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nacosdns.edge.store.LOOK_AGAIN_S", 0.0)
    asyncio.run(fill(tmp_path, 2))

    def schema(number: int) -> None:
        with sqlite3.connect(tmp_path / FILE) as connection:
            connection.execute(f"PRAGMA user_version = {number}")
        connection.close()

    async def work() -> list[tuple[bool, bool]]:
        schema(99)
        store = await write(tmp_path, 5)
        seen = [(bool(store.status()["not_used"]), store.take_lost())]
        schema(1)
        store.put_services([(known(snapshot(7)), 7.0)])
        await store.flush()
        seen.append((bool(store.status()["not_used"]), store.take_lost()))
        await store.close()
        return seen

    assert asyncio.run(work()) == [(True, False), (False, True)]
    assert services(tmp_path) == {"s0", "s1", "s7"}


def test_a_database_that_another_program_holds_is_not_damaged_and_is_used_when_it_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nacosdns.edge.store.LOOK_AGAIN_S", 0.0)
    asyncio.run(fill(tmp_path, 2))

    async def work() -> list[str]:
        holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        store = await write(tmp_path, 5)
        seen = [str(store.status()["not_used"])]
        holder.close()
        store.put_services([(known(snapshot(7)), 7.0)])
        await store.flush()
        seen.append(str(store.status()["not_used"]))
        await store.close()
        return seen

    held, after = asyncio.run(work())

    assert "database is locked" in held
    assert after == ""
    assert services(tmp_path) == {"s0", "s1", "s7"}
    assert list(tmp_path.glob(f"{FILE}.damaged-*")) == []


def test_a_missing_directory_costs_nothing_but_the_disk(tmp_path: Path) -> None:
    async def work() -> SqliteStore:
        store = await write(tmp_path / "nowhere", 2)
        await store.close()
        return store

    store = asyncio.run(work())

    assert store.failures > 0
    assert read(str(tmp_path / "nowhere")).services == ()


async def failing(directory: Path) -> str:
    """What is said of a write there that fails."""
    store = await write(directory, 2)
    said = str(store.status()["error"])
    await store.close()
    return said


def test_what_sqlite_does_not_say_of_a_disk_that_refuses_is_said_beside_it(tmp_path: Path) -> None:
    """On a tmpfs of its own; needs root, as the suite in CI has."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        full = asyncio.run(write_much(tmp_path))
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        read_only = asyncio.run(failing(tmp_path))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)

    assert full.endswith(": No space left on device")
    assert read_only.endswith(": Read-only file system")


async def write_much(directory: Path) -> str:
    store = await write(directory, 2000, entries=5000)
    said = str(store.status()["error"])
    await store.close()
    return said


NOBODY = """
import asyncio, os, sys
from pathlib import Path
from tests.integration.test_store import failing
asyncio.run(asyncio.to_thread(int))  # what it imports, before Python itself may be out of reach
os.setgid(65534)
os.setuid(65534)
print(asyncio.run(failing(Path(sys.argv[1]))))
"""


@pytest.mark.parametrize(
    ("mode", "file", "said"),
    [
        (0o755, "", ": Permission denied"),
        (0o777, "cache.db", ": cache.db: Permission denied"),
        (0o777, "cache.db-wal", ": cache.db-wal: Permission denied"),
    ],
)
def test_what_is_not_ours_to_write_is_named(mode: int, file: str, said: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(mode)
        if file:
            asyncio.run(fill(Path(made)))
            for name in ("cache.db", "cache.db-wal", "cache.db-shm"):
                (Path(made) / name).touch()
                os.chown(Path(made) / name, *((0, 0) if name == file else (65534, 65534)))
        command = [sys.executable, "-c", NOBODY, made]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30.0)

    assert done.stdout.strip().endswith(said), done.stderr


def test_a_disk_that_takes_a_file_adds_nothing_to_what_sqlite_says(tmp_path: Path) -> None:
    async def work() -> str:
        store = SqliteStore(str(tmp_path), external_entries=10, log=LOG)
        await store.load()
        (tmp_path / FILE).write_bytes(b"no database" * 1000)
        store.put_services([(known(snapshot(3)), 7.0)])
        await store.flush()
        said = str(store.status()["error"])
        await store.close()
        return said

    assert asyncio.run(work()) == "file is not a database"


@pytest.mark.parametrize("owed_max", [2_000, 1])
def test_a_full_disk_is_survived_and_what_it_refused_is_written_later_or_said_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owed_max: int
) -> None:
    """S40: on a tmpfs of 64 kB of its own; needs root, as the suite in CI has."""
    monkeypatch.setattr("nacosdns.edge.store.OWED_MAX", owed_max)
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True)
    try:

        async def work() -> tuple[int, bool]:
            store = await write(small, 2000, entries=5000)
            failures = store.failures
            assert "full" in str(store.status()["error"])
            subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
            store.put_services((known(snapshot(number)), 7.0) for number in range(50))
            await store.flush()
            assert store.status()["error"] == ""
            lost = store.take_lost()
            await store.close()
            return failures, lost

        failures, lost = asyncio.run(work())
        contents = read(str(small))

        assert failures > 0
        assert lost == (owed_max == 1)
        assert len(contents.services) == (50 if lost else 2000)
        assert len(contents.externals) == 2000
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_name_that_sqlite_cannot_take_does_not_end_the_writing_of_others(tmp_path: Path) -> None:
    async def work() -> SqliteStore:
        store = await write(tmp_path, 2)
        store.remove_services([ServiceKey("public", "DEFAULT_GROUP", "half \ud83d")])
        await store.flush()
        store.put_services([(known(snapshot(9)), 7.0)])
        await store.flush()
        await store.close()
        return store

    store = asyncio.run(work())

    assert store.failures == 1
    assert services(tmp_path) == {"s0", "s1", "s9"}


def test_a_database_deleted_while_it_is_open_is_made_anew(tmp_path: Path) -> None:
    async def work() -> None:
        store = await write(tmp_path, 2)
        for path in tmp_path.glob(f"{FILE}*"):
            path.unlink()
        store.put_services([(known(snapshot(9)), 7.0)])
        await store.flush()
        await store.close()

    asyncio.run(work())

    assert services(tmp_path) == {"s9"}


WRITER = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from integration.test_store import write, known, snapshot
from pathlib import Path
async def work():
    store = await write(Path(sys.argv[1]), 50)
    print("ready", flush=True)
    while True:
        store.put_services((known(snapshot(n)), 7.0) for n in range(50))
        await store.flush()
asyncio.run(work())
"""


def test_killed_in_mid_write_everything_written_before_is_read(tmp_path: Path) -> None:
    for _ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parents[1])],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        child.communicate()

        assert len(services(tmp_path)) == 50
        assert read(str(tmp_path)).damaged == 0


def test_a_copy_of_a_directory_is_read_on_another_host(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "", 3))
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / FILE, copy / FILE)

    assert services(copy) == {"s0", "s1", "s2"}


def test_garbage_is_named_damaged(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"x" * 5000)

    with pytest.raises(StoreDamaged, match="not a database"):
        read(str(tmp_path))


def test_a_front_reads_what_was_asked_last_first_then_one_by_name_then_all_in_parts(tmp_path: Path) -> None:
    async def write_with_times() -> None:
        store = SqliteStore(str(tmp_path), external_entries=100, log=LOG)
        await store.load()
        store.put_services((known(snapshot(number)), float(number)) for number in range(25))
        store.put_externals([external(1)])
        await store.close()

    asyncio.run(write_with_times())
    with reading(str(tmp_path)) as disk:
        recent = disk.recent(3)
        found, missing = disk.find(snapshot(7).key), disk.find(snapshot(99).key)
        parts = list(disk.parts(10))

    assert [row.known.key.service for row in recent.services] == ["s24", "s23", "s22"]
    assert recent.externals == (external(1),)
    assert found is not None
    assert decode_snapshot(found.known.body) == snapshot(7)
    assert missing is None
    assert [len(rows) for rows in parts] == [10, 10, 5]
    assert {row.known.key.service for rows in parts for row in rows} == {f"s{number}" for number in range(25)}


def test_a_reader_of_no_file_finds_nothing(tmp_path: Path) -> None:
    with reading(str(tmp_path)) as disk:
        assert disk.recent(10).services == ()
        assert disk.find(snapshot(1).key) is None
        assert list(disk.parts(10)) == []


def test_a_row_that_holds_another_service_than_its_name_says_is_skipped_and_counted(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path, 3))
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("UPDATE services SET service = 'other' WHERE service = 's1'")
    connection.close()

    assert services(tmp_path) == {"s0", "s2"}
    assert read(str(tmp_path)).damaged == 1


def test_a_database_closed_well_is_read_on_a_read_only_disk(tmp_path: Path) -> None:
    """On a tmpfs of its own; needs root, as the suite in CI has."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)
    try:
        asyncio.run(fill(place, 3))
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)

        assert services(place) == {"s0", "s1", "s2"}
    finally:
        subprocess.run(["umount", str(place)], check=True)
