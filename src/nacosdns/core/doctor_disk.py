"""What is wrong with the disk below cache.dir, and with what the bridge writes there.

Must not know: where facts come from. Rule: each cause has a cure of its own: who has room is never told to make some.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from nacosdns.core.doctor_outside import some
from nacosdns.core.finding import error, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nacosdns.core.facts import Bridge, Disk, Facts, Setting
    from nacosdns.core.finding import Finding

_FREE_NONE_BYTES, _FREE_LOW_BYTES, _FREE_ENOUGH_BYTES, _FREE_LOW_PART = 10 << 20, 100 << 20, 1 << 30, 0.05
_FREE_MOST_PART = 0.5
_INODES_LOW = 0.02
_UNKEPT, _SHARED = {"tmpfs", "ramfs"}, {"nfs", "nfs4", "cifs", "fuse.sshfs", "9p"}
_RIGHTS = "give cache.dir and the files in it to the user of the bridge (server.user), and let it through to there"
_READ_ONLY = "see dmesg for why it became so, mount it for writing, or name another cache.dir"
_DAMAGED = "start the bridge again: it sets the damaged file aside and learns anew, while Nacos and upstreams answer"
_CURES = (
    ("read-only file system", _READ_ONLY),
    ("permission denied", _RIGHTS),
    ("not permitted", f"{_RIGHTS}, and see that none is immutable (lsattr)"),
    ("out of reach", _RIGHTS),
    ("no space left", "make room in cache.dir, inodes too"),
    ("quota", "give the user of the bridge a larger quota, or make room in cache.dir"),
    ("disk is full", "make room in cache.dir, or allow larger files (ulimit -f)"),
    ("not a database", _DAMAGED),
    ("malformed", _DAMAGED),
    ("i/o error", "see the health of the disk (dmesg), and the memory limits of the bridge (ulimit -v)"),
    ("input/output error", "see the health of the disk (dmesg)"),
    ("newer than ours", "go back to the release that wrote it, or move cache.db away: what is in it is learned anew"),
    ("readonly database", f"{_RIGHTS}, and see that it is mounted for writing"),
    ("unable to open", f"{_RIGHTS}, and see that it is mounted for writing"),
)
"""What to do about a disk that refuses, by the words of the kernel or of SQLite; the first that is found counts."""


def _cure(reason: str, otherwise: str) -> str:
    said = reason.lower()
    return next((todo for words, todo in _CURES if words in said), otherwise)


def store(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """What the bridge says of its own writing."""
    del setting
    bridge = facts.bridge
    if bridge is None or bridge.error:
        return
    again = "systemctl restart nacosdns" if facts.system and facts.system.systemd else ""
    if bridge.store_error:
        seen = f"what is learned is not written: {bridge.store_error}"
        todo = _cure(bridge.store_error, "mend that, or move cache.db away: what is in it is learned anew")
        yield error("bridge.store", seen, todo, again if todo is _DAMAGED else "")
    elif bridge.store_failing:
        seen = f"writes to the disk fail, and are tried again: {bridge.store_failing}"
        todo = _cure(bridge.store_failing, "see store.write_failed in its log")
        yield error("bridge.store", seen, todo, again if todo is _DAMAGED else "")


def judge(facts: Facts, setting: Setting) -> Iterator[Finding]:
    """What was seen of the disk from here."""
    disk = facts.disk
    if disk is None:
        return
    if not disk.exists:
        todo = "the bridge makes it when it starts as root; else make it"
        yield warning("disk.dir", f"cache.dir {disk.path} does not exist", todo, f"install -d -m 750 {disk.path}")
        return
    yield _writable(disk, facts.bridge)
    yield _room(disk)
    if disk.damaged:
        seen = f"a database was damaged and set aside, what it knew was learned anew: {some(disk.damaged)}"
        todo = "see store.damaged in the log and the health of the disk; keep the file for a report, or remove it"
        yield warning("disk.damaged", seen, todo, f"rm {shlex.quote(disk.path)}/cache.db.damaged-*")
    if disk.kind in _UNKEPT:
        seen = f"cache.dir is on {disk.kind}: after a reboot nothing is known until Nacos answers"
        yield warning("disk.kind", seen, "name a directory on a disk in cache.dir")
    elif disk.kind in _SHARED:
        seen = f"cache.dir is on {disk.kind}: a database there can be damaged, and hangs with the network"
        yield warning("disk.kind", seen, "name a directory on a local disk in cache.dir")
    del setting


def _writable(disk: Disk, bridge: Bridge | None) -> Finding:
    by = f" by the user {disk.user}" if disk.user else ""
    if not disk.tried:
        if bridge is not None and not (bridge.error or bridge.store_error or bridge.store_failing):
            return ok(
                "disk.writable", f"the bridge says nothing against cache.dir {disk.path}; this user cannot try it"
            )
        seen = f"this user cannot try whether cache.dir {disk.path} can be written"
        return warning("disk.writable", seen, "run doctor as root, or as the user of the bridge")
    if not disk.write_error:
        return ok("disk.writable", f"cache.dir {disk.path} can be written{by}")
    seen = f"cache.dir {disk.path} cannot be written{by}: {disk.write_error}"
    return error("disk.writable", seen, _cure(disk.write_error, "see dmesg, or name another cache.dir"))


def _room(disk: Disk) -> Finding:
    size = f"{disk.free_bytes >> 20} MiB" if disk.free_bytes >= 1 << 20 else f"{disk.free_bytes >> 10} KiB"
    seen = f"{size} ({disk.free_part:.0%}) of the disk of cache.dir are free"
    if disk.free_bytes < _FREE_LOW_BYTES and disk.free_part >= _FREE_MOST_PART:
        return warning("disk.space", f"{seen}: it is small", "name a directory on a larger disk in cache.dir")
    if disk.free_bytes < _FREE_NONE_BYTES:
        return error("disk.space", seen, "make room: what is learned now is lost at the next start")
    if disk.free_bytes < _FREE_LOW_BYTES or (disk.free_part < _FREE_LOW_PART and disk.free_bytes < _FREE_ENOUGH_BYTES):
        return warning("disk.space", seen, "make room")
    if disk.inodes_part < _INODES_LOW:
        return warning(
            "disk.space", f"{disk.inodes_part:.1%} of the inodes of that disk are free", "remove files there"
        )
    return ok("disk.space", seen)
