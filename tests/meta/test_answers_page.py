"""docs/answers.md and the tests: every numbered line is held by a test that names it, and no test names another."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "answers.md").read_text(encoding="utf-8")
INTRODUCTION, *PARTS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
PARAGRAPHS = [paragraph for part in PARTS for paragraph in part.partition("\n")[2].strip().split("\n\n")]
LINES = [paragraph.partition(" ")[0] for paragraph in PARAGRAPHS]
TABLES = ("integration/test_conformance.py",)
NUMBER = r"\d+\.\d+"


def named_in_docstrings() -> dict[str, set[str]]:
    """The lines that a test names in its docstring, after the page: ``docs/answers.md 1.2, 3.4``; by the test."""
    named: dict[str, set[str]] = {}
    for path in TESTS.glob("*/test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                words = re.search(rf"docs/answers\.md ((?:{NUMBER}(?:, )?)+)", ast.get_docstring(node) or "")
                if words:
                    named[f"{path.name}::{node.name}"] = set(re.findall(NUMBER, words[1]))
    return named


def named_by_cases() -> set[str]:
    """The lines with which the name of a case begins, of all cases that pytest collects: ``[udp-3.2 DO]``."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *TABLES]
    listed = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True).stdout
    return set(re.findall(rf"[\[-]({NUMBER}) [^\[\]]*\]$", listed, re.MULTILINE))


@pytest.fixture(scope="module")
def named() -> set[str]:
    return named_by_cases().union(*named_in_docstrings().values())


def test_every_paragraph_of_the_page_has_a_number_of_its_own_in_order() -> None:
    assert all(re.fullmatch(NUMBER, line) for line in LINES), [line for line in LINES if not re.fullmatch(NUMBER, line)]
    numbers = [tuple(map(int, line.split("."))) for line in LINES]

    assert numbers[0] == (1, 1)
    assert all(after in {(part, line + 1), (part + 1, 1)} for (part, line), after in pairwise(numbers))
    assert [f"{part}. " for part, _ in sorted({(part, 0) for part, _ in numbers})] == [
        re.match(r"\d+\. ", heading)[0]
        for heading in PARTS  # type: ignore[index]
    ]


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_held_by_a_test_that_names_it(line: str, named: set[str]) -> None:
    assert line in named, f"no test names docs/answers.md {line}"


def test_no_test_names_a_line_that_is_not_there(named: set[str]) -> None:
    assert named <= set(LINES)
