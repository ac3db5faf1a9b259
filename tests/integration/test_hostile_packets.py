"""Odd packets at the doors of the real program: each gets its error or silence, and the next good query its answer."""

from __future__ import annotations

import random
import socket
import struct
from typing import TYPE_CHECKING

import dns.edns
import dns.flags
import dns.message
import dns.query
import dns.rcode
import pytest

from fakes.asking import addresses, ask, until_says
from fakes.running import TWO_ORDERS, Bridge

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
QUESTION = b"\6orders\5nacos\0\0\1\0\1"
GOOD = HEADER + QUESTION
FORMERR, REFUSED = 1, 5
UNREADABLE = {
    "no-question": HEADER[:4] + b"\0\0" + HEADER[6:],
    "two": HEADER[:4] + b"\0\2" + HEADER[6:] + QUESTION * 2,
    "self": HEADER + b"\xc0\x0c\0\1\0\1",
    "loop": HEADER + b"\xc0\x0e\xc0\x0c\0\1\0\1",
    "forward": HEADER + b"\xc0\x20" + b"\0\1\0\1",
    "label-0x40": HEADER + b"\x40" + b"x" * 64 + b"\0\0\1\0\1",
    "label-0x80": HEADER + b"\x80" + b"x" * 64 + b"\0\0\1\0\1",
    "256-bytes": HEADER + b"\x3f" + b"x" * 63 + (b"\x3f" + b"x" * 63) * 3 + b"\0\0\1\0\1",
    "trailing": GOOD + b"garbage",
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    many = ", ".join(f'{{ ip = "10.1.{n // 250}.{n % 250 + 1}", port = 80 }}' for n in range(5000))
    text = f'{TWO_ORDERS}[[static]]\nname = "many"\ninstances = [{many}]\n'
    running = Bridge(tmp_path_factory.mktemp("hostile"), text=text, modules={})
    try:
        until_says(running.up().port, "orders.nacos", {"10.0.0.1", "10.0.0.2"}, seconds=30)
        yield running.port
    finally:
        running.close()


def send(port: int, *packets: bytes) -> list[bytes]:
    """The replies to these packets; a good query behind them shows that all were looked at."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", port))
        replies = []
        for packet in packets:
            sock.send(packet)
            sock.send(b"\xfe\xdc" + GOOD[2:])
            replies += _until_last(sock)
    return replies


def _until_last(sock: socket.socket) -> list[bytes]:
    replies = [sock.recv(65535)]
    while replies[-1][:2] != b"\xfe\xdc":
        replies.append(sock.recv(65535))
    assert replies[-1][3] & 15 == 0
    return replies[:-1]


def test_under_twelve_bytes_is_silence(port: int) -> None:
    """S60."""
    assert send(port, *(GOOD[:length] for length in range(12))) == []


def test_every_cut_of_a_good_query_is_formerr_with_its_id(port: int) -> None:
    """S60."""
    replies = send(port, *(GOOD[:length] for length in range(12, len(GOOD))))

    assert len(replies) == len(GOOD) - 12
    assert {(reply[:2], reply[3] & 15) for reply in replies} == {(b"\x12\x34", FORMERR)}


@pytest.mark.parametrize("packet", UNREADABLE.values(), ids=UNREADABLE)
def test_a_question_that_cannot_be_read_is_formerr_with_its_id(port: int, packet: bytes) -> None:
    """S60: what is behind the last record is no DNS either."""
    replies = send(port, packet)

    assert [(reply[:2], reply[3] & 15) for reply in replies] == [(b"\x12\x34", FORMERR)]


def test_by_tcp_too_each_is_formerr_and_the_connection_goes_on(port: int) -> None:
    """S60."""
    with socket.create_connection(("127.0.0.1", port), 5) as sock, sock.makefile("rb") as stream:
        for packet in (*UNREADABLE.values(), *(GOOD[:length] for length in range(12, len(GOOD))), GOOD):
            sock.sendall(struct.pack("!H", len(packet)) + packet)
            reply = stream.read(int.from_bytes(stream.read(2), "big"))

            assert (reply[:2], reply[3] & 15) == (packet[:2], 0 if packet is GOOD else FORMERR)


def test_the_largest_datagram_of_noise_harms_nobody(port: int) -> None:
    """S60."""
    noise = random.Random(1)
    replies = send(port, *(noise.randbytes(65_507) for _ in range(4)), *(noise.randbytes(300) for _ in range(300)))

    assert all(reply[3] & 15 for reply in replies)
    assert addresses(port, "orders.nacos")


def test_a_reply_is_never_answered_whatever_else_it_is(port: int) -> None:
    """S61: by UDP silence, malformed or not; two servers cannot be set upon each other by a forged one."""
    replies = [bytes([*packet[:2], packet[2] | 0x80, *packet[3:]]) for packet in (GOOD, GOOD[:20], GOOD + b"x", HEADER)]

    assert send(port, *replies, ask(port, "orders.nacos").to_wire()) == []


@pytest.mark.parametrize("opt", [b"", b"\0\0\x29\x04\xd0\0\0\0\0\0\0"], ids=["plain", "edns"])
def test_a_refusal_is_no_larger_than_its_question(port: int, opt: bytes) -> None:
    """S85: nothing for an amplifier; a zone transfer is refused as a stranger's question is."""
    packet = HEADER[:11] + bytes([bool(opt)]) + QUESTION[:-4] + b"\0\xfc\0\1" + opt
    (reply,) = send(port, packet)

    assert reply[3] & 15 == REFUSED
    assert len(reply) <= len(packet)


@pytest.mark.parametrize("packet", [b"\x12\x34\x81" + GOOD[3:], b"\x12\x34\x81" + GOOD[3:20]], ids=["whole", "cut"])
def test_a_reply_by_tcp_ends_the_connection(port: int, packet: bytes) -> None:
    """S61."""
    with socket.create_connection(("127.0.0.1", port), 2) as sock:
        sock.sendall(struct.pack("!H", len(packet)) + packet)

        assert sock.recv(100) == b""


@pytest.mark.parametrize("name", ["orders.nacos", "www.example.com"])
@pytest.mark.parametrize(("version", "options"), [(1, ()), (100, (100,))])
@pytest.mark.parametrize("how", [dns.query.udp, dns.query.tcp], ids=["udp", "tcp"])
def test_another_edns_version_is_badvers_inside_and_outside(
    port: int, name: str, version: int, options: tuple[int, ...], how: object
) -> None:
    """S58: with options or without; an outside name is not forwarded (it would be SERVFAIL here)."""
    query = dns.message.make_query(name, "A")
    query.use_edns(version, options=[dns.edns.GenericOption(code, b"xyz") for code in options])
    reply = how(query, "127.0.0.1", 5, port)  # type: ignore[operator]

    assert reply.rcode() == dns.rcode.BADVERS
    assert (reply.edns, reply.answer, reply.question) == (0, [], query.question)


def test_a_stub_that_takes_the_first_error_gets_the_address(port: int) -> None:
    """S15: musl asks A and AAAA at once from one socket, and an error for either ends the name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", port))
        queries = [dns.message.make_query("orders.nacos", kind) for kind in ("A", "AAAA")]
        for query in queries:
            sock.send(query.to_wire())
        replies = [dns.message.from_wire(sock.recv(4096)) for _ in queries]
    by_id = {reply.id: reply for reply in replies}
    v4, v6 = (by_id[query.id] for query in queries)

    assert [reply.rcode() for reply in replies] == [0, 0]
    assert (len(v4.answer[0]), v6.answer, len(v6.authority)) == (2, [], 1)
    assert all(reply.flags & dns.flags.AA for reply in replies)


@pytest.mark.parametrize("kind", ["A", "SRV"])
def test_five_thousand_instances_are_one_valid_message_by_tcp(port: int, kind: str) -> None:
    """S57."""
    reply = ask(port, "many.nacos", kind, tcp=True)

    assert 1000 <= sum(len(rrset) for rrset in reply.answer) <= 5000
    assert not reply.flags & dns.flags.TC


@pytest.mark.parametrize("payload", [0, 100, 512])
def test_a_client_that_takes_less_than_512_bytes_gets_512(port: int, payload: int) -> None:
    """S53: an EDNS size of 100 counts as 512; whole records only, TC says that there are more."""
    query = dns.message.make_query("many.nacos", "A", use_edns=0 if payload else False, payload=payload)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", port))
        sock.send(query.to_wire())
        packet = sock.recv(65535)
    reply = dns.message.from_wire(packet)

    assert 400 < len(packet) <= 512
    assert reply.flags & dns.flags.TC
    assert len(reply.answer[0]) >= 25
