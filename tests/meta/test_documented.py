from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nacosdns.cli import parser
from nacosdns.config import Config
from nacosdns.config_load import load
from nacosdns.core import metrics

ROOT = Path(__file__).parents[2]
OPERATING = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")


def verbs(root: argparse.ArgumentParser, before: str = "") -> list[tuple[str, argparse.ArgumentParser]]:
    """Every command with its words, as ``cache flush``."""
    groups = [action for action in root._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        return [(before.strip(), root)]
    return [pair for word, inner in groups[0].choices.items() for pair in verbs(inner, f"{before} {word}")]


def test_the_reference_is_what_the_types_say():
    rendered = subprocess.run(
        [sys.executable, "-c", "import reference; print(reference.render(), end='')"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert (ROOT / "config" / "reference.toml").read_text(encoding="utf-8") == rendered, "run make reference"


def test_the_reference_means_the_defaults():
    assert load(str(ROOT / "config" / "reference.toml"), {}) == Config()


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.toml")), ids=lambda file: file.name)
def test_every_configuration_that_we_ship_can_be_used(file):
    assert load(str(file), {}).zones


@pytest.mark.parametrize(("words", "command"), verbs(parser()))
def test_every_command_and_its_options_are_documented(words, command):
    assert f"nacosdns {words}" in OPERATING
    for action in command._actions:
        for option in action.option_strings:
            if option not in {"-h", "--help"}:
                assert f"`{option}" in OPERATING or f" {option}" in OPERATING, option


@pytest.mark.parametrize("family", metrics.FAMILIES, ids=lambda family: family.name)
def test_every_metric_is_documented_with_its_labels(family):
    line = next((line for line in OPERATING.splitlines() if f"`{family.name}`" in line), "")

    assert family.help in line
    for label, _ in family.labels:
        assert label in line


def test_no_metric_is_documented_that_does_not_exist():
    known = {family.name for family in metrics.FAMILIES}
    table = OPERATING.partition("## Metrics")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `([a-z0-9_]+)`", table, re.MULTILINE)) == known


def test_make_lists_its_verbs_and_the_readme_names_only_those():
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    known = set(re.findall(r"make ([a-z]+)", listed))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert {"setup", "test", "check", "demo"} <= known
    assert set(re.findall(r"`make ([a-z]+)", readme)) <= known


def examples() -> list[str]:
    """Every line of a code block in README and docs that runs nacosdns."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    blocks = [block for text in texts for block in re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    lines = [line.partition(" #")[0].strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"(sudo )?(\S*/)?nacosdns ", line)]


@pytest.mark.parametrize("line", examples())
def test_every_command_in_the_documentation_is_one_that_nacosdns_takes(line):
    words = shlex.split(line.partition("nacosdns ")[2])

    assert parser().parse_args(words).command
