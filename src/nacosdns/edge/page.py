"""The page of one child: a piece of memory that it writes and everyone who holds its descriptor reads.

Must not know: what the counters mean (core/metrics.py does). Rules: one writer; every cell is an aligned 64-bit
integer, so a reader never sees half a value; the supervisor keeps the page, so counters survive a kill -9 and the next
child in the slot goes on adding.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from pathlib import Path

PAGE_BYTES = 16 * 1024
MAGIC = int.from_bytes(b"nacosdns", "little")
LAYOUT = 1
_COUNTERS_AT = 16  # cells before it are the header
_MAGIC, _LAYOUT, _PID, _ROLE, _STATE, _BEAT_NS, _STARTED_NS, _CANARY_NS = range(8)


class Role(IntEnum):
    """Who writes a page."""

    NONE = 0
    SUPERVISOR = 1
    KEEPER = 2
    FRONT = 3
    WEB = 4

    @property
    def word(self) -> str:
        """As it stands in labels and frames."""
        return self.name.lower()


class State(IntEnum):
    """How far the writer is. GONE: no process."""

    GONE = 0
    STARTING = 1
    READY = 2
    DRAINING = 3


def memory_file(name: str, content: bytes = b"") -> int:
    """A descriptor of an unnamed file in memory that holds ``content``; inheritable only by pass_fds."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(f"nacosdns-{name}")
    else:
        path = f"{os.environ.get('TMPDIR', '/tmp')}/nacosdns-{name}-{os.urandom(8).hex()}"  # noqa: S108  # random, exclusive, gone at once
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        Path(path).unlink()
    os.pwrite(fd, content, 0)
    return fd


class Page:
    """One page, mapped. ``counters`` is a writable view of 64-bit cells, indexed as core/metrics.py says."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, PAGE_BYTES)
        self._cells = memoryview(self._map).cast("Q")
        self.counters: memoryview = self._cells[_COUNTERS_AT:]
        if self._cells[_MAGIC] != MAGIC or self._cells[_LAYOUT] != LAYOUT:
            self.close()
            raise ValueError(f"descriptor {fd} is not a page of layout {LAYOUT}")

    @classmethod
    def create(cls, name: str = "page") -> Page:
        """A new page, all zero, that belongs to nobody yet."""
        fd = memory_file(name)
        os.ftruncate(fd, PAGE_BYTES)
        os.pwrite(fd, MAGIC.to_bytes(8, "little") + LAYOUT.to_bytes(8, "little"), 0)
        return cls(fd)

    def __repr__(self) -> str:
        return f"<Page fd={self.fd} {self.role.word} pid={self.pid} {self.state.name.lower()}>"

    def claim(self, role: Role, pid: int, now_ns: int) -> None:
        """A new writer: its role and pid, state STARTING, a first heartbeat."""
        self._cells[_ROLE] = role
        self._cells[_PID] = pid
        self._cells[_STARTED_NS] = now_ns
        self._cells[_BEAT_NS] = now_ns
        self._cells[_STATE] = State.STARTING

    def release(self) -> None:
        """The writer is gone; the counters stay."""
        self._cells[_STATE] = State.GONE

    def beat(self, now_ns: int) -> None:
        """The writer's loop still turns."""
        self._cells[_BEAT_NS] = now_ns

    def canary_answered(self, now_ns: int) -> None:
        """Only in the supervisor's page: a canary query was answered through the real socket."""
        self._cells[_CANARY_NS] = now_ns

    @property
    def pid(self) -> int:
        """The writer's process id."""
        return self._cells[_PID]

    @property
    def role(self) -> Role:
        """The writer's role."""
        return Role(self._cells[_ROLE])

    @property
    def state(self) -> State:
        """How far the writer is."""
        return State(self._cells[_STATE])

    @state.setter
    def state(self, state: State) -> None:
        self._cells[_STATE] = state

    @property
    def beat_ns(self) -> int:
        """When the writer's loop last turned, on the clock of ``HostClock.now_ns``."""
        return self._cells[_BEAT_NS]

    @property
    def started_ns(self) -> int:
        """When the writer claimed the page."""
        return self._cells[_STARTED_NS]

    @property
    def canary_ns(self) -> int:
        """When the canary was last answered; 0 is never."""
        return self._cells[_CANARY_NS]

    def read_counters(self) -> list[int]:
        """All cells at this moment."""
        return self.counters.tolist()

    def clear(self, indexes: tuple[int, ...]) -> None:
        """Sets these cells to zero (gauges, when a new writer begins)."""
        for index in indexes:
            self.counters[index] = 0

    def close(self) -> None:
        """Ends the mapping; the descriptor stays open."""
        self.counters.release()
        self._cells.release()
        self._map.close()
