"""Records: what stands in the RDATA of each type that we make ourselves.

Must not know: packets, services, policy. Rule: a record made here is valid on the wire as it is.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address
from struct import Struct
from typing import TYPE_CHECKING

from nacosdns.core.dnsname import NAME_BYTES_MAX
from nacosdns.core.model import Record, RecordType
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RDATA_BYTES_MAX = 65535

_FIXED = Struct("!HHIH")
_SRV = Struct("!HHH")
_SRV_WIRE = Struct("!HHHIHHHH")
_SOA = Struct("!IIIII")
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(r"\.".join([_OCTET] * 4)).fullmatch


def pack_address(text: str) -> bytes | None:
    """The 4 or 16 bytes of an IP address as text; None for anything else, a host name for one.

    The zone of ``fe80::1%eth0`` is left away: it means something on one host only, and a record has no place for it.
    """
    match = _IPV4(text)
    if match:
        return bytes(map(int, match.groups()))
    if ":" not in text:
        return None
    try:
        return IPv6Address(text.partition("%")[0]).packed
    except AddressValueError:
        return None


def a(name: bytes, ttl_s: int, address: bytes) -> Record:
    """An A record (RFC 1035 3.4.1); ``address`` is 4 bytes."""
    return Record(name, RecordType.A, ttl_s, address)


def aaaa(name: bytes, ttl_s: int, address: bytes) -> Record:
    """An AAAA record (RFC 3596); ``address`` is 16 bytes."""
    return Record(name, RecordType.AAAA, ttl_s, address)


def address_record(name: bytes, ttl_s: int, address: str) -> Record:
    """An A or AAAA record for an IP address as text. WireError ``address`` when it is none."""
    packed = pack_address(address)
    if packed is None:
        raise WireError("address")
    return a(name, ttl_s, packed) if len(packed) == 4 else aaaa(name, ttl_s, packed)


def srv(name: bytes, ttl_s: int, priority: int, weight: int, port: int, target: bytes) -> Record:
    """A SRV record (RFC 2782); the numbers have 16 bits, ``target`` is a wire name."""
    return Record(name, RecordType.SRV, ttl_s, _SRV.pack(priority, weight, port) + target)


def txt(name: bytes, ttl_s: int, strings: Iterable[bytes]) -> Record:
    """A TXT record (RFC 1035 3.3.14): each string a character-string, over 255 bytes several in a row.

    A reader joins the pieces of a long value (as gRPC does), so a long value should have a record of its own.
    WireError ``text`` when it is over 65,535 bytes.
    """
    pieces = [piece for string in strings for piece in _character_strings(string)]
    rdata = b"".join(pieces) or b"\x00"
    if len(rdata) > RDATA_BYTES_MAX:
        raise WireError("text")
    return Record(name, RecordType.TXT, ttl_s, rdata)


def _character_strings(value: bytes) -> Iterator[bytes]:
    for start in range(0, len(value) or 1, 255):
        piece = value[start : start + 255]
        yield bytes((len(piece),)) + piece


def key_value(key: str, value: str) -> bytes:
    """``key=value`` as TXT strings hold it (RFC 6763 6.3)."""
    return f"{key}={value}".encode("utf-8", "replace")


def soa(zone: bytes, ttl_s: int, serial: int, minimum_s: int) -> Record:
    """The SOA of a zone (RFC 1035 3.3.13); the zone itself stands as primary, ``hostmaster`` in it as mailbox.

    A zone that leaves no room for ``hostmaster`` is its own mailbox.
    """
    mailbox = b"\x0ahostmaster" + zone
    if len(mailbox) > NAME_BYTES_MAX:
        mailbox = zone
    timers = _SOA.pack(serial & 0xFFFFFFFF, 3600, 600, 86400, minimum_s)
    return Record(zone, RecordType.SOA, ttl_s, zone + mailbox + timers)


def ns(name: bytes, ttl_s: int, target: bytes) -> Record:
    """An NS record; ``target`` is a wire name."""
    return Record(name, RecordType.NS, ttl_s, target)


def cname(name: bytes, ttl_s: int, target: bytes) -> Record:
    """A CNAME record; ``target`` is a wire name."""
    return Record(name, RecordType.CNAME, ttl_s, target)


def record_tail(record: Record) -> bytes:
    """The bytes of a record behind its owner name: type, class, TTL, RDLENGTH, RDATA (RFC 1035 4.1.3)."""
    return _FIXED.pack(record.type, record.klass, record.ttl_s, len(record.rdata)) + record.rdata


def owner_pointed(record: Record) -> bytes:
    """The bytes of a record with its owner as a pointer to the question."""
    return b"\xc0\x0c" + record_tail(record)


def record_bytes(record: Record) -> bytes:
    """A whole record with its owner name uncompressed."""
    return record.name + record_tail(record)


def record_head(kind: int, ttl_s: int, size: int) -> bytes:
    """What stands before the RDATA of a record whose owner is a pointer to the question (RFC 1035 4.1.4)."""
    return b"\xc0\x0c" + _FIXED.pack(kind, 1, ttl_s, size)


def srv_wire(ttl_s: int, priority: int, weight: int, port: int, target: bytes) -> bytes:
    """A whole SRV record whose owner is a pointer to the question."""
    head = _SRV_WIRE.pack(0xC00C, RecordType.SRV, 1, ttl_s, 6 + len(target), priority, weight, port)
    return head + target
