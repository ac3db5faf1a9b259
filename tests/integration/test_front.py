"""The real program without a Nacos: static services by every door, and the house rules that only a running front shows."""

from __future__ import annotations

import signal
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import dns.message
import dns.query
import dns.rdatatype
import pytest

from fakes.asking import addresses, ask, cli, rcode, until_says, values
from fakes.running import Bridge, free_port, until
from nacosdns.edge import admin

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICES = """[nacos]
servers = []
[forward]
upstreams = []
[policy."tagged"]
txt_keys = ["zone"]
[[static]]
name = "orders"
instances = [{ ip = "10.0.0.1", port = 80 }, { ip = "10.0.0.2", port = 81, weight = 3.0 }]
[[static]]
name = "v6"
instances = [{ ip = "2001:db8::1", port = 80 }]
[[static]]
name = "tagged"
instances = [{ ip = "10.0.0.3", port = 80, metadata = { zone = "bj", password = "x" } }]
[[static]]
name = "订单服务"
instances = [{ ip = "10.0.0.4", port = 80 }]
[[static]]
name = "public-one"
instances = [{ ip = "192.0.2.77", port = 80 }]
"""


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    many = ", ".join(f'{{ ip = "10.1.{n // 200}.{n % 200 + 1}", port = 80 }}' for n in range(300))
    text = f'{SERVICES}[[static]]\nname = "many"\ninstances = [{many}]\n'
    running = Bridge(tmp_path_factory.mktemp("front"), text=text, modules={})
    try:
        until_says(running.up().port, "orders.nacos", {"10.0.0.1", "10.0.0.2"}, seconds=30)
        yield running
    finally:
        running.close()


def front_pids(bridge: Bridge) -> list[int]:
    return [pid for pid in bridge.children() if b"front_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_running_front_has_neither_grpc_nor_the_sdk_nor_pydantic(bridge: Bridge) -> None:
    modules = admin.call(bridge.directory / "control.sock", "modules", {})

    assert isinstance(modules, list)
    assert "nacosdns.front" in modules
    assert not [name for name in modules if name.partition(".")[0] in {"grpc", "v2", "pydantic", "pydantic_core"}]


def test_a_front_has_one_thread(bridge: Bridge) -> None:
    threads = [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in front_pids(bridge)]

    assert threads == [1, 1]


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("orders.nacos", "A", ["10.0.0.1", "10.0.0.2"]),
        ("ORDERS.NACOS", "A", ["10.0.0.1", "10.0.0.2"]),
        ("orders.nacos", "SRV", ["0 1 80 10-0-0-1.addr.nacos.", "0 3 81 10-0-0-2.addr.nacos."]),
        ("_81._tcp.orders.nacos", "SRV", ["0 3 81 10-0-0-2.addr.nacos."]),
        ("v6.nacos", "AAAA", ["2001:db8::1"]),
        ("tagged.nacos", "TXT", ['"zone=bj"']),
        ("xn--zfr3pq20ciq8a.nacos", "A", ["10.0.0.4"]),
        ("10-0-0-1.addr.nacos", "A", ["10.0.0.1"]),
        ("192-0-2-77.addr.nacos", "A", ["192.0.2.77"]),
        ("orders.DEFAULT_GROUP.group.public.ns.nacos", "A", ["10.0.0.1", "10.0.0.2"]),
        ("canary.nacosdns.invalid", "A", ["127.0.0.1"]),
        ("nacos", "SOA", ["nacos. hostmaster.nacos. 1 3600 600 86400 1"]),
        ("nacos", "NS", ["127-0-0-1.addr.nacos."]),
    ],
)
@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
def test_names_are_answered_the_same_by_udp_and_tcp(
    bridge: Bridge, name: str, kind: str, wanted: list[str], tcp: bool
) -> None:
    """S23."""
    for _ in range(3):
        reply = ask(bridge.port, name, kind, tcp=tcp)

        assert sorted(values(reply)) == wanted
        assert reply.flags & 0x0400


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("orders.nacos", "AAAA", "NOERROR"),
        ("orders.nacos", "HTTPS", "NOERROR"),
        ("group.nacos", "A", "NOERROR"),
        ("addr.nacos", "A", "NOERROR"),
        ("_tcp.orders.nacos", "SRV", "NOERROR"),
        ("nosuch.nacos", "A", "NXDOMAIN"),
        ("_82._tcp.orders.nacos", "SRV", "NXDOMAIN"),
        ("203-0-113-9.addr.nacos", "A", "NXDOMAIN"),
        ("orders.nowhere.ns.nacos", "A", "NXDOMAIN"),
    ],
)
def test_negative_answers_carry_the_zones_soa(bridge: Bridge, name: str, kind: str, wanted: str) -> None:
    """S23."""
    reply = ask(bridge.port, name, kind)

    assert rcode(bridge.port, name, kind) == wanted
    assert reply.answer == []
    assert reply.authority[0].rdtype == dns.rdatatype.SOA
    assert reply.authority[0].name.to_text() == "nacos."
    assert reply.authority[0].ttl == 1


def test_first_places_follow_the_weights_exactly(bridge: Bridge) -> None:
    firsts = [addresses(bridge.port, "orders.nacos")[0] for _ in range(80)]

    assert (firsts.count("10.0.0.1"), firsts.count("10.0.0.2")) == (20, 60)


def test_many_instances_fit_each_transport(bridge: Bridge) -> None:
    """S53."""
    plain, edns = ask(bridge.port, "many.nacos"), ask(bridge.port, "many.nacos", payload=4096)

    assert len(plain.to_wire()) <= 512
    assert plain.flags & 0x0200
    assert len(edns.to_wire(max_size=65535)) <= 1232
    assert 20 < len(values(plain)) < len(values(edns)) < 300
    assert len(values(ask(bridge.port, "many.nacos", tcp=True))) == 300
    assert len(values(ask(bridge.port, "many.nacos", "SRV", tcp=True))) == 300


def test_tcp_takes_many_questions_at_once(bridge: Bridge) -> None:
    query = dns.message.make_query("orders.nacos", "A")
    with socket.create_connection(("127.0.0.1", bridge.port), 5) as sock:
        for number in range(300):
            query.id = number
            wire = query.to_wire()
            sock.sendall(struct.pack("!H", len(wire)) + wire)
        stream = sock.makefile("rb")
        replies = [dns.message.from_wire(stream.read(int.from_bytes(stream.read(2), "big"))) for _ in range(300)]

    assert {reply.id for reply in replies} == set(range(300))
    assert all(len(values(reply)) == 2 for reply in replies)


@pytest.mark.parametrize(
    ("packet", "wanted"),
    [
        (b"\0\1\x28\0\0\1\0\0\0\0\0\0\6orders\5nacos\0\0\1\0\1", 4),  # opcode 5
        (b"\0\1\1\0\0\0\0\0\0\0\0\0", 1),
        (b"\0\1\1\0\0\2\0\0\0\0\0\0\6orders\5nacos\0\0\1\0\1\6orders\5nacos\0\0\1\0\1", 1),
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\6orders\5nacos\0\0\1\0\3", 5),  # class CH
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\6orders\5nacos\0\0\xfc\0\1", 5),  # AXFR
        (b"\0\1\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1", 1),
    ],
)
def test_odd_packets_get_their_error_with_their_id(bridge: Bridge, packet: bytes, wanted: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", bridge.port))
        sock.send(packet)
        reply = sock.recv(4096)

    assert reply[:2] == packet[:2]
    assert reply[3] & 15 == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("www.example.com", "no"),
        ("nosuch.nacos", "names no instance of this service"),
        ("_82._tcp.orders.nacos", "no instance of the service has this port"),
        ("orders.nowhere.ns.nacos", "namespace"),
    ],
)
def test_ask_says_why(bridge: Bridge, name: str, wanted: str) -> None:
    """S09."""
    answer = cli(bridge, "ask", name)

    assert any(wanted in sentence for sentence in answer["why"]), answer


def test_replies_and_short_packets_are_dropped_in_silence(bridge: Bridge) -> None:
    """S60, S61."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.3)
        sock.connect(("127.0.0.1", bridge.port))
        for packet in (b"", b"\0" * 11, b"\0\1\x81\0\0\1\0\0\0\0\0\0\6orders\5nacos\0\0\1\0\1"):
            sock.send(packet)
        with pytest.raises(TimeoutError):
            sock.recv(4096)

    assert addresses(bridge.port, "orders.nacos")


def test_the_question_comes_back_byte_for_byte(bridge: Bridge) -> None:
    """S01, S64."""
    for _ in range(3):
        name = b"\6oRdErS\5NaCoS\0\0\1\0\1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(5)
            sock.connect(("127.0.0.1", bridge.port))
            sock.send(b"\0\1\1\0\0\1\0\0\0\0\0\0" + name)

            assert sock.recv(4096)[12 : 12 + len(name)] == name


def test_without_an_upstream_outside_names_are_servfail_at_once(bridge: Bridge) -> None:
    began = time.monotonic()

    assert rcode(bridge.port, "www.example.com") == "SERVFAIL"
    assert time.monotonic() - began < 2.0  # who waits for an upstream waits 2.5 s


def test_a_client_that_may_not_ask_is_refused(tmp_path: Path) -> None:
    """S85: all doors, ours and outside names alike."""
    port = free_port()
    text = 'allow = ["127.0.0.2"]\n' + SERVICES
    running = Bridge(tmp_path, text=text, modules={}, listen=f'"0.0.0.0:{port}"', port=port)
    try:
        running.wait_for("child.ready", times=3, seconds=30)
        answers = {}
        for source in ("127.0.0.2", "127.0.0.3"):
            for tcp in (False, True):
                send = dns.query.tcp if tcp else dns.query.udp
                query = dns.message.make_query("orders.nacos", "A")
                until(lambda s=source, q=query, f=send: _answered(f, q, port, s), 20, "an answer")
                answers[source, tcp] = [send(query, "127.0.0.1", 5, port, source=source).rcode() for _ in range(4)]
    finally:
        running.close()

    assert answers["127.0.0.2", False] == answers["127.0.0.2", True] == [0] * 4
    assert answers["127.0.0.3", False] == answers["127.0.0.3", True] == [5] * 4


def _answered(send: object, query: dns.message.Message, port: int, source: str) -> bool:
    try:
        return send(query, "127.0.0.1", 2, port, source=source).rcode() in {0, 5}  # type: ignore[operator]
    except Exception:  # noqa: BLE001  # not there yet
        return False


def test_a_static_file_is_followed_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "static.toml"
    file.write_text('[[static]]\nname = "a"\ninstances = [{ ip = "10.0.0.1", port = 80 }]\n')
    text = "[nacos]\nservers = []\n[forward]\nupstreams = []\n"
    running = Bridge(tmp_path, text=text, modules={}, top=f'static_file = "{file}"\n')
    try:
        port = running.up().port
        until_says(port, "a.nacos", {"10.0.0.1"})
        file.write_text('[[static]]\nname = "a"\ninstances = [{ ip = "10.0.0.2", port = 80 }]\n')
        until_says(port, "a.nacos", {"10.0.0.2"})
        file.write_text("this is not TOML [")
        running.wait_for("static_file.refused")

        assert addresses(port, "a.nacos") == ["10.0.0.2"]

        file.write_text("")
        until_says(port, "a.nacos", set())
        running.signal(signal.SIGTERM)

        assert running.wait() == 0
    finally:
        running.close()


def test_a_resolv_conf_that_a_new_configuration_names_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text("nameserver 192.0.2.1\n", encoding="utf-8")
    running = Bridge(tmp_path, text=SERVICES, modules={})
    try:
        running.up()
        text = SERVICES.replace("upstreams = []", f'upstreams = ["resolv.conf"]\nresolv_conf = "{file}"')
        running.write(text)
        running.signal(signal.SIGHUP)
        running.wait_for("upstreams.set", "192.0.2.1")
        file.write_text("nameserver 192.0.2.99\n", encoding="utf-8")

        running.wait_for("upstreams.set", "192.0.2.99")
    finally:
        running.close()


def test_a_keeper_that_a_new_configuration_replaces_saves_and_leaves_in_order(tmp_path: Path) -> None:
    running = Bridge(tmp_path, text=SERVICES, modules={})
    try:
        running.up()
        running.write(SERVICES.replace("servers = []", 'servers = ["127.0.0.1:1"]'))
        running.signal(signal.SIGHUP)
        running.wait_for("keeper.renewed")
        running.wait_for("child.ready", "child=keeper", times=2)

        assert running.said("child.exited", "child=keeper", "status=0")
        until_says(running.port, "orders.nacos", {"10.0.0.1", "10.0.0.2"}, seconds=10)
    finally:
        running.close()


@pytest.mark.parametrize(("mode", "least", "most"), [("all", 31, 31), ("1/10", 3, 3), ("errors", 1, 1), ("off", 0, 0)])
def test_queries_are_logged_as_the_configuration_says(tmp_path: Path, mode: str, least: int, most: int) -> None:
    statics, log = SERVICES.partition("[[static]]")[1:], f'[log]\nqueries = "{mode}"\n'
    text = SERVICES.partition("[[static]]")[0] + log + "".join(statics)
    running = Bridge(tmp_path, text=text, modules={})
    try:
        port = running.up().port
        until(lambda: addresses(port, "canary.nacosdns.invalid") == ["127.0.0.1"], 10, "an answer")
        for _ in range(30):
            assert addresses(port, "orders.nacos")
        assert rcode(port, "www.example.com") == "SERVFAIL"
        time.sleep(0.3)
        logged = len(running.said("event=query", "name=orders.nacos.")) + len(
            running.said("event=query", "www.example.com")
        )
    finally:
        running.close()

    assert least <= logged <= most + (1 if mode == "1/10" else 0)
