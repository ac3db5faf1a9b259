"""The real program while it is asked all the time: reloads good and bad, floods of names, a name too long, an end with everything away."""

from __future__ import annotations

import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Self

import dns.exception

from fakes.asking import addresses, ask, cli, rcode, until_says
from fakes.running import TWO_ORDERS, Bridge, exchange, packet, until
from fakes.seen import metrics

if TYPE_CHECKING:
    from pathlib import Path

TRUTH = {"10.0.0.1", "10.0.0.2"}


class Asking:
    """A client that asks one name as quickly as it is answered, until the end of the block."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.right = 0
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                got = set(addresses(self.port, "orders.nacos"))
            except dns.exception.Timeout:
                got = {"lost"}
            if got == TRUTH:
                self.right += 1
            else:
                self.wrong.append(str(got))
            time.sleep(0.002)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def test_reloads_good_and_bad_lose_no_query_and_the_last_good_one_holds(tmp_path: Path) -> None:
    """S80: bad syntax, an unknown key, a taken port; each is refused, counted and followed by a good one."""
    running = Bridge(tmp_path, text=TWO_ORDERS, modules={})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        taken = f'"127.0.0.1:{running.port}", "127.0.0.1:{holder.getsockname()[1]}"'
        bad = [("[server", "", "not TOML"), ("[polcy]\nttl_s = 5\n", "", "did you mean"), ("", taken, "is taken by")]
        try:
            until_says(running.up().port, "orders.nacos", TRUTH, seconds=30)
            with Asking(running.port) as client:
                for turn in range(3):
                    for text, listen, reason in bad:
                        running.write(TWO_ORDERS + text, listen)
                        running.signal(signal.SIGHUP)
                        running.wait_for("reload.refused", reason, times=turn + 1)
                    running.write(TWO_ORDERS + f"[policy]\nttl_s = {turn + 5}\n")
                    running.signal(signal.SIGHUP)
                    until(lambda t=turn: ask(running.port, "orders.nacos").answer[0].ttl == t + 5, 10, "the new TTL")
            until(lambda: reloads(running) == (9, 3), 10, "the counts of reloads")
        finally:
            running.close()

    assert client.wrong == []
    assert client.right > 10


def reloads(bridge: Bridge) -> tuple[float, float]:
    """Failed ones and good ones."""
    series = metrics(bridge)
    failed, ok = (f'reloads_total{{role="supervisor",slot="0",outcome="{word}"}}' for word in ("failed", "ok"))
    return series[failed], series[ok]


def test_a_flood_of_names_adds_no_line_to_the_metrics_and_loses_none_of_its_counts(tmp_path: Path) -> None:
    """S82: names and clients are no labels; every query is in exactly one series."""
    running = Bridge(tmp_path, text=TWO_ORDERS, modules={})
    try:
        until_says(running.up().port, "orders.nacos", TRUTH, seconds=30)
        assert rcode(running.port, "nosuch.nacos") == "NXDOMAIN"
        assert rcode(running.port, "www.example.com") == "SERVFAIL"
        time.sleep(1.2)
        before = metrics(running)
        for number in range(1000):
            exchange(packet(f"rnd{number}.nacos", number), running.port)
            exchange(packet(f"rnd{number}.example.com", number), running.port)
        until(lambda: queries(metrics(running)) - queries(before) >= 2000, 10, "the counts")
        after = metrics(running)
    finally:
        running.close()

    assert set(after) == set(before)
    assert 2000 <= queries(after) - queries(before) <= 2000 + 20  # and the canary's


def queries(series: dict[str, float]) -> float:
    return sum(value for name, value in series.items() if name.startswith("queries_total"))


def test_a_service_that_no_name_can_lead_to_is_listed_with_the_reason_and_stops_nothing(tmp_path: Path) -> None:
    """S04: a label of 70 bytes."""
    long = f'[[static]]\nname = "{"x" * 70}"\ninstances = [{{ ip = "10.0.0.3", port = 80 }}]\n'
    running = Bridge(tmp_path, text=TWO_ORDERS + long, modules={})
    try:
        until_says(running.up().port, "orders.nacos", TRUTH, seconds=30)
        listed = str(cli(running, "services"))
    finally:
        running.close()

    assert "70 bytes" in listed


def test_the_end_comes_in_time_while_nacos_and_the_upstream_say_nothing(tmp_path: Path) -> None:
    """S79: black holes for both; what was asked is given up, exit 0, the port is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hole, socket.create_server(("127.0.0.1", 0)) as deaf:
        hole.bind(("127.0.0.1", 0))
        text = TWO_ORDERS.replace("servers = []", f'servers = ["127.0.0.1:{deaf.getsockname()[1]}"]')
        text = text.replace("upstreams = []", f'upstreams = ["127.0.0.1:{hole.getsockname()[1]}"]')
        running = Bridge(tmp_path, text=text, modules={})
        try:
            until_says(running.up().port, "orders.nacos", TRUTH, seconds=30)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for number in range(50):
                    sock.sendto(packet(f"x{number}.example.com", number), ("127.0.0.1", running.port))
            running.signal(signal.SIGTERM)
            code = running.wait(3.5)
        finally:
            running.close()

    assert code == 0
