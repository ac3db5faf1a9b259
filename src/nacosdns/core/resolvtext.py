"""What resolv.conf should say on a host whose programs ask us, what is to be kept of what stood there, and when to give up.

Must not know: files, links, time. Rules: our own address stands first and only servers that know our zones stand
behind it, for an NXDOMAIN of any other server is final; search, domain and options of others stay; whatever is
replaced is kept first; a text that is right is made again byte for byte.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

import msgspec

MARK = b"# Kept by nacosdns"
OPTIONS = ("timeout:1", "attempts:2")
"""A dead server costs a second, and each of the servers is asked twice."""
DROPPED_OPTIONS = ("timeout", "attempts", "rotate")  # rotate would ask us only each third time
NAMESERVERS_READ = 3  # glibc looks at no more (resolv.conf(5), MAXNS)
FIGHT_S = 60.0
FIGHT_WRITES = 5
PAUSE_MAX_S = 600.0
_HEADER = b"# nacosdns: "


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The file as it is. ``kind`` is file, link or missing; of a link ``text`` is what it leads to."""

    kind: str
    text: bytes = b""
    target: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    label: bytes = b""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What stood there before us. ``fought_at`` is the wall time at which the guard last gave up for a while."""

    kind: str = "file"
    target: str = ""
    fought_at: float = 0.0
    text: bytes = b""


class Wish(NamedTuple):
    """``servers``: our address, then those that know our zones; ``saved_path`` is named in the file for its reader."""

    servers: tuple[str, ...]
    saved_path: str


class Plan(NamedTuple):
    """``save`` first, then ``write``; None is nothing to do."""

    save: Saved | None = None
    write: bytes | None = None


def is_ours(text: bytes) -> bool:
    """Whether the guard wrote this."""
    return text.startswith(MARK)


def servers_of(text: bytes) -> tuple[str, ...]:
    """The words behind ``nameserver``, as they stand."""
    return tuple(words[1] for words in map(_words, _lines(text)) if words[:1] == ["nameserver"] and len(words) > 1)


def rewritten(text: bytes, wish: Wish) -> bytes:
    """The text with our servers and options; comments go, everything else stays."""
    kept: list[str] = []
    options: dict[str, None] = {}
    for line in _lines(text):
        words = _words(line)
        if words[:1] == ["options"]:
            options |= dict.fromkeys(words[1:])
        elif words and words[0] != "nameserver":
            kept.append(line.rstrip())
    others = [option for option in options if option.partition(":")[0] not in DROPPED_OPTIONS]
    mark = f"{MARK.decode()} (resolvconf guard). What stood here before is in {wish.saved_path}"
    servers = [f"nameserver {server}" for server in wish.servers[:NAMESERVERS_READ]]
    lines = [mark, *servers, *kept, " ".join(["options", *others, *OPTIONS])]
    return "".join(f"{line}\n" for line in lines).encode("latin-1", "replace")


def plan(found: Found, saved: Saved | None, wish: Wish, behind: bytes = b"") -> Plan:
    """What is to be kept and written. ``behind`` is what the link that we replaced leads to now."""
    text = found.text if found.text.strip() or saved is None else saved.text
    right = rewritten(text, wish)
    kept = _to_keep(found, saved, wish, behind)
    if found.text == right:
        return Plan(save=kept)
    if kept is None and saved is None:
        kept = Saved(kind=found.kind, target=found.target, text=_plain(found.text))
    return Plan(save=kept, write=right)


def _to_keep(found: Found, saved: Saved | None, wish: Wish, behind: bytes) -> Saved | None:
    """The newest text that names other servers. A text of ours that was edited does not make a link forgotten."""
    if _others(found.text, wish):
        if not is_ours(found.text):
            fresh = Saved(kind=found.kind, target=found.target, text=found.text)
        else:
            fresh = msgspec.structs.replace(saved or Saved(), text=_plain(found.text))
    elif saved is not None and saved.kind == "link" and is_ours(found.text) and _others(behind, wish):
        fresh = msgspec.structs.replace(saved, text=behind)
    else:
        return None
    if saved is not None:
        fresh = msgspec.structs.replace(fresh, fought_at=saved.fought_at)
    return None if fresh == saved else fresh


def _others(text: bytes, wish: Wish) -> list[str]:
    return [server for server in servers_of(text) if server not in wish.servers]


def _plain(text: bytes) -> bytes:
    """Without our own first line."""
    return text.partition(b"\n")[2] if is_ours(text) else text


def _lines(text: bytes) -> list[str]:
    return text.decode("latin-1").replace("\r\n", "\n").split("\n")


def _words(line: str) -> list[str]:
    """The words of a line that glibc reads: the keyword at its start, no comment (resolv.conf(5))."""
    return [] if line[:1] in {"#", ";", " ", "\t"} else line.split()


def encode_saved(saved: Saved) -> bytes:
    """One file, so that it is whole or not there: a comment with what is not text, then the text byte for byte."""
    facts = {"kind": saved.kind, "target": saved.target, "fought_at": saved.fought_at}
    return _HEADER + msgspec.json.encode(facts) + b"\n" + saved.text


def decode_saved(content: bytes) -> Saved:
    """What ``encode_saved`` gave; any other text is taken for the text of a file."""
    if not content.startswith(_HEADER):
        return Saved(text=content)
    head, _, text = content.partition(b"\n")
    try:
        facts = msgspec.json.decode(head.removeprefix(_HEADER), type=dict[str, str | float])
        return msgspec.convert({**facts, "text": text}, Saved)
    except msgspec.MsgspecError:
        return Saved(text=text)


class Fights:
    """Whether somebody else writes the file again and again; then we pause, longer each time."""

    def __init__(self) -> None:
        self._written: deque[float] = deque(maxlen=FIGHT_WRITES)
        self._pause_s = FIGHT_S
        self.quiet_until = -inf

    def __repr__(self) -> str:
        return f"<Fights {len(self._written)} writes, pause {self._pause_s:g} s>"

    def may_write(self, now: float) -> bool:
        """Not while we pause."""
        return now >= self.quiet_until

    def wrote(self, now: float) -> float:
        """We had to write. How long we pause from now on; 0 for no pause."""
        if self._written and now - self._written[-1] > self._pause_s + FIGHT_S:
            self._pause_s = FIGHT_S  # a long peace
        self._written.append(now)
        if len(self._written) < FIGHT_WRITES or now - self._written[0] > FIGHT_S:
            return 0.0
        pause_s = self._pause_s
        self.quiet_until = now + pause_s
        self._pause_s = min(pause_s * 2, PAUSE_MAX_S)
        self._written.clear()
        self._written.append(now)
        return pause_s
