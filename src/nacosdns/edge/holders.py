"""Who holds a port of this host, as /proc has it.

Must not know: what somebody wants with the port. Rule: what /proc does not tell us is not known, and no error.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_STATES = {"udp": "07", "tcp": "0A"}  # of a bound socket, and of one that listens (proc(5), /proc/net/tcp)


def holder(port: int, kind: str) -> str:
    """Who holds the port, so that an error can name the one to stop: ``dnsmasq (pid 12)``; "" for unknown."""
    tables = (_table(Path("/proc/net", name)) for name in (kind, f"{kind}6"))
    wanted = {socket for table in tables for _, socket in bound(table, port, kind)}
    for _, process in owners(Path("/proc"), wanted) if wanted else ():
        try:
            return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue  # it is gone
    return ""


def _table(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def bound(table: str, port: int, kind: str) -> Iterator[tuple[str, str]]:
    """Each UDP or listening TCP socket on the port in the text of a table of /proc/net: its address, and its name in /proc."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _STATES[kind]:
            raw, _, number = fields[1].partition(":")
            if int(number, 16) == port:
                yield _address(raw), f"socket:[{fields[9]}]"


def _address(raw: str) -> str:
    """The kernel prints each 32-bit word in the order of the machine."""
    words = [bytes.fromhex(raw[at : at + 8])[::-1] for at in range(0, len(raw), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def processes(proc: Path) -> Iterator[Path]:
    """The folders of all processes."""
    return (folder for folder in proc.glob("[0-9]*") if folder.name.isdigit())


def owners(proc: Path, wanted: set[str]) -> Iterator[tuple[str, Path]]:
    """Each process that has one of these sockets, as far as we may look; the oldest first."""
    for process in sorted(processes(proc), key=lambda folder: int(folder.name)):
        for socket in sorted(set(_targets(process / "fd")) & wanted):
            yield socket, process


def _targets(folder: Path) -> Iterable[str]:
    """Where the links of a folder lead; those that go away meanwhile, and folders that are not ours to see, are left out."""
    try:
        links = list(folder.iterdir())
    except OSError:
        return
    for link in links:
        try:
            yield str(link.readlink())
        except OSError:  # one that is closed must not hide the others
            continue
