"""Values as a person reads them: numbers, times, counts.

Must not know: what they are values of.
"""

from __future__ import annotations

DASH = "-"
_CELL_MAX = 60
_CELL_TAIL = 41


def text(value: object) -> str:
    """One value as a person reads it."""
    match value:
        case None | "":
            return DASH
        case True:
            return "yes"
        case False:
            return "no"
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ", ".join(map(text, value)) or DASH
        case _:
            return str(value)


def duration(seconds: float | None) -> str:
    """``3 s``, ``4 min``, ``2 h``, ``5 d``; a dash for never; ``clock?`` for what lies in the future: a clock was set back."""
    if seconds is None:
        return DASH
    if seconds <= -1:
        return "clock?"
    seconds = max(seconds, 0)
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def ago(seconds: float | None) -> str:
    """``3 s ago``, ``never``, or that it lies in the future."""
    if seconds is not None and seconds <= -1:
        return f"in the future ({duration(seconds)})"
    return "never" if seconds is None else f"{duration(seconds)} ago"


def counted(count: int, noun: str) -> str:
    """``1 service``, ``2 services``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shortened(words: str) -> str:
    """The beginning and, which tells more of a name, the end of what is too long for a line."""
    if len(words) <= _CELL_MAX:
        return words
    return f"{words[: _CELL_MAX - 1 - _CELL_TAIL]}…{words[-_CELL_TAIL:]}"
