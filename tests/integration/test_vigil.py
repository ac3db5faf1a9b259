from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
import time
from pathlib import Path

import pytest

from fakes.running import exchange, packet, until
from nacosdns.edge import admin, canary
from nacosdns.errors import StartError


def status(running) -> dict[str, object]:
    return admin.call(running.directory / "control.sock", "status", {})["supervisor"]


def mute(running) -> int:
    """Makes one front mute; its process id."""
    victim = running.pid_of_reader()
    while True:
        try:
            exchange(packet("mute.nacos"), running.port, seconds=0.3)
        except TimeoutError:
            return victim


def who(running) -> str:
    """Who answers; nothing when nobody does."""
    try:
        return str(exchange(packet("who.nacos"), running.port, seconds=0.5)[-4:])
    except TimeoutError:
        return ""


def test_a_front_that_is_alive_and_does_not_answer_is_replaced(bridge):
    running = bridge().up()
    victim = mute(running)
    running.wait_for("child.killed", 'reason="does not answer"', seconds=20.0)

    until(lambda: who(running), what="an answer")
    assert running.pid_of_reader() != victim
    assert len(running.said("child.killed")) == 1


def test_of_two_fronts_only_the_silent_one_is_replaced(bridge):
    running = bridge(text="fronts = 2").up(5)
    until(lambda: len({who(running) for _ in range(20)}) == 2, what="two readers")
    before = {child["pid"] for child in status(running)["children"] if child["sockets"]}
    mute(running)
    running.wait_for("child.killed", 'reason="does not answer"', seconds=30.0)
    killed = int(running.said("child.killed")[0].partition("pid=")[2].split()[0])
    until(lambda: len({who(running) for _ in range(20)} - {""}) == 2, what="two readers again")
    time.sleep(3.0)

    assert killed in before
    assert len(running.said("child.killed")) == 1


def test_when_nobody_new_answers_either_killing_ends_soon(bridge):
    running = bridge(
        modules={"keeper": "fakes.child_idle", "front": "fakes.front_mute", "web": "fakes.child_idle"}
    ).up()
    running.wait_for("child.killed", seconds=20.0)
    time.sleep(7.0)

    assert len(running.said("child.killed")) == 1


def test_a_front_under_more_load_than_it_can_take_is_not_killed(bridge):
    running = bridge().up()
    stop = threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", running.port))
            while not stop.wait(0.02):
                for number in range(300):
                    sock.send(packet("who.nacos", number))

    client = threading.Thread(target=flood)
    client.start()
    time.sleep(6.0)
    stop.set()
    client.join()

    assert running.said("child.killed") == []


@pytest.mark.parametrize("role", ["keeper", "front", "web"])
def test_who_answers_is_the_last_to_be_killed_or_to_wait(bridge, role):
    running = bridge().up()

    def facts(pid: int) -> tuple[str, int, int]:
        process = Path(f"/proc/{pid}")
        nice = int((process / "stat").read_text().rpartition(")")[2].split()[16])
        return (process / "comm").read_text().strip(), int((process / "oom_score_adj").read_text()), nice

    child = next(child for child in status(running)["children"] if child["role"] == role)
    name, own_score, own_nice = facts(running.process.pid)
    comm, score, nice = facts(child["pid"])

    assert name == "nacosdns"
    assert comm == {"keeper": "nacosdns-keeper", "front": "nacosdns-front3", "web": "nacosdns-web"}[role]
    assert (score > own_score, nice > own_nice) == ((role != "front"),) * 2


@contextlib.contextmanager
def no_descriptor_left():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_canary_without_a_descriptor_is_a_lost_one():
    async def ask() -> bool:
        with no_descriptor_left():
            return await canary.answered("127.0.0.1", 53)

    assert asyncio.run(ask()) is False


def test_a_control_socket_that_cannot_be_made_anew_for_want_of_descriptors_is_told_of(tmp_path):
    with no_descriptor_left(), pytest.raises(StartError, match="cannot be made"):
        admin.listen(tmp_path / "control.sock", 0o600)
