"""Replies of upstreams: read, made ready to be kept, and handed to any client who asks the same question.

Must not know: which upstream, whether to believe or keep it, the time. Rule: record bytes stay as they came; what does
not fit is cut from the end, which never breaks a compression pointer.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core import dnspacket
from nacosdns.core.dnsname import HEADER_BYTES, read_name
from nacosdns.core.dnspacket import HEADER, NAMES_INSIDE, TTL_MAX_S, opt_bytes, question_name, section_counts, spans
from nacosdns.core.model import Rcode, Record, RecordType
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nacosdns.core.dnspacket import Span
    from nacosdns.core.model import Query

STALE_TTL_S = 30  # RFC 8767 4

_TTL = Struct("!I")
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

    ``question`` as in ReplyHead, ``name_end`` the offset behind its name. ``rcode`` includes the bits of OPT.
    ``ttl_offsets`` are the places of all TTLs but OPT's. ``ttl_min_s`` is how long the reply may be kept: the lowest
    TTL, a SOA in the authority section counting with its minimum too (RFC 2308 5); 0 for a reply without records and
    a negative one without SOA. Of a truncated reply only the head is told.
    """

    rcode: int
    truncated: bool
    question: bytes
    name_end: int
    ttl_offsets: tuple[int, ...] = ()
    ttl_min_s: int = 0
    answer_count: int = 0


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
    name_end = question_name(packet)[1]
    return ReplyHead(ident, flags, packet[HEADER_BYTES:name_end].lower() + packet[name_end : name_end + 4])


def scan_reply(packet: bytes) -> ReplyScan:
    """Walks every record of a reply once. WireError as ``parse_reply_head``, and when a record is cut or lies."""
    head = parse_reply_head(packet)
    name_end = HEADER_BYTES + max(len(head.question) - 4, 0)
    if head.truncated:
        return ReplyScan(head.rcode, truncated=True, question=head.question, name_end=name_end)
    answers, authorities, additionals = section_counts(packet)
    found = list(spans(packet, HEADER_BYTES + len(head.question), answers + authorities + additionals))
    kept = [span for span in found if span.type != RecordType.OPT]
    rcode = head.rcode | _extended_rcode(found) << 4
    minimums_s = _soa_minimums_s(packet, found[answers : answers + authorities])
    negative = rcode != Rcode.NOERROR or not answers
    return ReplyScan(
        rcode,
        truncated=False,
        question=head.question,
        name_end=name_end,
        ttl_offsets=tuple(span.fixed + 4 for span in kept),
        ttl_min_s=0
        if negative and not minimums_s
        else min([_ttl_s(span.ttl_s) for span in kept] + minimums_s, default=0),
        answer_count=answers,
    )


def _extended_rcode(found: list[Span]) -> int:
    return next((span.ttl_s >> 24 for span in found if span.type == RecordType.OPT), 0)


def _soa_minimums_s(packet: bytes, authority: list[Span]) -> list[int]:
    return [
        _ttl_s(int.from_bytes(packet[span.end - 4 : span.end]))
        for span in authority
        if span.type == RecordType.SOA and span.end - span.rdata >= _SOA_RDATA_BYTES_MIN
    ]


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
        _TTL.pack_into(aged, offset, min(max(_ttl_s(ttl_s) - passed_s, floor_s), cap_s))
    return bytes(aged)


def strip_opt(packet: bytes) -> bytes:
    """The reply without its OPT record, as it is kept, so that it fits clients with and without EDNS.

    Additional records behind the OPT go with it, for cutting at the end never breaks a pointer: servers put the OPT
    last, and a TSIG behind it is not ours to hand on. WireError as ``scan_reply``.
    """
    end = HEADER_BYTES + len(parse_reply_head(packet).question)
    answers, authorities, additionals = section_counts(packet)
    others = answers + authorities
    for index, span in enumerate(spans(packet, end, others + additionals)):
        if index >= others and span.type == RecordType.OPT:
            return packet[:10] + (index - others).to_bytes(2) + packet[HEADER_BYTES : span.start]
        end = span.end
    return packet[:end]


def reply_for(query: Query, kept: bytes, *, size_max: int) -> bytes:
    """A kept reply (no OPT, same folded question) made the answer to this query, at most ``size_max`` bytes long.

    Id, opcode, RD, CD and the letter case of the question are the query's, in owner names that repeat the question
    too; AA is cleared, RA set, AD kept for those who ask for it (RFC 6840 5.8). An OPT answers an OPT. What does not
    fit goes from the end, whole records at a time, with TC (not over TCP) when an answer, or the SOA of a negative, is
    among them.
    """
    edns = query.edns
    opt = b"" if edns is None else opt_bytes(0, dnssec_ok=edns.dnssec_ok)
    room = min(size_max, dnspacket.MESSAGE_BYTES_MAX) - len(opt)
    kept_flags, counts = int.from_bytes(kept[2:4]), section_counts(kept)
    start = HEADER_BYTES + len(query.question)
    body = _respelled(query, kept, start)
    flags = dnspacket.QR | dnspacket.RA | (query.flags & dnspacket.KEPT_FLAGS) | (kept_flags & (dnspacket.TC | 0xF))
    if query.flags & dnspacket.AD or (edns is not None and edns.dnssec_ok):
        flags |= kept_flags & dnspacket.AD
    if len(kept) > room:
        fitting, end = _cut(kept, start, counts, room)
        body = body[: end - start]
        lost = fitting[0] < counts[0] or (not counts[0] and fitting[1] < counts[1])
        flags |= dnspacket.TC if lost and not query.over_tcp else 0
        counts = fitting
    answers, authorities, additionals = counts
    header = HEADER.pack(query.id, flags, 1, answers, authorities, additionals + (1 if opt else 0))
    return b"".join((header, query.question, body, opt))


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
    return tuple(
        Record(read_name(packet, span.start)[0], span.type, _ttl_s(span.ttl_s), _plain_rdata(packet, span), span.klass)
        for span in spans(packet, HEADER_BYTES + len(head.question), section_counts(packet)[0])
    )


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
