"""Who holds a port of this host, so that an error can name the one to stop.

Must not know: what we want with the port. Rule: what /proc does not tell us is not known, and no error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def holder(port: int, word: str) -> str:
    """Who holds the port, as far as /proc tells us: ``dnsmasq (pid 12)``."""
    inodes = {inode for table in (word, f"{word}6") for inode in _inodes(Path("/proc/net") / table, port)}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*") if wanted else ():
        try:
            if any(_leads(link) in wanted for link in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue  # not ours to look into, or gone
    return ""


def _leads(link: Path) -> str:
    """Where a descriptor leads; "" when it is closed meanwhile, which must not hide the others."""
    try:
        return link.readlink().name
    except OSError:
        return ""


def _inodes(table: Path, port: int) -> Iterator[str]:
    """The inodes of bound UDP or listening TCP sockets on this port (proc(5), /proc/net/tcp)."""
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[3] in {"07", "0A"}:
            yield fields[9]
