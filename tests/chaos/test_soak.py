"""The soak in its short form: five minutes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from chaos.ground import Ground
from chaos.soak import Soak
from fakes.real_nacos import missing_tools

if TYPE_CHECKING:
    from pathlib import Path

MINUTES = 5.0


@pytest.mark.timeout(700)
def test_nothing_grows_and_nothing_is_wrong_while_everything_changes(tmp_path: Path) -> None:
    if missing := missing_tools():
        why = f"the soak needs {', '.join(missing)}"
        pytest.fail(why) if os.environ.get("NACOSDNS_REQUIRE_REAL") == "1" else pytest.skip(why)
    with Ground("soak", tmp_path, short=True) as ground:
        soak = Soak(ground, MINUTES)
        try:
            soak.run()
        except Exception as error:
            error.add_note(f"{soak.table()}\n{ground.last_words()}")
            raise
    print(soak.table())  # noqa: T201 - pytest -s shows the figures
