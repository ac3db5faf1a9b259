"""The never-expiring cache on disk: SQLite in WAL mode, written by one thread of the keeper, read by fronts at start.

Must not know: what a snapshot means beyond its key. Rules: no write blocks or raises into the caller; every row
carries a checksum, a bad row is counted and skipped; a database that cannot be read is set aside, never deleted, and a
new one begun; a newer schema is left alone (nothing is written to it).
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import sqlite3
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from nacosdns.config import DATABASE as FILE
from nacosdns.core import stored
from nacosdns.core.frames import External
from nacosdns.core.stored import columns, external_fields_of, external_of, fields_of, service_of
from nacosdns.errors import StoreDamaged, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nacosdns.core.frames import Known
    from nacosdns.core.model import ServiceKey
    from nacosdns.core.stored import Fields
    from nacosdns.ports import Log
SCHEMA = 1
QUEUE_MAX = 10_000
JOBS_AT_ONCE = 500
OWED_MAX = 2_000
RETRY_S = 2.0
LOOK_AGAIN_S = 10.0
LOG_EVERY_S = 60.0
SPARE_PART = 100
_BLOCK_BYTES = 4096
_SUFFIXES = ("", "-wal", "-shm")
_TABLES = """
CREATE TABLE IF NOT EXISTS services (
  registry TEXT, namespace TEXT, grp TEXT, service TEXT, revision INTEGER, body BLOB, crc INTEGER, asked_at REAL,
  PRIMARY KEY (registry, namespace, grp, service)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS externals (
  question BLOB, flags INTEGER, body BLOB, crc INTEGER, stored_at REAL, PRIMARY KEY (question, flags)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS services_asked ON services (asked_at);
CREATE INDEX IF NOT EXISTS externals_age ON externals (stored_at);
"""
_ALL = "SELECT registry, namespace, grp, service, revision, body, crc, asked_at FROM services"
_RECENT = f"{_ALL} ORDER BY asked_at DESC LIMIT ?"
_ONE = f"{_ALL} WHERE registry = ? AND namespace = ? AND grp = ? AND service = ?"
_PART = f"{_ALL} WHERE (registry, namespace, grp, service) > ({{}}) ORDER BY registry, namespace, grp, service LIMIT ?"
_PUT_SERVICE = "INSERT OR REPLACE INTO services VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_EXTERNAL = "INSERT OR REPLACE INTO externals VALUES (?, ?, ?, ?, ?)"
_DROP_SERVICE = "DELETE FROM services WHERE registry = ? AND namespace = ? AND grp = ? AND service = ?"
_TRIM = "DELETE FROM externals WHERE (question, flags) IN (SELECT question, flags FROM externals ORDER BY stored_at LIMIT ?)"

_REFUSALS = (sqlite3.Error, OSError, ValueError, OverflowError)
"""By the disk, and of values that SQLite cannot hold: whatever ended the thread would end all writing."""

_PRIMARY_CODE = 0xFF
_HINDRANCES = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM),
}
"""Nothing is wrong with the file itself: it is left where it is, and looked at again."""

Row = TypeVar("Row")
StoredService = stored.StoredService
_text = partial(str, encoding="utf-8", errors="surrogateescape")
"""One flipped bit in a name makes a bad row, not a table that cannot be read to its end."""


class _Job(NamedTuple):
    """One write for the thread, or none and whom to tell when all before it are over, good or bad."""

    run: Callable[[sqlite3.Connection], None]
    told: Callable[[], None] | None = None


class Contents(msgspec.Struct, frozen=True, gc=False):
    """What was read. ``damaged`` counts rows that were skipped; ``broken`` says why reading stopped before the end."""

    services: tuple[StoredService, ...] = ()
    externals: tuple[External, ...] = ()
    damaged: int = 0
    broken: str = ""


def read(directory: str) -> Contents:
    """Everything on disk, read-only. An absent file is empty; StoreDamaged, StoreError."""
    with _opened(directory) as connection:
        return _contents(connection) if connection is not None else Contents()


class Reader:
    """The services on disk for a front that answers while it reads them: the last asked first, one by name, all in parts.

    Holds back no writer between two calls. Made by ``reading``; every method raises as ``read`` does.
    """

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        return f"<Reader {'open' if self._connection else 'of nothing'}>"

    def recent(self, services: int) -> Contents:
        """So many services, those asked for last, and all outside answers."""
        return _contents(self._connection, services) if self._connection is not None else Contents()

    def find(self, key: ServiceKey) -> StoredService | None:
        """One service."""
        if self._connection is None:
            return None
        row = self._connection.execute(_ONE, columns(key)).fetchone()
        return service_of(row) if row is not None else None

    def parts(self, rows: int) -> Iterator[tuple[StoredService, ...]]:
        """All services, so many at a time; what is bad is left out."""
        after: tuple[str | bytes, ...] = ("", "", "", "")
        while self._connection is not None and (found := _part(self._connection, after, rows)):
            yield tuple(row for row in map(service_of, found) if row is not None)
            after = found[-1][:4]


@contextmanager
def reading(directory: str) -> Iterator[Reader]:
    """The file as a front reads it."""
    with _opened(directory) as connection:
        yield Reader(connection)


@contextmanager
def _opened(directory: str) -> Iterator[sqlite3.Connection | None]:
    """The file, read-only; None when there is nothing in it yet."""
    path = Path(directory, FILE)
    try:
        is_there = path.exists()
    except OSError as error:  # no right to look
        raise StoreError(f"{path}: {error.strerror}") from error
    if not is_there:
        yield None
        return
    # without a log beside it and without the right to make one, SQLite reads only what is promised not to change
    frozen = "" if os.access(directory, os.W_OK) or path.with_name(f"{FILE}-wal").exists() else "&immutable=1"
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro{frozen}", uri=True, timeout=1.0)
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from error
    try:
        connection.text_factory = _text
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise StoreError(f"{FILE} has schema {version}, newer than ours ({SCHEMA})")
        yield connection if version else None
    except (sqlite3.DatabaseError, ValueError, TypeError) as error:
        is_hindered = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _HINDRANCES
        raise (StoreError if is_hindered else StoreDamaged)(f"{path}: {error}") from error
    finally:
        connection.close()


def _part(connection: sqlite3.Connection, after: tuple[str | bytes, ...], rows: int) -> list[Fields]:
    """So many rows behind this key, which is compared as damage left it: else a row would come again and again."""
    bound = [_bound(part) for part in after]
    statement = _PART.format(", ".join(place for place, _ in bound))
    return connection.execute(statement, (*(value for _, value in bound), rows)).fetchall()


def _bound(part: str | bytes) -> tuple[str, str | bytes]:
    """A place in a statement and its value: what was no UTF-8 goes in as the bytes that it was, for which no index is used."""
    if isinstance(part, str):
        try:
            part.encode()
        except UnicodeEncodeError:
            return "CAST(? AS TEXT)", part.encode("utf-8", "surrogateescape")
    return "?", part


def _contents(connection: sqlite3.Connection, services_max: int = -1) -> Contents:
    statement = _RECENT if services_max >= 0 else _ALL
    found = connection.execute(statement, (services_max,) if services_max >= 0 else ())
    services, bad_services, stopped_services = _rows(map(service_of, found))
    externals, bad_externals, stopped_externals = _rows(_externals(connection))
    broken = stopped_services or stopped_externals
    return Contents(tuple(services), tuple(externals), bad_services + bad_externals, broken)


def _rows(rows: Iterator[Row | None]) -> tuple[list[Row], int, str]:
    """Good rows, how many were bad, and why reading stopped early (a damaged page), if it did."""
    good: list[Row] = []
    bad = 0
    try:
        for row in rows:
            if row is None:
                bad += 1
            else:
                good.append(row)
    except sqlite3.DatabaseError as error:
        return good, bad, str(error)
    return good, bad, ""


def _externals(connection: sqlite3.Connection) -> Iterator[External | None]:
    return (external_of(*row) for row in connection.execute("SELECT body, crc FROM externals ORDER BY stored_at"))


class SqliteStore:
    """Implements ports.Store. ``external_entries`` bounds the outside answers kept on disk."""

    def __init__(self, directory: str, *, external_entries: int, log: Log) -> None:
        self._directory = directory
        self._path = Path(directory, FILE)
        self._entries = external_entries
        self._log = log
        self._queue: queue.Queue[_Job | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self._logged_at = 0.0
        self._lost = False
        self._owed: list[_Job] = []  # the writer's, what it could not write
        self._room = 0
        self.writes = 0
        self.failures = 0
        self.dropped = 0
        self.damaged = 0
        self.set_aside = ""
        self.read_only = ""
        self.error = ""
        self._tried_at = 0.0

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path} writes={self.writes} failures={self.failures}>"

    async def load(self) -> tuple[tuple[StoredService, ...], tuple[External, ...]]:
        """Reads what is there and starts the writer. A damaged file is set aside and read as empty."""
        contents = await asyncio.to_thread(self._load)
        self.damaged = contents.damaged
        if contents.damaged:
            self._log.warning("store.rows_skipped", count=contents.damaged)
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()
        return contents.services, contents.externals

    def _load(self) -> Contents:
        try:
            contents = read(self._directory)
            if contents.broken:
                self._set_aside(contents.broken)
                self._lost = True
        except StoreDamaged as error:
            self._set_aside(str(error))
        except StoreError as error:
            self.read_only = str(error)
            self._log.error("store.not_used", reason=str(error))
        else:
            return contents
        return Contents()

    def _set_aside(self, reason: str) -> None:
        target = f"{self._path}.damaged-{time.strftime('%Y%m%dT%H%M%S')}"
        self.set_aside = target
        self._log.error("store.damaged", reason=reason, set_aside=target)
        for suffix in _SUFFIXES:
            source = Path(f"{self._path}{suffix}")
            try:
                if source.exists():
                    source.replace(f"{target}{suffix}")
            except OSError as error:
                self.read_only = f"cannot set the damaged file aside: {error}"
                self._log.error("store.not_used", reason=self.read_only)

    # --- called by the keeper

    def put_services(self, items: Iterable[tuple[Known, float]]) -> None:
        """Remembers snapshots with the wall time at which they were last asked for."""
        if rows := [fields_of(known, asked_at) for known, asked_at in items]:
            self._put(lambda connection: _many(connection, _PUT_SERVICE, rows))

    def remove_services(self, keys: Iterable[ServiceKey]) -> None:
        if rows := [columns(key) for key in keys]:
            self._put(lambda connection: _many(connection, _DROP_SERVICE, rows))

    def put_externals(self, items: Iterable[External]) -> None:
        if rows := [external_fields_of(item) for item in items]:
            self._put(lambda connection: self._keep_externals(connection, rows))

    def remove_externals(self, questions: Iterable[bytes]) -> None:
        if rows := [(question,) for question in questions]:
            self._put(lambda connection: _many(connection, "DELETE FROM externals WHERE question = ?", rows))

    def _keep_externals(self, connection: sqlite3.Connection, rows: list[tuple[bytes, int, bytes, int, float]]) -> None:
        """Counting 100,000 rows costs as much as writing 1,000: it is done when the table may be full, and room made for some."""
        _many(connection, _PUT_EXTERNAL, rows)
        self._room -= len(rows)
        if self._room >= 0:
            return
        count = connection.execute("SELECT count(*) FROM externals").fetchone()[0]
        if count > self._entries:
            spare = self._entries // SPARE_PART
            connection.execute(_TRIM, (count - self._entries + spare,))
            count = self._entries - spare
        self._room = self._entries - count

    def _put(self, run: Callable[[sqlite3.Connection], None]) -> None:
        try:
            self._queue.put_nowait(_Job(run))
        except queue.Full:
            self.dropped += 1
            self._lost = True

    def take_lost(self) -> bool:
        """Whether writes were lost since the last call, so that the owner should write everything again."""
        lost, self._lost = self._lost, False
        return lost

    async def flush(self) -> None:
        """Returns when everything queued so far is on disk, or has failed."""
        if self._thread is None or not self._thread.is_alive():
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            loop.call_soon_threadsafe(_finish, done)

        try:
            self._queue.put_nowait(_Job(lambda _: None, tell))
        except queue.Full:
            self.dropped += 1
            return
        await done

    async def close(self) -> None:
        """Writes what is queued and ends the thread."""
        if self._thread is None:
            return
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._thread = None

    def status(self) -> dict[str, object]:
        return {
            "path": str(self._path),
            "writes": self.writes,
            "failures": self.failures,
            "dropped": self.dropped,
            "owed": len(self._owed),
            "damaged_rows": self.damaged,
            "set_aside": self.set_aside,
            "not_used": self.read_only,
            "error": self.error,
        }

    # --- the writer's thread

    def _work(self) -> None:
        stop = False
        while not stop:
            jobs = self._next_jobs()
            stop = None in jobs
            self._write([job for job in jobs if job is not None])
        self._close()
        if self._owed:
            self._log.error("store.not_written", writes=len(self._owed))

    def _next_jobs(self) -> list[_Job | None]:
        """Waits for jobs, and for as long as some are owed not long; those come first, in their order."""
        jobs: list[_Job | None] = []
        with suppress(queue.Empty):
            jobs.append(self._queue.get(timeout=RETRY_S if self._owed else None))
        while len(jobs) < JOBS_AT_ONCE and not self._queue.empty():
            jobs.append(self._queue.get_nowait())
        owed, self._owed = self._owed, []
        return [*owed, *jobs]

    def _write(self, jobs: list[_Job]) -> None:
        self._look_again()
        try:
            if not self.read_only:
                connection = self._open()
                with connection:
                    for job in jobs:
                        job.run(connection)
                self.writes += len(jobs)
                self._written()
        except _REFUSALS as error:
            self.failures += 1
            self._close()
            self.error = f"{error}{_hindrance(self._path)}"
            self._owe(jobs, error)
            self._complain(self.error)
        for job in jobs:
            if job.told is not None:
                job.told()

    def _written(self) -> None:
        if self.error:
            self._log.info("store.written", was=self.error)
            self.error, self._logged_at = "", 0.0

    def _look_again(self) -> None:
        """A file that could not be read may be readable by now; what is known is written anew then."""
        if not self.read_only or time.monotonic() - self._tried_at < LOOK_AGAIN_S:
            return
        self._tried_at = time.monotonic()
        try:
            with _opened(self._directory):
                pass
        except StoreError as error:
            self.read_only = str(error)
        else:
            self._log.info("store.used", was=self.read_only)
            self.read_only = ""
            self._lost = True

    def _owe(self, jobs: list[_Job], error: Exception) -> None:
        """What the disk refuses now is tried again; what SQLite refuses for its own sake, and the oldest of too many, is lost."""
        writes = [job for job in jobs if job.told is None]
        if isinstance(error, (sqlite3.OperationalError, OSError)):
            self._owed = writes[-OWED_MAX:]
        self._lost |= len(self._owed) < len(writes)

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._path.exists():
            return self._connection
        self._close()
        connection = sqlite3.connect(self._path, timeout=2.0)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_TABLES)
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
        except sqlite3.Error:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            try:
                self._connection.close()
            except sqlite3.Error as error:
                self._complain(str(error))
            self._connection = None

    def _complain(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY_S or not self._logged_at:
            self._logged_at = now
            self._log.warning("store.write_failed", reason=reason, failures=self.failures)


def _hindrance(database: Path) -> str:
    """What the disk says itself, for SQLite only says that it failed; "" when it takes a file beside the database.

    The files of the database are not opened: to close one would let go of SQLite's locks on it (fcntl(2)).
    """
    try:
        with tempfile.TemporaryFile(dir=database.parent, buffering=0) as file:
            file.write(bytes(_BLOCK_BYTES))
        own = (database.with_name(f"{database.name}{suffix}") for suffix in _SUFFIXES)
        shut = [path.name for path in own if path.exists() and not os.access(path, os.R_OK | os.W_OK)]
    except OSError as error:
        return f": {error.strerror}"
    return f": {', '.join(shut)}: {os.strerror(errno.EACCES)}" if shut else ""


def _many(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    connection.executemany(statement, rows)


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
