"""A scripted resolver on loopback, UDP and TCP, for tests of everything that asks one.

It answers what ``answer`` and ``rcode`` say, may be mute, slow, closed or a liar, and keeps what it was asked. It runs
in a thread of its own, so that tests with any loop, with none and with child processes can use it. Attributes may be
changed at any time.

    with StubUpstream() as stub:
        stub.answer("ext.test", "A", "192.0.2.1", ttl_s=2)
        ... ask stub.address ...
        assert stub.count("ext.test") == 1
"""

from __future__ import annotations

import contextlib
import heapq
import selectors
import socket
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Self

from dnslib import EDNS0, QTYPE, RCODE, RR, SOA, DNSHeader, DNSRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Lie(Enum):
    """What it may send over UDP before the truth."""

    WRONG_ID = "wrong id"
    WRONG_PORT = "right id from another port"
    WRONG_QUESTION = "right id with another question"
    WRONG_TYPE = "right id and name with another type"
    NOT_A_REPLY = "the query itself, QR=0"
    GARBAGE = "right id and then noise"
    SHORT = "less than a header"


class Seen(NamedTuple):
    """One query as it came."""

    transport: str
    name: str
    type: str
    id: int
    port: int
    packet: bytes


class Script:
    """What a resolver says and what it was asked; without sockets, for virtual time."""

    def __init__(self) -> None:
        self.is_mute = False
        self.delay_s = 0.0
        self.lies: tuple[Lie, ...] = ()
        self.is_truthful = True  # False: nothing follows the lies
        self.truncates = False  # UDP: TC=1 and half a record at the end
        self.truncates_tcp = False  # TC=1 over TCP as well, which makes no sense
        self.lowers_case = False
        self.is_referring = False  # NOERROR without records and without RA: a server without recursion
        self.mute_names: set[str] = set()
        self.mute_types: set[str] = set()
        self.refuses_edns = False  # FORMERR without OPT when the query has one
        self.tcp = "answer"  # or "mute", "close"
        self.lies_over_tcp = False
        self.says: dict[str, Callable[[str, bytes], Iterable[bytes]]] = {}  # by name: packets for (transport, query)
        self.streams: dict[str, Callable[[bytes], Iterable[bytes]]] = {}  # by name, over TCP: pieces of the raw stream
        self.drip_s = 0.1  # between two pieces of a stream
        self.always: str = ""  # an rcode for everything: "SERVFAIL", "REFUSED", "FORMERR", "NOTIMP"
        self.seen: list[Seen] = []
        self._records: dict[tuple[str, str], list[RR]] = {}
        self._rcodes: dict[tuple[str, str], str] = {}
        self._default: tuple[str, ...] = ()
        self._soa_ttl_s = 60

    # The script

    def answer(self, name: str, rtype: str, *values: str, ttl_s: int = 60) -> None:
        """Answers with these records from now on; with none the name exists and has no such record (NODATA)."""
        records = [rr for value in values for rr in RR.fromZone(f"{name}. {ttl_s} IN {rtype} {value}")]
        self._rcodes.pop((name.lower(), rtype), None)
        self._records[name.lower(), rtype] = records

    def answer_chain(self, name: str, rtype: str, *lines: str) -> None:
        """Answers with these zone file lines, whatever their owners (CNAME chains)."""
        self._records[name.lower(), rtype] = [rr for line in lines for rr in RR.fromZone(line)]

    def rcode(self, name: str, rtype: str, rcode: str) -> None:
        """Answers this question with an rcode; NXDOMAIN has a SOA."""
        self._rcodes[name.lower(), rtype] = rcode

    def answer_everything(self, *values: str) -> None:
        """Answers every unscripted A question with these addresses."""
        self._default = values

    def negative_ttl(self, ttl_s: int) -> None:
        """TTL and minimum of the SOA of negative answers."""
        self._soa_ttl_s = ttl_s

    def count(self, name: str = "", rtype: str = "", transport: str = "") -> int:
        """How often it was asked."""
        return sum(
            (not name or seen.name == name.lower())
            and (not rtype or seen.type == rtype)
            and (not transport or seen.transport == transport)
            for seen in tuple(self.seen)
        )

    def forget(self) -> None:
        """Starts counting anew."""
        self.seen.clear()

    # What it says

    def note(self, transport: str, packet: bytes, port: int) -> DNSRecord | None:
        query = DNSRecord.parse(packet)
        name, rtype = _name_of(query), QTYPE[query.q.qtype]
        self.seen.append(Seen(transport, name, rtype, query.header.id, port, packet))
        is_mute = name in self.mute_names or rtype in self.mute_types
        return None if is_mute or query.header.qr else query

    def reply(self, query: DNSRecord, *, over_tcp: bool) -> bytes:
        name, rtype = _name_of(query), QTYPE[query.q.qtype]
        has_opt = any(rr.rtype == QTYPE.OPT for rr in query.ar)
        reply = query.reply(ra=0 if self.is_referring else 1, aa=0)
        if self.is_referring:
            return bytes(reply.pack())
        if self.lowers_case:
            reply.q.qname = str(query.q.qname).lower()
        if self.refuses_edns and has_opt:
            reply.header.rcode = RCODE.FORMERR
            return bytes(reply.pack())
        self._fill(reply, name, rtype)
        if has_opt:
            reply.add_ar(EDNS0(udp_len=1232))
        packet = bytes(reply.pack())
        if self.truncates_tcp if over_tcp else self.truncates:
            packet = packet[:2] + bytes([packet[2] | 0x02]) + packet[3 : max(len(packet) - 7, 17)]
        return packet

    def _fill(self, reply: DNSRecord, name: str, rtype: str) -> None:
        rcode = self.always or self._rcodes.get((name, rtype), "")
        if rcode:
            reply.header.rcode = getattr(RCODE, rcode)
            if rcode == "NXDOMAIN":
                self._add_soa(reply)
            return
        records = self._records.get((name, rtype))
        if records is None and self._default:
            values = self._default if rtype == "A" else ()
            records = [rr for value in values for rr in RR.fromZone(f"{name or '.'} 60 IN A {value}")]
        if records:
            reply.add_answer(*records)
            return
        if records is None and not any(known == name for known, _ in self._records):
            reply.header.rcode = RCODE.NXDOMAIN
        self._add_soa(reply)

    def _add_soa(self, reply: DNSRecord) -> None:
        times = (1, 3600, 600, 86400, self._soa_ttl_s)
        reply.add_auth(RR("test.", QTYPE.SOA, ttl=self._soa_ttl_s, rdata=SOA("ns.test.", "hostmaster.test.", times)))


class StubUpstream(Script):
    """See the module. ``address`` is ``host:port``; the port stays the same over ``close_port`` and ``open_port``."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__()
        self.host = host
        self.port = port
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._selector = selectors.DefaultSelector()
        self._udp: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._other: socket.socket | None = None
        self._wake_read, self._wake_write = socket.socketpair()
        self._calls: list[Callable[[], None]] = []
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="stub upstream", daemon=True)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    # Life

    def __enter__(self) -> Self:
        self._open()
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._wake_write.send(b"x")
        self._thread.join(5)
        for key in tuple(self._selector.get_map().values()):
            self._forget_socket(key.fileobj)
        self._selector.close()
        self._wake_write.close()

    def close_port(self) -> None:
        """Nobody listens any more: ICMP refuses UDP, TCP is reset."""
        self._in_thread(self._close)

    def open_port(self) -> None:
        """Listens again, on the same port."""
        self._in_thread(self._open)

    def close_tcp(self) -> None:
        """UDP goes on, TCP connections are refused."""
        self._in_thread(lambda: self._forget_socket(self._listener))

    def _in_thread(self, call: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._calls.append(run)
        self._wake_write.send(b"x")
        assert done.wait(5)

    def _open(self) -> None:
        family, _, _, _, (host, _, *rest) = socket.getaddrinfo(self.host, 0, flags=socket.AI_NUMERICHOST)[0]
        for _ in range(50):  # a port that is free for UDP may be taken for TCP
            udp = socket.socket(family, socket.SOCK_DGRAM)
            udp.bind((host, self.port, *rest))
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                listener.bind((host, udp.getsockname()[1], *rest))
                break
            udp.close()
            listener.close()
        else:
            raise RuntimeError("no free port")
        self.port = udp.getsockname()[1]
        listener.listen()
        other = socket.socket(family, socket.SOCK_DGRAM)
        other.bind((host, 0, *rest))
        self._udp, self._listener, self._other = udp, listener, other
        for sock, handler in ((udp, self._read_udp), (listener, self._accept), (other, self._read_other)):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, handler)

    def _close(self) -> None:
        for sock in (self._udp, self._listener, self._other):
            self._forget_socket(sock)

    def _forget_socket(self, sock: object) -> None:
        if isinstance(sock, socket.socket) and sock.fileno() != -1:
            with contextlib.suppress(KeyError):
                self._selector.unregister(sock)
            sock.close()

    # The thread

    def _run(self) -> None:
        while not self._stop:
            wait_s = max(0.0, self._later[0][0] - time.monotonic()) if self._later else None
            for key, _ in self._selector.select(wait_s):
                if isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() != -1:
                    key.data(key.fileobj)
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()

    def _woken(self, sock: socket.socket) -> None:
        sock.recv(64)
        while self._calls:
            self._calls.pop(0)()

    def _read_other(self, sock: socket.socket) -> None:
        sock.recv(65535)

    def _read_udp(self, sock: socket.socket) -> None:
        for _ in range(64):
            try:
                packet, client = sock.recvfrom(65535)
            except OSError:
                return
            query = self.note("udp", packet, client[1])
            if query is None or self.is_mute:
                continue
            self._after_delay(lambda query=query, packet=packet, client=client: self._tell(query, packet, client))

    def _tell(self, query: DNSRecord, packet: bytes, client: tuple[str, int]) -> None:
        if self._udp is None or self._other is None or self._udp.fileno() == -1:
            return
        for lie in self.lies:
            source = self._other if lie is Lie.WRONG_PORT else self._udp
            source.sendto(false_reply(lie, query, packet), client)
        says = self.says.get(_name_of(query))
        if says is not None:
            for said in says("udp", packet):
                self._udp.sendto(said, client)
        elif self.is_truthful:
            self._udp.sendto(self.reply(query, over_tcp=False), client)

    def _accept(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = sock.accept()
            connection.setblocking(False)
            buffer = bytearray()
            self._selector.register(connection, selectors.EVENT_READ, lambda sock: self._read_tcp(sock, buffer))

    def _read_tcp(self, sock: socket.socket, buffer: bytearray) -> None:
        try:
            data = sock.recv(65535)
        except OSError:
            data = b""
        if not data:
            self._forget_socket(sock)
            return
        buffer += data
        while len(buffer) >= 2 and len(buffer) >= 2 + int.from_bytes(buffer[:2], "big"):
            size = int.from_bytes(buffer[:2], "big")
            packet = bytes(buffer[2 : 2 + size])
            del buffer[: 2 + size]
            self._answer_tcp(sock, packet)

    def _answer_tcp(self, sock: socket.socket, packet: bytes) -> None:
        query = self.note("tcp", packet, sock.getpeername()[1])
        if self.tcp == "close":
            self._forget_socket(sock)
        elif query is not None and self.tcp == "answer" and not self.is_mute:
            self._after_delay(lambda: self._tell_over_tcp(sock, query, packet))

    def _tell_over_tcp(self, sock: socket.socket, query: DNSRecord, packet: bytes) -> None:
        for lie in self.lies if self.lies_over_tcp else ():
            self._send_tcp(sock, false_reply(lie, query, packet))
        name = _name_of(query)
        if name in self.streams:
            self._drip(sock, list(self.streams[name](packet)))
        elif name in self.says:
            for said in self.says[name]("tcp", packet):
                self._send_tcp(sock, said)
        else:
            self._send_tcp(sock, self.reply(query, over_tcp=True))

    def _drip(self, sock: socket.socket, pieces: list[bytes]) -> None:
        """The pieces, one after the other, while the other side listens."""
        if not pieces or sock.fileno() == -1:
            return
        try:
            sock.sendall(pieces.pop(0))
        except OSError:
            self._forget_socket(sock)
            return
        self._order += 1
        heapq.heappush(self._later, (time.monotonic() + self.drip_s, self._order, lambda: self._drip(sock, pieces)))

    def _send_tcp(self, sock: socket.socket, reply: bytes) -> None:
        if sock.fileno() != -1:
            with contextlib.suppress(OSError):
                sock.sendall(len(reply).to_bytes(2, "big") + reply)

    def _after_delay(self, call: Callable[[], None]) -> None:
        if not self.delay_s:
            call()
            return
        self._order += 1
        heapq.heappush(self._later, (time.monotonic() + self.delay_s, self._order, call))


def _name_of(query: DNSRecord) -> str:
    return str(query.q.qname).rstrip(".").lower()


def false_reply(lie: Lie, query: DNSRecord, packet: bytes) -> bytes:
    """A false reply to the query; it always holds 203.0.113.66, which must never reach a client."""
    match lie:
        case Lie.NOT_A_REPLY:
            return packet
        case Lie.GARBAGE:
            return packet[:2] + b"\x84\x00" + bytes(range(100, 160))
        case Lie.SHORT:
            return packet[:7]
        case _:
            return _false_answer(lie, query)


def _false_answer(lie: Lie, query: DNSRecord) -> bytes:
    name = "evil.test." if lie is Lie.WRONG_QUESTION else str(query.q.qname)
    rtype = "TXT" if lie is Lie.WRONG_TYPE else QTYPE[query.q.qtype]
    number = query.header.id ^ 0x5555 if lie is Lie.WRONG_ID else query.header.id
    false = DNSRecord.question(name, rtype).reply(ra=1, aa=0)
    false.header = DNSHeader(id=number, qr=1, ra=1, rd=1, q=1)
    false.add_answer(*RR.fromZone(f"{name} 60 IN A 203.0.113.66"))
    return bytes(false.pack())
