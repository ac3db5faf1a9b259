from __future__ import annotations

import pytest

from fakes.running import Bridge


@pytest.fixture
def bridge(tmp_path):
    """Makes bridges that run as processes of their own, and ends them."""
    made: list[Bridge] = []

    def make(**how: object) -> Bridge:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Bridge(directory, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()
