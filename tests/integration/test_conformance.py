"""What EDNS and DNS compliance suites ask, of the running program, by both doors, the first time and again.

The number before a case is the line of docs/answers.md that it holds.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from dnslib import RD as RDATA
from dnslib import RR

from fakes.asking import until_says
from fakes.running import Bridge
from fakes.upstream import StubUpstream
from fakes.wire import (
    AA,
    AD,
    CD,
    DO,
    IDENT,
    QR,
    RA,
    RD,
    TC,
    Z,
    by_tcp,
    by_udp,
    edns,
    is_silent,
    opt,
    option,
    query,
    read,
    record,
)
from nacosdns.core.dnsname import name_to_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dnslib import DNSRecord

    from fakes.wire import (
        Ask,
        Read,
    )

TEXT = """tcp_idle_s = 2
[nacos]
servers = []
[forward]
upstreams = ["{upstream}"]
[policy]
ttl_s = 7
negative_ttl_s = 3
[policy."tagged"]
txt_keys = ["zone"]
[[zone]]
name = "nacos."
bare_names = true
bare_allow = ["single-label", "*.db.example.com"]
[[zone]]
name = "例."
[[static]]
name = "orders"
instances = [
    {{ ip = "10.0.0.1", port = 80 }}, {{ ip = "10.0.0.2", port = 81 }}, {{ ip = "10.0.0.2", port = 82 }}
]
[[static]]
name = "tagged"
instances = [{{ ip = "10.0.0.3", port = 80, metadata = {{ zone = "bj", password = "x" }} }}]
[[static]]
name = "a.b.c"
instances = [{{ ip = "10.0.0.4", port = 80 }}]
[[static]]
name = "away"
instances = [{{ ip = "db.ext.test", port = 80 }}]
[[static]]
name = "mixed"
instances = [
    {{ ip = "db.ext.test", port = 80 }}, {{ ip = "10.0.0.5", port = 80 }},
    {{ ip = "10.0.0.6", port = 80, weight = 0 }}, {{ ip = "10.0.0.7", port = 80, healthy = false }}
]
[[static]]
name = "sick"
instances = [{{ ip = "10.0.0.8", port = 80, healthy = false }}, {{ ip = "10.0.0.6", port = 80, weight = 0 }}]
[[static]]
name = "weightless"
instances = [{{ ip = "10.0.0.6", port = 80, weight = 0 }}]
[[static]]
name = "lost"
instances = [{{ ip = "nowhere.test", port = 80 }}]
[[static]]
name = "orders.db.example.com"
instances = [{{ ip = "10.0.0.9", port = 80 }}]
[[static]]
name = "ten"
instances = [{ten}]
[[static]]
name = "many"
instances = [{many}]
"""
MANY = [f'{{ ip = "10.1.{n // 200}.{n % 200 + 1}", port = {8000 + n} }}' for n in range(300)]
AGAIN = 10  # so often a packet is asked, so that the last ones come from what is prepared


class LoudUpstream(StubUpstream):
    """Sets every flag that a reply may have."""

    def reply(self, query: DNSRecord, *, over_tcp: bool) -> bytes:
        packet = super().reply(query, over_tcp=over_tcp)
        return packet[:2] + bytes((packet[2] | AA >> 8, packet[3] | AD | Z)) + packet[4:]


@pytest.fixture(scope="module")
def upstream() -> Iterator[StubUpstream]:
    with LoudUpstream() as stub:
        stub.answer("ext.test", "A", "192.0.2.1")
        stub.answer("db.ext.test", "A", "192.0.2.9")
        stub.answer("ext.test", "AAAA")
        stub._records["ext.test", "TYPE65280"] = [RR("ext.test.", 65280, ttl=60, rdata=RDATA(b"\xc0\x0c\xc0\x0c"))]
        stub.rcode("fails.test", "A", "SERVFAIL")
        yield stub


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory, upstream: StubUpstream) -> Iterator[int]:
    text = TEXT.format(upstream=upstream.address, many=", ".join(MANY), ten=", ".join(MANY[:10]))
    running = Bridge(tmp_path_factory.mktemp("conformance"), text=text, modules={})
    try:
        until_says(running.up().port, "orders.nacos", {"10.0.0.1", "10.0.0.2"}, seconds=30)
        yield running.port
    finally:
        running.close()


@pytest.fixture(params=[by_udp, by_tcp], ids=["udp", "tcp"])
def door(request: pytest.FixtureRequest) -> Ask:
    return request.param


class Says(NamedTuple):
    """What a reply must say; ``counts`` None: it has answers. RD is asked for, and echoed, unless ``flags`` says else."""

    rcode: str = "NOERROR"
    flags: int = RD | RA | AA
    counts: tuple[int, int, int] | None = (2, 0, 0)
    has_question: bool = True
    edns: int = -1
    soa: str = ""


GOOD = Says()
ERROR = RD | RA
NOTHING = (0, 0, 0)
DENIED = (0, 1, 0)
FORMERR = Says("FORMERR", ERROR, NOTHING)
UNREADABLE = FORMERR._replace(has_question=False)
REFUSED = Says("REFUSED", ERROR, NOTHING)
NOTIMP = Says("NOTIMP", ERROR, NOTHING)
NOTIMP_BARE = NOTIMP._replace(has_question=False)
NO_DATA = Says(counts=DENIED, soa="nacos.")
NO_NAME = NO_DATA._replace(rcode="NXDOMAIN")
WITH_OPT = Says(edns=0)
BADVERS = Says("BADVERS", ERROR, NOTHING, edns=0)
OUTSIDE = Says(flags=ERROR, counts=(1, 0, 0))
LONGEST = name_to_wire([b"x" * 63] * 3 + [b"y" * 55])[:-1] + b"\5nacos\0"
TSIG = record(250, b"\3mac\0" + bytes(12), owner=b"\3key\0", klass=255)
SIG0 = record(24, bytes(18) + b"\0", owner=b"\0", klass=255)
SOA = record(6, b"\0\0" + bytes(20))
COOKIE, NSID, SUBNET, PADDING = 10, 3, 8, 12

CASES: dict[str, tuple[bytes, Says]] = {
    "1.3 IQUERY": (query(opcode=1, counts=(0, 1, 0, 0), rest=record(1, b"abcd", owner=b"\0")), NOTIMP_BARE),
    "1.3 STATUS": (query(opcode=2), NOTIMP),
    "1.3 STATUS without a question": (query(opcode=2, counts=(0, 0, 0, 0)), NOTIMP_BARE),
    "1.3 opcode 3": (query(opcode=3), NOTIMP),
    "1.3 NOTIFY": (query("nacos", 6, opcode=4, flags=AA, counts=(1, 1, 0, 0), rest=SOA), NOTIMP._replace(flags=RA)),
    "1.3 UPDATE": (query("nacos", 6, opcode=5, flags=0), NOTIMP._replace(flags=RA)),
    "1.3 DSO": (query(opcode=6, flags=0, counts=(0, 0, 0, 0)), NOTIMP_BARE._replace(flags=RA)),
    "1.3 opcode 15": (query(opcode=15), NOTIMP),
    "1.3 opcode 15 with EDNS version 1": (
        query(opcode=15, counts=(1, 0, 0, 1), rest=opt(version=1)),
        NOTIMP._replace(edns=0),
    ),
    "1.3 noise behind another opcode": (query(opcode=4, rest=b"noise"), NOTIMP),
    "1.3 an outside name": (query("ext.test", opcode=4), NOTIMP),
    "1.4 no question": (query(counts=(0, 0, 0, 0)), UNREADABLE),
    "1.4 no question but an OPT": (query(counts=(0, 0, 0, 1), rest=opt()), UNREADABLE),
    "1.4 two questions": (query(counts=(2, 0, 0, 0), rest=query()[12:]), UNREADABLE),
    "1.5 a pointer to itself": (query(b"\xc0\x0c"), UNREADABLE),
    "1.5 two pointers to each other": (query(b"\xc0\x0e\xc0\x0c"), UNREADABLE),
    "1.5 a pointer forward": (query(b"\xc0\x20", rest=b"\6orders\5nacos\0"), UNREADABLE),
    "1.5 a pointer into the header": (query(b"\xc0\x04"), UNREADABLE),
    "1.5 a pointer behind a label": (query(b"\6orders\xc0\x0c"), UNREADABLE),
    "1.5 label type 0x40": (query(b"\x40" + b"x" * 64 + b"\0"), UNREADABLE),
    "1.5 label type 0x80": (query(b"\x80" + b"x" * 64 + b"\0"), UNREADABLE),
    "1.5 256 bytes": (query((b"\x3f" + b"x" * 63) * 3 + b"\x3e" + b"y" * 62 + b"\0"), UNREADABLE),
    "1.5 no end": (query(b"\6orders\5nacos"), UNREADABLE),
    "1.5 half a label": (query()[:20], UNREADABLE),
    "1.5 no class": (query()[:-2], UNREADABLE),
    "1.6 a label without bytes in the middle": (query(b"\6orders\0\5nacos\0"), FORMERR),
    "1.6 trailing bytes": (query(rest=b"x"), FORMERR),
    "1.6 trailing bytes behind an OPT": (edns() + b"x", FORMERR),
    "1.6 a record that is not there": (query(counts=(1, 0, 0, 1)), FORMERR),
    "1.6 65,535 records that are not there": (query(counts=(1, 65535, 65535, 65535)), FORMERR),
    "1.6 RDLENGTH over the end": (query(counts=(1, 0, 0, 1), rest=record(1, b"abcd", size=5)), FORMERR),
    "1.6 an owner that points at itself": (query(counts=(1, 0, 0, 1), rest=record(1, owner=b"\xc0\x1e")), FORMERR),
    "1.6 an owner that points forward": (query(counts=(1, 0, 0, 1), rest=record(1, owner=b"\xc0\x30")), FORMERR),
    "1.6 an owner that grows over 255 bytes": (
        query(
            (b"\x3f" + b"x" * 63) * 3 + b"\0",
            counts=(1, 0, 0, 1),
            rest=record(1, owner=b"\x3f" + b"y" * 63 + b"\xc0\x0c"),
        ),
        FORMERR,
    ),
    "1.7 an answer": (query(counts=(1, 1, 0, 0), rest=record(1, b"abcd")), GOOD),
    "1.7 an authority": (query(counts=(1, 0, 1, 0), rest=record(2, b"\0")), GOOD),
    "1.7 an additional record": (query(counts=(1, 0, 0, 1), rest=record(1, b"abcd")), GOOD),
    "1.7 TSIG": (query(counts=(1, 0, 0, 1), rest=TSIG), GOOD),
    "1.7 OPT and TSIG": (query(counts=(1, 0, 0, 2), rest=opt() + TSIG), WITH_OPT),
    "1.7 TSIG and OPT": (query(counts=(1, 0, 0, 2), rest=TSIG + opt()), WITH_OPT),
    "1.7 SIG(0)": (query(counts=(1, 0, 0, 1), rest=SIG0), GOOD),
    "1.7 TSIG of an outside name": (query("ext.test", counts=(1, 0, 0, 1), rest=TSIG), OUTSIDE),
    "1.8 CH": (query(klass=3), REFUSED),
    "1.8 HS": (query(klass=4), REFUSED),
    "1.8 NONE": (query(klass=254), REFUSED),
    "1.8 ANY": (query(klass=255), REFUSED),
    "1.8 class 0": (query(klass=0), REFUSED),
    "1.8 version.bind": (query("version.bind", 16, 3), REFUSED),
    "1.8 CH outside": (query("ext.test", klass=3), REFUSED),
    "1.9 AXFR": (query("nacos", 252), REFUSED),
    "1.9 IXFR": (query("nacos", 251, counts=(1, 0, 1, 0), rest=SOA), REFUSED),
    "1.9 AXFR of a service": (query(kind=252), REFUSED),
    "1.9 AXFR outside": (query("ext.test", 252), REFUSED),
    "1.9 IXFR outside with EDNS": (edns("ext.test", 251), REFUSED._replace(edns=0)),
    **{f"1.10 type {kind}": (query(kind=kind), FORMERR) for kind in (41, 128, 200, 249, 250, 253, 254)},
    **{f"1.10 type {kind} outside": (query("ext.test", kind), FORMERR) for kind in (41, 128, 249, 250, 253, 254)},
    "1.10 in class CH": (query(kind=41, klass=3), REFUSED),
    "2.1 no RD, CD": (query(flags=CD), GOOD._replace(flags=RA | AA | CD)),
    "2.1 RD, CD, denied": (query("nosuch.nacos", flags=RD | CD), NO_NAME._replace(flags=RD | RA | AA | CD)),
    "2.1 CD outside": (query("ext.test", flags=RD | CD), OUTSIDE._replace(flags=ERROR | CD)),
    "2.2 capitals": (query("OrDeRs.nAcOs"), GOOD),
    "2.2 capitals outside": (query("eXt.TeSt"), OUTSIDE),
    "2.2 capitals in a refusal": (query("OrDeRs.nAcOs", 252), REFUSED),
    "2.2 a root name": (query(".", 252), REFUSED),
    "2.2 a name of 255 bytes": (query(LONGEST), NO_NAME),
    "2.3 a denial": (query("nosuch.nacos"), NO_NAME),
    "2.3 outside": (query("ext.test"), OUTSIDE),
    "2.3 outside, denied": (query("ext.test", 28), Says(flags=ERROR, counts=DENIED, soa="test.")),
    "2.5 AD of ours": (query(flags=RD | AD), GOOD),
    "2.5 DO of ours": (edns(flags=RD | AD), WITH_OPT),
    "2.5 AD outside": (query("ext.test", flags=RD | AD), OUTSIDE._replace(flags=ERROR | AD)),
    "2.5 outside without AD": (query("ext.test"), OUTSIDE),
    "2.6 Z": (query(flags=RD | Z), GOOD),
    "2.6 Z outside": (query("ext.test", flags=RD | Z), OUTSIDE),
    "2.6 Z, denied": (query("nosuch.nacos", flags=RD | Z), NO_NAME),
    "2.6 AA, TC, RA and an rcode": (query(flags=RD | AA | TC | RA | 5), GOOD),
    "2.6 AA, TC, RA and an rcode outside": (query("ext.test", flags=RD | AA | TC | RA | 5), OUTSIDE),
    "2.8 no RD outside": (query("ext.test", flags=0), OUTSIDE._replace(flags=RA)),
    "3.1 an OPT": (edns(), WITH_OPT),
    "3.1 an OPT, denied": (edns("nosuch.nacos"), NO_NAME._replace(edns=0)),
    "3.1 an OPT, refused": (edns(kind=252), REFUSED._replace(edns=0)),
    "3.1 an OPT outside": (edns("ext.test"), OUTSIDE._replace(edns=0)),
    "3.1 no OPT": (query(), GOOD),
    **{f"3.3 version {version}": (edns(version=version), BADVERS) for version in (1, 100, 255)},
    "3.3 version 1 outside": (edns("ext.test", version=1), BADVERS),
    "3.3 version 1 with an option": (edns(version=1, options=option(100, b"hi")), BADVERS),
    "3.3 version 1 with half an option": (edns(version=1, options=b"\0\x64\0\xffhi"), BADVERS),
    "3.3 version 1 of a transfer": (edns(kind=252, version=1), BADVERS),
    "3.4 option 100": (edns(options=option(100, b"hi")), WITH_OPT),
    "3.4 NSID": (edns(options=option(NSID, b"")), WITH_OPT),
    "3.4 client subnet": (edns(options=option(SUBNET, b"\0\1\x18\0\xc0\0\2")), WITH_OPT),
    "3.4 padding and an empty option": (edns(options=option(PADDING, bytes(40)) + option(65001, b"")), WITH_OPT),
    "3.4 the same option twice": (edns(options=option(100, b"hi") * 2), WITH_OPT),
    "3.4 option 100 outside": (edns("ext.test", options=option(100, b"hi")), OUTSIDE._replace(edns=0)),
    "3.5 a client cookie": (edns(options=option(COOKIE, b"abcdefgh")), WITH_OPT),
    "3.5 a cookie of a server": (edns(options=option(COOKIE, bytes(24))), WITH_OPT),
    "3.5 a cookie of three bytes": (edns(options=option(COOKIE, b"abc")), WITH_OPT),
    "3.6 an option over the end": (edns(options=b"\0\x0a\0\x08abc"), FORMERR),
    "3.6 half an option's head": (edns(options=b"\0\x0a\0"), FORMERR),
    "3.6 RDLENGTH over the end": (edns()[:-1] + b"\5", FORMERR),
    "3.6 two": (query(counts=(1, 0, 0, 2), rest=opt() * 2), FORMERR),
    "3.6 two of version 1": (query(counts=(1, 0, 0, 2), rest=opt(version=1) * 2), FORMERR),
    "3.6 an owner": (query(counts=(1, 0, 0, 1), rest=opt(owner=b"\1a\0")), FORMERR),
    "3.6 an owner by a pointer": (query(counts=(1, 0, 0, 1), rest=opt(owner=b"\xc0\x0c")), FORMERR),
    "3.6 in the answer section": (query(counts=(1, 1, 0, 0), rest=opt()), FORMERR),
    "3.6 in the authority section": (query(counts=(1, 0, 1, 0), rest=opt()), FORMERR),
    "3.7 an extended rcode": (edns(rcode=5), WITH_OPT),
    "5.4 AAAA of IPv4": (query(kind=28), NO_DATA),
    **{
        f"5.4 type {kind}": (query(kind=kind), NO_DATA) for kind in (5, 6, 13, 15, 43, 65, 127, 256, 1000, 65280, 65535)
    },
    **{f"5.5 type {kind}": (query("nosuch.nacos", kind), NO_NAME) for kind in (1, 28, 16, 33, 65, 255, 65280)},
    **{f"5.6 {name}": (query(name), NO_DATA) for name in ("b.c.nacos", "c.nacos", "group.nacos", "_tcp.orders.nacos")},
    "5.7 a zone asked as xn--": (query("nosuch.xn--fsq"), NO_NAME._replace(soa="xn--fsq.")),
    "5.7 a zone asked in UTF-8": (query("nosuch.例"), NO_NAME._replace(soa="\\228\\190\\139.")),
    "5.8 SOA": (query("nacos", 6), Says(counts=(1, 0, 0))),
    "5.8 SOA of a zone asked as xn--": (query("xn--fsq", 6), Says(counts=(1, 0, 0))),
    "5.8 NS": (query("nacos", 2), Says(counts=(1, 0, 1))),
    "5.8 A": (query("nacos"), NO_DATA),
    "5.9 a service": (query(kind=255), Says(counts=(1, 0, 0))),
    "5.9 the zone": (query("nacos", 255), Says(counts=(1, 0, 0))),
    "5.10 a single label": (query("orders", 28), NO_DATA._replace(soa="orders.")),
    "5.10 a name of several": (query("orders.db.example.com", 28), NO_DATA._replace(soa="orders.db.example.com.")),
    "5.10 capitals": (query("ORDERS", 28), NO_DATA._replace(soa="orders.")),
    "5.10 the SOA itself": (query("orders", 6), Says(counts=(1, 0, 0))),
    "5.10 an address": (query("orders"), GOOD),
    "5.12 a single label and no catalogue": (query("unheard"), Says("SERVFAIL", ERROR, NOTHING)),
    **{f"5.15 type {kind}": (query("weightless.nacos", kind), NO_DATA) for kind in (1, 28, 33, 16, 5)},
    "5.15 a name of a port": (query("_80._tcp.weightless.nacos", 33), NO_DATA),
    "5.15 a bare name": (query("weightless"), NO_DATA._replace(soa="weightless.")),
    "5.13 A": (query("canary.nacosdns.invalid"), Says(counts=(1, 0, 0))),
    "5.13 AAAA": (query("canary.nacosdns.invalid", 28), NO_DATA._replace(soa="canary.nacosdns.invalid.")),
    "6.2 no such name": (query("nx.test"), Says("NXDOMAIN", ERROR, DENIED, soa="test.")),
    "6.4 an upstream that fails": (query("fails.test"), Says("SERVFAIL", ERROR, NOTHING)),
}


def saying(reply: Read, packet: bytes) -> Says:
    """What a reply says, of what ``Says`` holds; every reply has the id, the opcode and no byte of its own."""
    assert (reply.packet[:2], reply.opcode) == (IDENT, packet[2] >> 3 & 15)
    assert reply.packet[2] & QR >> 8
    assert (reply.message.payload, reply.message.ednsflags & 0xFFFF) in {(0, 0), (1232, 0)}
    assert not reply.message.options
    has_question = bool(reply.question)
    assert not has_question or packet.startswith(reply.question, 12)
    return Says(reply.rcode, reply.flags, reply.counts, has_question, reply.message.edns, reply.soa.lower())


@pytest.mark.parametrize(("packet", "says"), CASES.values(), ids=CASES)
def test_every_reply_is_what_the_page_says_by_every_door_and_again(
    port: int, door: Ask, packet: bytes, says: Says
) -> None:
    """docs/answers.md 2.4: RA is in all of them."""
    for _ in range(AGAIN):
        assert saying(read(door(packet, port)), packet) == says


@pytest.mark.parametrize("name", ["orders.nacos", "nosuch.nacos", "ext.test", "fails.test"])
@pytest.mark.parametrize("flags", [DO, DO | 0x40FF, 0x40FF])
def test_of_the_flags_of_an_opt_only_do_comes_back(port: int, door: Ask, name: str, flags: int) -> None:
    """docs/answers.md 3.2, 2.5: DO asks for AD, too."""
    for _ in range(AGAIN):
        reply = read(door(query(name, counts=(1, 0, 0, 1), rest=opt(flags=flags)), port))

        assert reply.message.ednsflags & 0xFFFF == flags & DO
        assert bool(reply.flags & AD) == (name == "ext.test" and bool(flags & DO))


@pytest.mark.parametrize("size", range(12))
def test_what_is_shorter_than_a_header_gets_no_reply(port: int, size: int) -> None:
    """docs/answers.md 1.1."""
    assert is_silent(query()[:size], port)
    assert by_tcp(query()[:size], port) == b""


@pytest.mark.parametrize(
    "packet", [query(flags=QR | RD), query(flags=QR, opcode=4), query(flags=QR)[:20], edns(flags=QR)]
)
def test_a_reply_gets_no_reply(port: int, packet: bytes) -> None:
    """docs/answers.md 1.2."""
    assert is_silent(packet, port)
    assert by_tcp(packet, port) == b""


@pytest.mark.parametrize("last", [query(flags=QR), query()[:11], b""], ids=["a reply", "half a header", "nothing"])
def test_by_tcp_what_was_asked_before_the_end_is_answered(port: int, last: bytes) -> None:
    """docs/answers.md 1.1, 1.2."""
    messages = (query(), query("ext.test"), last)
    with socket.create_connection(("127.0.0.1", port), 5) as sock, sock.makefile("rb") as stream:
        sock.sendall(b"".join(len(packet).to_bytes(2, "big") + packet for packet in messages))
        replies = [read(stream.read(int.from_bytes(stream.read(2), "big"))) for _ in range(2)]

        assert [reply.rcode for reply in replies] == ["NOERROR", "NOERROR"]
        assert stream.read() == b""


def test_a_datagram_of_more_than_2048_bytes_gets_no_reply(port: int) -> None:
    """docs/answers.md 1.12."""
    packets = [edns(options=option(PADDING, bytes(size - len(edns()) - 4))) for size in (2048, 2049, 65507, 65535)]

    assert [len(packet) for packet in packets] == [2048, 2049, 65507, 65535]
    assert read(by_udp(packets[0], port)).rcode == "NOERROR"
    assert all(is_silent(packet, port) for packet in packets[1:3])
    assert {read(by_tcp(packet, port)).rcode for packet in packets} == {"NOERROR"}


def test_many_records_whose_owners_are_long_chains_of_pointers_are_formerr(port: int) -> None:
    """docs/answers.md 1.6: to follow each chain to its end would take the front seconds, and it would be killed."""
    start = len(query()) + 11
    places = range(start + 1, 0x3FFE, 2)
    chain = b"\0" + b"".join((0xC000 | max(start, at - 2)).to_bytes(2, "big") for at in places)
    count = (65535 - start - len(chain)) // 12
    behind = record(1, owner=(0xC000 | places[-1]).to_bytes(2, "big")) * count
    packet = query(counts=(1, 0, 0, 1 + count), rest=record(999, chain, owner=b"\0") + behind)

    assert len(packet) > 65500
    assert read(by_tcp(packet, port)).rcode == "FORMERR"
    assert read(by_tcp(query(), port)).rcode == "NOERROR"


@pytest.mark.parametrize(
    ("packet", "at_most"),
    [
        (query("many.nacos"), 512),
        (query("many.nacos", 33), 512),
        (edns("many.nacos", size=0), 512),
        (edns("many.nacos", size=511), 512),
        (edns("many.nacos", size=700), 700),
        (edns("many.nacos", 33, size=1232), 1232),
        (edns("many.nacos", size=65535), 1232),
    ],
    ids=["4.1 A", "4.1 SRV", "4.2 size 0", "4.2 size 511", "4.2 size 700", "4.2 SRV of 1232", "4.2 size 65535"],
)
def test_by_udp_a_reply_is_cut_to_what_the_client_takes(port: int, packet: bytes, at_most: int) -> None:
    """docs/answers.md 2.7, 4.3: whole records, no glue, and as many as there is room for."""
    for _ in range(AGAIN):
        reply = read(by_udp(packet, port))
        each = len(reply.packet) // reply.counts[0] + 5

        assert at_most - each < len(reply.packet) <= at_most
        assert reply.flags & TC
        assert reply.counts[1:] == (0, 0)


def test_glue_goes_before_an_answer_does(port: int) -> None:
    """docs/answers.md 4.3, 2.7."""
    for _ in range(AGAIN):
        reply = read(by_udp(query("ten.nacos", 33), port))

        assert reply.counts[0] == 10
        assert 0 < reply.counts[2] < 10
        assert not reply.flags & TC


@pytest.mark.parametrize("kind", [1, 33])
def test_by_tcp_all_of_it_comes(port: int, kind: int) -> None:
    """docs/answers.md 4.4, 2.7."""
    for packet in (query("many.nacos", kind), edns("many.nacos", kind, size=512)):
        reply = read(by_tcp(packet, port))

        assert reply.counts[0] == 300
        assert not reply.flags & TC


def test_the_denial_of_the_longest_name_keeps_its_soa(port: int) -> None:
    """docs/answers.md 4.5."""
    assert len(LONGEST) == 255
    for packet in (query(LONGEST), edns(LONGEST, size=0)):
        reply = read(by_udp(packet, port))

        assert (reply.soa, reply.flags & TC) == ("nacos.", 0)
        assert len(reply.packet) <= 512


def test_addresses_and_ports_are_those_of_the_instances(port: int, door: Ask) -> None:
    """docs/answers.md 5.1, 5.2, 5.3."""
    for _ in range(AGAIN):
        a, srv, txt, one = (
            read(door(query(name, kind), port))
            for name, kind in (
                ("orders.nacos", 1),
                ("ORDERS.nacos", 33),
                ("tagged.nacos", 16),
                ("_81._tcp.orders.nacos", 33),
            )
        )

        assert (a.data, a.ttls) == (["10.0.0.1", "10.0.0.2"], {7})
        assert (srv.data, srv.ttls) == (
            ["0 1 80 10-0-0-1.addr.nacos.", "0 1 81 10-0-0-2.addr.nacos.", "0 1 82 10-0-0-2.addr.nacos."],
            {7},
        )
        assert srv.packet.count(b"\x0810-0-0-2\4addr\5nacos\0") == 3  # in each target and in one owner of glue
        assert sorted(rrset[0].to_text() for rrset in srv.message.additional) == ["10.0.0.1", "10.0.0.2"]
        assert txt.data == ['"zone=bj"']
        assert one.data == ["0 1 81 10-0-0-2.addr.nacos."]


@pytest.mark.parametrize(
    "name", ["nosuch.nacos", "group.nacos", "orders", "_99._tcp.orders.nacos", "10-9-9-9.addr.nacos"]
)
def test_a_denial_may_be_kept_for_the_negative_ttl(port: int, door: Ask, name: str) -> None:
    """docs/answers.md 5.7: the TTL of the SOA and its minimum are the same (RFC 2308 3)."""
    for _ in range(AGAIN):
        (rrset,) = read(door(query(name, 28), port)).message.authority

        assert (rrset.ttl, rrset[0].minimum) == (3, 3)


def test_the_zone_says_who_it_is(port: int, door: Ask) -> None:
    """docs/answers.md 5.8, 5.9."""
    soa, ns, any_type = (read(door(query("nacos", kind), port)) for kind in (6, 2, 255))

    assert soa.data == ["nacos. hostmaster.nacos. 1 3600 600 86400 3"]
    assert ns.data == ["127-0-0-1.addr.nacos."]
    assert ns.message.additional[0].to_text() == "127-0-0-1.addr.nacos. 7 IN A 127.0.0.1"
    assert any_type.data == ['"RFC8482" ""']
    assert read(door(query("xn--fsq", 6), port)).message.answer[0].name.to_text() == "xn--fsq."


def test_a_service_with_a_host_name_is_an_alias(port: int, door: Ask) -> None:
    """docs/answers.md 5.11: the rcode and the SOA are those of the alias's end (RFC 6604, 2308)."""
    found, denied, other = (
        read(door(query(name, kind), port)) for name, kind in (("away.nacos", 1), ("lost.nacos", 1), ("away.nacos", 15))
    )

    assert (found.data, found.flags) == (["192.0.2.9", "db.ext.test."], RD | RA | AA)
    assert (denied.rcode, denied.data, denied.soa) == ("NXDOMAIN", ["nowhere.test."], "test.")
    assert (other.rcode, other.counts, other.soa) == ("NOERROR", DENIED, "nacos.")


def test_a_host_name_is_the_target_of_srv_and_gives_way_to_addresses(port: int, door: Ask) -> None:
    """docs/answers.md 5.2, 5.11, 5.14."""
    for _ in range(AGAIN):
        alias, srv, a, both, sick = (
            read(door(query(name, kind), port))
            for name, kind in (
                ("away.nacos", 5),
                ("away.nacos", 33),
                ("mixed.nacos", 1),
                ("mixed.nacos", 33),
                ("sick.nacos", 1),
            )
        )

        assert alias.data == ["db.ext.test."]
        assert (srv.data, srv.counts) == (["0 1 80 db.ext.test."], (1, 0, 0))
        assert a.data == ["10.0.0.5"]
        assert (both.data, both.counts) == (["0 1 80 10-0-0-5.addr.nacos.", "0 1 80 db.ext.test."], (2, 0, 1))
        assert sick.data == ["10.0.0.8"]


def until(door: Ask, port: int, packet: bytes, holds: Callable[[Read], bool]) -> Read:
    """Asks until a reply is so; fails after ten seconds."""
    end = time.monotonic() + 10
    while not holds(reply := read(door(packet, port))):
        assert time.monotonic() < end, reply.message
        time.sleep(0.05)
    return reply


def test_an_outside_answer_counts_down_and_is_served_stale_when_the_upstream_fails(
    port: int, door: Ask, upstream: StubUpstream
) -> None:
    """docs/answers.md 6.1, 6.3, 2.3."""
    name = f"{door.__name__.replace('_', '-')}.fades.test"
    upstream.answer(name, "A", "192.0.2.7", ttl_s=3)
    first = read(door(query(name), port))
    upstream.rcode(name, "A", "SERVFAIL")
    later = until(door, port, query(name), lambda reply: reply.ttls <= {1, 2})
    stale = until(door, port, query(name), lambda reply: reply.ttls == {30})

    assert (first.ttls, first.data) == ({3}, ["192.0.2.7"])
    assert {later.flags, stale.flags} == {ERROR}
    assert (stale.rcode, stale.data) == ("NOERROR", ["192.0.2.7"])


def test_what_an_upstream_cuts_is_asked_for_by_tcp_and_cut_to_what_the_client_takes(
    port: int, upstream: StubUpstream
) -> None:
    """docs/answers.md 6.5."""
    upstream.answer("long.test", "A", *(f"192.0.2.{n}" for n in range(100)))
    upstream.truncates = True
    try:
        cut, whole = read(by_udp(query("long.test"), port)), read(by_tcp(query("long.test"), port))
    finally:
        upstream.truncates = False

    assert (cut.flags, whole.flags) == (ERROR | TC, ERROR)
    assert len(cut.packet) <= 512
    assert (cut.counts[0] > 20, whole.counts[0]) == (True, 100)


def test_an_outside_record_of_an_unknown_type_is_passed_on_as_it_came(port: int, door: Ask) -> None:
    """docs/answers.md 6.6: what looks like a pointer in it is none (RFC 3597 4)."""
    for _ in range(AGAIN):
        assert read(door(query("ext.test", 65280), port)).data == ["\\# 4 c00cc00c"]


def test_an_answer_without_dnssec_is_not_given_to_who_asks_with_it(port: int, upstream: StubUpstream) -> None:
    """docs/answers.md 6.7: DO and CD each are a question of their own; what a client writes besides goes nowhere."""
    upstream.answer("signed.test", "A", "192.0.2.8")
    for packet in (
        query("signed.test"),
        query("signed.test", flags=RD | CD | Z | AA),
        query("signed.test", counts=(1, 0, 0, 1), rest=opt(4096, flags=DO | 1, options=option(COOKIE, b"abcdefgh"))),
        query("signed.test", counts=(1, 0, 0, 2), rest=opt(flags=DO) + TSIG, flags=RD | CD),
    ):
        for _ in range(AGAIN):
            assert read(by_udp(packet, port)).data == ["192.0.2.8"]
    asked = [seen.packet for seen in upstream.seen if seen.name == "signed.test"]

    assert [packet[3] & CD for packet in asked] == [0, CD, 0, CD]
    assert {int.from_bytes(packet[2:4], "big") & ~CD for packet in asked} == {RD | AD}
    assert [packet[-11:] for packet in asked] == [opt(), opt(), opt(flags=DO), opt(flags=DO)]


def test_a_connection_takes_many_questions_and_errors_do_not_end_it(port: int, upstream: StubUpstream) -> None:
    """docs/answers.md 7.1, 7.2: a question that waits does not hold up those behind it."""
    upstream.mute_names.add("slow.test")
    packets = [
        query("slow.test"),
        query(),
        query(rest=b"x"),
        query(opcode=2),
        query(counts=(0, 0, 0, 0)),
        query(kind=252),
        query(),
    ]
    sent = [bytes((0, number)) + packet[2:] for number, packet in enumerate(packets)]
    with socket.create_connection(("127.0.0.1", port), 5) as sock, sock.makefile("rb") as stream:
        stream_bytes = b"".join(len(packet).to_bytes(2, "big") + packet for packet in sent)
        for at in range(0, len(stream_bytes), 3):
            sock.sendall(stream_bytes[at : at + 3])
        sock.shutdown(socket.SHUT_WR)
        replies = [read(stream.read(int.from_bytes(stream.read(2), "big"))) for _ in packets]

        assert stream.read() == b""

    assert [reply.packet[1] for reply in replies] == [1, 2, 3, 4, 5, 6, 0]
    assert [reply.rcode for reply in replies] == [
        *("NOERROR", "FORMERR", "NOTIMP", "FORMERR", "REFUSED", "NOERROR", "SERVFAIL")
    ]


def test_a_silent_connection_is_closed(port: int) -> None:
    """docs/answers.md 7.3."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(b"\0")

        assert sock.recv(1) == b""
