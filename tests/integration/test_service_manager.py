from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from fakes.paced import Paced
from fakes.running import FAKES, Bridge, exchange, free_port, packet, until
from nacosdns.core.watch import Spawn, Watch
from nacosdns.edge.activation import Notifier, given_sockets, watchdog_s
from nacosdns.errors import StartError
from nacosdns.service_manager import ServiceManager, in_words


class Manager:
    """PID 1's ear: everything that is said to it, as ``KEY=VALUE`` dictionaries with the time."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(0.05)
        self.heard: list[tuple[float, dict[str, str]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                message = self.socket.recv(4096).decode()
                facts = dict(line.split("=", 1) for line in message.split("\n"))
                self.heard.append((time.monotonic(), facts))

    def said(self, key: str) -> list[str]:
        return [facts[key] for _, facts in list(self.heard) if key in facts]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path, monkeypatch):
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@nacosdns-test-{os.getpid()}")
    monkeypatch.setenv("NOTIFY_SOCKET", made.address)
    yield made
    made.close()


# What it is told


def test_ready_is_said_once_after_the_first_answered_canary_and_stopping_at_the_end(bridge, manager):
    running = bridge().up()
    until(lambda: manager.said("READY"), what="READY=1")
    until(lambda: any(text.startswith("answering on") for text in manager.said("STATUS")), what="a status in words")
    time.sleep(1.5)
    running.signal(signal.SIGTERM)
    running.wait()

    assert manager.said("READY") == ["1"]
    assert manager.said("MAINPID") == [str(running.process.pid)]
    until(lambda: manager.said("STOPPING") == ["1"], 2.0, "STOPPING=1")


def test_without_a_front_nothing_is_ready_and_the_status_says_so(bridge, manager):
    bridge(modules=FAKES | {"front": "fakes.front_crashing"}).wait_for("front.covered", "sockets=[0]")

    until(lambda: any("NO FRONT" in text for text in manager.said("STATUS")), what="a status in words")
    assert manager.said("READY") == []


def test_a_reload_is_reloading_and_ready_again(bridge, manager):
    running = bridge().up()
    until(lambda: manager.said("READY"), what="READY=1")
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    running.signal(signal.SIGHUP)
    running.wait_for("reloaded")
    until(lambda: len(manager.said("READY")) == 2, what="READY=1 again")

    assert manager.said("RELOADING") == ["1"]
    assert before <= int(manager.said("MONOTONIC_USEC")[0]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_an_upgrade_is_not_another_start_and_the_dog_is_fed_all_the_time(bridge, manager, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "6000000")
    running = bridge().up()
    until(lambda: manager.said("READY"), what="READY=1")
    running.signal(signal.SIGUSR2)
    running.wait_for("upgrade.done", seconds=60.0)
    fed = len(manager.said("WATCHDOG"))
    until(lambda: len(manager.said("WATCHDOG")) > fed, what="WATCHDOG=1 of the new code")
    times = [when for when, facts in manager.heard if "WATCHDOG" in facts]

    assert manager.said("READY") == ["1"]
    assert all(second - first < 6.0 for first, second in itertools.pairwise(times))


def test_the_dog_is_not_fed_while_nobody_answers(bridge, manager, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    running = bridge(modules=FAKES | {"front": "fakes.front_mute"})
    running.wait_for("front.reads")
    time.sleep(2.5)

    assert manager.said("WATCHDOG") == []


def test_children_see_nothing_of_the_manager(bridge, manager):
    running = bridge().up()
    seen = [Path(f"/proc/{pid}/environ").read_bytes() for pid in running.children()]

    assert not any(b"NOTIFY_SOCKET" in content or b"LISTEN_" in content for content in seen)


@pytest.mark.parametrize(
    ("environment", "period_s"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "often"}, 0.0),
    ],
)
def test_the_watchdog_of_another_process_is_not_ours(environment, period_s):
    assert watchdog_s(environment) == period_s


def test_a_manager_that_does_not_listen_hurts_nobody(tmp_path):
    assert not Notifier(str(tmp_path / "nobody")).say(READY=1)
    assert not Notifier("").say(READY=1)


def test_the_status_says_answering_only_when_a_front_reads():
    watch = Watch(1, 0.0, web=False)
    first = in_words(watch, ["127.0.0.1:53"], None, has_disk=True)
    for action in watch.plan(0.0):
        if isinstance(action, Spawn):
            watch.spawned(action.slot, 0.0)
            watch.ready(action.slot)
    watch.plan(0.0)

    assert first == "starting; 0 of 3 processes up"
    assert in_words(watch, ["127.0.0.1:53"], None, has_disk=True).startswith("answering on 127.0.0.1:53; ")


def test_where_nothing_can_be_asked_yet_there_is_nothing_to_wait_for(manager):
    told = ServiceManager(Notifier(manager.address), 10.0)
    told.look(1.0, float("inf"), "waiting")
    assert not told.announced
    told.look(2.0, 0.0, "waiting")

    until(lambda: manager.said("READY") == ["1"], 2.0, "READY=1")
    assert manager.said("STATUS") == ["waiting"]


# What it gives


START = """
import os, socket, sys
names, command = sys.argv[1], sys.argv[2:]
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": names, "LISTEN_FDNAMES": "dns"}
os.execv(command[0], command)
"""


class Opened:
    """The sockets of a socket unit, in the hands of the test, which is PID 1 here."""

    def __init__(self, port: int, *, times: int = 1, host: str = "127.0.0.1", reuse: bool = True) -> None:
        self.sockets: list[socket.socket] = []
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            for _ in range(times):
                sock = socket.socket(socket.AF_INET, kind)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(reuse))
                if kind == socket.SOCK_STREAM:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((host, port))
                if kind == socket.SOCK_STREAM:
                    sock.listen(100)
                self.sockets.append(sock)
        self.sockets = [_high(sock) for sock in self.sockets]

    def how(self) -> dict[str, object]:
        """How a bridge gets them: from descriptor 3 on, and the environment that says so."""
        fds = [sock.fileno() for sock in self.sockets]
        moves = "; ".join(f"exec {3 + n}<&{fd}" for n, fd in enumerate(fds))
        before = ("bash", "-c", f'{moves}; exec "$@"', "bash", sys.executable, "-c", START, str(len(fds)))
        return {"before": before, "given": tuple(fds)}

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


@pytest.fixture
def pid1(tmp_path):
    """Starts bridges with given sockets, as systemd does; ends all."""
    made: list[Opened | Bridge] = []

    def start(opened: Opened, port: int, **how: object) -> Bridge:
        made.append(opened)
        directory = tmp_path / str(len(made))
        directory.mkdir()
        running = Bridge(directory, port=port, **opened.how(), **how)
        made.insert(0, running)
        return running

    yield start
    for one in made:
        one.close()


def _high(sock: socket.socket) -> socket.socket:
    """The same socket at a number that no given one has."""
    with sock:
        return socket.socket(fileno=fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, 100))


def inodes(running) -> set[str]:
    return {str(link.readlink()) for link in Path(f"/proc/{running.process.pid}/fd").iterdir()}


def inode(sock: socket.socket) -> str:
    return f"socket:[{os.fstat(sock.fileno()).st_ino}]"


def test_given_sockets_are_used_and_no_others_are_bound(pid1):
    port = free_port()
    opened = Opened(port)
    running = pid1(opened, port).up()

    assert exchange(packet("who.nacos"), port)[3] & 0x0F == 0
    assert {inode(sock) for sock in opened.sockets} <= inodes(running)


def test_nothing_that_was_queued_is_lost_over_a_kill_and_a_restart(pid1):
    """S79."""
    port = free_port()
    opened = Opened(port)
    first = pid1(opened, port).up()
    first.process.kill()
    first.process.wait()
    clients = []
    for number in range(200):
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client.settimeout(10.0)
        client.connect(("127.0.0.1", port))
        client.send(packet("who.nacos", number))
        clients.append(client)
    stream = socket.create_connection(("127.0.0.1", port), 5.0)
    pid1(opened, port).wait_for("front.reads")
    replies = [client.recv(4096) for client in clients]
    for client in (*clients, stream):
        client.close()

    assert [reply[3] & 0x0F for reply in replies] == [0] * 200


def test_what_is_asked_while_it_stops_waits_for_the_next_one(pid1):
    """Nobody is told SERVFAIL for a moment that systemd's sockets bridge."""
    port = free_port()
    opened = Opened(port)
    running = pid1(opened, port, modules=FAKES | {"keeper": "fakes.child_deaf"}).up()  # so that stopping takes a second
    with Paced(port, ["who.nacos"], per_second=40, patience_s=15.0) as client:  # few: all have to fit in its own buffer
        told = time.monotonic()
        running.signal(signal.SIGTERM)
        running.wait()
        ended = time.monotonic()
        pid1(opened, port).wait_for("front.reads")

    assert len([at for at in client.sent if told < at < ended]) > 10
    assert [at for at in client.sent if at > ended]
    assert not client.lost()
    assert {reply[3] & 0x0F for reply in client.replies.values()} == {0}


def test_given_sockets_stay_over_an_upgrade(pid1):
    port = free_port()
    opened = Opened(port)
    running = pid1(opened, port).up()
    running.signal(signal.SIGUSR2)
    running.wait_for("upgrade.done", seconds=60.0)

    assert exchange(packet("who.nacos"), port)[3] & 0x0F == 0
    assert {inode(sock) for sock in opened.sockets} <= inodes(running)


@pytest.mark.parametrize("times", [1, 2])
def test_two_fronts_read_a_socket_each_or_share_the_one_that_was_given(pid1, times):
    port = free_port()
    running = pid1(Opened(port, times=times), port, text="fronts = 2").up(5)
    until(lambda: len({exchange(packet("who.nacos"), port)[-4:] for _ in range(20)}) == 2, what="answers of both")

    assert bool(running.said("listen.shared", f"127.0.0.1:{port}")) == (times == 1)


def test_more_sockets_than_fronts_are_refused(pid1):
    port = free_port()
    running = pid1(Opened(port, times=2), port)

    assert running.wait() == 2
    assert "systemd gave 2 sockets for an address, and server.fronts is 1" in running.lines[-1]


def test_a_socket_for_an_address_that_nobody_named_is_refused(pid1):
    running = pid1(Opened(other := free_port()), free_port())

    assert running.wait() == 2
    assert f"systemd gave a socket for 127.0.0.1:{other}, which server.listen does not name" in running.lines[-1]


def test_an_address_that_was_not_given_is_bound_by_ourselves(pid1):
    port, other = free_port(), free_port()
    running = pid1(Opened(port), port, listen=f'"127.0.0.1:{port}", "127.0.0.1:{other}"').up()

    assert exchange(packet("who.nacos"), other)[3] & 0x0F == 0
    assert running.process.poll() is None


def test_half_a_pair_is_refused(pid1):
    port = free_port()
    opened = Opened(port)
    opened.sockets.pop().close()
    running = pid1(opened, port)

    assert running.wait() == 2
    assert "1 UDP and 0 TCP sockets" in running.lines[-1]


def test_what_was_given_to_another_process_is_left_alone():
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "3", "OTHER": "x"}

    assert given_sockets(environment) == ()
    assert environment == {"OTHER": "x"}


@pytest.mark.parametrize(("count", "words"), [("many", "no number"), ("90000", "is not open")])
def test_nonsense_about_given_sockets_is_one_line(count, words):
    with pytest.raises(StartError, match=re.escape(words)):
        given_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count})
