"""Every word at the head of `nacosdns status` stands in the table "When something is wrong" of docs/operating.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAD = re.compile(r"\b[A-Z]{2,}(?: [A-Z]{2,})*\b")
NO_HEADS = {"CONT", "SERVFAIL"}
"""Other words of capitals that a sentence may have: a signal, an rcode."""


def heads() -> set[str]:
    """What is written in capitals in the sentences of problems.py, docstrings left out."""
    tree = ast.parse((ROOT / "src" / "nacosdns" / "problems.py").read_text(encoding="utf-8"))
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {word for node in texts if id(node) not in documents for word in HEAD.findall(node.value)} - NO_HEADS


def test_every_head_of_status_is_explained() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## When something is wrong\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    told = " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| "))
    missing = {head for head in heads() if not re.search(rf"\b{head}\b", told)}

    assert len(heads()) > 10
    assert missing == set()
