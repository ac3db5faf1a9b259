"""The real program while it is asked all the time: restarts, reloads and floods, and what they leave behind (S50 S79 S80)."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from fakes.asking import addresses, ask, until_says
from fakes.paced import Paced
from fakes.running import TWO_ORDERS, Bridge, free_port, until
from fakes.seen import descriptors, metrics, resident_bytes, total
from fakes.upstream import StubUpstream
from nacosdns.edge import store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ORDERS = {"10.0.0.1", "10.0.0.2"}
TRUTH = "192.0.2.99"
RESTARTS = 20
RELOADS = 50
EXIT_MAX_S = 3.5

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def upstream() -> Iterator[StubUpstream]:
    with StubUpstream() as stub:
        stub.answer_everything(TRUTH)
        yield stub


def text_with(stub: StubUpstream, more: str = "") -> str:
    return TWO_ORDERS.replace("upstreams = []", f'upstreams = ["{stub.address}"]') + more


def is_right(reply: bytes | None) -> bool:
    return reply is not None and reply[3] & 15 == 0 and reply[7] > 0


def test_twenty_restarts_lose_only_what_is_asked_while_nobody_listens(tmp_path: Path, upstream: StubUpstream) -> None:
    """S79: what was asked before SIGTERM is answered; each end comes in time; outside answers are all there again."""
    port, names = free_port(), [f"kept{number}.test" for number in range(50)]
    text, state = text_with(upstream), tmp_path / "state"
    running = Bridge(tmp_path, text=text, modules={}, port=port, directory=state)
    ends, gaps, codes = [], [], []
    try:
        until_says(running.up().port, "orders.nacos", ORDERS, seconds=30)
        assert {addresses(port, name)[0] for name in names} == {TRUTH}
        until(lambda: len(store.read(str(state)).externals) >= len(names), 10, "the copy on disk")
        with Paced(port, ["orders.nacos", *names[:4]], per_second=500) as client:
            for turn in range(RESTARTS):
                if turn % 5 == 0:
                    running.up()  # the other times it is told to stop while it still starts
                told = time.monotonic()
                running.signal(signal.SIGTERM)
                codes.append(running.wait(EXIT_MAX_S))
                ends.append(time.monotonic() - told)
                running.close()
                running = Bridge(tmp_path, text=text, modules={}, port=port, directory=state)
                running.wait_for("front.reads", seconds=30)
                until_says(port, "orders.nacos", ORDERS, seconds=30)
                gaps.append((told, time.monotonic()))
            upstream.is_mute = True
            upstream.forget()
            kept = {name: addresses(port, name) for name in names}
    finally:
        running.close()
    bad = [one for one in client.asked() if not is_right(one.reply)]

    assert codes == [0] * RESTARTS
    assert max(ends) < EXIT_MAX_S
    assert [one for one in bad if not any(start <= one.sent_at <= end for start, end in gaps)] == []
    assert len(bad) < len(client.sent)
    assert kept == {name: [TRUTH] for name in names}


def test_fifty_reloads_good_and_bad_lose_nothing_and_leave_nothing_behind(
    tmp_path: Path, upstream: StubUpstream
) -> None:
    """S80: bad syntax, an unknown key, a taken port, names that clash; descriptors, memory and caches as before."""
    running = Bridge(tmp_path, text=text_with(upstream), modules={})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        taken = f'"127.0.0.1:{running.port}", "127.0.0.1:{holder.getsockname()[1]}"'
        wrong = [
            ("[server", "", "not TOML"),
            ("[polcy]\nttl_s = 5\n", "", "did you mean"),
            ("", taken, "is taken by"),
            ('[groups]\nA = "x"\na = "y"\n', "", "stands twice"),
        ]
        try:
            until_says(running.up().port, "orders.nacos", ORDERS, seconds=30)
            names = [f"kept{number}.test" for number in range(50)]
            assert {addresses(running.port, name)[0] for name in names} == {TRUTH}
            reload_good(running, upstream, 77)
            before = state_of(running)
            children, failed = running.children(), 0
            with Paced(running.port, ["orders.nacos", *names], per_second=500) as client:
                for number in range(RELOADS):
                    if number % 2:
                        reload_good(running, upstream, 100 + number)
                        continue
                    more, listen, reason = wrong[number // 2 % len(wrong)]
                    failed += 1
                    running.write(text_with(upstream, more), listen)
                    running.signal(signal.SIGHUP)
                    running.wait_for("reload.refused", times=failed)
                    assert running.said("reload.refused", reason)
            until(lambda: reloads(running) == (failed, RELOADS - failed + 1), 10, "the counts of reloads")
            after = state_of(running)
            assert running.children() == children
            assert ask(running.port, "orders.nacos").answer[0].ttl == 100 + RELOADS - 1
        finally:
            running.close()

    assert client.lost() == []
    assert all(is_right(one.reply) for one in client.asked())
    assert upstream.count() <= 60  # each name once: the cache outlived every reload
    assert after[0] == before[0]
    assert all(after[1][pid] < before[1][pid] + (16 << 20) for pid in children)


def reload_good(running: Bridge, upstream: StubUpstream, ttl_s: int) -> None:
    running.write(text_with(upstream, f"[policy]\nttl_s = {ttl_s}\n"))
    running.signal(signal.SIGHUP)
    until(lambda: ask(running.port, "orders.nacos").answer[0].ttl == ttl_s, 10, "the new TTL")


def reloads(running: Bridge) -> tuple[float, float]:
    """Failed ones and good ones."""
    return total(running, "reloads_total", 'outcome="failed"'), total(running, "reloads_total", 'outcome="ok"')


def state_of(running: Bridge) -> tuple[dict[int, int], dict[int, int]]:
    """Descriptors and memory of every process, the supervisor's too; descriptors when nothing is on its way."""
    pids = (running.process.pid, *running.children())
    seen: list[dict[int, int]] = []

    def is_still() -> bool:
        seen.append({pid: descriptors(pid) for pid in pids})
        return len(seen) > 20 and seen[-1] == seen[-20]

    until(is_still, 20, "a pause of the descriptors")
    return seen[-1], {pid: resident_bytes(pid) for pid in pids}


def flooded(running: Bridge, spell: Callable[[int], str], first: int) -> tuple[int, int]:
    """Asks 10,000 names that nobody asked before, 5,000 a second; how many answers came, and how many of them were records."""
    names = [spell(number) for number in range(first, first + 10_000)]
    with Paced(running.port, names, per_second=5000) as client:
        until(lambda: len(client.sent) >= len(names), 60, "the flood")
    replies = [one.reply for one in client.asked() if one.reply is not None]
    return len(replies), sum(reply[7] for reply in replies)


def test_a_flood_of_names_that_nobody_knows_leaves_memory_and_known_names_alone(
    tmp_path: Path, upstream: StubUpstream
) -> None:
    """S50: 20,000 inside the zone and 20,000 outside, 5,000 a second; after the first 10,000 of each memory is flat."""
    upstream.answer_everything()
    upstream.answer("known.test", "A", TRUTH)
    running = Bridge(tmp_path, text=text_with(upstream), modules={})
    spellings = (lambda number: f"rnd{number}.nacos", lambda number: f"rnd{number}.ext.test")
    try:
        until_says(running.up().port, "orders.nacos", ORDERS, seconds=30)
        assert addresses(running.port, "known.test") == [TRUTH]
        with Paced(running.port, ["orders.nacos", "known.test"], per_second=100) as client:
            first = [flooded(running, spell, 0) for spell in spellings]
            before, series = state_of(running)[1], set(metrics(running))
            second = [flooded(running, spell, 10_000) for spell in spellings]
            after = state_of(running)[1]
        assert set(addresses(running.port, "orders.nacos")) == ORDERS
        assert total(running, "services_known", "front") == 2 * 1.0
        assert total(running, "subscriptions") == 0
        assert total(running, "child_restarts_total") == 0
        assert {name.partition("{")[0] for name in metrics(running)} == {name.partition("{")[0] for name in series}
    finally:
        running.close()

    assert client.lost() == []
    assert all(is_right(one.reply) for one in client.asked())
    assert [records for _, records in first + second] == [0] * 4
    assert all(replies >= 9_000 for replies, _ in first + second)
    assert {pid: after[pid] - before[pid] for pid in before if after[pid] > before[pid] + (24 << 20)} == {}
