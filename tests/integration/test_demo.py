"""The demo where there is no Java: the same with a static file, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_demo_runs_without_java_from_a_static_file(tmp_path: Path) -> None:
    demo = Path(__file__).parents[2] / "deploy" / "demo.py"
    done = subprocess.run(
        [sys.executable, str(demo)],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "static file instead of Nacos" in done.stdout
    assert "10.0.0.1: 100  10.0.0.2: 200  10.0.0.3: 300" in done.stdout
    assert "gone from the answer after" in done.stdout
