"""A load of the bench (``bench/c/steady.c``) for drills that need more questions, or finer times, than the checker can do."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from fakes.checker import Report
from fakes.running import TESTS

if TYPE_CHECKING:
    from chaos.ground import Ground

SOURCE = TESTS.parent / "bench" / "c" / "steady.c"


class Steady:
    """Begun when made; asks for so many seconds. It checks id, question, rcode and that there is an answer."""

    def __init__(self, ground: Ground, port: int, names: list[str], qps: int, seconds: float) -> None:
        place = ground.directory()
        program = place / "steady"
        subprocess.run(["cc", "-O2", "-o", program, SOURCE], check=True)
        (place / "names").write_text("".join(f"{name} A 0\n" for name in names), encoding="utf-8")
        self._ground = ground
        command = [str(program), str(port), str(place / "names"), str(seconds), str(qps)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ground.at_end(self._process.kill)

    def end(self) -> Report:
        """Waits for its end; what was found, also in the drill's row. A reply that is not as it should be is wrong."""
        printed = self._process.communicate(timeout=120)[0].split()
        found = dict(zip(printed[::2], map(float, printed[1::2]), strict=True))
        report = Report(
            sent=int(found["sent"]),
            right=int(found["right"]),
            wrong=int(found["wrong"]),
            lost=int(found["lost"]),
            slowest_ms=found["max_us"] / 1000,
        )
        self._ground.row.add(report)
        return report
