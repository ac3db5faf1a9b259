from __future__ import annotations

import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Self

import pytest

from fakes.running import FAKES, exchange, packet, until
from nacosdns import config as configuration
from nacosdns.config import Config
from nacosdns.core import metrics
from nacosdns.edge import admin
from nacosdns.edge.page import Page, Role, State
from nacosdns.web import unhealthy, unready

WEB = FAKES | {"web": "nacosdns.web"}
SECOND_NS = 1_000_000_000
PROBES_PER_S = 50
PROBE_S = 10.0
LONGEST_S = 1.0
"""Some ten ms where nothing else runs; a probe of Kubernetes waits a second if nobody says more."""
IN_HAND_MAX = 2
"""Requests that a web can have read when it is killed: one every 20 ms comes, and takes less than one."""


def get(running, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{running.web_port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def children(running) -> list[dict[str, object]]:
    return admin.call(running.directory / "control.sock", "status", {})["supervisor"]["children"]


def upgrade(running) -> dict[str, object]:
    """One upgrade to its end, and how it went."""
    running.signal(signal.SIGUSR2)
    until(lambda: running.said("upgrade.done") or running.said("upgrade.failed"), 60.0, "the end of the upgrade")
    return admin.call(running.directory / "control.sock", "upgrade.state", {})


def value(running, series: str) -> int:
    lines = get(running, "/metrics")[1].splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith(f"nacosdns_{series}"))


def test_health_and_readiness_follow_the_canary(bridge):
    running = bridge(modules=WEB, text="[nacos]\nservers = []").up()
    until(lambda: get(running, "/readyz") == (200, "ready\n"), what="readiness")

    assert get(running, "/healthz") == (200, "alive\n")


def test_without_a_front_it_is_alive_and_not_ready(bridge):
    running = bridge(modules=WEB | {"front": "fakes.front_crashing"})
    running.wait_for("child.ready", "child=web")
    until(lambda: get(running, "/readyz") == (503, "not ready: the canary was never answered\n"))

    assert get(running, "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/metrics/x", 404), ("POST", "/metrics", 405), ("DELETE", "/healthz", 405)],
)
def test_other_requests_are_404_or_405(bridge, method, path, status):
    running = bridge(modules=WEB)
    running.wait_for("child.ready", "child=web")

    assert get(running, path, method)[0] == status


def test_counters_survive_a_killed_front_and_restarts_are_counted(bridge):
    running = bridge(modules=WEB).up()
    for _ in range(5):
        exchange(packet("who.nacos"), running.port)
    os.kill(running.pid_of_reader(), signal.SIGKILL)
    running.wait_for("child.ready", "child=front", times=3)
    exchange(packet("who.nacos"), running.port)

    assert value(running, "queries_total") >= 7
    until(lambda: value(running, 'child_restarts_total{role="supervisor",slot="0",child="front"}') == 1)
    until(lambda: value(running, 'children_alive{role="supervisor",slot="0",child="front"}') == 2)


def test_metrics_name_the_build_and_the_configuration(bridge):
    running = bridge(modules=WEB).up()
    text = get(running, "/metrics")[1]

    assert text.startswith("# HELP nacosdns_build_info")
    assert 'config="' in text.splitlines()[2]
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == {
        "nacosdns_build_info",
        *(f"nacosdns_{family.name}" for family in metrics.FAMILIES),
    }


def test_a_new_address_is_served_after_sighup(bridge):
    running = bridge(modules=WEB).up()
    old = running.web_port
    running.web_port = running.port + 1 if running.port < 65535 else running.port - 1
    running.write("")
    running.signal(signal.SIGHUP)
    running.wait_for("child.ready", "child=web", times=2)

    assert get(running, "/healthz")[0] == 200
    running.web_port = old
    with pytest.raises(urllib.error.URLError):
        get(running, "/healthz")


# Probes go on while web is replaced


class Probes:
    """Asks ``/readyz`` at a steady rate, each time by a new connection; what came of each, and after how many seconds.

    As a context; a probe may take ``PROBE_S``, the body and the end wait for all of them.
    """

    def __init__(self, port: int) -> None:
        self.said: list[tuple[str, float]] = []
        self._port = port
        self._stop = threading.Event()
        self._asking = threading.Thread(target=self._ask_on)

    def __enter__(self) -> Self:
        self._asking.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._asking.join()

    def _ask_on(self) -> None:
        began, threads = time.monotonic(), []
        while not self._stop.wait(max(0.0, began + len(threads) / PROBES_PER_S - time.monotonic())):
            threads.append(threading.Thread(target=self._ask))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _ask(self) -> None:
        began = time.monotonic()
        try:
            with socket.create_connection(("127.0.0.1", self._port), PROBE_S) as sock:
                sock.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                with sock.makefile("rb") as reply:
                    word = reply.read().partition(b"\r\n")[0].decode() or "closed without a word"
        except OSError as error:
            word = type(error).__name__
        self.said.append((word, time.monotonic() - began))

    def failed(self) -> list[tuple[str, float]]:
        """Those that are not "ready"."""
        return [said for said in self.said if said[0] != "HTTP/1.1 200 OK"]

    def longest_s(self) -> float:
        """The longest wait of all."""
        return max(wait for _, wait in self.said)


def web_pid(running) -> int:
    return next(child["pid"] for child in children(running) if child["role"] == "web")


def ready_web(bridge, **how):
    """A bridge that is ready, as probes see it."""
    running = bridge(modules=WEB, text="[nacos]\nservers = []", **how).up()
    until(lambda: get(running, "/readyz") == (200, "ready\n"), what="readiness")
    return running


def test_no_probe_fails_in_an_upgrade(bridge):
    running = ready_web(bridge)
    old = web_pid(running)
    with Probes(running.web_port) as probes:
        last = upgrade(running)
        until(lambda: len(probes.said) > 2 * PROBES_PER_S, what="probes")

    assert last["state"] == "done", last
    assert web_pid(running) != old
    assert probes.failed() == []
    assert probes.longest_s() < LONGEST_S


def test_no_probe_fails_in_a_reload_that_changes_nothing_or_all_that_makes_a_new_web(bridge):
    running = ready_web(bridge)
    old = web_pid(running)
    with Probes(running.web_port) as probes:
        running.signal(signal.SIGHUP)
        running.wait_for("reloaded")
        until(lambda: len(probes.said) > PROBES_PER_S // 2, what="probes")
        same = web_pid(running)
        running.write("fronts = 2\n[nacos]\nservers = []")
        running.signal(signal.SIGHUP)
        running.wait_for("child.ready", "child=web", times=2)
        asked = len(probes.said)
        until(lambda: len(probes.said) > asked + PROBES_PER_S, what="probes")

    assert same == old
    assert web_pid(running) != old
    assert probes.failed() == []
    assert probes.longest_s() < LONGEST_S


def test_no_probe_fails_when_the_next_web_is_overtaken_by_another_reload(bridge):
    running = ready_web(bridge)
    with Probes(running.web_port) as probes:
        for fronts in (2, 3):
            running.write(f"fronts = {fronts}\n[nacos]\nservers = []")
            running.signal(signal.SIGHUP)
            running.wait_for("reloaded", times=fronts - 1)
        running.wait_for("child.ready", "child=front", times=4, seconds=30.0)
        until(lambda: len(get(running, "/metrics")[1].split('role="front",slot="5"')) > 1, what="the last front's page")

    assert probes.failed() == []
    until(lambda: set(running.children()) == {child["pid"] for child in children(running)}, what="no other process")


def test_a_web_that_is_not_wanted_any_more_leaves_nobody_behind(bridge):
    running = ready_web(bridge)
    for text in ("fronts = 2\n[nacos]\nservers = []", '[nacos]\nservers = []\n[log]\nlevel = "info"'):
        running.write(text)
        if "log" in text:
            running.file.write_text(running.file.read_text().replace(f'"127.0.0.1:{running.web_port}"', '""'))
        running.signal(signal.SIGHUP)
        running.wait_for("reloaded", times=1 + ("log" in text))
    until(lambda: [child["role"] for child in children(running)].count("web") == 0, what="the end of web")
    until(lambda: set(running.children()) == {child["pid"] for child in children(running)}, what="no other process")

    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", running.web_port), 1.0):
        pass


def test_a_next_web_that_does_not_start_leaves_the_one_before_it_and_is_tried_ever_more_seldom(bridge):
    running = bridge(modules=WEB | {"web": "fakes.web_refusing"}).up()
    old = web_pid(running)
    running.write("fronts = 2")
    running.signal(signal.SIGHUP)
    running.wait_for("child.exited", "child=web", "status=3", times=4)
    (web,) = [child for child in children(running) if child["role"] == "web"]

    assert (web["pid"], web["phase"]) in {(old, "ready"), (old, "draining")}
    assert web["failures"] >= 4
    assert web["reason"].startswith("exit status 3")
    assert not running.said("child.exited", f"pid={old}")


def test_what_asks_while_no_web_is_there_waits_for_the_next_one(bridge):
    running = ready_web(bridge)
    with Probes(running.web_port) as probes:
        for times in (2, 3):
            os.kill(web_pid(running), signal.SIGKILL)
            running.wait_for("child.ready", "child=web", times=times)
            asked = len(probes.said)
            until(lambda: len(probes.said) > asked + PROBES_PER_S, what="probes")  # noqa: B023  # called in this turn

    words = {word for word, _ in probes.failed()}
    assert words <= {"ConnectionResetError", "closed without a word"}  # what it had in hand, if anything
    assert len(probes.failed()) <= 2 * IN_HAND_MAX


# Readiness, decided


@pytest.fixture
def pages():
    made = [Page.create(), Page.create()]
    made[0].claim(Role.SUPERVISOR, 1, 100 * SECOND_NS)
    made[1].claim(Role.FRONT, 2, 100 * SECOND_NS)
    made[1].state = State.READY
    yield made
    for page in made:
        page.close()
        os.close(page.fd)


def ready_at(pages, second: float, config: Config | None = None) -> bool:
    return not unready(config or Config(), pages[0], pages[1:], int(second * SECOND_NS))


def test_an_old_heartbeat_of_the_supervisor_is_unhealthy(pages):
    pages[0].beat(100 * SECOND_NS)

    assert unhealthy(pages[0], 103 * SECOND_NS) == ""
    assert "4.0 s old" in unhealthy(pages[0], 104 * SECOND_NS)


def test_a_canary_older_than_3_s_is_unready(pages):
    pages[1].counters[metrics.SERVICES_KNOWN.index()] = 1
    pages[0].canary_answered(110 * SECOND_NS)

    assert ready_at(pages, 113.0)
    assert not ready_at(pages, 113.1)


def test_a_node_that_knows_nothing_waits_for_its_first_snapshot_or_the_timeout(pages):
    pages[0].canary_answered(131 * SECOND_NS)

    assert not ready_at(pages, 129.9)
    assert ready_at(pages, 130.0)
    assert ready_at(pages, 105.0, Config(nacos=configuration.Nacos(servers=())))
    pages[1].counters[metrics.SERVICES_KNOWN.index()] = 1
    assert ready_at(pages, 105.0)


def test_a_page_keeps_its_counters_for_the_next_writer(pages):
    pages[1].counters[5] = 7
    pages[1].release()
    pages[1].claim(Role.FRONT, 3, 200 * SECOND_NS)

    assert (pages[1].state, pages[1].pid, pages[1].counters[5]) == (State.STARTING, 3, 7)
    other = Page(pages[1].fd)
    assert other.read_counters()[5] == 7
    other.close()


def test_what_is_no_page_is_refused():
    fd = os.memfd_create("not-a-page")
    os.ftruncate(fd, 16 * 1024)

    with pytest.raises(ValueError, match="not a page"):
        Page(fd)
    os.close(fd)
