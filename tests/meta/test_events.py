"""Every event that the log may warn of stands in docs/operating.md, and every one that stands there is logged."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
LOUD = {"warning", "error", "exception"}
EVENT = re.compile(r"[a-z_]+(\.[a-z_]+)+")


def calls() -> Iterator[tuple[set[str], set[str]]]:
    """Of every call in the source: the attributes that it is called by, and what in its first argument is like an event."""
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                words = {part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)}
                attributes = {part.attr for part in ast.walk(node.func) if isinstance(part, ast.Attribute)}
                yield attributes, {word for word in words if isinstance(word, str) and EVENT.fullmatch(word)}


def documented() -> set[str]:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## Logs\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_loud_event_is_explained() -> None:
    loud = set().union(*(events for attributes, events in calls() if attributes & LOUD))

    assert loud - documented() == set()


def test_every_event_that_is_explained_is_logged() -> None:
    logged = set().union(*(events for _, events in calls()))

    assert {name for name in documented() if EVENT.fullmatch(name)} - logged == set()
