from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request

import pytest

from fakes.running import FAKES, exchange, packet, until
from nacosdns import config as configuration
from nacosdns.config import Config
from nacosdns.core import metrics
from nacosdns.edge.page import Page, Role, State
from nacosdns.web import unhealthy, unready

WEB = FAKES | {"web": "nacosdns.web"}
SECOND_NS = 1_000_000_000


def get(running, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{running.web_port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


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
