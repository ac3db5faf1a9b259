"""The report of a chaos run: a line a drill, as text, for a page of the documentation, or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.ground import Row

HEAD = ("drill", "s", "asked", "right", "wrong", "lost", "no answer", "slowest ms", "longest gap ms", "figures")


def as_json(rows: list[Row]) -> str:
    """Everything that was found."""
    return json.dumps([asdict(row) for row in rows], indent=1)


def _cells(row: Row) -> list[str]:
    found = row.report
    figures = ", ".join(f"{name} {value}" for name, value in row.figures.items())
    return [
        row.name,
        f"{row.seconds:.0f}",
        str(found.sent),
        str(found.right),
        str(found.wrong + found.empty + found.few),
        str(found.lost),
        str(found.failed),
        f"{found.slowest_ms:.0f}",
        f"{found.longest_gap_ms:.0f}",
        f"BROKEN: {row.broken}" if row.broken else figures,
    ]


def as_table(rows: list[Row]) -> str:
    """Markdown. *wrong* also counts answers that were empty or held too few; *no answer* is SERVFAIL and refused ports."""
    lines = [HEAD, ["---"] + ["---:"] * (len(HEAD) - 2) + ["---"], *map(_cells, rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
