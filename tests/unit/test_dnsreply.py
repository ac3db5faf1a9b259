"""Replies of upstreams: scanned, aged, kept and handed on."""

from __future__ import annotations

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rrset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from nacosdns.core import dnswire
from nacosdns.core.model import Edns, Query, Rcode
from nacosdns.errors import WireError

NAME = b"\3ext\4test\0"
QUESTION = NAME + b"\0\1\0\1"


def upstream(
    *,
    answer: str = "",
    authority: str = "",
    additional: str = "",
    flags: str = "QR RD RA",
    rcode: str = "NOERROR",
    edns: bool = True,
) -> bytes:
    """A reply to ``ext.test. A`` as dnspython writes it; records by line."""
    head = ("id 1234", "opcode QUERY", f"rcode {rcode}", f"flags {flags}", ";QUESTION", "ext.test. IN A")
    sections = (";ANSWER", answer, ";AUTHORITY", authority, ";ADDITIONAL", additional)
    message = dns.message.from_text("\n".join(filter(None, (*head, *sections))))
    if edns:
        message.use_edns(0, payload=4096, options=[dns.edns.GenericOption(10, b"abcdefgh")])
    return message.to_wire(max_size=65535)


def asking(name: str = "ext.test", *, edns: Edns | None = None, over_tcp: bool = False, flags: int = 0x0100) -> Query:
    wire = dnswire.text_name(name)
    return Query(7, flags, wire + b"\0\1\0\1", wire.lower(), 1, 1, edns, over_tcp)


def kept_of(packet: bytes) -> bytes:
    return dnswire.strip_opt(packet, dnswire.scan_reply(packet))


def read(packet: bytes) -> dns.message.Message:
    return dns.message.from_wire(packet, one_rr_per_rrset=True)


A_RECORDS = "ext.test. 100 IN CNAME web.ext.test.\nweb.ext.test. 60 IN A 192.0.2.1\nweb.ext.test. 60 IN A 192.0.2.2"
ONE = "ext.test. 60 IN A 192.0.2.1"
NS_RECORDS = "test. 3600 IN NS ns.test."
GLUE = "ns.test. 50 IN A 192.0.2.53"
SOA = "test. 900 IN SOA ns.test. root.test. 1 2 3 4 30"


# Heads


def test_the_head_tells_whether_it_is_the_reply_waited_for() -> None:
    packet = upstream(answer=A_RECORDS, flags="QR TC RA", rcode="SERVFAIL").replace(b"\3ext\4test", b"\3ExT\4tEsT")

    head = dnswire.parse_reply_head(packet)

    assert (head.id, head.rcode, head.truncated, head.question) == (1234, Rcode.SERVFAIL, True, QUESTION)


def test_a_reply_without_a_question_has_an_empty_one() -> None:
    assert dnswire.parse_reply_head(b"\0\1\x80\5" + bytes(8)).question == b""


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"", "short"),
        (b"\0\1\x80\0" + bytes(7), "short"),
        (b"\0\1\1\0\0\1" + bytes(6) + QUESTION, "query"),
        (b"\0\1\x80\0\0\2" + bytes(6) + QUESTION * 2, "questions"),
        (b"\0\1\x80\0\0\1" + bytes(6) + QUESTION[:-1], "malformed"),
        (b"\0\1\x80\0\0\1" + bytes(6) + b"\xc0\x0c\0\1\0\1", "malformed"),
    ],
)
def test_what_is_no_reply_is_refused(packet: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        dnswire.parse_reply_head(packet)


# Scans


def test_a_scan_finds_every_ttl_but_that_of_the_opt() -> None:
    packet = upstream(answer=A_RECORDS, authority=NS_RECORDS, additional=GLUE)

    scan = dnswire.scan_reply(packet)

    assert [int.from_bytes(packet[at : at + 4]) for at in scan.ttl_offsets] == [100, 60, 60, 3600, 50]
    assert (scan.rcode, scan.truncated, scan.answer_count, scan.ttl_min_s) == (0, False, 3, 50)
    assert (scan.question, scan.name_end) == (QUESTION, 12 + len(NAME))


@pytest.mark.parametrize(
    ("parts", "ttl_s"),
    [
        ({"answer": "ext.test. 100 IN A 192.0.2.1"}, 100),
        ({"authority": SOA}, 30),  # NODATA: the minimum of the SOA
        ({"authority": SOA, "rcode": "NXDOMAIN"}, 30),
        ({"authority": SOA.replace("900", "9")}, 9),  # or its TTL
        ({"answer": "ext.test. 100 IN CNAME x.test.", "authority": SOA}, 30),  # CNAME to nothing
        ({"answer": "ext.test. 20 IN CNAME x.test.", "authority": SOA, "rcode": "NXDOMAIN"}, 20),
        ({"answer": SOA.replace("test.", "ext.test.", 1)}, 900),  # what was asked for, not a negative
        ({"rcode": "NXDOMAIN"}, 0),  # negative without SOA: RFC 2308 5
        ({"authority": NS_RECORDS}, 0),
        ({"rcode": "SERVFAIL"}, 0),
        ({}, 0),
        ({"answer": "ext.test. 0 IN A 192.0.2.1"}, 0),
    ],
)
def test_s49_how_long_a_reply_may_be_kept(parts: dict[str, str], ttl_s: int) -> None:
    assert dnswire.scan_reply(upstream(**parts)).ttl_min_s == ttl_s


def test_a_ttl_with_its_top_bit_set_counts_as_zero() -> None:
    packet = upstream(answer=ONE).replace(b"\0\0\0\x3c", b"\x80\0\0\1")

    scan = dnswire.scan_reply(packet)

    assert scan.ttl_min_s == 0
    assert dnswire.scan_reply(dnswire.with_ttl(packet, scan.ttl_offsets, 0)).ttl_min_s == 0


def test_the_rcode_includes_the_bits_of_the_opt() -> None:
    message = dns.message.from_wire(upstream())
    message.set_rcode(dns.rcode.BADVERS)

    assert dnswire.scan_reply(message.to_wire()).rcode == 16


def test_s55_tc_is_seen_before_the_cut_tail_is_read() -> None:
    packet = upstream(answer=A_RECORDS, flags="QR TC")[:-30]

    scan = dnswire.scan_reply(packet)

    assert (scan.truncated, scan.question, scan.ttl_offsets) == (True, QUESTION, ())


def test_s60_every_cut_of_a_good_reply_is_refused() -> None:
    packet = upstream(answer=A_RECORDS, authority=NS_RECORDS, additional=GLUE)

    for size in range(len(packet)):
        with pytest.raises(WireError):
            dnswire.scan_reply(packet[:size])


@pytest.mark.parametrize("name", [b"\xc0\x1a", b"\xc0\xff", b"\x40" + b"a" * 64 + b"\0", b"\x3f" + b"a" * 62])
def test_s60_owner_names_that_loop_or_lead_nowhere_are_refused(name: bytes) -> None:
    packet = b"\0\1\x80\0\0\1\0\1\0\0\0\0" + QUESTION + name + b"\0\1\0\1\0\0\0\1\0\4abcd"

    with pytest.raises(WireError, match="malformed"):
        dnswire.scan_reply(packet)


@settings(max_examples=300)
@given(st.binary(max_size=400), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_s60_any_bytes_are_a_reply_or_a_wire_error(
    body: bytes, answers: int, authorities: int, additionals: int
) -> None:
    counts = bytes((0, answers, 0, authorities, 0, additionals))
    for packet in (body, b"\0\1\x80\0\0\1" + counts + QUESTION + body, b"\0\1\x80\0\0\0" + counts + body):
        for reader in (dnswire.scan_reply, kept_of, dnswire.answer_records):
            try:
                reader(packet)
            except WireError:
                continue


@pytest.mark.parametrize("flags", ["QR RD RA", "QR TC RA"])
@pytest.mark.parametrize("question", [QUESTION, QUESTION.replace(b"ext", b"EXT")])
def test_a_reply_that_repeats_the_question_sent_is_scanned_alike(flags: str, question: bytes) -> None:
    packet = upstream(answer=A_RECORDS, authority=SOA, flags=flags).replace(b"\3ext", question[:4])

    scan = dnswire.scan_reply(packet, question)

    assert scan.question is question
    assert structs.replace(scan, question=QUESTION) == dnswire.scan_reply(packet)


@pytest.mark.parametrize(
    "packet", [b"\0\1\1\0\0\1" + bytes(6) + QUESTION, b"\0\1\x80\0\0\2" + bytes(6) + QUESTION * 2, b"\0\1\x80"]
)
def test_a_packet_that_is_no_reply_is_refused_although_it_has_the_question_sent(packet: bytes) -> None:
    with pytest.raises(WireError):
        dnswire.scan_reply(packet, QUESTION)


# Ages


def test_s47_ttls_count_down_between_floor_and_cap() -> None:
    packet = upstream(answer=A_RECORDS)
    offsets = dnswire.scan_reply(packet).ttl_offsets

    def ttls(aged: bytes) -> list[int]:
        return [rrset.ttl for rrset in read(aged).answer]

    assert ttls(dnswire.with_ttl(packet, offsets, 40)) == [60, 20, 20]
    assert ttls(dnswire.with_ttl(packet, offsets, 70)) == [30, 0, 0]
    assert ttls(dnswire.with_ttl(packet, offsets, 70, floor_s=1)) == [30, 1, 1]
    assert ttls(dnswire.with_ttl(packet, offsets, 0, cap_s=80)) == [80, 60, 60]


def test_s47_a_stale_reply_has_thirty_seconds_in_all_records() -> None:
    packet = upstream(answer=A_RECORDS, authority=SOA)
    stale_s = dnswire.STALE_TTL_S

    aged = dnswire.with_ttl(packet, dnswire.scan_reply(packet).ttl_offsets, 10**6, floor_s=stale_s, cap_s=stale_s)

    assert {rrset.ttl for rrset in (*read(aged).answer, *read(aged).authority)} == {30}
    assert len(aged) == len(packet)


# Keeping and handing on


def test_a_kept_reply_has_no_opt_and_is_otherwise_the_same() -> None:
    packet = upstream(answer=ONE, authority=NS_RECORDS, additional=GLUE)

    kept = kept_of(packet)

    assert kept == b"\0\0" + upstream(answer=ONE, authority=NS_RECORDS, additional=GLUE, edns=False)[2:]
    assert kept_of(kept) == kept


def test_what_stands_behind_the_opt_goes_with_it() -> None:
    packet = upstream(answer=A_RECORDS, additional=GLUE)
    signed = packet[:11] + b"\3" + packet[12:] + b"\1k\0\0\xfa\0\xff\0\0\0\0\0\0"

    kept = kept_of(signed)

    assert kept == kept_of(packet)


def test_an_opt_that_is_not_among_the_additional_records_is_left_alone() -> None:
    packet = b"\0\1\x80\0\0\1\0\1\0\0\0\0" + QUESTION + b"\0\0\x29\4\xd0\0\0\0\0\0\0"

    assert kept_of(packet) == b"\0\0" + packet[2:]


def test_a_pointer_to_a_question_that_is_not_there_is_refused() -> None:
    packet = b"\0\1\x80\0\0\0\0\1\0\0\0\0\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4abcd"

    with pytest.raises(WireError, match="malformed"):
        dnswire.scan_reply(packet)


def test_s64_the_question_and_its_owner_names_come_back_in_the_case_asked() -> None:
    kept = kept_of(upstream(answer=ONE))

    reply = dnswire.reply_for(asking("ExT.TeSt"), kept, size_max=512)

    assert reply[12 : 12 + len(NAME)] == b"\3ExT\4TeSt\0"
    assert str(read(reply).answer[0].name) == "ExT.TeSt."


def test_s64_owner_names_that_are_spelled_out_come_back_in_the_case_asked_too() -> None:
    spelled = b"\0\1\x80\0\0\1\0\3\0\0\0\0\3EXT\4test\0\0\1\0\1" + b"".join(
        owner + b"\0\1\0\1\0\0\0\x3c\0\4" + address
        for owner, address in (
            (b"\3EXT\4test\0", b"\xc0\0\2\1"),
            (b"\3EXT\4test\0", b"\xc0\0\2\2"),
            (b"\xc0\x0c", b"\xc0\0\2\3"),
        )
    )

    reply = dnswire.reply_for(asking("ext.TEST"), spelled, size_max=512)

    assert reply.count(b"\3ext\4TEST\0") == 3
    assert [str(rrset) for rrset in read(reply).answer] == [
        "ext.TEST. 60 IN A 192.0.2.1",
        "ext.TEST. 60 IN A 192.0.2.2",
        "ext.TEST. 60 IN A 192.0.2.3",
    ]


def test_s64_bytes_inside_rdata_are_left_alone() -> None:
    text = b"\x0a\3EXT\4test\0"
    kept = b"\0\1\x80\0\0\1\0\1\0\0\0\0\3EXT\4test\0\0\x10\0\1\xc0\x0c\0\x10\0\1\0\0\0\x3c\0\x0b" + text

    reply = dnswire.reply_for(asking("ext.test"), kept, size_max=512)

    assert reply.endswith(text)


def test_id_and_flags_are_the_querys_and_aa_is_cleared() -> None:
    kept = kept_of(upstream(answer=A_RECORDS, flags="QR AA RD AD", rcode="NXDOMAIN"))

    plain = read(dnswire.reply_for(asking(flags=0x0010), kept, size_max=512))
    wants_ad = read(dnswire.reply_for(asking(flags=0x0120), kept, size_max=512))
    with_do = read(dnswire.reply_for(asking(edns=Edns(1232, dnssec_ok=True)), kept, size_max=1232))

    assert (plain.id, plain.rcode()) == (7, dns.rcode.NXDOMAIN)
    assert dns.flags.to_text(plain.flags) == "QR RA CD"
    assert dns.flags.to_text(wants_ad.flags) == "QR RD RA AD"
    assert dns.flags.to_text(with_do.flags) == "QR RD RA AD"


def test_a_kept_reply_serves_clients_with_and_without_edns() -> None:
    kept = kept_of(upstream(answer=A_RECORDS, additional=GLUE))

    without = read(dnswire.reply_for(asking(), kept, size_max=512))
    with_edns = read(dnswire.reply_for(asking(edns=Edns(4096, dnssec_ok=True)), kept, size_max=1232))

    assert (without.edns, len(without.additional)) == (-1, 1)
    assert (with_edns.edns, with_edns.payload, with_edns.ednsflags, len(with_edns.additional)) == (0, 1232, 0x8000, 1)


SIXTY = "\n".join(f"ext.test. 60 IN A 192.0.2.{i}" for i in range(60))


@pytest.mark.parametrize("edns", [None, Edns(700)])
def test_s53_s55_sixty_addresses_are_cut_to_whole_records_with_tc(edns: Edns | None) -> None:
    kept = kept_of(upstream(answer=SIXTY, authority=NS_RECORDS, additional=GLUE))
    asked = asking(edns=edns)
    size_max = dnswire.size_limit(asked)

    packet = dnswire.reply_for(asked, kept, size_max=size_max)
    reply = read(packet)

    assert size_max - 16 < len(packet) <= size_max
    assert reply.flags & dns.flags.TC
    assert list(map(str, reply.answer)) == list(map(str, read(kept).answer))[: len(reply.answer)]
    assert (len(reply.authority), len(reply.additional)) == (0, 0)


def test_s55_tcp_gets_all_sixty() -> None:
    kept = kept_of(upstream(answer=SIXTY, additional=GLUE))

    reply = read(dnswire.reply_for(asking(over_tcp=True), kept, size_max=65535))

    assert (len(reply.answer), len(reply.additional)) == (60, 1)
    assert not reply.flags & dns.flags.TC


def test_additional_records_go_first_and_without_tc() -> None:
    glue = "\n".join(f"ns.test. 50 IN A 192.0.2.{i}" for i in range(60))
    kept = kept_of(upstream(answer=A_RECORDS, additional=glue))

    reply = read(dnswire.reply_for(asking(), kept, size_max=512))

    assert len(reply.answer) == 3
    assert 0 < len(reply.additional) < 60
    assert not reply.flags & dns.flags.TC


@pytest.mark.parametrize(("size_max", "has_soa"), [(512, True), (60, False)])
def test_a_negative_reply_that_loses_its_soa_says_tc(*, size_max: int, has_soa: bool) -> None:
    glue = "\n".join(f"ns.test. 50 IN A 192.0.2.{i}" for i in range(60))
    kept = kept_of(upstream(authority=SOA, additional=glue, rcode="NXDOMAIN"))

    reply = read(dnswire.reply_for(asking(), kept, size_max=size_max))

    assert bool(reply.authority) == has_soa
    assert bool(reply.flags & dns.flags.TC) == (not has_soa)


@given(size_max=st.integers(min_value=64, max_value=1500), with_edns=st.booleans())
def test_a_reply_of_any_size_is_readable_and_not_over_it(*, size_max: int, with_edns: bool) -> None:
    kept = kept_of(upstream(answer=A_RECORDS + "\n" + SIXTY, authority=NS_RECORDS, additional=GLUE))

    packet = dnswire.reply_for(asking(edns=Edns(4096) if with_edns else None), kept, size_max=size_max)

    read(packet)
    assert len(packet) <= size_max


# Records of a reply


def test_s18_answers_are_read_with_their_names_spelled_out() -> None:
    chain = "ext.test. 100 IN CNAME web.ext.test.\nweb.ext.test. 60 IN A 192.0.2.1"
    packet = upstream(answer=chain + "\next.test. 5 IN MX 10 mail.ext.test.\next.test. 5 IN TYPE999 \\# 2 c00c")

    records = dnswire.answer_records(packet)

    assert [(dnswire.name_text(record.name), record.type, record.ttl_s) for record in records] == [
        ("ext.test.", 5, 100),
        ("web.ext.test.", 1, 60),
        ("ext.test.", 15, 5),
        ("ext.test.", 999, 5),
    ]
    assert [record.rdata for record in records] == [
        b"\3web\3ext\4test\0",
        b"\xc0\0\2\1",
        b"\0\x0a\4mail\3ext\4test\0",
        b"\xc0\x0c",
    ]


def test_a_name_that_reaches_over_the_end_of_its_rdata_is_refused() -> None:
    record = b"\xc0\x0c\0\5\0\1\0\0\0\1\0\2" + b"\3web\0"
    packet = b"\0\1\x80\0\0\1\0\1\0\0\0\0" + QUESTION + record

    with pytest.raises(WireError, match="malformed"):
        dnswire.answer_records(packet)


# The quick ways, and the careful ones

TAILS = st.sampled_from(
    [b"", b"\0\0\x29\x04\xd0\0\0\0\0\0\0", b"\0\0\x29\x04\xd0\1\0\0\0\0\0", b"\0\0\x29\4\xd0\0\0\x80\0\0\2ab", b"x"]
)
OWNERS = st.sampled_from([b"\xc0\x0c", b"\xc0\x10", b"\3ext\4test\0", b"\0"])
KINDS = st.sampled_from([b"\0\1", b"\0\x1c", b"\0\5", b"\0\x29", b"\1\1"])
CLASSES = st.sampled_from([b"\0\1", b"\0\3"])
TTLS = st.sampled_from([b"\0\0\0\0", b"\0\0\1\x2c", b"\x7f\xff\xff\xff", b"\x80\0\0\0"])
RDATA = st.sampled_from([b"\0\4abcd", b"\0\x10abcdefghijklmnop", b"\0\5abcd", b"\0\0", b"\0\4\n\n\n\n"])
COUNTS = st.sampled_from([b"\0\1\0\0\0\0", b"\0\1\0\0\0\1", b"\0\0\0\1\0\1", b"\0\2\0\0\0\0", b"\0\0\0\0\0\1"])
FLAGS = st.sampled_from([b"\x81\x80", b"\x83\x80", b"\x81\x83", b"\x81\xa2", b"\xf9\x80"])


@settings(max_examples=1000)
@given(st.tuples(OWNERS, KINDS, CLASSES, TTLS, RDATA, TAILS), COUNTS, FLAGS)
def test_a_reply_that_repeats_the_question_is_scanned_as_any_other(
    record: tuple[bytes, ...], counts: bytes, flags: bytes
) -> None:
    packet = b"\1\2" + flags + b"\0\1" + counts + QUESTION + b"".join(record)

    scans = []
    for asked in (QUESTION, b""):
        try:
            scans.append(dnswire.scan_reply(packet, asked))
        except WireError as error:
            scans.append(error.reason)

    assert scans[0] == scans[1]


@given(
    st.sampled_from([ONE, A_RECORDS, ""]), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.booleans(), st.booleans()
)
def test_a_reply_is_the_same_whether_the_question_was_kept_as_it_is_asked_or_not(
    answer: str, ident: int, flags: int, with_edns: bool, over_tcp: bool
) -> None:
    kept = kept_of(upstream(answer=answer, authority=SOA, additional=GLUE, flags="QR RD RA AD"))
    other = kept[:12] + kept[12:].replace(b"\3ext\4test\0", b"\3EXT\4test\0")
    edns = Edns(4096, dnssec_ok=bool(flags & 1)) if with_edns else None
    query = structs.replace(asking(edns=edns, over_tcp=over_tcp, flags=flags & 0x7FFF), id=ident)

    replies = [dnswire.reply_for(query, packet, size_max=dnswire.size_limit(query)) for packet in (kept, other)]

    assert replies[0] == replies[1]
