"""dnslib's faults stay outside: what it gets wrong, our rooms read themselves or show as bytes. One test for each.

Seen with dnslib 0.9.26. The wire code does not use it at all; the command line does, for types that it alone knows.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.wire import edns, opt, option, query, read, record
from nacosdns.core import dnswire
from nacosdns.core.model import Answer, Rcode
from nacosdns.errors import WireError
from nacosdns.spelled import reply

NAME = b"\3ext\4test\0"
A, NS, CNAME, SOA, HINFO, MX, TXT, RP, AAAA, SRV, NAPTR, TLSA, HTTPS, CAA = (
    1,
    2,
    5,
    6,
    13,
    15,
    16,
    17,
    28,
    33,
    35,
    52,
    65,
    257,
)


def answered(kind: int, rdata: bytes) -> bytes:
    """A reply with one record of this type."""
    head = b"\0\1\x81\x80\0\1\0\1\0\0\0\0" + NAME + kind.to_bytes(2, "big") + b"\0\1"
    return head + record(kind, rdata)


def data(kind: int, rdata: bytes) -> str:
    """What `ask` shows of the record."""
    (shown,) = reply(answered(kind, rdata))["answers"]  # type: ignore[misc]
    return str(shown["data"])


def test_the_upper_bits_of_an_rcode_count() -> None:
    """It reads the four bits of the header, so that BADVERS is NOERROR."""
    packet = dnswire.render(
        dnswire.parse_query(edns(version=1)), Answer(rcode=Rcode.BADVERS, authoritative=False), size_max=512
    )

    assert reply(packet)["rcode"] == "BADVERS"


@pytest.mark.parametrize(
    ("kind", "rdata", "text"),
    [
        (CNAME, b"\3a.b\4test\0", r"a\.b.test."),
        (NS, b"\3a\\b\4test\0", r"a\\b.test."),
        (MX, b"\0\x0a\3a b\xc0\x0c", r"10 a\032b.ext.test."),
        (SRV, b"\0\1\0\2\0\x50\6\xe4\xbe\x8b.b1\0", r"1 2 80 例\.b1."),
        (SOA, b"\1.\xc0\x0c\0" + bytes(19) + b"\5", r"\..ext.test. . 0 0 0 0 5"),
    ],
)
def test_a_dot_inside_a_label_is_no_end_of_a_label(kind: int, rdata: bytes, text: str) -> None:
    """It writes dots, blanks and backslashes as they are: another name than the one that came."""
    assert data(kind, rdata) == text


@pytest.mark.parametrize(
    ("label", "is_read"), [(b"\x3f" + b"x" * 63, True), (b"\x40" + b"x" * 64, False), (b"\x7f" + b"x" * 127, False)]
)
def test_a_label_of_64_bytes_and_more_is_none(label: bytes, is_read: bool) -> None:
    """It takes the types 0x40 and 0x7f as lengths, and cannot pack what it has read."""
    assert data(CNAME, label + b"\0").startswith("xxx" if is_read else r"\# ")

    if not is_read:
        with pytest.raises(WireError):
            dnswire.parse_query(query(label + b"\0"))


@pytest.mark.parametrize("packet", [query(counts=(0, 0, 0, 0)), query(counts=(0, 0, 0, 1), rest=opt())])
def test_no_question_is_made_up(packet: bytes) -> None:
    """Without one, it says that the root's address was asked for."""
    assert read(dnswire.error_reply(packet, Rcode.FORMERR)).question == b""


def test_what_stands_behind_the_last_record_is_malformed() -> None:
    """It does not look."""
    with pytest.raises(WireError):
        dnswire.parse_query(query(rest=b"more"))


def test_a_reply_that_is_cut_keeps_its_question_and_its_opt() -> None:
    """Its ``truncate`` makes a header alone, which no resolver takes for the answer to its question."""
    asked = dnswire.parse_query(edns("Orders.nacos", size=512))
    answers = tuple(dnswire.address_record(asked.name, 1, f"10.0.0.{n}") for n in range(99))
    cut = read(dnswire.render(asked, Answer(answers=answers), size_max=512))

    assert (cut.question, cut.message.edns) == (asked.question, 0)
    assert cut.counts[0] > 20


def test_the_last_option_may_be_empty() -> None:
    """It leaves out an option without data at the end of an OPT record, as NSID is asked for."""
    asked = dnswire.parse_query(edns(options=option(10, b"abcdefgh") + option(3, b"")))

    assert asked.edns is not None
    assert asked.edns.options == ((10, b"abcdefgh"), (3, b""))


@pytest.mark.parametrize("address", ["db", "::1::", "10.0.0.256", "10.0.0", ""])
def test_what_is_no_address_is_one_error_of_ours(address: str) -> None:
    """Its ``A`` raises what ``int`` or ``bytes`` do, or packs something."""
    with pytest.raises(WireError, match="address"):
        dnswire.address_record(NAME, 1, address)


@pytest.mark.parametrize(
    ("kind", "rdata"),
    [
        (A, b"abcde"),
        (A, b"abc"),
        (AAAA, b"abcd"),
        (TXT, b"\x09ab"),
        (SRV, b"\0\1\0\1"),
        (SRV, b"\0\1\0\1\0\x50\xc0\x2f"),
        (MX, b"\0\x0a\xc0\x0cx"),
        (SOA, b"\0\0\1"),
        (CNAME, b"\x3fabc"),
        (CAA, b"\0\xffis"),
    ],
)
def test_rdata_that_is_not_of_its_type_is_shown_as_bytes(kind: int, rdata: bytes) -> None:
    """It raises, or reads five bytes as an address of four and goes on in the middle of the record."""
    assert data(kind, rdata) == rf"\# {len(rdata)} {rdata.hex()}"


@pytest.mark.parametrize("kind", [A, TXT, CNAME, TLSA])
def test_a_record_without_rdata_is_a_record(kind: int) -> None:
    """It refuses the whole reply ("Empty RR")."""
    assert data(kind, b"") == r"\# 0"


@pytest.mark.parametrize(
    ("kind", "rdata"),
    [(NAPTR, b"\0\1\0\1\1u\7E2U\xff\xfdip\0\0"), (HTTPS, b"\0\1\0\0\1\0\x03\xfdh2")],
    ids=["UnicodeDecodeError", "BufferError"],
)
def test_an_exception_that_is_not_its_own_does_not_get_out(kind: int, rdata: bytes) -> None:
    """Only some of what goes wrong is a DNSError."""
    assert data(kind, rdata).startswith(r"\# ")


@pytest.mark.parametrize(
    ("rdata", "text"),
    [
        (b"\3a\nb", r'"a\010b"'),
        (b"\5\x1b[31m", r'"\027[31m"'),
        (b'\4a"\\b', r'"a\"\\b"'),
        (b"\2\xff\xe4", r'"\255\228"'),
        ("\6订单".encode(), '"订单"'),
        (b"\0\1b", '"" "b"'),
    ],
)
def test_text_is_shown_so_that_it_can_be_read_back(rdata: bytes, text: str) -> None:
    """It writes control characters in octal, quotes bare, and what is not UTF-8 as a question mark."""
    assert data(TXT, rdata) == text


def test_a_terminal_gets_no_control_character() -> None:
    """It writes the parameters of HTTPS that it does not know as they came."""
    rdata = b"\0\1\0\xff\0\0\5\x1b[31m"

    assert data(HTTPS, rdata) == rf"\# {len(rdata)} {rdata.hex()}"


@pytest.mark.parametrize(
    ("kind", "rdata", "text"),
    [
        (A, b"\x0a\0\0\1", "10.0.0.1"),
        (AAAA, bytes(15) + b"\1", "::1"),
        (HINFO, b"\7RFC8482\0", '"RFC8482" ""'),
        (HTTPS, b"\0\1\0\0\1\0\3\2h2", "1 . alpn=h2"),
        (RP, NAME + b"\xc0\x0c", "ext.test. ext.test."),
        (999, b"abc", r"\# 3 616263"),
    ],
)
def test_what_it_reads_well_is_shown_as_it_writes_it(kind: int, rdata: bytes, text: str) -> None:
    assert data(kind, rdata) == text


RDATA = [
    *((A, b"abcd"), (AAAA, bytes(16)), (TXT, b"\4text"), (MX, b"\0\x0a\xc0\x0c"), (SRV, b"\0\1\0\1\0\x50\xc0\x0c")),
    *((SOA, b"\0\0" + bytes(20)), (NAPTR, b"\0\1\0\1\1u\7E2U+sip\0\0"), (HTTPS, b"\0\1\0\0\1\0\3\2h2")),
    *((CAA, b"\0\5issueca"), (TLSA, b"\3\1\1abc"), (46, b"\0\1\x08\2" + bytes(14) + b"\0sig"), (47, b"\0\0\1\x40")),
    *((29, bytes(16)), (48, b"\1\0\3\x08abc"), (44, b"\1\1abc"), (43, b"\0\1\x08\2abc"), (RP, NAME + NAME)),
]


@settings(max_examples=1000)
@given(st.sampled_from(RDATA), st.integers(0, 2**32))
def test_whatever_a_reply_holds_it_is_shown_or_malformed(of: tuple[int, bytes], seed: int) -> None:
    packet, noise = bytearray(answered(*of)), random.Random(seed)
    for _ in range(noise.randint(0, 3)):
        packet[noise.randrange(12, len(packet))] = noise.randrange(256)
    try:
        shown = reply(bytes(packet))
    except WireError:
        return

    answers: list[dict[str, object]] = shown["answers"]  # type: ignore[assignment]
    assert all(f"{one['name']}{one['data']}".isprintable() for one in answers)
