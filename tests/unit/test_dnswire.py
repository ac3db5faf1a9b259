"""Queries in, replies of our own out: two independent readers (dnslib, dnspython) say whether they are right."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dnslib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nacosdns.core import dnswire
from nacosdns.core.model import Answer, Edns, Query, Rcode, RecordType
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nacosdns.core.model import Record

ZONE = b"\5nacos\0"
NAME = b"\6orders\5nacos\0"
HEADER = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
QUESTION = NAME + b"\0\1\0\1"
OPT = b"\0\0\x29\x10\0\0\0\x80\0\0\0"  # 4096 bytes, version 0, DO
PLAIN = HEADER + QUESTION
WITH_EDNS = HEADER[:11] + b"\1" + QUESTION + OPT

labels_within_a_name = st.lists(st.binary(min_size=1, max_size=63), max_size=8).filter(
    lambda labels: sum(len(label) + 1 for label in labels) <= 200
)


def query(*, name: bytes = NAME, edns: Edns | None = None, over_tcp: bool = False, flags: int = 0x0100) -> Query:
    question = name + b"\0\1\0\1"
    return Query(7, flags, question, name.lower(), 1, 1, edns, over_tcp)


def addresses(count: int) -> tuple[Record, ...]:
    return tuple(dnswire.address_record(NAME, 1, f"10.0.{i >> 8}.{i & 255}") for i in range(count))


def targets(count: int) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    names = [dnswire.text_name(f"10-0-{i >> 8}-{i & 255}.addr.nacos") for i in range(count)]
    services = tuple(dnswire.srv(NAME, 1, 0, 1, 8000 + i, name) for i, name in enumerate(names))
    glue = tuple(dnswire.address_record(name, 1, f"10.0.{i >> 8}.{i & 255}") for i, name in enumerate(names))
    return services, glue


def read(packet: bytes) -> dns.message.Message:
    """The packet as dnspython reads it, strictly."""
    dnslib.DNSRecord.parse(packet)
    return dns.message.from_wire(packet, one_rr_per_rrset=True)


def soa() -> Record:
    return dnswire.soa(ZONE, 1, 5, 1)


# Reading queries


def test_a_query_is_read_with_its_question_byte_for_byte() -> None:
    packet = b"\xab\xcd\x01\x10\0\1\0\0\0\0\0\0\6OrDeRs\5nAcOs\0\0\x41\0\1"

    asked = dnswire.parse_query(packet, over_tcp=True, client=b"\x7f\0\0\1")

    assert asked == Query(0xABCD, 0x0110, b"\6OrDeRs\5nAcOs\0\0\x41\0\1", NAME, 65, 1, None, True, b"\x7f\0\0\1")
    assert asked.labels == (b"OrDeRs", b"nAcOs")
    assert asked.recursion_desired
    assert asked.checking_disabled


def test_s01_the_type_is_not_folded_with_the_name() -> None:
    asked = dnswire.parse_query(HEADER + NAME.upper() + b"\x00\x41\x00\x01")

    assert (asked.name, asked.type) == (NAME, RecordType.HTTPS)


def test_edns_is_read_with_its_options() -> None:
    opt = b"\0\0\x29\x04\xd0\0\0\x80\0\0\x10\0\3\0\0\0\x0a\0\x08abcdefgh"

    asked = dnswire.parse_query(HEADER[:11] + b"\1" + QUESTION + opt)

    assert asked.edns == Edns(1232, 0, True, ((3, b""), (10, b"abcdefgh")))


def test_records_beside_the_opt_are_passed_over() -> None:
    tsig = b"\1k\0\0\xfa\0\xff\0\0\0\0\0\2hm"
    serial = b"\xc0\x0c" + b"\0\6\0\1\0\0\0\0\0\1x"

    asked = dnswire.parse_query(HEADER[:9] + b"\1\0\2" + QUESTION + serial + OPT + tsig)

    assert asked.edns == Edns(4096, 0, True)


@pytest.mark.parametrize("size", range(12))
def test_s60_under_twelve_bytes_is_short(size: int) -> None:
    with pytest.raises(WireError, match="short"):
        dnswire.parse_query(WITH_EDNS[:size])


@pytest.mark.parametrize("packet", [PLAIN, WITH_EDNS])
def test_s60_every_cut_of_a_good_query_is_malformed(packet: bytes) -> None:
    for size in range(12, len(packet)):
        with pytest.raises(WireError) as caught:
            dnswire.parse_query(packet[:size])

        assert caught.value.reason == "malformed"


@pytest.mark.parametrize("count", [0, 2, 65535])
def test_s60_a_number_of_questions_other_than_one_is_refused(count: int) -> None:
    with pytest.raises(WireError, match="questions"):
        dnswire.parse_query(HEADER[:4] + count.to_bytes(2) + HEADER[6:] + QUESTION)


@pytest.mark.parametrize(
    "rest",
    [
        b"\xc0\x0c\0\1\0\1",  # points to itself
        b"\xc0\x0e\xc0\x0c\0\1\0\1",  # a loop of two
        b"\xc0\x12\0\1\0\1\1a\0",  # forward
        b"\1a\xc0\x04\0\1\0\1",  # into the header
        b"\x40" + b"a" * 64 + b"\0\0\1\0\1",
        b"\x41" + b"a" * 65 + b"\0\0\1\0\1",
        b"\x80a\0\0\1\0\1",
        (b"\x3f" + b"a" * 63) * 3 + b"\x3f" + b"a" * 63 + b"\0\0\1\0\1",  # 257 bytes
        (b"\x3f" + b"a" * 63) * 3 + b"\x3e" + b"a" * 62 + b"\0\0\1\0\1",  # 256 bytes
        QUESTION + b"x",  # something behind it
    ],
)
def test_s60_bad_names_pointers_and_garbage_are_malformed(rest: bytes) -> None:
    with pytest.raises(WireError, match="malformed"):
        dnswire.parse_query(HEADER + rest)


def test_a_name_of_255_bytes_is_read() -> None:
    name = (b"\x3f" + b"a" * 63) * 3 + b"\x3d" + b"a" * 61 + b"\0"

    asked = dnswire.parse_query(HEADER + name + b"\0\1\0\1")

    assert len(asked.name) == 255


@pytest.mark.parametrize(
    ("counts", "rest"),
    [
        (b"\0\0\0\0\0\2", OPT + OPT),
        (b"\0\1\0\0\0\0", OPT),  # an answer
        (b"\0\0\0\1\0\0", OPT),  # an authority
        (b"\0\0\0\0\0\1", b"\1a" + OPT),  # not at the root
        (b"\0\0\0\0\0\1", OPT[:-1] + b"\3\0\1\0"),  # half an option
        (b"\0\0\0\0\0\1", OPT[:-1] + b"\5\0\1\0\2x"),  # an option longer than the record
        (b"\0\0\0\0\0\1", OPT + b"\0"),
        (b"\0\0\0\0\xff\xff", OPT),
    ],
)
def test_a_bad_opt_is_malformed(counts: bytes, rest: bytes) -> None:
    with pytest.raises(WireError, match="malformed"):
        dnswire.parse_query(HEADER[:6] + counts + QUESTION + rest)


@given(st.binary(max_size=600))
def test_s60_any_bytes_are_a_query_or_a_wire_error(packet: bytes) -> None:
    for start in (packet, HEADER + packet, WITH_EDNS[: len(WITH_EDNS) - 2] + packet):
        try:
            asked = dnswire.parse_query(start)
        except WireError:
            continue

        assert start[12 : 12 + len(asked.question)] == asked.question
        assert dnswire.name_to_wire(asked.labels).lower() == asked.name


@given(
    st.integers(0, 2),
    st.one_of(
        st.binary(max_size=11),
        st.builds(bytes.__add__, st.sampled_from([b"\0\0\x29", b"\xc0\x0c"]), st.binary(max_size=8)),
        st.sampled_from([OPT, OPT[:5] + b"\1" + OPT[6:], OPT[:7] + b"\0\0\0\0", b"\xc0\x0c\0\x10\0\1" + bytes(6)]),
    ),
)
def test_a_short_opt_is_read_as_it_is_behind_another_record(additionals: int, rest: bytes) -> None:
    alone = HEADER[:10] + additionals.to_bytes(2) + QUESTION + rest
    record = b"\0\0\x10\0\1\0\0\0\0\0\4text"
    behind = HEADER[:8] + b"\0\1" + additionals.to_bytes(2) + QUESTION + record + rest

    results = []
    for packet in (alone, behind):
        try:
            results.append(dnswire.parse_query(packet).edns)
        except WireError as error:
            results.append(error.reason)

    assert results[0] == results[1]


def test_s60_the_largest_datagram_of_random_bytes_is_no_trouble() -> None:
    for seed in range(20):
        body = random.Random(seed).randbytes(65507 - 12)
        for counts in (b"\0\1\xff\xff\xff\xff\xff\xff", b"\0\1\0\0\0\0\xff\xff"):
            with pytest.raises(WireError):
                dnswire.parse_query(b"\0\0\1\0" + counts + body)


def test_s61_a_reply_is_told_apart_before_anything_else() -> None:
    for packet in (PLAIN, PLAIN[:12], HEADER[:4] + b"\0\0" + HEADER[6:] + b"\xff"):
        with pytest.raises(WireError, match="response"):
            dnswire.parse_query(packet[:2] + b"\x80" + packet[3:])


def test_the_opcode_is_read_from_the_header_alone() -> None:
    assert [dnswire.opcode(bytes((0, 0, code << 3))) for code in range(16)] == list(range(16))


# Errors


@pytest.mark.parametrize(
    ("packet", "question"),
    [
        (PLAIN, QUESTION),
        (PLAIN + b"garbage", QUESTION),
        (HEADER + b"\x80a\0\0\1\0\1", b""),
        (HEADER[:4] + b"\0\0" + HEADER[6:], b""),
        (HEADER[:4] + b"\0\2" + HEADER[6:] + QUESTION * 2, b""),
        (HEADER, b""),
    ],
)
def test_s60_an_error_keeps_id_opcode_and_the_question_if_it_can_be_read(packet: bytes, question: bytes) -> None:
    packet = packet[:2] + b"\x29" + packet[3:]  # opcode 5, RD

    reply = dnswire.error_reply(packet, Rcode.FORMERR)

    assert reply[:4] == b"\x12\x34\xa9\x81"
    assert reply[4:12] == (b"\0\1" if question else b"\0\0") + bytes(6)
    assert reply[12:] == question


def test_an_error_to_a_readable_query_answers_its_opt() -> None:
    reply = read(dnswire.error_reply(WITH_EDNS, Rcode.NOTIMP))

    assert reply.rcode() == dns.rcode.NOTIMP
    assert (reply.edns, reply.payload) == (0, 1232)


@pytest.mark.parametrize("packet", [b"", HEADER[:11], b"\0\0\x80\0" + bytes(8), b"\0\0\x80" + b"\xff" * 40])
def test_s61_neither_a_reply_nor_a_scrap_gets_an_error(packet: bytes) -> None:
    with pytest.raises(WireError, match=r"short|response"):
        dnswire.error_reply(packet, Rcode.FORMERR)


@given(st.binary(max_size=300))
def test_s60_an_error_reply_is_always_readable(packet: bytes) -> None:
    try:
        reply = dnswire.error_reply(packet, Rcode.FORMERR)
    except WireError:
        return

    assert reply[:2] == packet[:2]
    assert reply[3] & 0xF == Rcode.FORMERR
    assert len(reply) <= 512
    dnswire.parse_reply_head(reply)


# Replies


def test_a_reply_repeats_the_question_and_points_at_it() -> None:
    asked = dnswire.parse_query(b"\xab\xcd\x01\x10\0\1\0\0\0\0\0\0\6OrDeRs\5nAcOs\0\0\1\0\1")

    reply = dnswire.render(asked, Answer(answers=addresses(2)), size_max=512)

    assert reply == (
        b"\xab\xcd\x85\x90\0\1\0\2\0\0\0\0\6OrDeRs\5nAcOs\0\0\1\0\1"
        b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4\x0a\0\0\0"
        b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4\x0a\0\0\1"
    )


@pytest.mark.parametrize(
    ("answer", "flags", "expected"),
    [
        (Answer(), 0x0000, {"QR", "RA", "AA"}),
        (Answer(authoritative=False), 0x0110, {"QR", "RA", "RD", "CD"}),
        (Answer(authentic=True), 0x0100, {"QR", "RA", "RD", "AA", "AD"}),
        (Answer(truncated=True), 0x0220, {"QR", "RA", "AA", "TC"}),
    ],
)
def test_flags_come_from_the_answer_and_the_query(answer: Answer, flags: int, expected: set[str]) -> None:
    reply = read(dnswire.render(query(flags=flags), answer, size_max=512))

    assert set(dns.flags.to_text(reply.flags).split()) == expected


@pytest.mark.parametrize("rcode", [code for code in Rcode if code < 16])
def test_every_rcode_of_the_header_goes_out(rcode: Rcode) -> None:
    assert read(dnswire.render(query(), Answer(rcode=rcode), size_max=512)).rcode() == int(rcode)


def test_s58_another_edns_version_is_badvers_with_version_0_and_the_question() -> None:
    packet = HEADER[:11] + b"\1" + QUESTION + b"\0\0\x29\x04\xd0\0\x64\0\0\0\6\0\x64\0\2hi"
    asked = dnswire.parse_query(packet)

    reply = read(dnswire.render(asked, Answer(rcode=Rcode.BADVERS), size_max=512))

    assert asked.edns == Edns(1232, version=100)
    assert (reply.rcode(), reply.edns, len(reply.answer)) == (dns.rcode.BADVERS, 0, 0)
    assert reply.question[0].to_text() == "orders.nacos. IN A"


def test_an_opt_answers_an_opt_and_nothing_else() -> None:
    without = read(dnswire.render(query(), Answer(), size_max=512))
    with_do = read(dnswire.render(query(edns=Edns(4096, dnssec_ok=True)), Answer(), size_max=512))

    assert without.edns == -1
    assert (with_do.edns, with_do.payload, with_do.ednsflags) == (0, 1232, 0x8000)


def test_s17_srv_targets_are_spelled_out_and_glue_owners_are_compressed() -> None:
    services, glue = targets(2)

    packet = dnswire.render(query(), Answer(answers=services, glue=glue), size_max=512)
    reply = read(packet)

    first = packet.index(b"\0\x21\0\1") + 10
    assert packet[first : first + 6 + 21] == b"\0\0\0\1\x1f\x40\x0810-0-0-0\4addr\5nacos\0"[: 6 + 21]
    assert packet.count(b"\4addr\5nacos\0") == 2  # once in each target, never in a glue owner
    assert [str(rrset) for rrset in reply.additional] == [
        "10-0-0-0.addr.nacos. 1 IN A 10.0.0.0",
        "10-0-0-1.addr.nacos. 1 IN A 10.0.0.1",
    ]
    assert [str(rrset[0]) for rrset in reply.answer] == [
        "0 1 8000 10-0-0-0.addr.nacos.",
        "0 1 8001 10-0-0-1.addr.nacos.",
    ]


def test_names_in_soa_and_cname_are_compressed() -> None:
    alias = dnswire.cname(NAME, 1, b"\2db\5nacos\0")

    packet = dnswire.render(query(), Answer(answers=(alias,), authority=(soa(),)), size_max=512)
    reply = read(packet)

    assert packet.count(b"\5nacos\0") == 1
    assert str(reply.answer[0][0]) == "db.nacos."
    assert str(reply.authority[0]) == "nacos. 1 IN SOA nacos. hostmaster.nacos. 5 3600 600 86400 1"


def test_a_name_is_compressed_against_one_that_is_compressed_itself() -> None:
    short, longer = b"\1x\1a" + ZONE, b"\1y\1x\1a" + ZONE

    packet = dnswire.render(
        query(), Answer(glue=(dnswire.a(short, 1, b"abcd"), dnswire.a(longer, 1, b"abcd"))), size_max=512
    )

    assert packet.count(b"\1x\1a") == 1
    assert [str(rrset.name) for rrset in read(packet).additional] == ["x.a.nacos.", "y.x.a.nacos."]


def test_names_far_behind_in_a_long_reply_are_not_pointed_at() -> None:
    long = dnswire.txt(NAME, 1, [b"x" * 20_000])
    far = dnswire.ns(b"\3far\4away\0", 1, b"\2ns\3far\4away\0")

    packet = dnswire.render(query(over_tcp=True), Answer(answers=(long, far, far)), size_max=65535)

    assert packet.count(b"\3far\4away\0") == 4
    assert [str(rrset) for rrset in read(packet).answer[1:]] == ["far.away. 1 IN NS ns.far.away."] * 2


name_records = st.one_of(
    st.builds(dnswire.cname, st.just(NAME), st.just(1), labels_within_a_name.map(dnswire.name_to_wire)),
    st.builds(dnswire.ns, labels_within_a_name.map(dnswire.name_to_wire), st.just(1), st.just(ZONE)),
    st.builds(dnswire.soa, labels_within_a_name.map(dnswire.name_to_wire), st.just(1), st.just(2), st.just(3)),
    st.builds(dnswire.txt, st.just(NAME), st.just(1), st.lists(st.binary(max_size=600), max_size=3)),
    st.builds(dnswire.srv, st.just(NAME), st.just(1), st.just(0), st.just(1), st.just(80), st.just(ZONE)),
    st.sampled_from(addresses(3)),
)


@settings(max_examples=200)
@given(
    records=st.lists(name_records, max_size=12),
    size_max=st.integers(512, 65535),
    with_edns=st.booleans(),
    over_tcp=st.booleans(),
    labels=labels_within_a_name,
)
def test_s53_s57_whatever_the_records_a_reply_is_readable_whole_and_not_over_its_size(
    *,
    records: list[Record],
    size_max: int,
    with_edns: bool,
    over_tcp: bool,
    labels: list[bytes],
) -> None:
    asked = query(name=dnswire.name_to_wire(labels), edns=Edns(4096) if with_edns else None, over_tcp=over_tcp)
    answer = Answer(answers=tuple(records), authority=(soa(),), glue=addresses(2))

    packet = dnswire.render(asked, answer, size_max=size_max)
    kept = dnswire.answer_records(packet)

    dnswire.scan_reply(packet[:2] + bytes((packet[2] & ~2,)) + packet[3:])
    assert len(packet) <= size_max
    assert [(r.name.lower(), r.type, r.rdata.lower()) for r in kept] == [
        (r.name.lower(), r.type, r.rdata.lower()) for r in records[: len(kept)]
    ]
    assert bool(packet[2] & 2) == (len(kept) < len(records) and not over_tcp)


# Sizes


@pytest.mark.parametrize(
    ("edns", "over_tcp", "limit"),
    [
        (None, False, 512),
        (Edns(100), False, 512),
        (Edns(800), False, 800),
        (Edns(4096), False, 1232),
        (Edns(0), False, 512),
        (None, True, 65535),
        (Edns(512), True, 65535),
    ],
)
def test_s53_the_size_limit_is_that_of_the_client_and_ours(*, edns: Edns | None, over_tcp: bool, limit: int) -> None:
    assert dnswire.size_limit(query(edns=edns, over_tcp=over_tcp)) == limit


def cut(answer: Answer, asked: Query) -> tuple[dns.message.Message, int]:
    packet = dnswire.render(asked, answer, size_max=dnswire.size_limit(asked))
    return read(packet), len(packet)


@pytest.mark.parametrize("edns", [None, Edns(4096), Edns(100)])
def test_s53_a_hundred_addresses_are_cut_to_whole_records_with_tc(edns: Edns | None) -> None:
    asked = query(edns=edns)

    reply, size = cut(Answer(answers=addresses(100)), asked)

    assert reply.flags & dns.flags.TC
    assert size <= dnswire.size_limit(asked)
    assert size + 16 > dnswire.size_limit(asked)
    assert [rrset[0].address for rrset in reply.answer] == [f"10.0.0.{i}" for i in range(len(reply.answer))]


def test_s53_glue_goes_before_any_answer_and_without_tc() -> None:
    services, glue = targets(10)

    reply, _ = cut(Answer(answers=services, glue=glue), query())

    assert len(reply.answer) == 10
    assert 0 < len(reply.additional) < 10
    assert not reply.flags & dns.flags.TC


def test_s53_when_answers_are_cut_no_glue_is_left() -> None:
    services, glue = targets(100)

    reply, _ = cut(Answer(answers=services, glue=glue), query(edns=Edns(4096)))

    assert len(reply.answer) >= 20
    assert len(reply.additional) == 0
    assert reply.flags & dns.flags.TC


def test_s53_tcp_gives_all() -> None:
    reply, _ = cut(Answer(answers=addresses(100)), query(over_tcp=True))

    assert len(reply.answer) == 100
    assert not reply.flags & dns.flags.TC


@pytest.mark.parametrize("records", [targets(5000)[0], addresses(5000)])
def test_s57_what_is_over_64_kib_is_cut_to_one_valid_message_without_tc(records: Sequence[Record]) -> None:
    reply, size = cut(Answer(answers=tuple(records)), query(over_tcp=True))

    assert 65000 < size <= 65535
    assert len(reply.answer) >= 1000
    assert not reply.flags & dns.flags.TC


def test_a_negative_answer_keeps_its_soa_in_the_smallest_reply() -> None:
    name = (b"\x3f" + b"a" * 63) * 3 + b"\x37" + b"a" * 55 + ZONE

    reply, _ = cut(Answer(rcode=Rcode.NXDOMAIN, authority=(soa(),)), query(name=name))

    assert len(name) == 255
    assert [rrset.rdtype for rrset in reply.authority] == [dns.rdatatype.SOA]
    assert not reply.flags & dns.flags.TC


def test_a_negative_answer_that_loses_authority_says_tc() -> None:
    servers = tuple(dnswire.ns(ZONE, 1, dnswire.text_name(f"ns{at}.example")) for at in range(60))

    reply, _ = cut(Answer(authority=(soa(), *servers)), query())

    assert 0 < len(reply.authority) < 61
    assert reply.flags & dns.flags.TC


def test_nothing_takes_the_room_of_an_answer_that_did_not_fit() -> None:
    reply, _ = cut(
        Answer(answers=(dnswire.txt(NAME, 1, [b"x" * 600]),), authority=(soa(),), glue=addresses(1)), query()
    )

    assert (len(reply.answer), len(reply.authority), len(reply.additional)) == (0, 0, 0)
    assert reply.flags & dns.flags.TC


def test_authority_that_a_positive_answer_has_no_room_for_goes_in_silence() -> None:
    reply, _ = cut(Answer(answers=addresses(29), authority=(soa(),)), query())

    assert (len(reply.answer), len(reply.authority)) == (29, 0)
    assert not reply.flags & dns.flags.TC


@pytest.mark.parametrize("section", [0, 1, 2])
def test_a_query_may_have_sixteen_records_and_no_more(section: int) -> None:
    """docs/answers.md 1.6: thousands of them would only cost a front time."""

    def asked(records: int) -> bytes:
        counts = b"".join((records if at == section else 0).to_bytes(2, "big") for at in range(3))
        record = b"\0\0\1\0\1\0\0\0\0\0\0"
        return b"\0\1\1\0\0\1" + counts + NAME + b"\0\1\0\1" + records * record

    assert dnswire.parse_query(asked(16)).type == RecordType.A
    with pytest.raises(WireError):
        dnswire.parse_query(asked(17))
