"""Three cluster nodes, a Nacos, its providers and a client, each a host of its own; deploy/cluster says the same in words.

The client looks names up by libc, by the resolv.conf that deploy/cluster advises, while something dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from fakes.hosts import Hosts, can_be_made, environment
from fakes.real_nacos import PROVIDER, START, RealNacos
from fakes.running import Bridge, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fakes.hosts import Host

NODES = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
NACOS, CLIENT, BALANCER = "10.77.0.10", "10.77.0.20", "10.77.0.30"
ADVISED = "".join(f"nameserver {node}\n" for node in NODES) + "options timeout:1 attempts:2 rotate\n"
HOSTS_FILE = "127.0.0.1 localhost\n"
TRUTH = {
    "orders.nacos": "10.1.0.1,10.1.0.2,10.1.0.3",
    "pay.nacos": "10.1.0.4,10.1.0.5",
    "www.example.com": "198.51.100.7",
}
CONFIG = f"""
allow = ["private"]
[nacos]
servers = ["{NACOS}:8848"]
[forward]
upstreams = ["{NACOS}:53"]
"""
OUTSIDE = f"""
import threading
from fakes.upstream import StubUpstream
with StubUpstream("{NACOS}", 53) as stub:
    stub.answer("www.example.com", "A", "198.51.100.7")
    print("ready", flush=True)
    threading.Event().wait()
"""
RATE = 60
NO_TIMEOUT_MS, ONE_TIMEOUT_MS, TWO_TIMEOUTS_MS = 900.0, 1900.0, 2900.0
"""Of `timeout:1`. A port without a process is told by ICMP at once, but the kernel tells a peer so six times, then once a second."""
PAUSE_S = 1.5  # between two nodes: who waited out one must not meet the next one


class Site:
    """All hosts; ``bridges`` by address."""

    def __init__(self, hosts: Hosts, place: Path) -> None:
        self.place = place
        files = {"hosts": HOSTS_FILE, "nsswitch.conf": "hosts: files dns\n"}
        self.registry = hosts.add(NACOS)
        self.client = hosts.add(CLIENT, **{"resolv.conf": ADVISED}, **files)
        self.nodes = {address: hosts.add(address) for address in NODES}
        self.balancer = hosts.add(BALANCER)
        self.bridges: dict[str, Bridge] = {}
        self.nacos_pid = 0
        self._processes: list[subprocess.Popen[str]] = []
        self._lives = 0

    def __enter__(self) -> Self:
        try:
            self.start_on(self.registry, "-c", OUTSIDE)
            self.start_nacos()
            self.provide("orders", "10.1.0.1", "10.1.0.2", "10.1.0.3")
            self.provide("pay", "10.1.0.4", "10.1.0.5")
            for address in NODES:
                self.boot(address, wait=False)
            for address in NODES:
                self.bridges[address].up()
                self.until_right(address)
        except BaseException as error:
            error.add_note(self.last_words())
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for bridge in self.bridges.values():
            bridge.close()
        for process in self._processes:
            process.kill()
            process.communicate()
        self.kill_nacos()

    def last_words(self) -> str:
        """The end of every log."""
        return "\n".join(line for bridge in self.bridges.values() for line in bridge.lines[-12:])

    def start_on(self, host: Host, *words: str) -> subprocess.Popen[str]:
        """A Python program that says `ready`."""
        process = host.start(sys.executable, *words)
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", words
        return process

    def start_nacos(self) -> None:
        """A real one, at port 8848 of its host, with the data of its last life."""
        options = f"-Dserver.address=0.0.0.0 -Dnacos.server.ip={NACOS}"
        settings = {"NACOS_DATA": str(self.place / "nacos"), "NACOS_PUSH_DELAY_MS": "0", "NACOS_OPTS": options}
        command = [*self.registry.inside, "bash", str(START), "8848"]
        for _ in range(2):  # on a busy machine a first start can time out in its database
            done = subprocess.run(
                command, env=environment() | settings, capture_output=True, text=True, check=False, timeout=150
            )
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stderr[-3000:]
        self.nacos_pid = int(done.stdout.split()[-1])

    def kill_nacos(self) -> None:
        """Kill -9."""
        if self.nacos_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.nacos_pid, signal.SIGKILL)
            (self.place / "nacos" / "pid").unlink(missing_ok=True)
            self.nacos_pid = 0

    def provide(self, service: str, *addresses: str) -> subprocess.Popen[str]:
        """A provider on the Nacos host; a further one of the same service replaces nothing."""
        order = {"server": f"{NACOS}:8848", "service": service, "group": "DEFAULT_GROUP", "namespace": "public"}
        instances = [{"ip": address, "port": 80} for address in addresses]
        return self.start_on(
            self.registry,
            str(PROVIDER),
            json.dumps(order | {"scratch": str(self.place), "instances": instances}),
        )

    def boot(self, address: str, *, wait: bool = True) -> Bridge:
        """A bridge on this node, with the disk of its last life."""
        self._lives += 1
        place = self.place / f"life{self._lives}"
        place.mkdir()
        bridge = self.bridges[address] = Bridge(
            place,
            text=CONFIG,
            modules={},
            port=53,
            web_port=9353,
            listen=f'"{address}:53"',
            directory=self.place / f"disk-{address}",
            before=self.nodes[address].inside,
        )
        return bridge.up() if wait else bridge

    def fell(self, address: str) -> Bridge:
        """Kill -9 of the supervisor; nothing of the node is left."""
        bridge = self.bridges[address]
        children = bridge.children()
        bridge.process.kill()
        bridge.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), 10, "the end of the children")
        bridge.close()
        return bridge

    def ask(self, address: str, name: str, seconds: float = 3.0) -> str:
        """The addresses that one node tells the client."""
        program = f"from fakes.asking import addresses; print(*sorted(addresses(53, {name!r}, host={address!r}, seconds={seconds})), sep=',')"
        return self.client.run(sys.executable, "-c", program).strip()

    def until_right(self, address: str) -> None:
        """Waits until this node tells the truth."""
        for name, truth in TRUTH.items():
            until(lambda name=name, truth=truth: self.ask(address, name) == truth, 30, f"{name} at {address}")

    @contextlib.contextmanager
    def resolving(self, slowest_ms: float, *names: str) -> Iterator[dict[str, Any]]:
        """A client looks up while the body runs; then no look-up may have failed, lied or taken longer than this."""
        asked = names or tuple(TRUTH)
        process = self.client.start(sys.executable, "-m", "fakes.resolving", str(RATE), *asked)
        found: dict[str, Any] = {}
        try:
            time.sleep(1.0)
            yield found
            time.sleep(1.0)
        finally:
            out, _ = process.communicate("", timeout=80)
        found |= json.loads(out)

        assert {name: list(told) for name, told in found["told"].items()} == {name: [TRUTH[name]] for name in asked}
        assert found["asked"] > RATE
        assert found["slowest_ms"] < slowest_ms, found["slow"]


@pytest.fixture(scope="module")
def site(nacos_can_run: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not can_be_made():
        pytest.skip("hosts in namespaces need root")
    place = tmp_path_factory.mktemp("site")
    if not _has_jars():
        RealNacos(place / "first").start().kill()  # fetches them, which a host of its own could not
    with Hosts() as hosts, Site(hosts, place) as made:
        yield made


def _has_jars() -> bool:
    home = Path(os.environ.get("NACOS_HOME_DIR") or os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return any(home.rglob("jars-2.3.2-*"))


def test_a_node_that_is_killed_and_comes_back_costs_no_look_up(site):
    with site.resolving(ONE_TIMEOUT_MS):
        site.fell(NODES[0])
        time.sleep(1.5)
        site.boot(NODES[0])
    site.until_right(NODES[0])


def test_nodes_that_are_restarted_one_after_the_other_cost_no_look_up(site):
    with site.resolving(ONE_TIMEOUT_MS):
        for address in NODES:
            bridge = site.bridges[address]
            bridge.signal(signal.SIGTERM)

            assert bridge.wait() == 0

            bridge.close()
            site.boot(address)
            time.sleep(PAUSE_S)


def test_a_node_that_is_upgraded_in_place_costs_no_look_up_and_no_timeout(site):
    bridge = site.bridges[NODES[1]]
    before = set(bridge.children())
    with site.resolving(NO_TIMEOUT_MS):
        bridge.signal(signal.SIGUSR2)
        bridge.wait_for("upgrade.done", seconds=60)

    assert not before & set(bridge.children())
    assert bridge.process.poll() is None


def test_a_host_that_is_gone_costs_the_timeout_of_resolv_conf_and_no_look_up(site):
    with site.resolving(ONE_TIMEOUT_MS) as found:
        site.nodes[NODES[0]].unplug()
        time.sleep(2.5)
        site.nodes[NODES[0]].plug()

    assert found["median_ms"] < 200.0


def test_dnsdist_before_the_nodes_passes_over_a_dead_one(site, tmp_path):
    dnsdist = shutil.which("dnsdist")
    if not dnsdist:
        (pytest.fail if os.environ.get("NACOSDNS_REQUIRE_REAL") == "1" else pytest.skip)("dnsdist is not installed")
    text = (Path(__file__).parents[2] / "deploy" / "cluster" / "dnsdist.conf").read_text(encoding="utf-8")
    for ours, example in zip((*NODES, BALANCER), ("10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.10"), strict=True):
        text = text.replace(example, ours)
    (tmp_path / "dnsdist.conf").write_text(text, encoding="utf-8")
    process = site.balancer.start(dnsdist, "--supervised", "--disable-syslog", "-C", str(tmp_path / "dnsdist.conf"))
    try:
        site.client.write("resolv.conf", f"nameserver {BALANCER}\noptions timeout:1 attempts:2\n")
        until(lambda: _answers(site, BALANCER), 20, "dnsdist")
        with site.resolving(TWO_TIMEOUTS_MS):
            site.fell(NODES[2])
            time.sleep(2.5)
            site.boot(NODES[2])
    finally:
        site.client.write("resolv.conf", ADVISED)
        process.kill()
        process.communicate()


def _answers(site: Site, address: str) -> bool:
    with contextlib.suppress(AssertionError):
        return site.ask(address, "orders.nacos", 1.0) == TRUTH["orders.nacos"]
    return False


def test_with_nacos_dead_nothing_changes_and_a_node_that_reboots_knows_what_it_knew(site):
    with site.resolving(ONE_TIMEOUT_MS):
        site.kill_nacos()
        time.sleep(2.0)
        site.fell(NODES[1])
        time.sleep(0.5)
        site.boot(NODES[1])
        site.until_right(NODES[1])
        site.bridges[NODES[1]].signal(signal.SIGTERM)

        assert site.bridges[NODES[1]].wait() == 0

        site.bridges[NODES[1]].close()
        site.boot(NODES[1])
    site.until_right(NODES[1])


def test_when_nacos_is_back_every_node_hears_of_what_is_new(site):
    """Runs last: Nacos was killed by the test before, and its providers come back by themselves."""
    if not site.nacos_pid:
        site.start_nacos()
    site.provide("fresh", "10.1.0.9")
    for address in NODES:
        until(lambda address=address: site.ask(address, "fresh.nacos") == "10.1.0.9", 30, f"fresh at {address}")
        site.until_right(address)
