"""A DNS reply as people read it.

Must not know: where the reply came from. Rules: only the command line uses it, for dnslib, which knows every type, costs
a process that answers 30 ms of start and 2 MB; where records lie, names and texts are read by our own rooms, since
dnslib takes labels that do not exist and writes dots, quotes and control characters as they are; what cannot be read is
shown as bytes (RFC 3597 5), never an error.
"""

from __future__ import annotations

from struct import calcsize, unpack_from
from struct import error as StructError  # noqa: N812  # an exception class, whatever its name
from typing import TYPE_CHECKING

import dnslib
from dnslib.label import DNSBuffer

from nacosdns.core import dnspacket
from nacosdns.core.dnsname import HEADER_BYTES, name_text, read_name
from nacosdns.core.dnsreply import parse_reply_head
from nacosdns.core.model import RecordType, rcode_text, type_text
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from nacosdns.core.dnspacket import Span

_HINFO, _DNAME, _SPF = 13, 39, 99
_TEXTS = frozenset({RecordType.TXT, _HINFO, _SPF})
_SHAPES: dict[int, tuple[str, int, str]] = {
    RecordType.NS: ("!", 1, "!"),
    RecordType.CNAME: ("!", 1, "!"),
    RecordType.PTR: ("!", 1, "!"),
    _DNAME: ("!", 1, "!"),
    RecordType.MX: ("!H", 1, "!"),
    RecordType.SRV: ("!HHH", 1, "!"),
    RecordType.SOA: ("!", 2, "!IIIII"),
}
"""Numbers, how many names, numbers: what the RDATA of these types is."""


def reply(packet: bytes) -> dict[str, object]:
    """Rcode, flags and the records of each section, in words."""
    head = parse_reply_head(packet)
    counts = dnspacket.section_counts(packet)
    found = list(dnspacket.spans(packet, HEADER_BYTES + len(head.question), sum(counts)))
    extended = next((span.ttl_s >> 24 << 4 for span in found if span.type == RecordType.OPT), 0)
    first, second = counts[0], counts[0] + counts[1]
    return {
        "rcode": rcode_text(extended | head.rcode),
        "authoritative": bool(head.flags & dnspacket.AA),
        "answers": _spelled(packet, found[:first]),
        "authority": _spelled(packet, found[first:second]),
        "additional": _spelled(packet, found[second:]),
    }


def _spelled(packet: bytes, section: list[Span]) -> list[dict[str, object]]:
    return [
        {
            "name": name_text(read_name(packet, span.start)[0]),
            "type": type_text(span.type),
            "ttl_s": span.ttl_s,
            "data": _data(packet, span),
        }
        for span in section
        if span.type != RecordType.OPT
    ]


def _data(packet: bytes, span: Span) -> str:
    if span.type in _SHAPES:
        text = _names_and_numbers(packet, span, *_SHAPES[span.type])
    elif span.type in _TEXTS:
        text = _strings(packet[span.rdata : span.end])
    else:
        text = _by_dnslib(packet, span)
    return text if text is not None and text.isprintable() else _bytes(packet[span.rdata : span.end])


def _names_and_numbers(packet: bytes, span: Span, before: str, names: int, after: str) -> str | None:
    """The words of RDATA that is such; None when it is not."""
    try:
        words: list[object] = list(unpack_from(before, packet, span.rdata))
        at = span.rdata + calcsize(before)
        for _ in range(names):
            name, at = read_name(packet, at)
            words.append(name_text(name))
        words += unpack_from(after, packet, at)
    except (WireError, StructError):
        return None
    return " ".join(map(str, words)) if at + calcsize(after) == span.end else None


def _strings(rdata: bytes) -> str | None:
    r"""Character-strings in quotes; UTF-8 as it is, what is not text as ``\DDD`` (RFC 1035 5.1)."""
    texts = []
    at = 0
    while at < len(rdata):
        end = at + 1 + rdata[at]
        if end > len(rdata):
            return None
        texts.append(f'"{"".join(map(_character, rdata[at + 1 : end].decode("utf-8", "surrogateescape")))}"')
        at = end
    return " ".join(texts) or None


def _character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\{byte:03d}" for byte in character.encode("utf-8", "surrogateescape"))


def _by_dnslib(packet: bytes, span: Span) -> str | None:
    """As dnslib writes it; None when it reads past the RDATA, leaves some of it, or fails, by whatever exception."""
    kind = dnslib.RDMAP.get(dnslib.QTYPE.get(span.type))
    if kind is None:
        return None
    buffer = DNSBuffer(packet[: span.end])
    buffer.offset = span.rdata
    try:
        text = str(kind.parse(buffer, span.end - span.rdata))
    except Exception:  # noqa: BLE001  # not only its own: UnicodeDecodeError, BufferError, and whatever is next
        return None
    return text if buffer.offset == span.end else None


def _bytes(rdata: bytes) -> str:
    """RDATA of a type that nobody knows (RFC 3597 5)."""
    return f"\\# {len(rdata)} {rdata.hex()}".rstrip()
