"""The real program under abuse by UDP and TCP: afterwards it answers as before, with as much memory, as many descriptors and the same processes.

What each odd packet gets is in test_hostile_packets.py; here it is their number, their rhythm and what is left behind.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import dns.edns
import dns.message
import dns.opcode
import dns.rrset
import msgspec
import pytest

from fakes.asking import addresses, ask, until_says
from fakes.running import TWO_ORDERS, Bridge, exchange, packet, until
from fakes.seen import descriptors, fronts, resident_bytes, total
from nacosdns.core import frames

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDERS = {"10.0.0.1", "10.0.0.2"}
PACKETS = 20_000
BURST = 50
GROWTH_MAX_BYTES = 24 << 20
GOOD = packet("orders.nacos", 0xFEDC)
LAST = 0xFEDC.to_bytes(2, "big")


class State(NamedTuple):
    """What must be the same, or nearly, before and after."""

    children: list[int]
    memory_bytes: dict[int, int]
    descriptors: dict[int, int]
    latency_s: float


def state_of(bridge: Bridge) -> State:
    pids = sorted(fronts(bridge))
    took = []
    for number in range(200):
        began = time.perf_counter()
        exchange(packet("orders.nacos", number), bridge.port)
        took.append(time.perf_counter() - began)
    return State(
        bridge.children(),
        {pid: resident_bytes(pid) for pid in pids},
        {pid: descriptors(pid) for pid in pids},
        median(took),
    )


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    running = Bridge(tmp_path_factory.mktemp("abused"), text=TWO_ORDERS, modules={})
    try:
        until_says(running.up().port, "orders.nacos", ORDERS, seconds=30)
        abuse_lightly(running.port)
        yield running
    finally:
        running.close()


def abuse_lightly(port: int) -> None:
    """What is made once and kept, tables and buffers, is there before anything is measured."""
    throw(port, Random(0), 2000)
    for _ in range(20):
        with connected(port) as sock:
            sock.sendall(framed(GOOD))
            read_frame(sock)


@pytest.fixture(autouse=True)
def as_before(bridge: Bridge) -> Iterator[None]:
    before = state_of(bridge)
    yield
    after = state_of(bridge)

    assert after.children == before.children, bridge.said("child.")
    assert set(addresses(bridge.port, "orders.nacos")) == ORDERS
    assert set(addresses(bridge.port, "orders.nacos", tcp=True)) == ORDERS
    assert after.latency_s < 10 * before.latency_s + 0.1
    for pid, size_bytes in after.memory_bytes.items():
        assert size_bytes < before.memory_bytes[pid] + GROWTH_MAX_BYTES
    until(lambda: {pid: descriptors(pid) for pid in before.descriptors} == before.descriptors, 15, "the descriptors")
    until(lambda: total(bridge, "tcp_connections") == 0, 15, "the end of all connections")
    assert total(bridge, "surprises_total") == 0
    assert bridge.said("Traceback") == []
    assert bridge.said("hangs") == []


# UDP


def seeds() -> list[bytes]:
    """Good queries of every kind that there is."""
    names = (
        "orders.nacos",
        "OrDeRs.nacos",
        "nosuch.nacos",
        "a.b.group.nacos",
        "10-0-0-1.addr.nacos",
        "nacos",
        "ext.test",
    )
    names += ("_80._tcp.orders.nacos", "_grpc_config.orders.nacos", "xn--zfr3pq20ciq8a.nacos", "x" * 63 + ".nacos", ".")
    made = [
        dns.message.make_query(name, kind) for name in names for kind in ("A", "AAAA", "SRV", "TXT", "ANY", "HTTPS")
    ]
    for name in names:
        options = [dns.edns.GenericOption(10, b"cookie12"), dns.edns.ECSOption("192.0.2.0", 24)]
        made.append(dns.message.make_query(name, "A", use_edns=0, payload=4096, want_dnssec=True, options=options))
    for code in (dns.opcode.NOTIFY, dns.opcode.UPDATE, dns.opcode.STATUS):
        made.append(dns.message.make_query("nacos", "SOA"))
        made[-1].set_opcode(code)
    transfer = dns.message.make_query("nacos", "IXFR")
    transfer.authority.append(dns.rrset.from_text("nacos.", 0, "IN", "SOA", "nacos. h.nacos. 1 2 3 4 5"))
    return [query.to_wire() for query in (*made, transfer)]


def mutant(rng: Random, seed: bytes) -> bytes:
    """The packet with a few wounds, an id of its own that no good one has, and still a query in nine of ten cases."""
    data = bytearray(seed)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                data[at : at + 1] = bytes((rng.choice((0, 1, 0x3F, 0x40, 0x80, 0xC0, 0xFF)),))
            case 2:
                del data[at : at + rng.randrange(1, 9)]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                del data[at:]
            case _:
                data[at:at] = data[rng.randrange(len(data) + 1) :]
    data[:2] = rng.randrange(0xFE00).to_bytes(2, "big")
    if len(data) > 2 and rng.randrange(10):
        data[2] &= 0x7F
    return bytes(data[:4000])


class Thrown(NamedTuple):
    sent: int
    replies: int
    wrong: list[bytes]


def throw(port: int, rng: Random, count: int) -> Thrown:
    """Mutants in bursts; a good query behind each is answered before the next. ``wrong`` replies are of no query of ours."""
    replies, wrong, pool = 0, [], seeds()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", port))
        ids: set[bytes] = set()
        for _ in range(count // BURST):
            burst = [mutant(rng, rng.choice(pool)) for _ in range(BURST)]
            ids |= {one[:2] for one in burst if len(one) >= 12}
            for one in burst:
                sock.send(one)
            sock.send(GOOD)
            while (reply := sock.recv(65535))[:2] != LAST:
                replies += 1
                if reply[:2] not in ids or not reply[2] & 0x80 or len(reply) > 1232:
                    wrong.append(reply)
            assert reply[3] & 15 == 0
    return Thrown(count, replies, wrong)


def counted(bridge: Bridge) -> float:
    """Every packet so far: a front shows its counts now and then, all together, so one that is seen has the others with it."""
    mark = ("queries_total", 'door="tcp"', 'type="soa"')
    before = total(bridge, *mark)
    ask(bridge.port, "nacos", "SOA", tcp=True)
    until(lambda: total(bridge, *mark) > before, 10, "the counts")
    return total(bridge, "queries_total") + total(bridge, "dropped_total")


def test_twenty_thousand_mutants_are_each_counted_once_and_change_nothing(bridge: Bridge) -> None:
    """S60: every packet is one query answered or one packet dropped, whatever it was."""
    before = counted(bridge)
    thrown = throw(bridge.port, Random(2026), PACKETS)
    own = thrown.sent // BURST

    assert thrown.wrong == []
    assert thrown.replies > PACKETS // 2
    canaries = 60
    assert 0 <= counted(bridge) - before - thrown.sent - own - 1 <= canaries


def test_mutants_from_many_sockets_at_once_do_not_keep_good_queries_waiting(bridge: Bridge) -> None:
    with ThreadPoolExecutor(4) as pool:
        thrown = list(pool.map(lambda seed: throw(bridge.port, Random(seed), 1000), range(4)))

    assert [one.wrong for one in thrown] == [[]] * 4


# TCP


def framed(query: bytes) -> bytes:
    return struct.pack("!H", len(query)) + query


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10)


def read_frame(sock: socket.socket) -> bytes:
    """One reply; b"" when the connection ends instead."""
    head = read_exactly(sock, 2)
    return read_exactly(sock, int.from_bytes(head, "big")) if head else b""


def read_exactly(sock: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        try:
            part = sock.recv(size - len(got))
        except ConnectionResetError:
            return b""
        if not part:
            return b""
        got += part
    return got


def reset(sock: socket.socket) -> None:
    """Ends a connection with RST, whatever is on its way."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_queries_that_come_byte_by_byte_are_answered_and_others_do_not_wait(bridge: Bridge) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(bridge.port)) for _ in range(20)]
        for byte in framed(GOOD):
            for sock in slow:
                sock.sendall(bytes((byte,)))
            assert exchange(packet("orders.nacos"), bridge.port, seconds=1)
        replies = [read_frame(sock) for sock in slow]

    assert {reply[:2] for reply in replies} == {LAST}
    assert {reply[3] & 15 for reply in replies} == {0}


@pytest.mark.parametrize("end", [socket.socket.close, reset], ids=["fin", "rst"])
def test_connections_that_end_at_every_place_leave_nothing_behind(bridge: Bridge, end: object) -> None:
    """In the length, in the header, in the name, behind the query before its answer, between two queries."""
    stream = framed(GOOD) * 2
    for _ in range(4):
        for place in range(len(stream) + 1):
            sock = connected(bridge.port)
            sock.sendall(stream[:place])
            end(sock)  # type: ignore[operator]


def test_five_hundred_idle_connections_hold_nobody_up(bridge: Bridge) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(connected(bridge.port))
        until(lambda: total(bridge, "tcp_connections") >= 400, 10, "the connections")
        for _ in range(20):
            assert set(addresses(bridge.port, "orders.nacos", tcp=True)) == ORDERS
            assert set(addresses(bridge.port, "orders.nacos")) == ORDERS


def test_a_hundred_queries_in_one_piece_are_all_answered_in_whatever_order(bridge: Bridge) -> None:
    names = ("orders.nacos", "nosuch.nacos", "ext.test", "unknown-{}.nacos")
    queries = [packet(names[n % 4].format(n), n) for n in range(100)]
    with connected(bridge.port) as sock:
        sock.sendall(b"".join(map(framed, queries)))
        replies = [read_frame(sock) for _ in queries]

    assert sorted(int.from_bytes(reply[:2], "big") for reply in replies) == list(range(100))
    assert {n: reply[12 : len(queries[n])] for reply in replies if (n := int.from_bytes(reply[:2], "big")) >= 0} == {
        n: query[12:] for n, query in enumerate(queries)
    }


def test_who_has_said_all_and_closes_that_half_gets_the_answers_and_then_the_end(bridge: Bridge) -> None:
    with connected(bridge.port) as sock:
        sock.sendall(framed(GOOD) * 10)
        sock.shutdown(socket.SHUT_WR)
        replies = [read_frame(sock) for _ in range(10)]

        assert [reply[:2] for reply in replies] == [LAST] * 10
        assert read_frame(sock) == b""


@pytest.mark.parametrize("length", [0, 1, 11])
def test_a_length_that_holds_no_header_ends_the_connection(bridge: Bridge, length: int) -> None:
    for _ in range(50):
        with connected(bridge.port) as sock:
            sock.sendall(struct.pack("!H", length) + bytes(length))

            assert read_frame(sock) == b""


def test_the_longest_messages_of_garbage_get_an_error_or_the_end(bridge: Bridge) -> None:
    rng = Random(7)
    for _ in range(20):
        with connected(bridge.port) as sock, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(framed(rng.randbytes(65535)))
            reply = read_frame(sock)

            assert not reply or reply[3] & 15


def test_a_client_that_never_reads_is_left_alone(bridge: Bridge) -> None:
    """Its answers stay with it: nothing of ours grows with what it sends."""
    with connected(bridge.port) as sock:
        sock.settimeout(1)
        with contextlib.suppress(TimeoutError):
            for _ in range(200):
                sock.sendall(framed(GOOD) * 500)
        assert set(addresses(bridge.port, "orders.nacos", tcp=True)) == ORDERS
        reset(sock)


def test_records_that_begin_with_chains_of_pointers_stop_no_front(bridge: Bridge) -> None:
    """RFC 9267 2: one such message kept a front busy until the supervisor took it for dead."""
    question = GOOD[12:]
    at = 12 + len(question) + 11
    chain = b"".join(struct.pack("!H", 0xC000 | (at + 2 * n - 2 if n else 12)) for n in range(8000))
    first = b"\0" + struct.pack("!HHIH", 10, 1, 0, len(chain)) + chain
    last = struct.pack("!HHHIH", 0xC000 | (at + len(chain) - 2), 10, 1, 0, 0)
    message = GOOD[:10] + struct.pack("!H", 4001) + question + first + last * 4000
    with connected(bridge.port) as sock:
        for _ in range(5):
            sock.sendall(framed(message))
        replies = [read_frame(sock) for _ in range(5)]

    assert [(reply[:2], reply[3] & 15) for reply in replies] == [(LAST, 1)] * 5


def test_everything_at_once(bridge: Bridge) -> None:
    """Mutants, resets and silence from several threads while one client asks as any other."""
    stop = threading.Event()

    def resets() -> None:
        while not stop.is_set():
            sock = connected(bridge.port)
            sock.sendall(framed(GOOD) * 20)
            reset(sock)

    def halves() -> None:
        while not stop.is_set():
            with connected(bridge.port) as sock:
                sock.sendall(framed(GOOD)[:9])

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(resets), pool.submit(halves), pool.submit(throw, bridge.port, Random(5), 3000)]
        try:
            for _ in range(100):
                assert set(addresses(bridge.port, "orders.nacos")) == ORDERS
        finally:
            stop.set()
        assert [job.result() for job in jobs[:2]] == [None, None]
        assert jobs[2].result().wrong == []


@pytest.mark.parametrize("argument", [b"\xa1\xff", b"\xc1", b"\x91" * 50_000 + b"\xc0"], ids=["text", "type", "depth"])
@pytest.mark.parametrize("verb", ["ask", "services", "status", "cache-list"])
def test_a_request_that_no_part_can_read_ends_its_connection_and_no_process(
    bridge: Bridge, verb: str, argument: bytes
) -> None:
    """The control socket is open to a group: who is in it can ask, and not end what answers DNS."""
    request = frames.framed(frames.Ask(1, verb, {"name": msgspec.Raw(argument)}))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(bridge.directory / "control.sock"))
        sock.sendall(request)

        assert read_exactly(sock, 1) == b""


@pytest.mark.parametrize("word", ["²", "٣", "9" * 62])
def test_a_port_of_other_digits_is_no_port_and_no_surprise(bridge: Bridge, word: str) -> None:
    label = f"_{word}".encode()
    question = bytes((len(label),)) + label + b"\4_tcp" + GOOD[12:-4] + b"\0\x21\0\1"
    reply = exchange(GOOD[:12] + question, bridge.port)

    assert (reply[3] & 15, reply[7]) == (3, 0)


def test_of_a_name_that_exists_every_type_is_there_or_is_no_data_and_never_an_error(bridge: Bridge) -> None:
    """S15: one NXDOMAIN or REFUSED for a type that a stub asks beside A would end the name for it."""
    meta = {41, *range(128, 256)}  # OPT, and what is no data (RFC 6895 3.1)
    kinds = sorted({*range(1, 300), *range(32_768, 32_780), *range(65_280, 65_300), *range(300, 65_536, 997)} - meta)
    question = GOOD[12:-4]
    rcodes, without_soa = {}, []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", bridge.port))
        for kind in kinds:
            sock.send(struct.pack("!H", kind) + GOOD[2:12] + question + struct.pack("!HH", kind, 1))
            reply = sock.recv(4096)
            assert reply[:2] == struct.pack("!H", kind)
            rcodes[kind] = reply[3] & 15
            answers, authorities = struct.unpack_from("!HH", reply, 6)
            if not answers and (authorities != 1 or not reply[2] & 4):
                without_soa.append(kind)

    assert {kind: rcode for kind, rcode in rcodes.items() if rcode} == {}
    assert without_soa == []
