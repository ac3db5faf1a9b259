"""What is asked of whom: the rows of the table, each a server, a question and how the load generator asks it."""

from __future__ import annotations

from dataclasses import dataclass

from ourselves import OPEN, PLAIN, TWO_FRONTS

ECHO, ECHO_TCP = "C echo", "C echo, TCP"
THREE = "10.0.0.1,10.0.0.2,10.0.0.3"
SERVICE = ("svc{0:03d}.nacos", "A", THREE)
SERVICE_SRV = ("svc{0:03d}.nacos", "SRV", "80,80,80")
MISSING = ("nosuch{0:03d}.nacos", "A", "")
OUTSIDE = ("www{0:03d}.example.com", "A", "192.0.2.1")
SILENT = ("silent.www{0:03d}.example.com", "A", "192.0.2.1")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    question: str
    server: str
    asked: tuple[str, str, str] = SERVICE
    """Pattern of the names, type, what the answer must hold."""
    words: tuple[str, ...] = ()
    wanted: str = "right"
    """The count of the load generator into which every reply must fall."""
    sockets: int = 8
    failing: int = 0
    """Questions to an upstream that does not answer, outstanding beside the load."""

    @property
    def yardstick(self) -> str:
        """The echo that this row is compared with."""
        return ECHO_TCP if "tcp" in self.words else ECHO

    def __str__(self) -> str:
        return f"{self.question}: {self.server}"


def of(question: str, servers: tuple[str, ...], **how: object) -> list[Row]:
    """The same question to several servers."""
    return [Row(question, server, **how) for server in servers]  # type: ignore[arg-type]


HOSTS = ("unbound, local data", "dnsmasq, hosts and cache", "CoreDNS, hosts")
CACHES = (
    "unbound, serve-expired cache",
    "pdns-recursor, packet cache",
    "dnsdist, packet cache",
    "CoreDNS, cache and forward",
    "dnsmasq, hosts and cache",
)
ROWS = (
    *of("service A", (ECHO,), asked=("svc{0:03d}.nacos", "A", "10.0.0.1")),
    *of("service A", (PLAIN, OPEN, *HOSTS)),
    *of("service A, two fronts", (TWO_FRONTS,), sockets=64),
    *of("service A, EDNS", (PLAIN,), words=("edns",)),
    *of("service A, random case", (PLAIN,), words=("case",)),
    *of("service A, random cookie", (PLAIN,), words=("cookie",)),
    *of("service SRV", (PLAIN, "CoreDNS, file"), asked=SERVICE_SRV),
    *of("NXDOMAIN in zone", (PLAIN, "unbound, local data", "CoreDNS, file"), asked=MISSING, wanted="nxdomain"),
    *of("external, cached", (PLAIN, *CACHES), asked=OUTSIDE),
    *of(
        "external, not cached",
        (PLAIN, "CoreDNS, forward", "unbound, serve-expired cache", "dnsmasq, hosts and cache"),
        asked=OUTSIDE,
        words=("unique",),
    ),
    *of("external, not cached, 20 failing", (PLAIN, "CoreDNS, forward"), asked=OUTSIDE, words=("unique",), failing=20),
    *of("service A, TCP", (ECHO_TCP,), asked=("svc{0:03d}.nacos", "A", "10.0.0.1"), words=("tcp",)),
    *of("service A, TCP", (PLAIN, "unbound, local data", "CoreDNS, hosts"), words=("tcp",)),
)


def chosen(part: str, servers: set[str]) -> list[Row]:
    """The rows of these servers in which ``part`` stands, each with its yardstick before it."""
    found = [row for row in ROWS if row.server in servers and part in str(row)]
    yardsticks = {row.yardstick for row in found}
    return [row for row in ROWS if row in found or row.server in yardsticks]
