from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import nacosdns
from fakes.running import TWO_ORDERS, exchange, free_port, packet, until
from fakes.seen import descriptors
from nacosdns.edge import admin
from nacosdns.errors import ControlError

RATE = 1000
PENDING_MAX = 500
"""Of 1,024 descriptors that a process may have: a machine that stalls is caught up with later."""


def control(running, verb: str, **arguments: object) -> object:
    return admin.call(running.directory / "control.sock", verb, arguments)


def state(running) -> dict[str, object]:
    """How the last upgrade stands; nothing while nobody answers."""
    try:
        return control(running, "upgrade.state") or {}
    except ControlError:
        return {}


def upgrade(running) -> dict[str, object]:
    """One upgrade by signal, to its end."""
    number = (state(running) or {"number": 0})["number"] + 1
    running.signal(signal.SIGUSR2)
    return ended(running, number)


def ended(running, number: int = 1) -> dict[str, object]:
    until(lambda: state(running).get("number") == number, what=f"upgrade {number}")
    until(lambda: state(running).get("state") in {"done", "failed"}, 60.0, f"the end of upgrade {number}")
    return state(running)


def release(running, **modules: str) -> None:
    """What the next start finds installed."""
    running.file.with_name(running.file.name + ".modules").write_text(
        " ".join(f"{role}={module}" for role, module in modules.items())
    )


def children(running) -> list[dict[str, object]]:
    return control(running, "status")["supervisor"]["children"]


def pids(running) -> set[int]:
    return {child["pid"] for child in children(running)}


def sockets_on(port: int) -> set[str]:
    """The inodes of all sockets that are bound to a port on 127.0.0.1, or listen there."""
    found = set()
    for table in ("udp", "tcp"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1] == f"0100007F:{port:04X}" and fields[3] in {"07", "0A"}:
                found.add(fields[9])
    return found


def quiet_descriptors(pid: int) -> int:
    """The fewest open at a time within a second and a half: without a canary on its way, or a command."""
    ends = time.monotonic() + 1.5
    fewest = descriptors(pid)
    while time.monotonic() < ends:
        fewest = min(fewest, descriptors(pid))
        time.sleep(0.05)
    return fewest


@contextlib.contextmanager
def asked(port: int, name: str = "who.nacos", rate: int = RATE):
    """Asks at a steady rate, each query from a new port; gives the numbers of queries, of answers, of rcodes not 0.

    Whoever did not answer within 3 s has lost the query.
    """
    counts = {"asked": 0, "lost": 0, "bad": 0}
    stop = threading.Event()

    def ask() -> None:
        pending: list[tuple[float, socket.socket]] = []
        began = time.monotonic()
        while not stop.is_set() or pending:
            now = time.monotonic()
            due = 0 if stop.is_set() else int((now - began) * rate) - counts["asked"]
            for _ in range(min(due, PENDING_MAX - len(pending))):
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                sock.setblocking(False)
                sock.connect(("127.0.0.1", port))
                sock.send(packet(name, counts["asked"] % 60000))
                counts["asked"] += 1
                pending.append((now + 3.0, sock))
            kept = []
            for deadline, sock in pending:
                try:
                    reply = sock.recv(4096)
                except BlockingIOError:
                    if now < deadline:
                        kept.append((deadline, sock))
                        continue
                    counts["lost"] += 1
                except OSError:
                    counts["lost"] += 1
                else:
                    counts["bad"] += bool(reply[3] & 0x0F)
                sock.close()
            pending = kept
            time.sleep(0.002)

    client = threading.Thread(target=ask)
    client.start()
    try:
        yield counts
    finally:
        stop.set()
        client.join()


# It succeeds


def test_everything_is_replaced_but_pid_and_sockets_and_no_query_is_lost(bridge):
    running = bridge().up()
    pid, before, held = running.process.pid, pids(running), sockets_on(running.port)
    with asked(running.port) as counts:
        last = upgrade(running)

    assert last["state"] == "done", last
    assert (counts["lost"], counts["bad"]) == (0, 0)
    assert counts["asked"] > RATE // 2
    assert control(running, "status")["supervisor"]["pid"] == pid == running.process.pid
    assert sockets_on(running.port) == held
    assert not pids(running) & before
    assert [child["phase"] for child in children(running)] == ["ready"] * 4
    assert pids(running) == set(running.children())


def test_the_whole_program_loses_nothing_and_the_command_says_so(bridge):
    """S79."""
    running = bridge(text="", top=TWO_ORDERS, modules={}).up()
    until(lambda: exchange(packet("orders.nacos"), running.port)[3] & 0x0F == 0, what="an answer")
    before = pids(running)
    with asked(running.port, "orders.nacos") as counts:
        done = nacosdns_command("upgrade", running)
    status = control(running, "status")

    assert (done.returncode, done.stdout[:22]) == (0, "upgrade done: release "), done
    assert (counts["lost"], counts["bad"]) == (0, 0)
    assert not pids(running) & before
    assert all(front["linked"] for front in status["fronts"].values())
    assert running.said("upgrade.done", "number=1")


def nacosdns_command(verb: str, running) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nacosdns.cli", verb, "-c", str(running.file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_three_upgrades_in_a_row_leave_nothing_behind(bridge):
    running = bridge().up()
    pid = running.process.pid
    assert upgrade(running)["state"] == "done"
    first = quiet_descriptors(pid)
    for _ in range(2):
        assert upgrade(running)["state"] == "done"

    assert state(running)["number"] == 3
    assert quiet_descriptors(pid) == first
    assert len(running.children()) == 4
    assert len(children(running)) == 4


def test_a_signal_of_another_kind_is_heard_by_the_new_code(bridge):
    running = bridge().up()
    upgrade(running)
    running.write("[policy]\nttl_s = 5")
    running.signal(signal.SIGHUP)
    running.wait_for("reloaded")
    running.signal(signal.SIGTERM)

    assert running.wait() == 0


def test_counters_and_the_time_of_the_start_go_on(bridge):
    running = bridge().up()
    for _ in range(20):
        exchange(packet("who.nacos"), running.port)
    time.sleep(1.1)
    before = control(running, "status")["supervisor"]["up_s"]
    upgrade(running)

    assert control(running, "status")["supervisor"]["up_s"] > before


def test_the_new_configuration_is_taken(bridge):
    running = bridge().up()
    other = free_port()
    running.write("fronts = 2", listen=f'"127.0.0.1:{running.port}", "127.0.0.1:{other}"')
    last = upgrade(running)
    status = control(running, "status")["supervisor"]

    assert last["state"] == "done", last
    assert status["listen"] == [f"127.0.0.1:{running.port}", f"127.0.0.1:{other}"]
    assert len(running.children()) == 5
    until(lambda: len({exchange(packet("who.nacos"), other)[-4:] for _ in range(20)}) == 2, what="two fronts")


def test_a_child_that_dies_meanwhile_is_mourned_by_the_new_code(bridge):
    running = bridge().up()
    keeper = next(child["pid"] for child in children(running) if child["role"] == "keeper")
    running.signal(signal.SIGUSR2)
    until(lambda: state(running).get("state") == "trying", what="the trial")
    os.kill(keeper, signal.SIGKILL)

    assert ended(running)["state"] == "done"
    assert [child["phase"] for child in children(running)] == ["ready"] * 4
    assert not Path(f"/proc/{keeper}").exists()


def test_children_still_die_with_the_supervisor_that_took_over(bridge):
    running = bridge().up()
    upgrade(running)
    group = running.children()
    running.process.kill()

    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in group), 3.0, "the end of every child")


# It fails


@pytest.mark.parametrize(
    ("front", "reason"),
    [
        ("fakes.front_broken", "failed its self-check: SyntaxError: this release is broken"),
        ("fakes.front_crashing", "failed its self-check"),
        ("fakes.no_such_front", "ModuleNotFoundError"),
        ("fakes.front_mute", "did not answer a query"),
    ],
)
def test_new_code_that_does_not_work_leaves_the_old_running_and_says_why(bridge, front, reason):
    running = bridge().up()
    before, count = pids(running), quiet_descriptors(running.process.pid)
    release(running, front=front)
    with asked(running.port, rate=200) as counts:
        last = upgrade(running)
    until(lambda: len(running.children()) == 4, what="the end of what was tried")

    assert last["state"] == "failed"
    assert reason in last["reason"]
    running.wait_for("upgrade.failed")
    assert (counts["lost"], counts["bad"]) == (0, 0)
    assert pids(running) == before
    assert quiet_descriptors(running.process.pid) <= count
    release(running)
    assert upgrade(running)["state"] == "done"


def test_after_a_failed_attempt_one_more_front_is_counted_like_any_other(bridge):
    """Web sees the pages that it was born with: of a new one it has to be told."""
    running = bridge().up()
    release(running, front="fakes.front_mute")
    assert upgrade(running)["state"] == "failed"
    web = next(child["pid"] for child in children(running) if child["role"] == "web")
    running.write("fronts = 2")
    running.signal(signal.SIGHUP)

    until(lambda: len(children(running)) == 5, what="one more front")
    until(lambda: web not in pids(running), what="another web")


def test_a_front_that_is_never_ready_ends_with_the_attempt(bridge):
    running = bridge().up()
    before = pids(running)
    release(running, front="fakes.front_sleeping")
    running.signal(signal.SIGUSR2)
    until(lambda: state(running).get("state") == "trying", what="the trial")
    until(lambda: len(running.children()) == 5, what="the new front")
    tried = next(pid for pid in running.children() if pid not in before)
    os.kill(tried, signal.SIGKILL)
    last = ended(running)

    assert (last["state"], "ended with status -9" in last["reason"]) == ("failed", True)
    assert pids(running) == before


def test_a_second_one_during_one_is_refused(bridge):
    running = bridge().up()
    release(running, front="fakes.front_sleeping")
    control(running, "upgrade")
    running.signal(signal.SIGUSR2)
    running.wait_for("upgrade.refused", "an upgrade is under way")

    with pytest.raises(ControlError, match="an upgrade is under way"):
        control(running, "upgrade")
    assert running.said("upgrade.began", "number=2") == []


def test_sigterm_during_one_ends_everything(bridge):
    running = bridge().up()
    release(running, front="fakes.front_sleeping")
    running.signal(signal.SIGUSR2)
    until(lambda: len(running.children()) == 5, what="the new front")
    group = running.children()
    running.signal(signal.SIGTERM)

    assert running.wait() == 0
    assert running.said("upgrade.failed", "told to stop")
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in group), what="the end of every child")


def test_a_configuration_that_is_read_meanwhile_comes_first(bridge):
    running = bridge().up()
    release(running, front="fakes.front_sleeping")
    running.signal(signal.SIGUSR2)
    until(lambda: len(running.children()) == 5, what="the new front")
    running.signal(signal.SIGHUP)
    running.wait_for("upgrade.failed", "read again meanwhile")
    until(lambda: len(running.children()) == 4, what="the end of what was tried")
    release(running)

    assert upgrade(running)["state"] == "done"


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 0.6, 0.9, 1.2, 1.5])
def test_sigterm_at_any_moment_of_one_is_an_orderly_end(bridge, moment):
    running = bridge().up()
    running.signal(signal.SIGUSR2)
    time.sleep(moment)
    running.signal(signal.SIGTERM)

    assert running.wait() == 0
    assert running.said("stopped")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[polcy]\nttl_s = 5", "did you mean"),
        ('[policy]\nttl_s = "5"', "Expected"),
        ('control_group = "no-such-group"', "control_group cannot change"),
    ],
)
def test_a_bad_configuration_refuses_the_upgrade(bridge, text, reason):
    running = bridge().up()
    before = pids(running)
    running.write(text)
    last = upgrade(running)

    assert (last["state"], reason in last["reason"]) == ("failed", True), last
    assert pids(running) == before


def test_an_address_that_is_taken_refuses_the_upgrade(bridge):
    running = bridge().up()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        running.write("", listen=f'"127.0.0.1:{running.port}", "127.0.0.1:{holder.getsockname()[1]}"')
        last = upgrade(running)

    assert "is taken by" in last["reason"]


def test_a_broken_environment_refuses_the_upgrade_and_a_mended_one_does_not(bridge, tmp_path, monkeypatch):
    code = tmp_path / "installed"
    shutil.copytree(Path(nacosdns.__file__).parent, code / "nacosdns", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sys, "path", [str(code), *sys.path])
    running = bridge(top=TWO_ORDERS, modules={}).up()
    before = pids(running)
    broken = code / "nacosdns" / "edge" / "store.py"
    good = broken.read_text()
    reasons = []
    for damage in ("def broken(:\n", "import no_such_package\n"):
        broken.write_text(good + damage)
        reasons.append(nacosdns_command("upgrade", running).stderr + str(upgrade(running)["reason"]))
    shutil.move(broken, broken.with_suffix(".away"))
    reasons.append(upgrade(running)["reason"])
    untouched = pids(running)
    broken.write_text(good)

    place = f"({broken}, line {good.count(chr(10)) + 1})"
    assert f"SyntaxError: invalid syntax {place}" in reasons[0]
    assert f"No module named 'no_such_package' {place}" in reasons[1]
    assert "store" in reasons[2]
    assert untouched == before
    assert upgrade(running)["state"] == "done"
    assert not pids(running) & before


def test_a_store_of_a_newer_release_refuses_the_upgrade(bridge):
    import sqlite3  # noqa: PLC0415  # nothing else here touches a database

    running = bridge(top=TWO_ORDERS, modules={}).up()
    with contextlib.closing(sqlite3.connect(running.directory / "cache.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    done = nacosdns_command("upgrade", running)

    assert done.returncode == 1
    assert "schema 99" in done.stdout
