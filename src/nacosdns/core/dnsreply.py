"""Replies of upstreams: read, made ready to be kept, and handed to any client who asks the same question.

Must not know: which upstream, whether to believe or keep it, the time. Rule: record bytes stay as they came; what does
not fit is cut from the end, which never breaks a compression pointer.
"""

from __future__ import annotations

import re
from struct import Struct
from struct import error as StructError  # noqa: N812  # an exception class, whatever its name
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core import dnspacket
from nacosdns.core.dnsname import HEADER_BYTES, read_name
from nacosdns.core.dnspacket import (
    FIXED,
    HEADER,
    NAMES_INSIDE,
    QUESTION_POINTER,
    TTL_MAX_S,
    opt_bytes,
    question_name_end,
    section_counts,
    spans,
)
from nacosdns.core.model import Record, RecordType
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nacosdns.core.dnspacket import Span
    from nacosdns.core.model import Query

STALE_TTL_S = 30  # RFC 8767 4

_TTL = Struct("!I")
_TTL_S = _TTL.unpack
_FIXED = FIXED.unpack_from
_COUNTS = Struct("!HHH").unpack_from
_ID_AND_FLAGS = Struct("!HH").pack
_ONE_QUESTION = b"\0\1"
_NO_ID = b"\0\0"
_ADDRESS_AND_OPT = re.compile(
    rb"\xc0\x0c\0[\x01\x1c]\0\x01([\0-\x7f]...)\0(?:\x04....|\x10.{16})(\0\0\x29..\0...\0\0)?", re.DOTALL
).fullmatch
"""One address for the name of the question, perhaps an OPT without options: what most replies are."""
_ONE_ANSWER = {b"\0\1\0\0\0\0": False, b"\0\1\0\0\0\1": True}
"""The counts of such a reply: whether it has an OPT."""
_OPT, _SOA = int(RecordType.OPT), int(RecordType.SOA)
_REPLY_FLAGS = dnspacket.QR | dnspacket.RA
_PASSED_FLAGS = dnspacket.TC | 0xF
_TRUNCATED = dnspacket.TC >> 8  # in the first byte of the flags
_SOA_RDATA_BYTES_MIN = 22  # two root names and five numbers


class ReplyHead(msgspec.Struct, frozen=True, gc=False):
    """What says whether a packet is the reply waited for.

    ``question`` is the folded name with type and class, ``b""`` when the reply has none (some errors).
    """

    id: int
    flags: int
    question: bytes

    @property
    def rcode(self) -> int:
        """The four bits of the header; OPT may add to them."""
        return self.flags & 0xF

    @property
    def truncated(self) -> bool:
        """TC: the body may be cut anywhere and is not worth reading."""
        return bool(self.flags & dnspacket.TC)


class ReplyScan(msgspec.Struct, frozen=True, gc=False):
    """What a cache must know of a reply.

    ``question`` as in ReplyHead, or the ``asked`` of ``scan_reply``; ``name_end`` the offset behind its name.
    ``rcode`` includes the bits of OPT. ``ttl_offsets`` are the places of all TTLs but OPT's. ``ttl_min_s`` is how long
    the reply may be kept: the lowest TTL, a SOA in the authority section counting with its minimum too (RFC 2308 5);
    0 for a reply without records and a negative one without SOA. ``body_end`` is where the OPT of the additional
    section begins, or the last record ends; ``additional_count`` is of the records before it. Of a truncated reply
    only the head is told.
    """

    rcode: int
    question: bytes
    name_end: int
    ttl_offsets: tuple[int, ...] = ()
    ttl_min_s: int = 0
    answer_count: int = 0
    body_end: int = 0
    additional_count: int = 0
    truncated: bool = False


def parse_reply_head(packet: bytes) -> ReplyHead:
    """Id, flags and question of a reply; the body is not looked at, so that TC is seen before a cut tail (RFC 2181 9).

    WireError: ``short``, ``query`` (QR not set), ``questions`` (more than one), ``malformed``.
    """
    if len(packet) < HEADER_BYTES:
        raise WireError("short")
    ident, flags, questions = HEADER.unpack_from(packet)[:3]
    if not flags & dnspacket.QR:
        raise WireError("query")
    if questions > 1:
        raise WireError("questions")
    if not questions:
        return ReplyHead(ident, flags, b"")
    name_end = question_name_end(packet)
    return ReplyHead(ident, flags, packet[HEADER_BYTES:name_end].lower() + packet[name_end : name_end + 4])


def scan_reply(packet: bytes, asked: bytes = b"") -> ReplyScan:
    """Walks every record of a reply once. WireError as ``parse_reply_head``, and when a record is cut or lies.

    ``asked`` is the question as it was sent: a reply that has it letter by letter need not be parsed up to there, and
    ``question`` is this very value then.
    """
    if asked and packet.startswith(asked, HEADER_BYTES) and packet[2] & 0x80 and packet.startswith(_ONE_QUESTION, 4):
        question = asked
        plain = _scan_plain(packet, asked)
        if plain is not None:
            return plain
    else:
        question = parse_reply_head(packet).question
    rcode = packet[3] & 0xF
    if packet[2] & _TRUNCATED:
        return ReplyScan(rcode, question, HEADER_BYTES + max(len(question) - 4, 0), truncated=True)
    try:
        return _scan_records(packet, rcode, question)
    except (IndexError, StructError):
        raise WireError("malformed") from None


def _scan_plain(packet: bytes, question: bytes) -> ReplyScan | None:
    """At once what ``_scan_records`` finds in a good reply of one address, as most are; None for any other."""
    has_opt = _ONE_ANSWER.get(packet[6:HEADER_BYTES])
    if has_opt is None or packet[2] & _TRUNCATED or packet[3] & 0xF:
        return None
    start = HEADER_BYTES + len(question)
    found = _ADDRESS_AND_OPT(packet, start)
    if found is None or (found[2] is not None) is not has_opt:
        return None
    end = found.start(2) if has_opt else len(packet)
    return ReplyScan(0, question, start - 4, (start + 6,), _TTL_S(found[1])[0], 1, end)


def _scan_records(packet: bytes, rcode: int, question: bytes) -> ReplyScan:
    answers, authorities, additionals = _COUNTS(packet, 6)
    others, size_bytes = answers + authorities, len(packet)
    at = name_end = HEADER_BYTES + len(question)
    name_end -= 4 if question else 0
    offsets: list[int] = []
    ttl_min_s, has_opt, has_soa, body_end = TTL_MAX_S, False, False, 0
    for index in range(others + additionals):
        start = at
        if packet.startswith(QUESTION_POINTER, at) and question:
            at += 2
        else:
            at = at + 1 if not packet[at] else read_name(packet, at)[1]
        kind, _, ttl_s, size = _FIXED(packet, at)
        end = at + 10 + size
        if end > size_bytes:
            raise WireError("malformed")
        if kind == _OPT:
            rcode |= 0 if has_opt else ttl_s >> 24 << 4
            has_opt = True
            if index >= others and not body_end:
                body_end, additionals = start, index - others
        else:
            offsets.append(at + 4)
            if kind == _SOA and answers <= index < others and size >= _SOA_RDATA_BYTES_MIN:
                has_soa = True
                ttl_min_s = min(ttl_min_s, _ttl_s(int.from_bytes(packet[end - 4 : end])))
            if ttl_s < ttl_min_s:
                ttl_min_s = ttl_s
            elif ttl_s > TTL_MAX_S:
                ttl_min_s = 0
        at = end
    if not has_soa and (rcode or not answers or not offsets):
        ttl_min_s = 0
    return ReplyScan(rcode, question, name_end, tuple(offsets), ttl_min_s, answers, body_end or at, additionals)


def _ttl_s(ttl_s: int) -> int:
    """RFC 2181 8: a TTL with the top bit set counts as 0."""
    return 0 if ttl_s > TTL_MAX_S else ttl_s


def with_ttl(
    packet: bytes, offsets: Iterable[int], passed_s: int, *, floor_s: int = 0, cap_s: int = TTL_MAX_S
) -> bytes:
    """The reply with its TTLs (``ReplyScan.ttl_offsets``) counted down by ``passed_s``, between floor and cap.

    The stale form is ``floor_s=STALE_TTL_S, cap_s=STALE_TTL_S`` (RFC 8767 4).
    """
    aged = bytearray(packet)
    for offset in offsets:
        (ttl_s,) = _TTL.unpack_from(packet, offset)
        left_s = (0 if ttl_s > TTL_MAX_S else ttl_s) - passed_s
        left_s = max(left_s, floor_s)  # not max and min: this is done for every record of every answer
        _TTL.pack_into(aged, offset, min(cap_s, left_s))
    return bytes(aged)


def strip_opt(packet: bytes, scan: ReplyScan) -> bytes:
    """The reply without its OPT record and without id, as it is kept, so that it fits clients with and without EDNS.

    Additional records behind the OPT go with it, for cutting at the end never breaks a pointer: servers put the OPT
    last, and a TSIG behind it is not ours to hand on. ``scan`` is the packet's.
    """
    end = scan.body_end
    if end == len(packet):
        return _NO_ID + packet[2:]
    additionals = scan.additional_count.to_bytes(2, "big")
    return b"".join((_NO_ID, packet[2:10], additionals, packet[HEADER_BYTES:end]))


def reply_for(query: Query, kept: bytes, *, size_max: int) -> bytes:
    """A kept reply (no OPT, same folded question) made the answer to this query, at most ``size_max`` bytes long.

    Id, opcode, RD, CD and the letter case of the question are the query's, in owner names that repeat the question
    too; AA is cleared, RA set, AD kept for those who ask for it (RFC 6840 5.8). An OPT answers an OPT. What does not
    fit goes from the end, whole records at a time, with TC (not over TCP) when an answer, or the SOA of a negative, is
    among them.
    """
    edns, question = query.edns, query.question
    opt = b"" if edns is None else opt_bytes(0, dnssec_ok=edns.dnssec_ok)
    kept_flags = kept[2] << 8 | kept[3]
    flags = _REPLY_FLAGS | (query.flags & dnspacket.KEPT_FLAGS) | (kept_flags & _PASSED_FLAGS)
    if kept_flags & dnspacket.AD and (query.flags & dnspacket.AD or (edns is not None and edns.dnssec_ok)):
        flags |= dnspacket.AD
    room = min(size_max, dnspacket.MESSAGE_BYTES_MAX) - len(opt)
    if len(kept) <= room and kept.startswith(question, HEADER_BYTES):
        head = _ID_AND_FLAGS(query.id, flags)
        if not opt:
            return head + kept[4:]
        return b"".join(
            (head, kept[4:10], ((kept[10] << 8 | kept[11]) + 1).to_bytes(2, "big"), kept[HEADER_BYTES:], opt)
        )
    counts = _COUNTS(kept, 6)
    start = HEADER_BYTES + len(question)
    body = _respelled(query, kept, start)
    if len(kept) > room:
        fitting, end = _cut(kept, start, counts, room)
        body = body[: end - start]
        lost = fitting[0] < counts[0] or (not counts[0] and fitting[1] < counts[1])
        flags |= dnspacket.TC if lost and not query.over_tcp else 0
        counts = fitting
    answers, authorities, additionals = counts
    header = HEADER.pack(query.id, flags, 1, answers, authorities, additionals + 1 if opt else additionals)
    return b"".join((header, question, body, opt))


def _respelled(query: Query, kept: bytes, start: int) -> bytes:
    """The records of a kept reply, owner names that spell out the question's name in the query's letter case."""
    asked, name = query.question[:-4], kept[HEADER_BYTES : start - 4]
    body = kept[start:]
    if name == asked or name not in body:
        return body
    respelled = bytearray(kept)
    for span in spans(kept, start, sum(section_counts(kept))):
        if kept[span.start : span.fixed] == name:
            respelled[span.start : span.fixed] = asked
    return bytes(respelled[start:])


def _cut(kept: bytes, start: int, counts: tuple[int, int, int], size_max: int) -> tuple[tuple[int, int, int], int]:
    """How many records of each section end within ``size_max`` bytes, and where the last of them ends."""
    fitting, end = 0, start
    for span in spans(kept, start, sum(counts)):
        if span.end > size_max:
            break
        fitting, end = fitting + 1, span.end
    answers = min(counts[0], fitting)
    authorities = min(counts[1], fitting - answers)
    return (answers, authorities, fitting - answers - authorities), end


def answer_records(packet: bytes) -> tuple[Record, ...]:
    """The answer section of a reply as Records, names inside RFC 1035 RDATA uncompressed. WireError on garbage."""
    head = parse_reply_head(packet)
    found = spans(packet, HEADER_BYTES + len(head.question), section_counts(packet)[0])
    return tuple(_record(packet, span) for span in found)


def negative_soa(packet: bytes) -> tuple[Record, ...]:
    """The SOA in the authority section of a reply, which says how long its denial may be kept (RFC 2308 5); or none."""
    head = parse_reply_head(packet)
    answers, authorities = section_counts(packet)[:2]
    found = list(spans(packet, HEADER_BYTES + len(head.question), answers + authorities))[answers:]
    return tuple(_record(packet, span) for span in found if span.type == _SOA)


def _record(packet: bytes, span: Span) -> Record:
    name = read_name(packet, span.start)[0]
    return Record(name, span.type, _ttl_s(span.ttl_s), _plain_rdata(packet, span), span.klass)


def _plain_rdata(packet: bytes, span: Span) -> bytes:
    before, names = NAMES_INSIDE.get(span.type, (0, 0))
    at = span.rdata + before
    pieces = [packet[span.rdata : at]]
    for _ in range(names):
        name, at = read_name(packet, at)
        pieces.append(name)
    if at > span.end:
        raise WireError("malformed")
    return b"".join(pieces) + packet[at : span.end]
