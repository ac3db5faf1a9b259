"""One finding of `nacosdns doctor`.

Must not know: any check. Rule: an id is a word of the documentation (docs/operating.md) and never changes its meaning.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Severity(Enum):
    """How bad it is. An error: names fail, now or as soon as one part dies. A warning: something is worse than it could be."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """``seen``: the fact. ``todo``: what to do, ``command``: if one command does it. ``fix``: what `--fix` would do ("" nothing)."""

    id: str
    severity: Severity
    seen: str
    todo: str = ""
    command: str = ""
    fix: str = ""


def ok(name: str, seen: str) -> Finding:
    """Nothing to do."""
    return Finding(name, Severity.OK, seen)


def warning(name: str, seen: str, todo: str = "", command: str = "", *, fix: str = "") -> Finding:
    """Worse than it could be."""
    return Finding(name, Severity.WARNING, seen, todo, command, fix)


def error(name: str, seen: str, todo: str = "", command: str = "", *, fix: str = "") -> Finding:
    """Names fail."""
    return Finding(name, Severity.ERROR, seen, todo, command, fix)
