"""Tells when a file changes, by looking at it every second or two.

Must not know: what is in the file. Rule: looking is enough and survives everything that events do not: editors that
rename, links that are turned, directories that come later, network file systems, bind mounts in containers.
"""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

POLL_S = 1.5

Print = tuple[int, int, int, int, int]
_ABSENT: Print = (0, 0, 0, 0, 0)


class PollingWatcher:
    """``ports.Watcher``. One look costs a stat of the file that the path leads to."""

    def __init__(self, poll_s: float = POLL_S) -> None:
        self._poll_s = poll_s

    def __repr__(self) -> str:
        return f"<PollingWatcher every {self._poll_s} s>"

    async def watch(self, path: str, changed: Callable[[], Awaitable[None] | None]) -> None:
        """Calls ``changed`` after each change, until cancelled. Coming, going and being unreadable are changes.

        Changes before the first look, which is made at once, are the caller's.
        """
        file = Path(path)
        seen = _print(file)
        while True:
            await asyncio.sleep(self._poll_s)
            present = _print(file)
            if present != seen:
                seen = present
                result = changed()
                if inspect.isawaitable(result):
                    await result


def _print(file: Path) -> Print:
    """What tells one state of a file from another; a changed target of a link is another inode."""
    try:
        found = file.stat()
    except (OSError, ValueError):
        return _ABSENT
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
