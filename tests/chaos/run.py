"""Drills in which something dies, under steady load: ``python tests/chaos/run.py [DRILL ...] [--short] [--list] [--write] [--json]``.

Each drill starts the real program (and where it needs them a real Nacos, providers, resolvers), asks it all the time from
a process that knows the truth, breaks something, and says what must hold: no wrong answer ever, no query lost unless the
process in whose hand it was died. Prints a line a drill as it ends, then the report; exit 1 when one did not hold.
``--write`` puts the report into docs/operating.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from typing import TYPE_CHECKING

from chaos import report
from chaos.drills import ALL
from chaos.ground import ROOT, Ground

if TYPE_CHECKING:
    from chaos.ground import Drill, Row

PAGE = ROOT / "docs" / "operating.md"
BEGIN, END = "<!-- written by: make chaos ARGS=--write -->", "<!-- end of what is written -->"


def run(drill: Drill, *, short: bool, keep: bool = False) -> Row:
    """One drill, whatever comes of it."""
    place = Path(tempfile.mkdtemp(prefix="nacosdns-chaos-"))
    began = time.monotonic()
    with Ground(drill.name, place, short=short) as ground:
        try:
            drill.run(ground)
        except Exception as error:  # noqa: BLE001 - a drill that breaks is a line of the report, and the others go on
            ground.row.broken = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            print(ground.last_words(), file=sys.stderr)  # noqa: T201
    ground.row.seconds = time.monotonic() - began
    if not keep:
        shutil.rmtree(place, ignore_errors=True)
    return ground.row


def lacks(drill: Drill) -> list[str]:
    """Programs that the drill needs and this machine has not; root counts as one."""
    missing = [tool for tool in drill.needs if tool != "root" and shutil.which(tool) is None]
    return missing + (["root"] if "root" in drill.needs and os.geteuid() else [])


def write(table: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drills", nargs="*", help="names of drills, or parts of them; default all")
    parser.add_argument("--short", action="store_true", help="waits and settle times turned down, as in CI")
    parser.add_argument("--list", action="store_true", help="the drills and what must hold in each")
    parser.add_argument("--write", action="store_true", help="put the report into docs/operating.md")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the directories of the drills")
    options = parser.parse_args()
    chosen = [d for d in ALL if not options.drills or any(part in d.name for part in options.drills)]
    if unknown := [part for part in options.drills if not any(part in drill.name for drill in ALL)]:
        parser.error(f"no drill is called {' or '.join(unknown)}; --list names them")
    if options.list:
        print("\n".join(f"{drill.name:32} {drill.holds}" for drill in chosen))  # noqa: T201
        return 0
    rows: list[Row] = []
    for drill in chosen:
        if missing := lacks(drill):
            print(f"{drill.name}: left out, needs {', '.join(missing)}", file=sys.stderr, flush=True)  # noqa: T201
            continue
        rows.append(run(drill, short=options.short, keep=options.keep))
        said = rows[-1].broken or "holds"
        print(f"{drill.name}: {said} ({rows[-1].seconds:.0f} s)", file=sys.stderr, flush=True)  # noqa: T201
    table = report.as_table(rows)
    print(report.as_json(rows) if options.json else table)  # noqa: T201
    if options.write:
        write(table)
    return 1 if any(row.broken for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
