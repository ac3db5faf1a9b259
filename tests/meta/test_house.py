from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
OURS = [
    *SOURCES,
    *(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)),
    *(ROOT / "docs").glob("*.md"),
    *ROOT.glob("*.md"),
    *(path for path in (ROOT / "deploy").rglob("*") if path.suffix in {".sh", ".md", ".xml", ".toml"}),
    *(ROOT / "config").glob("*.toml"),
    ROOT / "Makefile",
    ROOT / ".ci" / "run",
]
LATE_IMPORTS_ALLOWED = {
    *("child.py", "cli.py", "commands.py"),  # a choice of loop, and verbs that need what others do not
    *("plugins.py", "config_check.py", "config_load.py"),  # what finds plugins, and the words for a wrong configuration
}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions() -> list[tuple[str, int]]:
    """Every function of the program and its length in lines."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                found.append((f"{name(path)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1))
    return found


def test_the_arrows_between_rooms_point_inward(monkeypatch):
    monkeypatch.chdir(ROOT)

    assert lint_imports(cache_dir=None) == 0


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_has_at_most_500_lines_and_says_what_it_is(path):
    text = path.read_text(encoding="utf-8")

    assert text.count("\n") <= 500
    assert ast.get_docstring(ast.parse(text))


def test_functions_are_short():
    lengths = sorted(length for _, length in functions())

    assert [where for where, length in functions() if length > 60] == []
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[len(lengths) * 9 // 10] <= 35


@pytest.mark.parametrize("path", OURS, ids=name)
def test_nothing_is_left_unfinished_and_no_machine_is_named(path):
    text = path.read_text(encoding="utf-8")

    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text)
    assert not re.search(r"(?<![\w.$}])/(work|farm)/", text)


def test_the_core_uses_only_the_standard_library_dnslib_and_msgspec():
    allowed = {*sys.stdlib_module_names, "dnslib", "msgspec", "nacosdns"}
    found = {
        (name(path), module.partition(".")[0])
        for path in SOURCES
        if path.parent.name == "core"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for module in _imported(node)
    }

    assert {(path, module) for path, module in found if module not in allowed} == set()


def test_the_core_has_no_await_and_no_any():
    for path in SOURCES:
        if path.parent.name == "core":
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))

            assert not [node for node in nodes if isinstance(node, ast.Await | ast.AsyncFunctionDef)], name(path)
            assert not [node for node in nodes if isinstance(node, ast.Name) and node.id == "Any"], name(path)


def test_processes_import_everything_before_they_are_ready():
    late = [
        f"{name(path)}:{inner.lineno}"
        for path in SOURCES
        if path.name not in LATE_IMPORTS_ALLOWED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]

    assert late == []


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module]
    return []


def test_the_architecture_names_every_room_and_no_other():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "nacosdns"
    there = {path.name for path in SOURCES if path.name != "__init__.py"}
    named = {word.rpartition("/")[2] for word in re.findall(r"`([a-z_/]+\.py)`", text)}

    assert named == there
    assert all((package / word).exists() for word in re.findall(r"`((?:core|edge)/[a-z_]+\.py)`", text))
