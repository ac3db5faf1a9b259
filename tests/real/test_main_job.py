"""The main job on a real Nacos: registered, resolved, followed, and answered on when things die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fakes.asking import addresses, ask, dig, rcode, until_says, values, with_resolv_conf
from fakes.checker import check
from fakes.real_nacos import Provider
from fakes.running import Bridge, free_port, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fakes.checker import Report
    from fakes.real_nacos import RealNacos

    StartBridge = Callable[..., Bridge]
    StartProvider = Callable[..., Provider]

TESTS = Path(__file__).parents[1]
GETADDRINFO = "import socket,sys; print(sorted({i[4][0] for i in socket.getaddrinfo(sys.argv[1], 80, socket.AF_INET)}))"


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[StartBridge]:
    """Starts the real program: ``bridge(nacos, text=…)``; ended with the test."""
    bridges: list[Bridge] = []

    def start(nacos: RealNacos | None, text: str = "", wait: bool = True, **how: Any) -> Bridge:  # noqa: FBT002
        servers = f'"{nacos.address}"' if nacos is not None else ""
        place = tmp_path / f"b{len(bridges)}"
        place.mkdir()
        bridges.append(Bridge(place, text=f"[nacos]\nservers = [{servers}]\n{text}", modules={}, **how))
        return bridges[-1].up() if wait else bridges[-1]

    yield start
    for one in bridges:
        one.close()


def run_checker(port: int, name: str, truth: set[str], **how: Any) -> Report:
    return asyncio.run(check(port, [name], truth, **how))


def cli(bridge: Bridge, *words: str) -> Any:
    command = [sys.executable, "-m", "nacosdns.cli", *words, "-c", str(bridge.file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_client_gets_the_same_right_answer_for_a_registered_service(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str, tmp_path: Path
) -> None:
    provider(service, *({"ip": f"10.0.0.{n}", "port": 8080 + n, "weight": float(n)} for n in (1, 2, 3)))
    running = bridge(nacos, port=(port := free_port()), listen=f'"127.77.0.1:53", "127.0.0.1:{port}"')
    name = f"{service}.nacos"
    until_says(port, name, {"10.0.0.1", "10.0.0.2", "10.0.0.3"})
    by_libc = with_resolv_conf(tmp_path, "nameserver 127.77.0.1\n", GETADDRINFO, name)
    by_ask = cli(running, "ask", name)

    assert sorted(addresses(port, name)) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert sorted(dig(port, name).split()) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert by_libc.strip() == "['10.0.0.1', '10.0.0.2', '10.0.0.3']"
    assert sorted(answer["data"] for answer in by_ask["answers"]) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert sorted(i["weight"] for i in by_ask["service"]["instances"]) == [1.0, 2.0, 3.0]


def test_srv_leads_a_client_to_address_and_port(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    provider(service, *({"ip": f"10.0.0.{n}", "port": 8080 + n, "weight": float(n)} for n in (1, 3)))
    port = bridge(nacos).port
    until_says(port, f"{service}.nacos", {"10.0.0.1", "10.0.0.3"})
    found = {}
    for text in addresses(port, f"{service}.nacos", "SRV"):
        _, weight, number, target = text.split()
        found[addresses(port, target)[0]] = (int(number), int(weight))

    assert found == {"10.0.0.1": (8081, 1), "10.0.0.3": (8083, 3)}


def test_changes_of_weight_health_enabled_and_metadata_reach_the_answer(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    first = {"ip": "10.0.0.1", "port": 80}
    one = provider(service, first)
    two = provider(service, {"ip": "10.0.0.2", "port": 80})
    port = bridge(nacos, text='[policy]\ntxt_keys = ["v"]\n').port
    name = f"{service}.nacos"
    until_says(port, name, {"10.0.0.1", "10.0.0.2"})
    two.update([{"ip": "10.0.0.2", "port": 80, "healthy": False}])
    until_says(port, name, {"10.0.0.1"})
    two.update([{"ip": "10.0.0.2", "port": 80, "weight": 0.0}])
    until_says(port, name, {"10.0.0.1"})
    two.update([{"ip": "10.0.0.2", "port": 80, "weight": 5.0, "metadata": {"v": "2"}}])
    until_says(port, name, {"10.0.0.1", "10.0.0.2"})
    until_says(port, name, {'"v=2"'}, kind="TXT")
    nacos.change(service, "10.0.0.1", 80, ephemeral=True, enabled="false")
    until_says(port, name, {"10.0.0.2"})
    nacos.change(service, "10.0.0.1", 80, ephemeral=True, enabled="true")
    until_says(port, name, {"10.0.0.1", "10.0.0.2"})
    weights = {text.split()[1] for text in addresses(port, name, "SRV")}

    assert weights == {"1", "5"}
    assert one is not two


def test_a_killed_provider_leaves_the_answer(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    provider(service, {"ip": "10.0.0.1", "port": 80})
    doomed = provider(service, {"ip": "10.0.0.2", "port": 80})
    port = bridge(nacos).port
    until_says(port, f"{service}.nacos", {"10.0.0.1", "10.0.0.2"})

    doomed.kill()

    assert until_says(port, f"{service}.nacos", {"10.0.0.1"}, seconds=5.0) < 5.0


def test_a_nacos_killed_and_restarted_under_load_changes_no_answer(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    """500 q/s for 60 s: Nacos comes back knowing nobody, pushes an empty list, then the providers return."""
    nacos = start_nacos()
    holder = Provider(nacos, tmp_path, "orders")
    try:
        holder.start(*({"ip": f"10.0.0.{n}", "port": 80} for n in (1, 2, 3)))
        port = bridge(nacos).port
        truth = {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
        until_says(port, "orders.nacos", truth)

        async def drill() -> Report:
            task = asyncio.create_task(check(port, ["orders.nacos"], truth, rate=500, seconds=60, at_least=3))
            await asyncio.sleep(2)
            nacos.kill()
            await asyncio.sleep(3)
            await asyncio.to_thread(nacos.start)
            return await task

        report = asyncio.run(drill())
    finally:
        holder.kill()

    assert (report.wrong, report.empty, report.failed, report.few, report.lost) == (0, 0, 0, 0, 0), report.samples
    assert report.right == report.sent > 29_000


def test_twenty_providers_that_return_over_half_a_minute_are_never_fewer_than_eighteen(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    nacos = start_nacos()
    truth = {f"10.0.0.{n}" for n in range(1, 21)}
    script = tmp_path / "twenty.py"
    script.write_text(TWENTY)
    holder = subprocess.Popen(
        [sys.executable, str(script), nacos.address, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        port = bridge(nacos).port
        until_says(port, "spread.nacos", truth)

        async def drill() -> Report:
            task = asyncio.create_task(check(port, ["spread.nacos"], truth, rate=200, seconds=85, at_least=18))
            await asyncio.sleep(2)
            nacos.kill()
            await asyncio.sleep(2)
            await asyncio.to_thread(nacos.start)
            return await task

        report = asyncio.run(drill())
    finally:
        holder.kill()
        holder.communicate()

    assert (report.wrong, report.empty, report.failed, report.few, report.lost) == (0, 0, 0, 0, 0), report.samples
    assert report.fewest >= 18


TWENTY = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
from v2.nacos import ClientConfigBuilder, NacosNamingService, RegisterInstanceParam

async def one(number):
    await asyncio.sleep(number * 1.5)
    config = ClientConfigBuilder().server_address(sys.argv[1]).namespace_id("public").log_dir(sys.argv[2]).cache_dir(sys.argv[2]).log_level("ERROR").build()
    naming = await NacosNamingService.create_naming_service(config)
    await naming.register_instance(RegisterInstanceParam(service_name="spread", ip=f"10.0.0.{number + 1}", port=80))
    return naming

async def main():
    kept = await asyncio.gather(*map(one, range(20)))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_started_with_nacos_down_the_disk_answers(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    nacos = start_nacos()
    holder = Provider(nacos, tmp_path, "kept").start({"ip": "10.0.0.1", "port": 80})
    first = bridge(nacos)
    until_says(first.port, "kept.nacos", {"10.0.0.1"})
    first.signal(signal.SIGTERM)

    assert first.wait() == 0

    holder.kill()
    nacos.kill()
    second = bridge(nacos, directory=first.directory)

    assert addresses(second.port, "kept.nacos") == ["10.0.0.1"]
    assert rcode(second.port, "unknown.nacos") == "SERVFAIL"


def test_started_before_nacos_it_finds_services_when_nacos_comes(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    nacos = start_nacos()
    nacos.kill()
    port = bridge(nacos).port
    until(lambda: rcode(port, "late.nacos") == "SERVFAIL", 10, "SERVFAIL")
    nacos.start()
    holder = Provider(nacos, tmp_path, "late").start({"ip": "10.0.0.1", "port": 80})
    try:
        until_says(port, "late.nacos", {"10.0.0.1"}, seconds=20)
    finally:
        holder.kill()


def test_the_last_instance_removed_for_good_becomes_nodata_after_its_window(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    only = provider(service, {"ip": "10.0.0.1", "port": 80})
    port = bridge(nacos, text="[policy]\nempty_window_s = 6\n").port
    until_says(port, f"{service}.nacos", {"10.0.0.1"})
    only.kill()
    time.sleep(3)

    assert addresses(port, f"{service}.nacos") == ["10.0.0.1"]

    until_says(port, f"{service}.nacos", set(), seconds=20)

    assert rcode(port, f"{service}.nacos") in {"NOERROR", "NXDOMAIN"}


def test_a_nacos_with_users_is_used_with_the_right_password_and_the_wrong_one_is_said_clearly(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    nacos = start_nacos(auth=True)
    secret = tmp_path / "password"
    secret.write_text("wrong-secret\n")
    nacos.http("POST", "/v1/ns/instance", serviceName="kept", ip="127.0.0.9", port=80, ephemeral="false")
    running = bridge(nacos, text=f'username = "nacos"\npassword_file = "{secret}"\n')
    running.wait_for("registry", "refused")

    assert rcode(running.port, "kept.nacos") == "SERVFAIL"
    assert not running.said("wrong-secret")

    secret.write_text("nacos\n")
    running.signal(signal.SIGHUP)
    until_says(running.port, "kept.nacos", {"127.0.0.9"}, seconds=30)


def test_namespaces_and_groups_are_kept_apart(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    """S09, S10."""
    provider(service, {"ip": "10.0.0.1", "port": 80})
    provider(service, {"ip": "10.0.0.2", "port": 80}, group="G1")
    provider(service, {"ip": "10.0.0.3", "port": 80}, namespace="33ea21bc-prod")
    text = '[namespaces]\nprod = "33ea21bc-prod"\n[[zone]]\nname = "nacos."\n[[zone]]\nname = "prod.test."\nnamespace = "prod"\n'
    port = bridge(nacos, text=text).port

    until_says(port, f"{service}.nacos", {"10.0.0.1"})
    until_says(port, f"{service}.G1.group.nacos", {"10.0.0.2"})
    until_says(port, f"G1@@{service}.nacos", {"10.0.0.2"})
    until_says(port, f"{service}.prod.ns.nacos", {"10.0.0.3"})
    until_says(port, f"{service}.prod.test", {"10.0.0.3"})

    assert rcode(port, f"{service}.nowhere.ns.nacos") == "NXDOMAIN"


def test_three_hundred_instances_fit_each_transport(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    """S53."""
    provider(service, *({"ip": f"10.0.{n // 200}.{n % 200 + 1}", "port": 80} for n in range(300)))
    port = bridge(nacos).port
    name = f"{service}.nacos"
    until(lambda: len(addresses(port, name, tcp=True)) == 300, 10, "300 addresses over TCP")
    plain, edns = ask(port, name), ask(port, name, payload=4096)

    assert len(plain.to_wire()) <= 512
    assert len(edns.to_wire(max_size=4096)) <= 1232
    assert "TC" in str(plain.flags) or plain.flags & 0x0200
    assert 20 <= len(values(plain)) < len(values(edns)) < 300
    assert len(set(addresses(port, name, "SRV", tcp=True))) == 300


def test_a_thousand_services_are_answered(nacos: RealNacos, bridge: StartBridge, tmp_path: Path) -> None:
    many = subprocess.Popen(
        [sys.executable, "-m", "fakes.many", nacos.address, "1000", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    try:
        assert many.stdout is not None
        assert many.stdout.readline() == "ready\n"
        running = bridge(nacos)
        for number in range(1000):
            expected = f"10.1.{number // 250}.{number % 250 + 1}"
            assert addresses(running.port, f"many-{number}.nacos") == [expected]
        until(lambda: cli(running, "status")["keeper"]["subscribed"] == 1000, 30, "1,000 subscriptions")
    finally:
        many.kill()
        many.communicate()


def test_a_new_service_asked_in_vain_is_found_within_two_seconds_at_the_default_push_delay(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    nacos = start_nacos(push_delay_ms=None)
    port = bridge(nacos).port
    until(lambda: rcode(port, "newborn.nacos") == "NXDOMAIN", 10, "NXDOMAIN")
    holder = Provider(nacos, tmp_path, "newborn").start({"ip": "10.0.0.1", "port": 80})
    try:
        took = until_says(port, "newborn.nacos", {"10.0.0.1"}, seconds=2.0)
        holder.update([{"ip": "10.0.0.1", "port": 80, "healthy": True, "weight": 2.0}])
    finally:
        holder.kill()

    assert took <= 2.0


def test_a_keeper_killed_under_load_loses_nothing_and_a_front_loses_at_most_its_batch(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    provider(service, {"ip": "10.0.0.1", "port": 80})
    running = bridge(nacos)
    until_says(running.port, f"{service}.nacos", {"10.0.0.1"})

    async def kill(role: str) -> Report:
        task = asyncio.create_task(check(running.port, [f"{service}.nacos"], {"10.0.0.1"}, rate=1000, seconds=6))
        await asyncio.sleep(2)
        pid = next(
            child["pid"]
            for child in cli(running, "status")["supervisor"]["children"]
            if child["role"] == role and child.get("active", True)
        )
        os.kill(pid, signal.SIGKILL)
        return await task

    keeper = asyncio.run(kill("keeper"))
    until(lambda: "error" not in cli(running, "status")["keeper"], 15, "a new keeper")
    front = asyncio.run(kill("front"))

    assert (keeper.lost, keeper.wrong, keeper.empty, keeper.failed) == (0, 0, 0, 0), keeper.samples
    assert front.lost <= 64
    assert (front.wrong, front.empty, front.failed) == (0, 0, 0), front.samples


def test_unknown_names_in_flood_leave_no_subscription_and_a_bounded_number_of_calls(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    """S50: 100,000 random names inside and outside the zone, random groups and namespaces among them."""
    provider(service, {"ip": "10.0.0.1", "port": 80})
    running = bridge(nacos, text='[forward]\nupstreams = ["127.0.0.1:9"]\n')
    until_says(running.port, f"{service}.nacos", {"10.0.0.1"})
    before = cli(running, "status")["keeper"]["registry"]
    began = time.monotonic()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", running.port))
    sock.setblocking(False)
    forms = ("{0}.nacos", "{0}.g{0}.group.nacos", "{0}.n{0}.ns.nacos", "{0}.ext.test", "{0}.c{0}.cluster.nacos")
    sizes: list[int] = []
    for number in range(100_000):
        if number in {30_000, 99_999}:
            sizes.append(sum(map(resident_kb, running.children())))
        name = forms[number % len(forms)].format(f"rnd{number}")
        wire = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0\0\1\0\1"
        try:
            sock.send(number.to_bytes(4, "big")[2:] + b"\1\0\0\1\0\0\0\0\0\0" + wire)
        except (BlockingIOError, ConnectionRefusedError):
            time.sleep(0.01)
        if number % 50 == 0:
            time.sleep(max(0.0, began + number / 3000 - time.monotonic()))
            while _drained(sock):
                pass
    took = time.monotonic() - began
    sock.close()
    until_says(running.port, f"{service}.nacos", {"10.0.0.1"}, seconds=30)
    after = cli(running, "status")["keeper"]["registry"]
    calls = sum(after["requests"].values()) - sum(before["requests"].values())
    clients = json.loads(nacos.http("GET", "/v2/ns/client/list"))["data"]
    subscribed = set()
    for client in clients:
        listed = json.loads(nacos.http("GET", "/v2/ns/client/subscribe/list", clientId=client))["data"]
        subscribed |= {item["serviceName"] for item in listed}

    assert not {name for name in subscribed if name.startswith("rnd")}
    assert sizes[1] - sizes[0] < 20_000, sizes
    assert calls <= 20 * 3 * (took + 5) + 20
    assert after["requests"]["connect"] == before["requests"]["connect"]


def resident_kb(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def _drained(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(4096))
    except (BlockingIOError, ConnectionRefusedError):
        return False


def test_an_idle_agent_asks_nacos_less_than_once_in_two_seconds(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    provider(service, {"ip": "10.0.0.1", "port": 80})
    running = bridge(nacos)
    until_says(running.port, f"{service}.nacos", {"10.0.0.1"})
    time.sleep(2)
    before = sum(cli(running, "status")["keeper"]["registry"]["requests"].values())
    time.sleep(40)
    after = sum(cli(running, "status")["keeper"]["registry"]["requests"].values())

    assert after - before <= 20
