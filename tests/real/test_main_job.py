"""The main job on a real Nacos: registered, resolved by every client, followed by push."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.asking import addresses, ask, cli, dig, rcode, until_says, values, with_resolv_conf
from fakes.real_nacos import Provider
from fakes.running import free_port, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fakes.real_nacos import RealNacos
    from fakes.running import Bridge

    StartBridge = Callable[..., Bridge]
    StartProvider = Callable[..., Provider]

pytestmark = pytest.mark.timeout(300)

TESTS = Path(__file__).parents[1]
GETADDRINFO = "import socket,sys; print(sorted({i[4][0] for i in socket.getaddrinfo(sys.argv[1], 80, socket.AF_INET)}))"


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
    """S17."""
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
    """S41."""
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


def test_the_last_instance_removed_for_good_becomes_nodata_after_its_window(
    nacos: RealNacos, provider: StartProvider, bridge: StartBridge, service: str
) -> None:
    """S31."""
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
    """S38."""
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


def test_a_new_service_asked_in_vain_is_found_within_two_seconds_at_the_default_push_delay(
    start_nacos: Callable[..., RealNacos], tmp_path: Path, bridge: StartBridge
) -> None:
    """S45."""
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
