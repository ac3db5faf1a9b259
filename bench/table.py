"""The table: what a row measured, its medians over the rounds, and how they are shown."""

from __future__ import annotations

import platform
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rows import Row

COLUMNS = {
    "question": "question",
    "server": "server",
    "cpu_us": "CPU µs",
    "cpu_ratio": "÷ echo",
    "qps": "qps",
    "p50_us": "p50 µs",
    "p50_ratio": "÷ echo",
    "p99_us": "p99 µs",
    "p99_ratio": "÷ echo",
    "rss_mb": "RSS MB",
    "pss_mb": "PSS MB",
    "lost": "lost",
    "wrong": "wrong",
}
WORDS = 2  # the first columns are words, the others numbers
BEGIN, END = "<!-- written by: make bench ARGS=--write -->", "<!-- end of what is written -->"


@dataclass(frozen=True)
class Figures:
    """One row in one round: under a full window, and one query at a time."""

    saturated: dict[str, float]
    closed: dict[str, float]

    def wrong(self, wanted: str) -> int:
        """Replies that were not what was wanted, and those that nobody waited for and that were not only late."""
        return sum(
            int(found["received"] - found[wanted] + max(0.0, found["stray"] - found["lost"]))
            for found in (self.saturated, self.closed)
        )


@dataclass
class Measured:
    """What the rounds of one row measured; ``echo`` holds, round by round, what its yardstick did just before."""

    row: Row
    rounds: list[Figures] = field(default_factory=list)
    echo: list[Figures] = field(default_factory=list)
    rss_mb: float = 0.0
    pss_mb: float = 0.0

    def add(self, figures: Figures, echo: Figures) -> None:
        """Take one round."""
        self.rounds.append(figures)
        self.echo.append(echo)

    @property
    def wrong(self) -> int:
        """Wrong replies of all rounds."""
        return sum(figures.wrong(self.row.wanted) for figures in self.rounds)

    def values(self) -> dict[str, object]:
        """The row of the table: medians, and medians of the ratios to the yardstick of the same round."""
        cpu, cpu_ratio, ratios = self._compared(lambda figures: figures.saturated["cpu_us"])
        p50, p50_ratio, _ = self._compared(lambda figures: figures.closed["p50_us"])
        p99, p99_ratio, _ = self._compared(lambda figures: figures.closed["p99_us"])
        return {
            "question": self.row.question,
            "server": self.row.server,
            "cpu_us": round(cpu, 2),
            "cpu_ratio": cpu_ratio,
            "qps": round(statistics.median(figures.saturated["qps"] for figures in self.rounds)),
            "p50_us": round(p50, 1),
            "p50_ratio": p50_ratio,
            "p99_us": round(p99),
            "p99_ratio": p99_ratio,
            "rss_mb": round(self.rss_mb),
            "pss_mb": round(self.pss_mb),
            "lost": sum(int(figures.saturated["lost"] + figures.closed["lost"]) for figures in self.rounds),
            "wrong": self.wrong,
            "cpu_ratios": ratios,
        }

    def _compared(self, of: Callable[[Figures], float]) -> tuple[float, float, list[float]]:
        ratios = [of(ours) / of(echo) for ours, echo in zip(self.rounds, self.echo, strict=True)]
        middle = statistics.median(map(of, self.rounds))
        return middle, round(statistics.median(ratios), 2), [round(ratio, 2) for ratio in ratios]


def table(measured: list[Measured]) -> list[dict[str, object]]:
    """The rows as values, in order."""
    return [found.values() for found in measured]


def as_text(rows: list[dict[str, object]]) -> str:
    """Columns for a terminal."""
    lines = [list(COLUMNS.values()), *([shown(row[name]) for name in COLUMNS] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            word.ljust(width) if place < WORDS else word.rjust(width)
            for place, (word, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def as_markdown(rows: list[dict[str, object]]) -> str:
    """A table for docs."""
    rule = ["---"] * WORDS + ["---:"] * (len(COLUMNS) - WORDS)
    lines = [list(COLUMNS.values()), rule, *([shown(row[name]) for name in COLUMNS] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def machine() -> dict[str, str]:
    """Where and when this was measured."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def write_into(page: Path, rows: list[dict[str, object]], how: str) -> None:
    """Replace what stands between the two marker lines of a page, nothing else."""
    text = page.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    where = machine()
    said = f"{where['cpu']}; {where['kernel']}; Python {where['python']}; {where['date']}; {how}."
    page.write_text(f"{head}{BEGIN}\n{said}\n\n{as_markdown(rows)}\n{END}{tail}")
