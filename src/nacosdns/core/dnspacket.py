"""The skeleton of a DNS message: header, question, where each record lies.

Must not know: what a query or a reply means. Rule: hostile bytes raise WireError and nothing else, in time linear in
their length.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from nacosdns.core.dnsname import HEADER_BYTES, LABEL_BYTES_MAX, NAME_BYTES_MAX, ROOT, read_name
from nacosdns.core.model import RecordType
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN_BYTES_MAX = 512  # UDP without EDNS (RFC 1035 4.2.1)
PAYLOAD_BYTES_MAX = 1232  # what crosses every path unfragmented (DNS flag day 2020)
MESSAGE_BYTES_MAX = 65535  # the length field of TCP (RFC 1035 4.2.2)
TTL_MAX_S = 0x7FFFFFFF  # RFC 2181 8

QR, AA, TC, RA, AD = 0x8000, 0x0400, 0x0200, 0x0080, 0x0020
KEPT_FLAGS = 0x7910  # of a query in its reply: opcode, RD, CD
DNSSEC_OK = 0x8000
QUESTION_POINTER = b"\xc0\x0c"

HEADER = Struct("!HHHHHH")
TYPE_AND_CLASS = Struct("!HH")
FIXED = Struct("!HHIH")  # type, class, TTL, RDLENGTH: what follows the owner name of a record

_COUNTS = Struct("!HHH")
_OPT = Struct("!BHHBBHH")  # root, type, payload, extended rcode, version, flags, RDLENGTH

# How many bytes stand before the names inside RDATA, and how many names: the types whose names may be compressed
# (RFC 3597 4); SRV is none of them (RFC 2782).
NAMES_INSIDE: dict[int, tuple[int, int]] = {
    RecordType.NS: (0, 1),
    RecordType.CNAME: (0, 1),
    RecordType.SOA: (0, 2),
    RecordType.PTR: (0, 1),
    RecordType.MX: (2, 1),
}


class Span(NamedTuple):
    """Where one record lies: its owner name, its fixed part, its RDATA, its end; and what the fixed part says."""

    start: int
    fixed: int
    rdata: int
    end: int
    type: int
    klass: int
    ttl_s: int


def question_name_end(packet: bytes) -> int:
    """The offset behind the first name of a packet, where at least type and class follow.

    Any pointer is malformed: nothing lies before this name that a pointer could lead to.
    """
    at = HEADER_BYTES
    try:
        while length := packet[at]:
            if length > LABEL_BYTES_MAX:
                raise WireError("malformed")
            at += length + 1
    except IndexError:
        raise WireError("malformed") from None
    at += 1
    if at - HEADER_BYTES > NAME_BYTES_MAX or at + 4 > len(packet):
        raise WireError("malformed")
    return at


def section_counts(packet: bytes) -> tuple[int, int, int]:
    """How many answer, authority and additional records the header promises (12 bytes at least)."""
    answers, authorities, additionals = _COUNTS.unpack_from(packet, 6)
    return answers, authorities, additionals


def spans(packet: bytes, at: int, count: int) -> Iterator[Span]:
    """The ``count`` records that begin at ``at``, one after the other; owner names are checked, RDATA is not read."""
    for _ in range(count):
        start = at
        if packet[at : at + 1] == ROOT:
            at += 1
        elif packet[at : at + 2] == QUESTION_POINTER and at > HEADER_BYTES:
            at += 2
        else:
            at = read_name(packet, at)[1]
        rdata = at + 10
        if rdata > len(packet):
            raise WireError("malformed")
        kind, klass, ttl_s, size = FIXED.unpack_from(packet, at)
        end = rdata + size
        if end > len(packet):
            raise WireError("malformed")
        yield Span(start, at, rdata, end, kind, klass, ttl_s)
        at = end


@cache
def opt_bytes(extended_rcode: int, *, dnssec_ok: bool) -> bytes:
    """Our OPT record: version 0, our payload size, no options (RFC 6891 6.1.2)."""
    return _OPT.pack(0, RecordType.OPT, PAYLOAD_BYTES_MAX, extended_rcode, 0, DNSSEC_OK if dnssec_ok else 0, 0)
