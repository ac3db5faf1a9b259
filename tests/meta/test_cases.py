"""tests/CASES.md is complete and true: every case once, every test there, every test knows its case."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DECISIONS = (TESTS.parent / "docs" / "decisions.md").read_text(encoding="utf-8")
IDS = [
    "S01",
    "S03",
    "S04",
    "S05",
    "S06",
    "S09",
    "S10",
    "S11",
    "S12",
    "S13",
    "S15",
    "S17",
    "S18",
    "S19",
    "S23",
    "S24",
    "S25",
    "S27",
    "S28",
    "S30",
    "S31",
    "S33",
    "S35",
    "S36",
    "S38",
    "S39",
    "S40",
    "S41",
    "S44",
    "S45",
    "S46",
    "S47",
    "S49",
    "S50",
    "S52",
    "S53",
    "S55",
    "S57",
    "S58",
    "S60",
    "S61",
    "S64",
    "S65",
    "S67",
    "S69",
    "S70",
    "S72",
    "S75",
    "S77",
    "S78",
    "S79",
    "S80",
    "S82",
    "S85",
    "S86",
    "S87",
    "S90",
]
LATER = {"sync", "top names"}
WHOLLY_LATER = {"S86", "S87"}
ROWS = re.findall(r"^\| (S\d+) \| (.+?) \| (.+) \|$", (TESTS / "CASES.md").read_text(encoding="utf-8"), re.MULTILINE)
ENTRIES = [(case, entry) for case, _, cell in ROWS for entry in cell.split("<br>")]
HELD_BY_TESTS = [(case, entry.strip("`")) for case, entry in ENTRIES if entry.startswith("`")]


def names_case(text: str, case: str) -> bool:
    """Whether a text has the id as a word of its own: ``S01``, or ``_s01_`` in a name."""
    return re.search(rf"(?<![a-z0-9]){case}(?![0-9])", text, re.IGNORECASE) is not None


def what_says(path: Path, test: str) -> str:
    """The name and docstring of a test and the docstring of its file; LookupError when there is no such test."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test:
            return f"{test} {ast.get_docstring(node)} {ast.get_docstring(module)}"
    raise LookupError(f"{path.name} has no {test}")


def test_every_case_has_exactly_one_row() -> None:
    assert [case for case, _, _ in ROWS] == IDS
    assert len(IDS) == 57


@pytest.mark.parametrize(("case", "entry"), HELD_BY_TESTS, ids=lambda value: value.rpartition("/")[2])
def test_a_named_test_exists_and_names_its_case(case: str, entry: str) -> None:
    file, _, test = entry.partition("::")
    path = TESTS / file
    assert path.is_file(), f"there is no {file}"
    assert test or path.suffix == ".replay"
    text = what_says(path, test) if test else path.read_text(encoding="utf-8")

    assert names_case(text, case), f"{entry} does not name {case}"


@pytest.mark.parametrize(("case", "entry"), [pair for pair in ENTRIES if not pair[1].startswith("`")])
def test_what_is_no_test_is_a_decision_or_a_part_that_comes_later(case: str, entry: str) -> None:
    word, _, rest = entry.partition(": ")

    assert word in {"decision", "later"}, f"{case}: {entry}"
    assert rest in LATER if word == "later" else f"\n## {rest}\n" in DECISIONS


def test_only_what_a_syncer_does_is_wholly_left_for_later() -> None:
    held = {case for case, entry in ENTRIES if not entry.startswith("later")}

    assert set(IDS) - held == WHOLLY_LATER


def test_every_scenario_and_test_that_names_a_case_names_one_that_there_is() -> None:
    files = [*TESTS.glob("*/test_*.py"), *TESTS.glob("replay/*/*.replay")]
    named = {word for path in files for word in re.findall(r"\bS\d\d\b", path.read_text(encoding="utf-8"))}

    assert named <= set(IDS)
