"""The sockets that clients reach us on: opened once, kept by the supervisor, read by whoever is told to.

Must not know: who reads them, DNS. Rules: one UDP and one TCP socket for each address and front slot, joined by
SO_REUSEPORT after a bind without it, so that a port that another program holds still shows; an address that the host
does not have yet is bound ahead of time; an interface that is not there yet is looked for again.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nacosdns.config import host_port
from nacosdns.core.frames import SocketSet
from nacosdns.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RECEIVE_BUFFER_BYTES = 8 << 20
TCP_BACKLOG = 1024
QUERY_BUFFER_BYTES = 416
"""What one waiting query takes of a receive buffer: 212,992 bytes hold 512."""

# Linux numbers that Python's socket module does not name (asm-generic/socket.h, linux/in.h, linux/in6.h).
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS, _IP_PKTINFO, _IP_FREEBIND, _IPV6_FREEBIND = 33, 35, 8, 15, 78


class Endpoint(NamedTuple):
    """An IP address, without brackets and with its zone if it has one, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every address of the host."""
        return ipaddress.ip_address(self.host).is_unspecified

    @property
    def family(self) -> socket.AddressFamily:
        """AF_INET or AF_INET6."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def local(self) -> Endpoint:
        """How this host itself reaches it."""
        if not self.is_wildcard:
            return self
        return Endpoint("::1" if ":" in self.host else "127.0.0.1", self.port)


class Present(Protocol):
    """An address that an interface of this host has (edge/host.py)."""

    @property
    def interface(self) -> str:
        """Its name, as ``eth0``."""

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """One of its addresses."""


class Pair(NamedTuple):
    """The two sockets of one address and one front slot."""

    udp: socket.socket
    tcp: socket.socket


def endpoints(listen: Iterable[str], present: Iterable[Present]) -> tuple[list[Endpoint], list[str]]:
    """The addresses meant by server.listen, and the entries whose interface is not there.

    An interface stands for all its addresses but the link-local ones of IPv6.
    """
    found: list[Endpoint] = []
    missing: list[str] = []
    present = tuple(present)
    for entry in listen:
        host, port = host_port(entry)
        if _is_address(host):
            found.append(Endpoint(host, port))
            continue
        own = [item.address for item in present if item.interface == host]
        usable = [address for address in own if address.version == 4 or not address.is_link_local]
        found += [Endpoint(str(address), port) for address in usable]
        if not usable:
            missing.append(entry)
    return list(dict.fromkeys(found)), missing


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Listeners:
    """All sockets, by address and front slot. ``wanted`` are the addresses of the present configuration."""

    def __init__(self) -> None:
        self.wanted: list[Endpoint] = []
        self.missing: list[str] = []
        self.late: set[Endpoint] = set()
        self._fronts = 0
        self._open: dict[tuple[Endpoint, int], Pair] = {}

    def __repr__(self) -> str:
        return (
            f"<Listeners {[str(endpoint) for endpoint in self.wanted]} fronts={self._fronts} missing= {self.missing}>"
        )

    def want(self, listen: Iterable[str], fronts: int, present: Iterable[Present]) -> bool:
        """Opens what is missing for these addresses and front slots; whether anything changed.

        StartError leaves everything as it was. What is no longer wanted stays open until ``close_unwanted``.
        """
        wanted, missing = endpoints(listen, present)
        opened: dict[tuple[Endpoint, int], Pair] = {}
        try:
            for endpoint in wanted:
                if not any(known == endpoint for known, _ in self._open):
                    self._probe(endpoint)
                for slot in range(fronts):
                    if (endpoint, slot) not in self._open:
                        opened[endpoint, slot] = _pair(endpoint)
        except OSError as error:
            _close(opened.values())
            raise _start_error(endpoint, "udp and tcp", error) from error
        except StartError:
            _close(opened.values())
            raise
        changed = bool(opened) or wanted != self.wanted or fronts != self._fronts
        self._open |= opened
        self.wanted, self.missing, self._fronts = wanted, missing, fronts
        return changed

    def _probe(self, endpoint: Endpoint) -> None:
        """Binds without SO_REUSEPORT and lets go: StartError when another program holds the port or we may not."""
        self.late.discard(endpoint)
        for kind, word in ((socket.SOCK_DGRAM, "udp"), (socket.SOCK_STREAM, "tcp")):
            with socket.socket(endpoint.family, kind) as probe:
                _prepare(probe, endpoint)
                if kind is socket.SOCK_STREAM:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(_address(endpoint))
                except OSError as error:
                    if error.errno != errno.EADDRNOTAVAIL:
                        raise _start_error(endpoint, word, error) from error
                    self.late.add(endpoint)

    def sets(self) -> tuple[SocketSet, ...]:
        """The sockets as a child is told of them."""
        return tuple(self._set(slot) for slot in range(self._fronts))

    def _set(self, slot: int) -> SocketSet:
        pairs = [(endpoint, self._open[endpoint, slot]) for endpoint in self.wanted]
        return SocketSet(
            slot,
            udp=tuple((pair.udp.fileno(), str(endpoint)) for endpoint, pair in pairs),
            tcp=tuple((pair.tcp.fileno(), str(endpoint)) for endpoint, pair in pairs),
        )

    def pairs(self, slot: int) -> list[Pair]:
        """The open sockets of one front slot, wanted or not."""
        return [pair for (_, own), pair in self._open.items() if own == slot]

    def close_unwanted(self) -> None:
        """Closes what the present configuration does not name."""
        keep = {(endpoint, slot) for endpoint in self.wanted for slot in range(self._fronts)}
        for key in [key for key in self._open if key not in keep]:
            _close([self._open.pop(key)])

    def close(self) -> None:
        """Closes everything."""
        _close(self._open.values())
        self._open.clear()

    def receive_buffer_bytes(self) -> int:
        """The smallest receive buffer among the UDP sockets; 0 without one."""
        sizes = (pair.udp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for pair in self._open.values())
        return min(sizes, default=0)


def _close(pairs: Iterable[Pair]) -> None:
    for pair in pairs:
        pair.udp.close()
        pair.tcp.close()


def _pair(endpoint: Endpoint) -> Pair:
    udp = socket.socket(endpoint.family, socket.SOCK_DGRAM)
    tcp = socket.socket(endpoint.family, socket.SOCK_STREAM)
    try:
        for sock in (udp, tcp):
            sock.setblocking(False)
            _prepare(sock, endpoint)
            _allow_late(sock, endpoint)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _enlarge(udp)
        _note_arrival(udp, endpoint)
        udp.bind(_address(endpoint))
        tcp.bind(_address(endpoint))
        tcp.listen(TCP_BACKLOG)
    except OSError:
        _close([Pair(udp, tcp)])
        raise
    return Pair(udp, tcp)


def _prepare(sock: socket.socket, endpoint: Endpoint) -> None:
    if endpoint.family is socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


def _allow_late(sock: socket.socket, endpoint: Endpoint) -> None:
    """Lets an address be bound before the host has it."""
    try:
        if endpoint.family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise


def _enlarge(udp: socket.socket) -> None:
    """8 MB of receive buffer where we have the right, else what the host allows."""
    try:
        udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    except OSError:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)


def _note_arrival(udp: socket.socket, endpoint: Endpoint) -> None:
    """Has the kernel say when a packet came and, on a wildcard, to which address."""
    udp.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    if not endpoint.is_wildcard:
        return
    if endpoint.family is socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        udp.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)


def _address(endpoint: Endpoint) -> tuple[str, int] | tuple[str, int, int, int]:
    if endpoint.family is socket.AF_INET:
        return (endpoint.host, endpoint.port)
    host, _, zone = endpoint.host.partition("%")
    return (host, endpoint.port, 0, _zone_index(zone) if zone else 0)


def _zone_index(zone: str) -> int:
    try:
        return int(zone) if zone.isdigit() else socket.if_nametoindex(zone)
    except OSError as error:
        raise OSError(errno.EADDRNOTAVAIL, f"no interface {zone}") from error


def _start_error(endpoint: Endpoint, word: str, error: OSError) -> StartError:
    if error.errno == errno.EADDRINUSE:
        holder = _holder(endpoint.port, word) or "another program"
        return StartError(f"{endpoint} ({word}) is taken by {holder}; stop it, or set server.listen to another address")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return StartError(
            f"no right to bind {endpoint}; start as root, give CAP_NET_BIND_SERVICE"
            " (systemd: AmbientCapabilities=CAP_NET_BIND_SERVICE), or set server.listen to a port over 1023"
        )
    return StartError(f"{endpoint} ({word}) cannot be bound: {os.strerror(error.errno or 0)}; see server.listen")


def check_free(endpoint: Endpoint, key: str) -> None:
    """StartError when a TCP server could not listen there; ``key`` is the configuration's word for it."""
    with socket.socket(endpoint.family, socket.SOCK_STREAM) as probe:
        _prepare(probe, endpoint)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(_address(endpoint))
        except OSError as error:
            raise StartError(str(_start_error(endpoint, "tcp", error)).replace("server.listen", key)) from error


def _holder(port: int, word: str) -> str:
    """Who holds the port, as far as /proc tells us: ``dnsmasq (pid 12)``."""
    inodes = {inode for table in (word, f"{word}6") for inode in _inodes(Path("/proc/net") / table, port)}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*") if wanted else ():
        try:
            links = {link.readlink().name for link in (process / "fd").iterdir()}
            if links & wanted:
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue  # not ours to look into, or gone
    return ""


def _inodes(table: Path, port: int) -> Iterator[str]:
    """The inodes of bound UDP or listening TCP sockets on this port (proc(5), /proc/net/tcp)."""
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[3] in {"07", "0A"}:
            yield fields[9]
