"""Packet bytes to Query, Answer to packet bytes: sizes, EDNS, truncation. The door to the other ``dns`` rooms.

Names (dnsname), records (dnsrecord) and replies of upstreams (dnsreply) are used through this module. Must not know:
zones, services, upstreams, what an answer should say. Rules: hostile bytes raise WireError and nothing else; the
question goes back byte for byte; nothing over the size asked for goes out.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from nacosdns.core import dnspacket
from nacosdns.core.dnsname import HEADER_BYTES, NAME_BYTES_MAX, fold, labels_of, name_text, name_to_wire, text_name
from nacosdns.core.dnspacket import (
    FIXED,
    HEADER,
    MESSAGE_BYTES_MAX,
    NAMES_INSIDE,
    PAYLOAD_BYTES_MAX,
    PLAIN_BYTES_MAX,
    QUESTION_POINTER,
    TYPE_AND_CLASS,
    opt_bytes,
    question_name_end,
    spans,
)
from nacosdns.core.dnsrecord import (
    a,
    aaaa,
    address_record,
    cname,
    key_value,
    ns,
    pack_address,
    record_tail,
    soa,
    srv,
    txt,
)
from nacosdns.core.dnsreply import (
    STALE_TTL_S,
    ReplyHead,
    ReplyScan,
    answer_records,
    parse_reply_head,
    reply_for,
    scan_reply,
    strip_opt,
    with_ttl,
)
from nacosdns.core.model import Answer, Edns, Query, RecordType
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nacosdns.core.model import Rcode, Record

__all__ = [
    "MESSAGE_BYTES_MAX",
    "PAYLOAD_BYTES_MAX",
    "PLAIN_BYTES_MAX",
    "STALE_TTL_S",
    "ReplyHead",
    "ReplyScan",
    "a",
    "aaaa",
    "address_record",
    "answer_records",
    "cname",
    "error_reply",
    "fold",
    "key_value",
    "labels_of",
    "name_text",
    "name_to_wire",
    "ns",
    "opcode",
    "opt_record",
    "pack_address",
    "parse_query",
    "parse_reply_head",
    "record_tail",
    "render",
    "reply_for",
    "scan_reply",
    "size_limit",
    "soa",
    "srv",
    "strip_opt",
    "text_name",
    "txt",
    "with_ttl",
]

_OPTION = Struct("!HH")
_HEAD = Struct("!HHHHH")
_OPT_BYTES = 11  # root, type, payload, version and flags, length
_ALIKE_MAX = 256
RECORDS_MAX = 16  # behind the question of a query: an OPT, a signature, the SOA of an IXFR; thousands only cost time
_POINTER_END = 0x4000  # a pointer cannot lead to or behind this offset


def opcode(packet: bytes) -> int:
    """The opcode of a packet of three bytes or more; all but 0 (QUERY) get NOTIMP by ``error_reply``, parsed or not.

    A packet with QR set is dropped before this is asked.
    """
    return packet[2] >> 3 & 0xF


def parse_query(packet: bytes, *, over_tcp: bool = False, client: bytes = b"") -> Query:
    """One question with its OPT record (RFC 1035 4.1, 6891 6.1, 9619).

    Raises WireError: ``short`` (under 12 bytes) and ``response`` (QR set) are dropped in silence, ``questions``
    (QDCOUNT is not 1) and ``malformed`` get FORMERR. Malformed are also: bytes behind the last record, a second OPT or
    one that is not in the additional section, and any pointer in the question. Records other than OPT are passed over.
    """
    if len(packet) < HEADER_BYTES:
        raise WireError("short")
    flags, others, additionals = _read_head(packet[2:HEADER_BYTES])
    name_end = question_name_end(packet)
    end = name_end + 4
    kind, klass = TYPE_AND_CLASS.unpack_from(packet, name_end)
    ident = packet[0] << 8 | packet[1]
    edns = None
    if end != len(packet) or others or additionals:
        rest = packet[end:]
        if len(rest) <= _OPT_BYTES:
            edns = _read_short_edns(rest, others, additionals)
        else:
            edns = _read_edns(packet, end, others, additionals)
    name = packet[HEADER_BYTES:name_end].lower()
    return Query(ident, flags, packet[HEADER_BYTES:end], name, kind, klass, edns, over_tcp, client)


@lru_cache(maxsize=_ALIKE_MAX)
def _read_head(head: bytes) -> tuple[int, int, int]:
    """Flags, and how many records follow the question in the first two sections and in the additional one.

    ``head`` is the header without its id: most clients send one of a few.
    """
    flags, questions, answers, authorities, additionals = _HEAD.unpack(head)
    if flags & dnspacket.QR:
        raise WireError("response")
    if questions != 1:
        raise WireError("questions")
    if answers + authorities + additionals > RECORDS_MAX:
        raise WireError("malformed")
    return flags, answers + authorities, additionals


@lru_cache(maxsize=_ALIKE_MAX)
def _read_short_edns(rest: bytes, others: int, additionals: int) -> Edns | None:
    """As ``_read_edns``, of no more bytes than an OPT without options: too few for a pointer, so read by themselves."""
    return _read_edns(bytes(HEADER_BYTES) + rest, HEADER_BYTES, others, additionals)


def _read_edns(packet: bytes, at: int, others: int, additionals: int) -> Edns | None:
    edns = None
    for index, span in enumerate(spans(packet, at, others + additionals)):
        at = span.end
        if span.type != RecordType.OPT:
            continue
        if edns is not None or index < others or packet[span.start] != 0:
            raise WireError("malformed")
        version = span.ttl_s >> 16 & 0xFF
        options = _read_options(packet, span.rdata, at) if version == 0 else ()
        edns = Edns(span.klass, version, bool(span.ttl_s & dnspacket.DNSSEC_OK), options)
    if at != len(packet):
        raise WireError("malformed")
    return edns


def _read_options(packet: bytes, at: int, end: int) -> tuple[tuple[int, bytes], ...]:
    options = []
    while at < end:
        if at + 4 > end:
            raise WireError("malformed")
        code, size = _OPTION.unpack_from(packet, at)
        at += 4 + size
        if at > end:
            raise WireError("malformed")
        options.append((code, packet[at - size : at]))
    return tuple(options)


def size_limit(query: Query) -> int:
    """The most bytes that a reply to this query may have."""
    if query.over_tcp:
        return MESSAGE_BYTES_MAX
    if query.edns is None:
        return PLAIN_BYTES_MAX
    return min(max(query.edns.payload_bytes, PLAIN_BYTES_MAX), PAYLOAD_BYTES_MAX)


def opt_record(query: Query, rcode: int = 0) -> bytes:
    """The OPT record that ends a reply to this query, with the upper bits of ``rcode``; b"" for a query without one."""
    return b"" if query.edns is None else opt_bytes(rcode >> 4, dnssec_ok=query.edns.dnssec_ok)


def render(query: Query, answer: Answer, *, size_max: int) -> bytes:
    """The reply to this query, at most ``size_max`` (512 or more) and 65,535 bytes long.

    What does not fit goes in this order: glue, then authority of a positive answer, both in silence, then whole
    answers from the end, with TC set (RFC 2181 9). A negative answer keeps its SOA. Over TCP TC is not set: the
    client cannot ask for more, and what fits must be usable. RA is always set, since other names are forwarded.
    Owner names are compressed, and names inside the RDATA of RFC 1035 types; never inside SRV (RFC 2782).
    """
    opt = opt_record(query, answer.rcode)
    writer = _Writer(query, min(size_max, MESSAGE_BYTES_MAX) - len(opt))
    answers = writer.add_all(answer.answers)
    authorities = writer.add_all(answer.authority)
    glue = writer.add_all(answer.glue)
    lost = answers < len(answer.answers) or (not answers and authorities < len(answer.authority))
    flags = dnspacket.QR | dnspacket.RA | (query.flags & dnspacket.KEPT_FLAGS) | (answer.rcode & 0xF)
    if answer.authoritative:
        flags |= dnspacket.AA
    if answer.authentic:
        flags |= dnspacket.AD
    if answer.truncated or (lost and not query.over_tcp):
        flags |= dnspacket.TC
    header = HEADER.pack(query.id, flags, 1, answers, authorities, glue + (1 if opt else 0))
    return b"".join((header, query.question, *writer.pieces, opt))


def error_reply(packet: bytes, rcode: Rcode) -> bytes:
    """The reply to a query that was not, or could not be, understood: same id, opcode and RD, no records.

    The question is echoed when it can be read, else QDCOUNT is 0. WireError ``short`` or ``response``: no reply may
    be sent (a reply to a reply sets two servers talking for ever).
    """
    try:
        query = parse_query(packet)
    except WireError as error:
        if error.reason in ("short", "response"):
            raise
        return _bare_error(packet, rcode)
    return render(query, Answer(rcode=rcode, authoritative=False), size_max=PLAIN_BYTES_MAX)


def _bare_error(packet: bytes, rcode: Rcode) -> bytes:
    ident, flags, questions = HEADER.unpack_from(packet)[:3]
    question = _readable_question(packet) if questions == 1 else b""
    flags = dnspacket.QR | dnspacket.RA | (flags & dnspacket.KEPT_FLAGS) | (rcode & 0xF)
    return HEADER.pack(ident, flags, 1 if question else 0, 0, 0, 0) + question


def _readable_question(packet: bytes) -> bytes:
    try:
        return packet[HEADER_BYTES : question_name_end(packet) + 4]
    except WireError:
        return b""


class _Writer:
    """The records of a message under way; once one did not fit, it takes no more."""

    def __init__(self, query: Query, size_max: int) -> None:
        self.pieces: list[bytes] = []
        self._name = query.name
        self._size = HEADER_BYTES + len(query.question)
        self._size_max = size_max
        self._suffixes: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return f"<_Writer {self._size} of {self._size_max} bytes>"

    def add_all(self, records: Sequence[Record]) -> int:
        """How many of the records fitted, from the first."""
        for count, record in enumerate(records):
            if not self._add(record):
                self._size_max = 0
                return count
        return len(records)

    def _add(self, record: Record) -> bool:
        name = record.name
        if name == self._name or name.lower() == self._name:
            owner = QUESTION_POINTER
        else:
            owner = self._compressed(name, self._size)
        rdata = record.rdata
        if record.type in NAMES_INSIDE:
            rdata = self._compressed_rdata(record, self._size + len(owner) + FIXED.size)
        size = self._size + len(owner) + FIXED.size + len(rdata)
        if size > self._size_max:
            return False
        self.pieces += (owner, FIXED.pack(record.type, record.klass, record.ttl_s, len(rdata)), rdata)
        self._size = size
        return True

    def _compressed(self, name: bytes, at: int) -> bytes:
        """The name with its longest suffix that stands in the message already as a pointer (RFC 1035 4.1.4)."""
        if not self._suffixes:
            self._remember(self._name, HEADER_BYTES, NAME_BYTES_MAX)
        folded = name.lower()
        position = 0
        while length := name[position]:
            known = self._suffixes.get(folded[position:])
            if known is not None:
                self._remember(folded, at, position)
                return name[:position] + (0xC000 | known).to_bytes(2)
            position += 1 + length
        self._remember(folded, at, position)
        return name

    def _remember(self, folded: bytes, at: int, end: int) -> None:
        """Where each suffix of a name begins that is spelled out in the message up to ``end``."""
        position = 0
        while position < end and (length := folded[position]):
            if at + position < _POINTER_END:
                self._suffixes[folded[position:]] = at + position
            position += 1 + length

    def _compressed_rdata(self, record: Record, at: int) -> bytes:
        before, names = NAMES_INSIDE[record.type]
        done, rest = record.rdata[:before], record.rdata[before:]
        for _ in range(names):
            end = _name_end(rest)
            done += self._compressed(rest[:end], at + len(done))
            rest = rest[end:]
        return done + rest


def _name_end(wire: bytes) -> int:
    at = 0
    while length := wire[at]:
        at += 1 + length
    return at + 1
