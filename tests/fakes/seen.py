"""What a running bridge shows of itself: its metrics, and what the kernel says of its processes."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fakes.running import Bridge


def metrics(bridge: Bridge) -> dict[str, float]:
    """Every series with its value; those of nacosdns without the prefix."""
    with urllib.request.urlopen(f"http://127.0.0.1:{bridge.web_port}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    series = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removeprefix("nacosdns_"): float(value) for name, _, value in series}


def total(bridge: Bridge, family: str, *parts: str) -> float:
    """The sum of the series of a family whose labels hold all of these parts."""
    return sum(
        value
        for name, value in metrics(bridge).items()
        if name.partition("{")[0] == family and all(part in name for part in parts)
    )


def pids(overview: Mapping[str, Any]) -> dict[str, int]:
    """The pid of each process by what it is, of the supervisor's part of `status`.

    That is supervisor, keeper, front (the one that answers), standby, web.
    """
    found = {"supervisor": int(overview["pid"])}
    for child in overview["children"]:
        word = "standby" if child["role"] == "front" and not child["sockets"] else child["role"]
        if child["pid"]:
            found[word] = int(child["pid"])
    return found


def lives(pid: int) -> bool:
    """Whether a process runs; one that waits only to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def resident_bytes(pid: int) -> int:
    """The memory of a process that nobody else shares, in bytes (Linux)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    found = (line.split() for line in text.splitlines() if line.startswith("Private_"))
    return sum(int(words[1]) * 1024 for words in found)


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def fronts(bridge: Bridge) -> set[int]:
    """The process ids of the fronts that run, the standby too."""
    lines = bridge.said("child.started", "child=front")
    started = {int(word.removeprefix("pid=")) for line in lines for word in line.split() if word.startswith("pid=")}
    return started.intersection(bridge.children())
