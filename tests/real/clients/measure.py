"""Measures what clients make of answers and prints the table of docs/clients.md: ``make clients``, as root.

Each client runs on a host of its own (tests/fakes/client_host.py); what it asks is heard on the wire. A client whose
tools are missing is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from fakes.client_host import GLIBC, GO, JAVA, MUSL, NODE, PYTHON, ClientHost, table
from fakes.running import until

if TYPE_CHECKING:
    from fakes.client_host import Client, Heard

FAR = ("192.0.2.1", "192.0.2.2", "192.0.2.3")
NEAR = ("10.0.0.101", "10.0.0.110", "10.0.0.3")
NEAR_SIX = ("2001:db8::101", "2001:db8::110", "2001:db8::3")
MANY = tuple(f"10.1.0.{number}" for number in range(1, 61))
SERVICES = table("far", FAR) + table("near", NEAR) + table("near-six", NEAR_SIX) + table("many", MANY)
VERSIONS = {
    GLIBC: "ldd --version | sed -n '1s/.* //p'",
    MUSL: "dpkg-query -W -f '${Version}' musl-tools",
    GO: "go env GOVERSION",
    JAVA: "java -version 2>&1 | sed -n '1s/.*\"\\(.*\\)\".*/\\1/p'",
    NODE: "node --version",
    PYTHON: "python3 --version",
}


class Row(NamedTuple):
    """A way to look up: its name, the program, the kind of look-up."""

    name: str
    client: Client
    kind: str = "host"


ROWS = (
    Row("glibc getaddrinfo", GLIBC),
    Row("musl getaddrinfo", MUSL),
    Row("Go net, without C", GO),
    Row("Java InetAddress", JAVA),
    Row("Java JNDI", JAVA, "a"),
    Row("Node dns.lookup", NODE),
    Row("Node dns.resolve (c-ares)", NODE, "a"),
    Row("Python getaddrinfo", PYTHON),
)
HEAD = (
    "client",
    "version",
    "order: elsewhere / own IPv4 subnet / own IPv6 subnet",
    "families, EDNS",
    "60 instances",
    "keeps answer / NXDOMAIN",
    "SERVFAIL after 2.5 s",
)


def questions(heard: list[Heard]) -> list[Heard]:
    return [one for one in heard if not one.is_reply]


def order(host: ClientHost, row: Row, name: str) -> str:
    """Whether the client hands on the order that it was told, over eight answers."""
    host.heard()
    kind = "aaaa" if row.kind == "a" and "six" in name else row.kind
    is_kept = True
    for _ in range(8):
        [found] = host.look_up(row.client, kind, name)
        told = [one.answer for one in host.heard() if one.is_reply and one.answer]
        is_kept &= [ip_address(one) for one in found.got] == [ip_address(one) for one in told[-1]]
    return "ours" if is_kept else "its own"


def families(host: ClientHost, row: Row) -> tuple[str, str]:
    """What is asked before the first reply and from how many sockets; what is made of a reply that is SERVFAIL."""
    host.heard()
    began = time.monotonic()
    [found] = host.look_up(row.client, row.kind, "mute.example.com")
    took_s = time.monotonic() - began
    heard = host.heard()
    before = questions(heard[: next(at for at, one in enumerate(heard) if one.is_reply)])
    kinds = "+".join(sorted({one.question.split()[0] for one in before}))
    sockets = len({one.port for one in before})
    edns = {one.message.payload for one in before if one.message.edns >= 0}
    how = f"{kinds} at once, {sockets} socket{'s' * (sockets > 1)}" if "+" in kinds else f"{kinds} first"
    text = f"{how}, {f'EDNS {min(edns)}' if edns else 'no EDNS'}"
    return text, f"{len(questions(heard))} questions, {found.error} after {took_s:.1f} s"


def many(host: ClientHost, row: Row) -> str:
    """How many of sixty are found, and the questions of type A that it took."""
    host.heard()
    [found] = host.look_up(row.client, row.kind, "many.nacos")
    ways = Counter(one.transport for one in questions(host.heard()) if one.question.startswith("A "))
    return f"{len(found.got)} by " + ", ".join(f"{count} {way.upper()}" for way, count in ways.items())


def kept(host: ClientHost, row: Row, name: str) -> str:
    """Whether one process asks again after 1.5 s, when the TTL of 1 s has passed."""
    host.heard()
    host.look_up(row.client, row.kind, name)
    once = len(host.asked())
    host.look_up(row.client, row.kind, name, times=2, pause_ms=1500)
    return "yes" if len(host.asked()) < 2 * once else "no"


def measured(host: ClientHost, row: Row) -> tuple[str, ...]:
    host.look_up(row.client, "host", "localhost")  # builds it, so that no other look-up takes long
    version = subprocess.run(["sh", "-c", VERSIONS[row.client]], capture_output=True, text=True, check=False).stdout
    asked, failing = families(host, row)
    return (
        row.name,
        version.strip(),
        " / ".join(order(host, row, name) for name in ("far.nacos", "near.nacos", "near-six.nacos")),
        asked,
        many(host, row),
        f"{kept(host, row, 'far.nacos')} / {kept(host, row, 'absent.nacos')}",
        failing,
    )


def line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("needs root, for network and mount namespaces")
    with tempfile.TemporaryDirectory() as directory, ClientHost(Path(directory), services=SERVICES) as host:
        until(lambda: host.look_up(PYTHON, "inet", "far.nacos")[0].got, 20, "the services")
        print(line(HEAD))  # noqa: T201 - the table
        print("|" + "---|" * len(HEAD))  # noqa: T201
        for row in ROWS:
            if not row.client.missing():
                print(line(measured(host, row)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
