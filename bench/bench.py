"""The table of speed: server CPU per query, against a plain C echo and the peers that are installed.

``python bench/bench.py [--rounds 5] [--rows PART] [--no-peers] [--json] [--write]``. Builds the C programs of bench/c, starts
the real program with real configurations and every peer that is installed (``make bench-peers``), servers on core 0, load and
upstream on core 1, and measures every row once a round. CPU is that of all processes of a server, less what they use when
idle, over the replies that came. Only ratios within one run mean something. docs/speed.md tells how to read the table.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from measure import positive
from ourselves import VARIANTS, await_ourselves, start_ourselves
from peers import PEERS
from rows import ECHO, ECHO_TCP, ROWS, SILENT, chosen
from servers import LOAD_CORE, SERVER_CORE, Failed, Ground, Others, await_answer, core_busy_s
from table import Figures, Measured, as_text, machine, table, write_into

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rows import Row
    from servers import Server

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
TTL_S = 86_400  # of what the upstream says: no refresh while we measure
SETTLE_S, IDLE_S, WARM_S = 2.0, 4.0, 0.6
CLOSED_PART = 0.5  # of the seconds of a row
WINDOW = 100


class Bench:
    """The servers of the chosen rows, started, and the load on them."""

    def __init__(self, ground: Ground, seconds: float) -> None:
        self.ground = ground
        self.seconds = seconds
        self.servers: dict[str, Server] = {}
        self.others = Others()
        self.yardsticks = {row.server: row for row in ROWS if row.server == row.yardstick}

    def start(self, labels: Iterable[str]) -> None:
        """Start these servers and what they need; return when all of them answer."""
        self.ground.build()
        upstream = self._started("upstream", self.ground.place / "upstream", TTL_S, core=LOAD_CORE)
        await_answer(upstream, "www.example.com")
        for label in labels:
            self.servers[label] = self._server(label, upstream.port)
        for label, server in self.servers.items():
            if label in PEERS:
                PEERS[label].wait(server)
            elif label in VARIANTS:
                await_ourselves(server)
            else:
                await_answer(server, "svc000.nacos", tcp=label == ECHO_TCP)

    def _server(self, label: str, upstream: int) -> Server:
        if label in PEERS:
            return PEERS[label].start(self.ground, upstream)
        if label in VARIANTS:
            return start_ourselves(self.ground, label, upstream)
        return self._started(label, self.ground.place / "echo", *(["tcp"] if label == ECHO_TCP else []))

    def _started(self, label: str, program: Path, *words: object, core: str = SERVER_CORE) -> Server:
        port = self.ground.free_port()
        return self.ground.start(label, port, program, port, *words, core=core)

    def warm(self, rows: list[Row]) -> None:
        """Ask every row for a moment, so that caches hold what they will, then let everything come to rest."""
        for row in rows:
            self.load(row, WINDOW, WARM_S)
        time.sleep(SETTLE_S)
        self.ground.measure_idle(IDLE_S)

    def round(self, measured: list[Measured]) -> None:
        """Measure every row once; the yardstick anew before each question, for a shared machine changes by the second."""
        question, echo = "", None
        for found in measured:
            if echo is None or found.row.question != question:
                question, echo = found.row.question, self.figures(self.yardsticks[found.row.yardstick])
            is_echo = found.row.server == found.row.yardstick
            found.add(echo if is_echo else self.figures(found.row), echo)
            found.rss_mb, found.pss_mb = self.servers[found.row.server].memory_mb()

    def figures(self, row: Row) -> Figures:
        """One row, under a full window and one query at a time."""
        return Figures(self.load(row, WINDOW, self.seconds), self.load(row, 1, self.seconds * CLOSED_PART))

    def load(self, row: Row, window: int, seconds: float) -> dict[str, float]:
        """What the load generator counted, and ``cpu_us`` of the server a reply."""
        server = self.servers[row.server]
        beside = self._failing(server, row.failing, seconds) if row.failing else None
        sockets = min(row.sockets, window)
        names = self.ground.names(*row.asked)
        command = [self.ground.place / "load", server.port, names, seconds, max(window, sockets), sockets, *row.words]
        before, began, busy_s = server.cpu_s(), time.monotonic(), core_busy_s(SERVER_CORE)
        words = ["taskset", "-c", LOAD_CORE, *map(str, command)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        used, took = server.cpu_s() - before, time.monotonic() - began
        self.others.add(core_busy_s(SERVER_CORE) - busy_s - used, took)
        used -= server.idle * took
        if beside:
            beside.terminate()
            beside.wait()
        if done.returncode:
            raise Failed(f"the load on {row} failed: {done.stderr.strip()}")
        counted = done.stdout.split()
        found = dict(zip(counted[::2], map(float, counted[1::2]), strict=True))
        if not found["received"]:
            raise Failed(f"{row} got no reply: {server.last_words()}")
        return {**found, "cpu_us": used / found["received"] * 1e6}

    def _failing(self, server: Server, count: int, seconds: float) -> subprocess.Popen[bytes]:
        names = self.ground.names(*SILENT)
        command = (self.ground.place / "load", server.port, names, seconds + 5, count, 1, "unique")
        log = self.ground.place / "failing.log"
        beside = self.ground.spawn(*command, core=LOAD_CORE, log=log, environment={})
        time.sleep(0.2)
        return beside


def run(rows: list[Row], rounds: int, seconds: float) -> tuple[list[Measured], Others]:
    """Measure these rows; every process that was started has ended on return."""
    measured = [Measured(row) for row in rows]
    with tempfile.TemporaryDirectory(prefix="nacosdns-bench-") as place:
        ground = Ground(Path(place))
        try:
            bench = Bench(ground, seconds)
            bench.start(dict.fromkeys(row.server for row in rows))
            bench.warm(rows)
            for number in range(rounds):
                print(f"round {number + 1} of {rounds}", file=sys.stderr)
                bench.round(measured)
        finally:
            ground.end()
    return measured, bench.others


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=5, help="how often every row is measured")
    parser.add_argument(
        "--seconds", type=float, default=1.2, help="of full load a row and round; half of it one by one"
    )
    parser.add_argument("--rows", "--only", default="", metavar="PART", help="only rows in which this stands")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="peers too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help="write the table into docs/speed.md")
    options = parser.parse_args()
    if options.write and (options.rows or not options.peers):
        parser.error("--write takes the whole table, without --rows and --no-peers")
    return options


def report(measured: list[Measured], others: Others, options: argparse.Namespace) -> int:
    """Show the table; the exit code."""
    values = table(measured)
    print(json.dumps({"machine": machine(), "rows": values}, indent=1) if options.json else as_text(values))
    how = f"{options.rounds} rounds of {options.seconds} s; {others}"
    print(how, file=sys.stderr)
    if wrong := [str(found.row) for found in measured if found.wrong]:
        print(f"wrong answers: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    if options.write:
        write_into(PAGE, values, how)
    return 0


def main() -> int:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    there = {label for label, peer in PEERS.items() if options.peers and peer.path()}
    if options.peers and (missing := sorted(set(PEERS) - there)):
        print(f"not installed (make bench-peers): {'; '.join(missing)}", file=sys.stderr)
    rows = chosen(options.rows, {ECHO, ECHO_TCP, *VARIANTS, *there})
    if not rows:
        print(f"no row has {options.rows!r} in it", file=sys.stderr)
        return 1
    try:
        return report(*run(rows, options.rounds, options.seconds), options)
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
