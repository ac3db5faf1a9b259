"""Hosts made of files: a directory tree that `nacosdns doctor` reads as the root of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GOOD = {
    "etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:2\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
"""A host that nothing is wrong with."""


def make(root: Path, files: Mapping[str, str | None]) -> Path:
    """Writes a host over ``GOOD``: text, ``-> TARGET`` for a link, ``/`` for a folder, None for no such file."""
    for name, text in {**GOOD, **files}.items():
        path = root / name
        if text is None:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if text == "/":
            path.mkdir()
        elif text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> "))
        else:
            path.write_text(text, encoding="utf-8")
    return root


def process(
    pid: int, name: str, *words: str, parent: int = 1, sockets: tuple[int, ...] = (), exe: str = ""
) -> dict[str, str]:
    """The files of a process below proc."""
    files = {
        f"proc/{pid}/comm": f"{name}\n",
        f"proc/{pid}/cmdline": "\0".join((name, *words)) + "\0",
        f"proc/{pid}/status": f"Name:\t{name}\nPid:\t{pid}\nPPid:\t{parent}\nCapEff:\t0000000000000000\n",
        f"proc/{pid}/fd/0": "-> /dev/null",
    }
    for number, inode in enumerate(sockets, 3):
        files[f"proc/{pid}/fd/{number}"] = f"-> socket:[{inode}]"
    if exe:
        files[f"proc/{pid}/exe"] = f"-> {exe}"
    return files


def bound(*rows: tuple[str, int, int], state: str = "07") -> str:
    """A table like /proc/net/udp: address, port and inode of each socket; state 0A for one of TCP that listens."""
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "{:4}: {}:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000     0        0 {} 2 0 0\n"
    return head + "".join(
        line.format(number, _hex(address), port, state, inode) for number, (address, port, inode) in enumerate(rows)
    )


def _hex(address: str) -> str:
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
