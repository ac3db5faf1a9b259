"""Packets made byte by byte, as no library makes them, and the two doors that they are sent to."""

from __future__ import annotations

import socket
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import dns.message

from nacosdns.core.dnsname import text_name

if TYPE_CHECKING:
    from collections.abc import Callable

    Ask = Callable[[bytes, int], bytes]

IDENT = b"\x12\x34"
RD, CD, AD, Z, RA, TC, AA, QR = 0x0100, 0x0010, 0x0020, 0x0040, 0x0080, 0x0200, 0x0400, 0x8000
DO = 0x8000
_COUNTS = Struct("!HHHHH")
_OPT = Struct("!HHBBHH")


def query(  # a case names the one thing that it changes
    name: str | bytes = "orders.nacos",
    kind: int = 1,
    klass: int = 1,
    *,
    flags: int = RD,
    opcode: int = 0,
    counts: tuple[int, int, int, int] = (1, 0, 0, 0),
    rest: bytes = b"",
) -> bytes:
    """A query. ``rest`` stands behind the question; without a question in ``counts`` it stands in its place."""
    wire = name if isinstance(name, bytes) else text_name(name)
    question = wire + kind.to_bytes(2, "big") + klass.to_bytes(2, "big") if counts[0] else b""
    return IDENT + _COUNTS.pack(flags | opcode << 11, *counts) + question + rest


def opt(
    size: int = 1232, *, version: int = 0, flags: int = 0, options: bytes = b"", owner: bytes = b"\0", rcode: int = 0
) -> bytes:
    """An OPT record (RFC 6891 6.1.2)."""
    return owner + _OPT.pack(41, size, rcode, version, flags, len(options)) + options


def option(code: int, data: bytes) -> bytes:
    """An option of an OPT record."""
    return code.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data


def edns(name: str | bytes = "orders.nacos", kind: int = 1, *, flags: int = RD, **how: int | bytes) -> bytes:
    """A query with an OPT record, whose fields are those of ``opt``."""
    return query(name, kind, flags=flags, counts=(1, 0, 0, 1), rest=opt(**how))  # type: ignore[arg-type]


def record(
    kind: int, rdata: bytes = b"", *, owner: bytes = b"\xc0\x0c", klass: int = 1, size: int | None = None
) -> bytes:
    """A record as it stands behind a question; ``size`` is what its RDLENGTH says when that is not true."""
    length = len(rdata) if size is None else size
    return owner + kind.to_bytes(2, "big") + klass.to_bytes(2, "big") + bytes(4) + length.to_bytes(2, "big") + rdata


class Read(NamedTuple):
    """What a reply says. ``flags`` are those of the header without QR, opcode and rcode."""

    packet: bytes
    message: dns.message.Message

    @property
    def rcode(self) -> str:
        return dns.rcode.to_text(self.message.rcode())

    @property
    def flags(self) -> int:
        return int.from_bytes(self.packet[2:4], "big") & 0x07F0

    @property
    def opcode(self) -> int:
        return self.packet[2] >> 3 & 15

    @property
    def question(self) -> bytes:
        """Its bytes, b"" without one."""
        return self.packet[12 : self.packet.index(b"\0", 12) + 5] if self.packet[5] else b""

    @property
    def counts(self) -> tuple[int, int, int]:
        """Records in answer, authority and, without OPT, additional section."""
        answers, authority, additional = (int.from_bytes(self.packet[at : at + 2], "big") for at in (6, 8, 10))
        return answers, authority, additional - (self.message.edns >= 0)

    @property
    def data(self) -> list[str]:
        """The answers, sorted."""
        return sorted(rdata.to_text() for rrset in self.message.answer for rdata in rrset)

    @property
    def soa(self) -> str:
        """The owner of the SOA that goes with a denial, "" without one."""
        return "".join(rrset.name.to_text() for rrset in self.message.authority if rrset.rdtype == 6)

    @property
    def ttls(self) -> set[int]:
        return {rrset.ttl for rrset in (*self.message.answer, *self.message.authority)}


def read(packet: bytes) -> Read:
    """A reply as dnspython reads it, strictly."""
    return Read(packet, dns.message.from_wire(packet))


def by_udp(packet: bytes, port: int) -> bytes:
    """The reply to one datagram; TimeoutError without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", port))
        sock.send(packet)
        return sock.recv(65535)


def by_tcp(packet: bytes, port: int) -> bytes:
    """The reply on a connection of its own; b"" when it is closed instead."""
    with socket.create_connection(("127.0.0.1", port), 5) as sock, sock.makefile("rb") as stream:
        sock.sendall(len(packet).to_bytes(2, "big") + packet)
        return stream.read(int.from_bytes(stream.read(2), "big"))


def is_silent(packet: bytes, port: int) -> bool:
    """Whether a datagram gets no reply: a good query that is sent behind it is answered, and nothing else is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", port))
        sock.send(packet)
        sock.send(b"\xfe\xdc" + query()[2:])
        return sock.recv(65535)[:2] == b"\xfe\xdc"
