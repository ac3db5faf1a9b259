"""The peers: other DNS servers, those that are installed, each set up the way that suits it best for what it is asked.

Each one serves the same services from its own files, or caches what the upstream of the bench says. One thread each.
``make bench-peers`` gets them all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servers import HERE, NAMES, await_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Ground, Server

INSIDE, OUTSIDE = "svc000.nacos", "www000.example.com"
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
PATH = os.pathsep.join((str(HERE.parent / ".bench"), os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
UNBOUND = """
server:
 interface: 127.0.0.1@{port}
 use-syslog: no
 username: ""
 chroot: ""
 pidfile: ""
 do-daemonize: no
 num-threads: 1
 module-config: "iterator"
{server}
remote-control:
 control-enable: no
{rest}
"""
DNSDIST = """
setSecurityPollSuffix("")
setLocal("127.0.0.1:{port}")
newServer("127.0.0.1:{upstream}")
getPool(""):setCache(newPacketCache(10000))
"""
ZONE = """
@ 5 IN SOA ns.nacos. hostmaster.nacos. 1 3600 600 86400 5
@ 5 IN NS ns.nacos.
ns 5 IN A 127.0.0.1
"""


@dataclass(frozen=True)
class Peer:
    """How a peer is started: its program, its command line, and a name that it answers once it is there."""

    label: str
    program: str
    command: Callable[[Ground, int, int], tuple[object, ...]]
    """From the ground, its port and the upstream's port to the words behind the program."""
    probe: str

    def path(self) -> str | None:
        """Where its program is; None when it is not installed."""
        return which(self.program)

    def start(self, ground: Ground, upstream: int) -> Server:
        """Start it."""
        port = ground.free_port()
        words = self.command(ground, port, upstream)
        return ground.start(self.label, port, self.path(), *words, environment={"GOMAXPROCS": "1"})

    def wait(self, server: Server) -> None:
        """Return when it answers."""
        await_answer(server, self.probe)


def which(program: str) -> str | None:
    """Where a program is: .bench first, then the path, then where root finds more."""
    return shutil.which(program, path=PATH)


def services() -> list[tuple[str, str]]:
    """Every service's name with each of its addresses."""
    return [(f"svc{number:03d}.nacos", address) for number in range(NAMES) for address in ADDRESSES]


def hosts(ground: Ground) -> object:
    return ground.write("hosts", "".join(f"{address} {name}\n" for name, address in services()))


def unbound_local(ground: Ground, port: int, upstream: int) -> tuple[object, ...]:
    del upstream
    data = "".join(f' local-data: "{name}. 5 A {address}"\n' for name, address in services())
    server = f' local-zone: "nacos." static\n local-data: "nacos. 5 SOA ns.nacos. hostmaster.nacos. 1 3600 600 86400 5"\n{data}'
    return "-c", ground.write("unbound-local.conf", UNBOUND.format(port=port, server=server, rest=""))


def unbound_cache(ground: Ground, port: int, upstream: int) -> tuple[object, ...]:
    server = " do-not-query-localhost: no\n serve-expired: yes"
    rest = f'forward-zone:\n name: "."\n forward-addr: 127.0.0.1@{upstream}'
    return "-c", ground.write("unbound-cache.conf", UNBOUND.format(port=port, server=server, rest=rest))


def dnsmasq(ground: Ground, port: int, upstream: int) -> tuple[object, ...]:
    files = ("-H", hosts(ground), "-x", ground.place / "dnsmasq.pid", "-C", "/dev/null")
    asks = ("-S", f"127.0.0.1#{upstream}", "--dns-forward-max=1000", "--local=/nacos/")
    return "-k", "-p", port, "-a", "127.0.0.1", "-z", "-h", "-R", *files, *asks, "-u", "root"


def dnsdist(ground: Ground, port: int, upstream: int) -> tuple[object, ...]:
    config = ground.write("dnsdist.conf", DNSDIST.format(port=port, upstream=upstream))
    return "--supervised", "--disable-syslog", "-C", config


def pdns_recursor(ground: Ground, port: int, upstream: int) -> tuple[object, ...]:
    settings = {
        "config-dir": ground.place,
        "socket-dir": ground.place,
        "local-address": "127.0.0.1",
        "local-port": port,
        "forward-zones-recurse": f".=127.0.0.1:{upstream}",
        "dont-query": "",
        "dnssec": "off",
        "security-poll-suffix": "",
        "threads": 1,
        "pdns-distributes-queries": "no",
        "daemon": "no",
        "write-pid": "no",
        "disable-syslog": "yes",
    }
    words = tuple(f"--{name}={value}" for name, value in settings.items())
    command = (which("pdns_recursor") or "", "--version")
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    version = re.search(r"Recursor (\d+)\.(\d+)", said.stdout + said.stderr)
    takes_yaml = version is not None and tuple(map(int, version.groups())) >= (5, 2)
    return (*words, "--enable-old-settings") if takes_yaml else words


def coredns(ground: Ground, port: int, kind: str, plugins: str) -> tuple[object, ...]:
    text = f".:{port} {{\n bind 127.0.0.1\n {plugins}\n}}\n"
    return "-conf", ground.write(f"Corefile-{kind}", text)


def coredns_hosts(ground: Ground, port: int, upstream: int) -> tuple[object, ...]:
    del upstream
    return coredns(ground, port, "hosts", f"hosts {hosts(ground)}")


def coredns_file(ground: Ground, port: int, upstream: int) -> tuple[object, ...]:
    del upstream
    targets = "".join(f"t{number} 5 IN A {address}\n" for number, address in enumerate(ADDRESSES))
    records = "".join(
        f"svc{number:03d} 5 IN A {address}\nsvc{number:03d} 5 IN SRV 0 1 80 t{place}.nacos.\n"
        for number in range(NAMES)
        for place, address in enumerate(ADDRESSES)
    )
    return coredns(ground, port, "file", f"file {ground.write('db.nacos', ZONE + targets + records)} nacos")


def coredns_forward(ground: Ground, port: int, upstream: int) -> tuple[object, ...]:
    return coredns(ground, port, "forward", f"forward . 127.0.0.1:{upstream}")


def coredns_cache(ground: Ground, port: int, upstream: int) -> tuple[object, ...]:
    return coredns(ground, port, "cache", f"cache 3600\n forward . 127.0.0.1:{upstream}")


PEERS = {
    peer.label: peer
    for peer in (
        Peer("unbound, local data", "unbound", unbound_local, INSIDE),
        Peer("unbound, serve-expired cache", "unbound", unbound_cache, OUTSIDE),
        Peer("dnsmasq, hosts and cache", "dnsmasq", dnsmasq, INSIDE),
        Peer("dnsdist, packet cache", "dnsdist", dnsdist, OUTSIDE),
        Peer("pdns-recursor, packet cache", "pdns_recursor", pdns_recursor, OUTSIDE),
        Peer("CoreDNS, hosts", "coredns", coredns_hosts, INSIDE),
        Peer("CoreDNS, file", "coredns", coredns_file, INSIDE),
        Peer("CoreDNS, cache and forward", "coredns", coredns_cache, OUTSIDE),
        Peer("CoreDNS, forward", "coredns", coredns_forward, OUTSIDE),
    )
}
