"""The fuzzer itself: every target takes its seeds and some wounded ones, and a fault is found, shown and repeated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from fuzz.fuzz import BYTES_MAX, fault_of, wounded
from fuzz.targets import TARGETS

FUZZ = Path(__file__).parents[1] / "fuzz" / "fuzz.py"


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_finds_nothing_in_its_seeds_and_in_the_first_wounds(name: str) -> None:
    target, rng = TARGETS[name], Random(name)
    inputs = [*target.seeds, b"", *(wounded(rng, rng.choice(target.seeds)) for _ in range(500))]

    assert [fault for data in inputs if (fault := fault_of(target.run, data))] == []
    assert max(map(len, inputs)) <= BYTES_MAX


def test_a_fault_is_told_with_its_traceback() -> None:
    assert "ZeroDivisionError" in fault_of(lambda data: 1 / len(data), b"")


@pytest.mark.parametrize("words", [["--plain", "--seed", "7"], ["--plain", "--only", "frame"]])
def test_the_verb_says_how_it_looked_and_at_how_much(words: list[str]) -> None:
    command = [sys.executable, str(FUZZ), "--seconds", "0.6", *words]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    lines = said.splitlines()

    assert "a plain loop over the seeds" in lines[0]
    assert [line.partition(":")[0] for line in lines[1:]] == (words[2:] if "--only" in words else list(TARGETS))
    assert all("nothing found" in line for line in lines[1:])


def test_an_unknown_target_is_named_with_those_there_are() -> None:
    done = subprocess.run([sys.executable, str(FUZZ), "--only", "x"], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert ", ".join(TARGETS) in done.stderr
