"""The sockets that clients reach us on: opened once, kept by the supervisor, read by whoever is told to.

Must not know: who reads them, DNS. Rules: one UDP and one TCP socket for each address and front slot, joined by
SO_REUSEPORT after a bind without it, so that a port that another program holds still shows; an address that the host
does not have yet is bound ahead of time; an interface that is not there yet is looked for again; a socket that the
service manager gave is used in the place of one of ours, and shared when there are more fronts than such sockets.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections import Counter
from itertools import permutations, product
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from nacosdns.config import host_port, is_address
from nacosdns.core.frames import SocketSet
from nacosdns.core.handover import HeldPair
from nacosdns.edge import holders
from nacosdns.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

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

    def is_on(self, present: Collection[str]) -> bool:
        """Whether a host with these addresses has it."""
        address = ipaddress.ip_address(self.host)
        return address.is_unspecified or address.is_loopback or self.host.partition("%")[0] in present

    def takes_in(self, other: Endpoint) -> bool:
        """Whether it stands for the other one too, so that both cannot be bound."""
        same = self.port == other.port and self.family is other.family
        return same and self.is_wildcard and not other.is_wildcard

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
    """The two sockets of one address and one front slot. ``given``: the service manager holds them too."""

    udp: socket.socket
    tcp: socket.socket
    given: bool = False


def endpoints(listen: Iterable[str], present: Iterable[Present]) -> tuple[list[Endpoint], list[str]]:
    """The addresses meant by server.listen, and the entries whose interface is not there.

    An interface stands for all its addresses but the link-local ones of IPv6.
    """
    found: list[Endpoint] = []
    missing: list[str] = []
    present = tuple(present)
    for entry in listen:
        host, port = host_port(entry)
        if is_address(host):
            found.append(Endpoint(host, port))
            continue
        own = [item.address for item in present if item.interface == host]
        usable = [address for address in own if address.version == 4 or not address.is_link_local]
        found += [Endpoint(str(address), port) for address in usable]
        if not usable:
            missing.append(entry)
    return list(dict.fromkeys(found)), missing


_Present = TypeVar("_Present", bound=Present)


def meant(listen: Iterable[str], present: Iterable[_Present]) -> tuple[_Present, ...]:
    """The addresses of the interfaces that server.listen names; a host may have thousands of others, which come and go."""
    named = {host_port(entry)[0] for entry in listen}
    return tuple(item for item in present if item.interface in named)


class Listeners:
    """All sockets, by address and front slot. ``wanted`` are the addresses of the present configuration."""

    def __init__(self) -> None:
        self.wanted: list[Endpoint] = []
        self.missing: list[str] = []
        self._late: set[Endpoint] = set()
        self._fronts = 0
        self._open: dict[tuple[Endpoint, int], Pair] = {}
        self._given: dict[Endpoint, list[Pair]] = {}

    def __repr__(self) -> str:
        return f"<Listeners {list(map(str, self.wanted))} fronts={self._fronts} missing={self.missing}>"

    def want(self, listen: Iterable[str], fronts: int, present: Iterable[Present]) -> bool:
        """Opens what is missing for these addresses and front slots; whether anything changed.

        StartError leaves everything as it was. What is no longer wanted stays open until ``close_unwanted``.
        """
        wanted, missing = endpoints(listen, present)
        _check_given({endpoint: len(given) for endpoint, given in self._given.items()}, wanted, fronts)
        opened: dict[tuple[Endpoint, int], Pair] = {}
        known = {endpoint for endpoint, _ in self._open}
        _check_apart(wanted, known)
        late = set(self._late)
        try:
            for endpoint in wanted:
                if endpoint not in self._given and endpoint not in known:
                    late -= {endpoint}
                    late |= {endpoint} if _probe(endpoint) else set()
                for slot in range(fronts):
                    if (endpoint, slot) not in self._open:
                        opened[endpoint, slot] = self._pair(endpoint, slot)
        except OSError as error:
            _close(opened.values())
            raise _start_error(endpoint, "udp and tcp", error) from error
        except StartError:
            _close(opened.values())
            raise
        changed = bool(opened) or wanted != self.wanted or fronts != self._fronts
        self._open |= opened
        self._late = late
        self.wanted, self.missing, self._fronts = wanted, missing, fronts
        return changed

    def _pair(self, endpoint: Endpoint, slot: int) -> Pair:
        """A new pair; of an address whose sockets were given, one of those, or the same one again for one front more."""
        given = self._given.get(endpoint)
        if not given:
            return _pair(endpoint)
        shared = given[slot % len(given)]
        return Pair(shared.udp.dup(), shared.tcp.dup(), given=True)

    def take_given(self, given: Iterable[socket.socket]) -> None:
        """Sockets that the service manager bound for us, to be used for the addresses that they are bound to.

        StartError for one that cannot be used; all are closed then.
        """
        given = tuple(given)
        try:
            self._given = _paired(given)
        except StartError:
            for sock in given:
                sock.close()
            raise

    @property
    def late(self) -> set[Endpoint]:
        """The wanted addresses that the host does not have yet."""
        return self._late & set(self.wanted)

    def look(self, present: Collection[str]) -> tuple[set[Endpoint], set[Endpoint]]:
        """The wanted addresses that the host had not and has now, and those that it lost; each is told once."""
        came = {endpoint for endpoint in self.late if endpoint.host in present}
        went = {endpoint for endpoint in self.wanted if not endpoint.is_on(present)} - self._late
        self._late = self._late - came | went
        return came, went

    def shared(self) -> list[Endpoint]:
        """The addresses with more fronts than given sockets, so that fronts share one."""
        return [endpoint for endpoint, given in self._given.items() if len(given) < self._fronts]

    def hold(self) -> tuple[HeldPair, ...]:
        """What another program needs to go on with these sockets; they have to be inherited by it."""
        return tuple(
            HeldPair(
                host=endpoint.host,
                port=endpoint.port,
                slot=slot,
                udp_fd=pair.udp.fileno(),
                tcp_fd=pair.tcp.fileno(),
                given=pair.given,
            )
            for (endpoint, slot), pair in self._open.items()
        )

    def adopt(self, held: Iterable[HeldPair], late: Iterable[tuple[str, int]], fronts: int) -> None:
        """Goes on with inherited sockets, as if we had opened them and they were wanted."""
        known: set[int] = set()
        for one in held:
            endpoint = Endpoint(one.host, one.port)
            pair = Pair(socket.socket(fileno=one.udp_fd), socket.socket(fileno=one.tcp_fd), given=one.given)
            self._open[endpoint, one.slot] = pair
            number = os.fstat(one.udp_fd).st_ino
            if one.given and number not in known:
                known.add(number)  # another slot may share it
                self._given.setdefault(endpoint, []).append(Pair(pair.udp.dup(), pair.tcp.dup(), given=True))
        self._late = {Endpoint(*address) for address in late}
        self.wanted = list(dict.fromkeys(endpoint for endpoint, slot in self._open if slot < fronts))
        self._fronts = fronts

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

    @property
    def is_only_local(self) -> bool:
        """Whether nobody but this host reaches what is listened on."""
        return all(ipaddress.ip_address(endpoint.host).is_loopback for endpoint in self.wanted)

    def pairs(self, slot: int) -> list[Pair]:
        """The open sockets of one front slot, wanted or not."""
        return [pair for (_, own), pair in self._open.items() if own == slot]

    def close_unwanted(self) -> None:
        """Closes what the present configuration does not name."""
        self._late &= set(self.wanted)
        keep = {(endpoint, slot) for endpoint in self.wanted for slot in range(self._fronts)}
        for key in [key for key in self._open if key not in keep]:
            _close([self._open.pop(key)])

    def close(self) -> None:
        """Closes everything."""
        _close(self._open.values())
        _close(pair for given in self._given.values() for pair in given)
        self._open.clear()
        self._given.clear()

    def receive_buffer_bytes(self) -> int:
        """The smallest receive buffer among the UDP sockets; 0 without one."""
        sizes = (pair.udp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for pair in self._open.values())
        return min(sizes, default=0)


def _close(pairs: Iterable[Pair]) -> None:
    for pair in pairs:
        pair.udp.close()
        pair.tcp.close()


def check_wanted(listen: Iterable[str], fronts: int, present: Iterable[Present], held: Iterable[HeldPair]) -> None:
    """StartError when ``Listeners.want`` would fail for one who holds these sockets."""
    wanted, _ = endpoints(listen, present)
    held = tuple(held)
    given = Counter(Endpoint(one.host, one.port) for one in held if one.given and one.slot < fronts)
    _check_given(given, wanted, fronts)
    known = {Endpoint(one.host, one.port) for one in held}
    _check_apart(wanted, known)
    for endpoint in set(wanted) - known:
        _probe(endpoint)


def _check_apart(wanted: Collection[Endpoint], known: Iterable[Endpoint]) -> None:
    """StartError when an address takes in another one, wanted too or held by us until fronts have changed."""
    for wide, narrow in permutations(wanted, 2):
        if wide.takes_in(narrow):
            raise StartError(f"{wide} and {narrow} overlap: {wide} takes it in; name one of them in server.listen")
    for fresh, held in product(wanted, known):
        if fresh.takes_in(held) or held.takes_in(fresh):
            raise StartError(
                f"{fresh} overlaps with {held}, which nacosdns listens on while it runs; restart it for this"
            )


def _check_given(given: Mapping[Endpoint, int], wanted: Iterable[Endpoint], fronts: int) -> None:
    """StartError when nobody would read a given socket: its queries would wait for ever."""
    if strange := given.keys() - set(wanted):
        raise StartError(
            f"systemd gave a socket for {', '.join(sorted(map(str, strange)))}, which server.listen does not name;"
            " make ListenDatagram=, ListenStream= and server.listen name the same addresses"
        )
    if (most := max(given.values(), default=0)) > fronts:
        raise StartError(
            f"systemd gave {most} sockets for an address, and server.fronts is {fronts}; name no address more often in"
            " the socket unit than there are fronts"
        )


def _probe(endpoint: Endpoint) -> bool:
    """Binds without SO_REUSEPORT and lets go; whether the host lacks the address.

    StartError when another program holds the port or we may not.
    """
    late = False
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
                late = True
    return late


def private() -> tuple[socket.socket, Endpoint]:
    """A UDP socket as clients have them, but on loopback and at a port of the kernel's choice, and its address."""
    for host in ("127.0.0.1", "::1"):
        endpoint = Endpoint(host, 0)
        udp = socket.socket(endpoint.family, socket.SOCK_DGRAM)
        try:
            udp.setblocking(False)
            _note_arrival(udp, endpoint)
            udp.bind(_address(endpoint))
        except OSError as error:
            udp.close()
            reason = error
        else:
            return udp, Endpoint(host, udp.getsockname()[1])
    raise StartError(f"no address of the loopback interface can be bound ({reason.strerror}); see `ip addr show lo`")


def seal(udp: socket.socket) -> None:
    """Nobody but itself reaches this socket any more, whoever holds it."""
    udp.connect(udp.getsockname())


def _paired(given: Iterable[socket.socket]) -> dict[Endpoint, list[Pair]]:
    """Given sockets by address, as pairs of UDP and TCP; made as ours are, as far as a bound socket still can be."""
    udp: dict[Endpoint, list[socket.socket]] = {}
    tcp: dict[Endpoint, list[socket.socket]] = {}
    for sock in given:
        endpoint = _given_endpoint(sock)
        kind = udp if sock.type is socket.SOCK_DGRAM else tcp
        kind.setdefault(endpoint, []).append(sock)
        sock.setblocking(False)
        if kind is udp:
            _enlarge(sock)
            _note_arrival(sock, endpoint)
    for endpoint in udp.keys() | tcp.keys():
        if len(udp.get(endpoint, ())) != len(tcp.get(endpoint, ())):
            raise StartError(
                f"systemd gave {len(udp.get(endpoint, ()))} UDP and {len(tcp.get(endpoint, ()))} TCP sockets for {endpoint};"
                " name the address in as many ListenDatagram= as ListenStream= lines"
            )
    return {
        endpoint: [Pair(one, other, given=True) for one, other in zip(udp[endpoint], tcp[endpoint], strict=True)]
        for endpoint in udp
    }


def _given_endpoint(sock: socket.socket) -> Endpoint:
    """The address of a socket that the service manager bound; StartError for one that cannot serve DNS."""
    if sock.family not in {socket.AF_INET, socket.AF_INET6} or sock.type not in {socket.SOCK_DGRAM, socket.SOCK_STREAM}:
        raise StartError(
            f"systemd gave a socket that is neither UDP nor TCP ({sock.family.name}); take it out of the socket unit"
        )
    name = sock.getsockname()
    endpoint = Endpoint(name[0], name[1])
    if sock.family is socket.AF_INET6:
        if not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
            raise StartError(
                f"systemd gave {endpoint} for IPv4 too; set BindIPv6Only=ipv6-only in the socket unit,"
                " and name IPv4 addresses beside"
            )
        if name[3] and "%" not in name[0]:
            endpoint = Endpoint(f"{name[0]}%{socket.if_indextoname(name[3])}", name[1])
    if sock.type is socket.SOCK_STREAM and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise StartError(f"systemd gave a connection of {endpoint}; set Accept=no in the socket unit")
    return endpoint


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
        holder = holders.holder(endpoint.port, word) or "another program"
        return StartError(f"{endpoint} ({word}) is taken by {holder}; stop it, or set server.listen to another address")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return StartError(
            f"no right to bind {endpoint}; start as root, give CAP_NET_BIND_SERVICE"
            " (systemd: AmbientCapabilities=CAP_NET_BIND_SERVICE), or set server.listen to a port over 1023"
        )
    return StartError(f"{endpoint} ({word}) cannot be bound: {os.strerror(error.errno or 0)}; see server.listen")


def listening(endpoint: Endpoint, key: str) -> socket.socket:
    """A socket for requests by TCP, each accepted with its first bytes; StartError says what of ``key`` is in the way."""
    try:
        tcp = socket.create_server(_address(endpoint), family=endpoint.family, backlog=TCP_BACKLOG)
    except OSError as error:
        raise StartError(str(_start_error(endpoint, "tcp", error)).replace("server.listen", key)) from error
    tcp.setblocking(False)
    if hasattr(socket, "TCP_DEFER_ACCEPT"):
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
    return tcp
