"""Drills as tests: each in its short form; one that cannot run here is skipped, or fails when NACOSDNS_REQUIRE_REAL=1."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from chaos.ground import Ground
from chaos.run import lacks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chaos.ground import Drill


def make_test(drills: list[Drill]) -> Callable[..., None]:
    """A test with a case for each drill."""
    chosen = [drill for drill in drills if not drill.full_only]

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("drill", chosen, ids=[drill.name for drill in chosen])
    def test_drill(drill: Drill, tmp_path: Path) -> None:
        if missing := lacks(drill):
            why = f"{drill.name} needs {', '.join(missing)}"
            pytest.fail(why) if os.environ.get("NACOSDNS_REQUIRE_REAL") == "1" else pytest.skip(why)
        with Ground(drill.name, tmp_path, short=True) as ground:
            try:
                drill.run(ground)
            except Exception as error:
                error.add_note(ground.last_words())
                raise

    return test_drill
