"""A host in a network namespace of its own: port 53 beside systemd-resolved, resolv.conf that names us, a container beside.

What is to be set for containers is said in docs/operating.md; here it is done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fakes.asking import cli
from fakes.running import Bridge, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and port 53")

HOST, INSIDE, OUTSIDE = (f"nacosdns-{os.getpid()}-{name}" for name in ("host", "in", "out"))
STUB = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("127.0.0.53", 53))
print("ready", flush=True)
while True:
    query, client = sock.recvfrom(4096)
    at = 12
    while query[at]:
        at += query[at] + 1
    at += 5
    known = b"example" in query[:at] and query[at - 3] == 1
    header = query[:2] + b"\\x81\\x80\\0\\1\\0" + bytes([known]) + b"\\0\\0\\0\\0"
    answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4\\xc6\\x33\\x64\\7" if known else b""
    sock.sendto(header + query[12:at] + answer, client)
"""
CONFIG = """allow = ["loopback", "172.30.0.0/24"]
[nacos]
servers = []
[forward]
upstreams = ["resolv.conf"]
resolv_conf = "{resolv_conf}"
[[static]]
name = "orders"
instances = [{{ ip = "10.0.0.1", port = 80 }}]
"""


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def dig(where: str, server: str, name: str) -> str:
    """Status and addresses as dig shows them."""
    command = ["ip", "netns", "exec", where, "dig", "+tries=1", "+time=2", "+comments", "+answer", f"@{server}", name]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    status = said.partition("status: ")[2].partition(",")[0]
    found = [line.split()[-1] for line in said.splitlines() if line and not line.startswith(";")]
    return " ".join([status, *found])


@pytest.fixture
def host() -> Iterator[str]:
    """A host with a bridge 172.30.0.1, a container on it, a stranger at 198.51.100.7, and a stub resolver at 127.0.0.53."""
    for name in (HOST, INSIDE, OUTSIDE):
        ip(f"netns add {name}")
        ip(f"-n {name} link set lo up")
    try:
        for number, (name, ours, theirs) in enumerate(
            ((INSIDE, "172.30.0.1", "172.30.0.2"), (OUTSIDE, "198.51.100.1", "198.51.100.7"))
        ):
            ip(f"-n {HOST} link add veth{number} type veth peer name eth0 netns {name}")
            ip(f"-n {HOST} addr add {ours}/24 dev veth{number}")
            ip(f"-n {HOST} link set veth{number} up")
            ip(f"-n {name} addr add {theirs}/24 dev eth0")
            ip(f"-n {name} link set eth0 up")
        ip(f"-n {OUTSIDE} route add default via 198.51.100.1")
        stub = subprocess.Popen(
            ["ip", "netns", "exec", HOST, sys.executable, "-c", STUB], stdout=subprocess.PIPE, text=True
        )
        try:
            assert stub.stdout is not None
            assert stub.stdout.readline() == "ready\n"
            yield HOST
        finally:
            stub.kill()
            stub.communicate()
    finally:
        for name in (HOST, INSIDE, OUTSIDE):
            ip(f"netns del {name}")


def test_a_host_and_its_containers_are_served_and_strangers_refused(host: str, tmp_path: Path) -> None:
    """S65, S75, S78, S85: beside 127.0.0.53:53; 127.0.0.1 in resolv.conf is left out; ACL by network."""
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("nameserver 127.0.0.1\nnameserver 127.0.0.53\n", encoding="utf-8")
    listen = '"127.0.0.1:53", "172.30.0.1:53"'
    text = CONFIG.format(resolv_conf=resolv_conf)
    running = Bridge(tmp_path, text=text, modules={}, listen=listen, before=("ip", "netns", "exec", host))
    try:
        running.up()
        until(lambda: dig(host, "127.0.0.1", "orders.nacos") == "NOERROR 10.0.0.1", 20, "an answer")

        assert running.said("upstreams.set", "127.0.0.53")
        assert not running.said("upstreams.set", "127.0.0.1:53")
        assert dig(host, "127.0.0.1", "www.example.com") == "NOERROR 198.51.100.7"
        assert dig(INSIDE, "172.30.0.1", "orders.nacos") == "NOERROR 10.0.0.1"
        assert dig(INSIDE, "172.30.0.1", "www.example.com") == "NOERROR 198.51.100.7"
        assert dig(OUTSIDE, "172.30.0.1", "orders.nacos") == "REFUSED"
        assert dig(OUTSIDE, "172.30.0.1", "www.example.com") == "REFUSED"
    finally:
        running.close()


@pytest.fixture
def lonely(host: str, tmp_path: Path) -> Iterator[Bridge]:
    """A bridge whose resolv.conf names nobody but itself."""
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("nameserver 127.0.0.1\n", encoding="utf-8")
    text = CONFIG.format(resolv_conf=resolv_conf)
    running = Bridge(tmp_path, text=text, modules={}, listen='"127.0.0.1:53"', before=("ip", "netns", "exec", host))
    try:
        running.up()
        until(lambda: dig(host, "127.0.0.1", "orders.nacos") == "NOERROR 10.0.0.1", 20, "an answer")
        yield running
    finally:
        running.close()


def test_with_nobody_but_ourselves_to_ask_our_names_are_served_and_status_and_ask_say_why(lonely: Bridge) -> None:
    """S65: outside names are SERVFAIL at once."""
    said = dig(HOST, "127.0.0.1", "www.example.com")
    status = str(cli(lonely, "status"))
    why = str(cli(lonely, "ask", "www.example.com")["why"])

    assert said == "SERVFAIL"
    assert "no upstream (127.0.0.1: that is ourselves)" in status
    assert "no upstream" in why


def test_with_nobody_but_ourselves_to_ask_the_log_says_so(lonely: Bridge) -> None:
    """S65."""
    assert lonely.said("upstreams.")
