"""Plays every scenario beside this file: one file, one behaviour over time."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay.engine import replay

SCENARIOS = sorted(Path(__file__).parent.glob("*/*.replay"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_scenario_plays_as_written(path: Path, tmp_path: Path) -> None:
    replay(path.read_text(), tmp_path)


def test_a_service_whose_instances_are_all_disabled(tmp_path: Path) -> None:
    """docs/answers.md 5.16."""
    replay((Path(__file__).parent / "query" / "disabled-instances.replay").read_text(), tmp_path)


def test_there_are_scenarios_of_every_kind() -> None:
    kinds = {path.parent.name for path in SCENARIOS}

    assert kinds >= {"query", "push", "protection", "refresh", "disk", "forward", "balance", "life"}
    assert len(SCENARIOS) >= 30
