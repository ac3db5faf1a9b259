"""Both back ends of the UDP door do the same: batches, prepared and slow replies, wildcards, odd packets."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import struct
import time
from typing import TYPE_CHECKING, ClassVar

import pytest
import uvloop

from nacosdns.core.balance import Member, RoundRobin
from nacosdns.core.metrics import BATCH_TIME, Counters
from nacosdns.core.page import WINDOW, Page
from nacosdns.core.prepared import Prepared
from nacosdns.edge import udp_base
from nacosdns.edge.clock import HostClock
from nacosdns.edge.udp import BATCH, IN_BYTES, SO_TIMESTAMPNS, Client, make_door, reply_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nacosdns.core.balance import Orders
    from nacosdns.edge.udp import UdpDoor

QUESTION = b"\x08prepared\x05nacos\x00\x00\x01\x00\x01"
PREPARED = b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + QUESTION
CELL = 7
CLOCK = HostClock()


class Table(Prepared):
    """A table with three records that take turns, and finished replies for one packet."""

    def __init__(self, *, portable: bool, balancer: type = RoundRobin) -> None:
        super().__init__(None if portable else reply_vector())
        members = tuple(Member(name) for name in ("a", "b", "c"))
        records = tuple(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04\x0a\x00\x00" + bytes([n]) for n in (1, 2, 3))
        drawn = balancer(members, random.Random(3), b"")
        self.turning = Page("prepared", records, balancer=drawn, take=1, cell=CELL)
        self.keep(QUESTION[:-4], 1, self.turning)
        while PREPARED not in self.packets:
            self.similar(PREPARED)
        self.entry = self.packets[PREPARED]
        self.turning.cursor = -1
        for _ in range(self.turning.turns):
            self.next_reply(self.entry)
        self.turning.cursor = -1

    @property
    def replies(self) -> list[bytes]:
        return [bytes(bytearray(reply)) for reply in self.entry.replies[:3]]


class Owner:
    """Answers slow packets with their own bytes reversed, drops ``drop``, and keeps ``later`` for later."""

    def __init__(self) -> None:
        self.slow_packets: list[bytes] = []
        self.clients: list[Client] = []
        self.kept: list[tuple[bytes, Client, UdpDoor]] = []
        self.counts = Counters()
        self.batches = [0] * len(BATCH_TIME)
        self.unsettled = False
        self.settled = 0
        self.words: list[str] = []

    def slow(self, packet: bytes, client: Client, door: UdpDoor) -> bytes | None:
        self.slow_packets.append(packet)
        self.clients.append(client)
        if packet.endswith(b"drop"):
            return None
        if packet.endswith(b"later"):
            self.unsettled = True
            self.kept.append((packet, client, door))
            return None
        return packet[:2] + b"-slow"

    def settle(self) -> None:
        self.unsettled = False
        self.settled += 1

    def dropped(self, reason: str) -> None:
        self.words.append(reason)

    def hindered_here(self, reason: str) -> None:
        self.words.append(reason)

    def surprised(self, packet: bytes) -> bytes | None:
        self.words.append("surprise")
        return packet[:2] + b"-sorry"


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop() if request.param == "asyncio" else uvloop.new_event_loop()
    yield made
    made.close()


@pytest.fixture(params=[False, True], ids=["recvmmsg", "portable"])
def portable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def server(host: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, 8, 1)
    sock.bind((host, 0))
    sock.setblocking(False)
    return sock


@pytest.fixture(autouse=True)
def _no_socket_is_left() -> Iterator[None]:
    yield
    while Asker.made:
        Asker.made.pop().sock.close()


class Asker:
    """A client on loopback, connected, so that only a reply from the asked address counts."""

    made: ClassVar[list[Asker]] = []

    def __init__(self, port: int, host: str = "127.0.0.1", source: str = "") -> None:
        self.sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        if source:
            self.sock.bind((source, 0))
        self.sock.connect((host, port))
        self.sock.setblocking(False)
        self.made.append(self)

    def send(self, packet: bytes) -> None:
        self.sock.send(packet)

    def received(self) -> list[bytes]:
        replies = []
        while True:
            try:
                replies.append(self.sock.recv(4096))
            except BlockingIOError:
                return replies


def run(loop: asyncio.AbstractEventLoop, door: UdpDoor, until: Callable[[], bool], seconds: float = 2.0) -> None:
    async def work() -> None:
        door.open()
        end = time.monotonic() + seconds
        while not until() and time.monotonic() < end:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.01)
        door.close()

    loop.run_until_complete(work())


def reply_late(loop: asyncio.AbstractEventLoop, owner: Owner) -> None:
    async def work() -> None:
        for packet, client, door in owner.kept:
            door.reply(client, packet[:2] + b"-late")
        await asyncio.sleep(0.01)

    loop.run_until_complete(work())


def test_prepared_replies_rotate_keep_their_id_and_are_counted(loop: asyncio.AbstractEventLoop, portable: bool) -> None:
    owner, table = Owner(), Table(portable=portable)
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(sock.getsockname()[1])
        for number in range(6):
            asker.send(struct.pack("!H", number) + PREPARED)
        run(loop, door, lambda: owner.counts[CELL] == 6)
        replies = asker.received()

    assert replies == [struct.pack("!H", n) + table.replies[n % 3] for n in range(6)]
    assert owner.counts[CELL] == sum(owner.counts.values()) == 6
    assert owner.slow_packets == []


def test_a_batch_may_mix_prepared_slow_dropped_and_later_replies(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, table = Owner(), Table(portable=portable)
    kinds = {b"p": PREPARED, b"s": b"slow-question", b"d": b"drop", b"l": b"later"}
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(sock.getsockname()[1])
        for number in range(200):
            asker.send(struct.pack("!H", number) + list(kinds.values())[number % 4])
        run(loop, door, lambda: owner.counts[CELL] == 50 and len(owner.slow_packets) == 150)
        at_once = asker.received()
        reply_late(loop, owner)
        late = asker.received()
    by_id = {struct.unpack("!H", reply[:2])[0]: reply[2:] for reply in at_once}

    assert len(at_once) == len(by_id) == 100
    assert all(by_id[number] == b"-slow" for number in range(200) if number % 4 == 1)
    assert all(by_id[number] in table.replies for number in range(200) if number % 4 == 0)
    assert sorted(reply[2:] for reply in late) == [b"-late"] * 50
    assert 1 <= owner.settled <= 200 // (BATCH // 2)


@pytest.mark.parametrize(("bound", "asked"), [("0.0.0.0", "127.0.0.5"), ("0.0.0.0", "127.8.9.10"), ("::", "::1")])
def test_a_wildcard_socket_answers_from_the_address_that_was_asked(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
    bound: str,
    asked: str,
) -> None:
    owner, table = Owner(), Table(portable=portable)
    with server(bound) as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(sock.getsockname()[1], asked)
        asker.send(b"\0\1" + PREPARED)
        asker.send(b"\0\2" + b"slow")
        asker.send(b"\0\3" + b"later")
        run(loop, door, lambda: len(owner.slow_packets) == 2)
        reply_late(loop, owner)
        replies = asker.received()

    assert sorted(replies) == [b"\0\1" + table.replies[0], b"\0\2-slow", b"\0\3-late"]
    assert all(len(client.address) == (16 if ":" in asked else 4) for client in owner.clients)


def test_a_packet_larger_than_the_buffer_is_dropped_and_the_next_is_answered(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, table = Owner(), Table(portable=portable)
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(sock.getsockname()[1])
        asker.send(bytes(IN_BYTES + 10))
        asker.send(b"\0\1" + PREPARED)
        run(loop, door, lambda: owner.counts[CELL] == 1)
        replies = asker.received()

    assert replies == [b"\0\1" + table.replies[0]]
    assert owner.words == ["malformed"]


def test_a_client_whose_socket_is_gone_does_not_take_the_others_answers_with_it(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, table = Owner(), Table(portable=portable)
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        gone, there = Asker(sock.getsockname()[1]), Asker(sock.getsockname()[1])
        for number in range(BATCH):
            (gone if number % 3 == 0 else there).send(struct.pack("!H", number) + PREPARED)
        gone.sock.close()
        run(loop, door, lambda: owner.counts[CELL] == BATCH)
        replies = there.received()

    assert len(replies) == BATCH - len(range(0, BATCH, 3))


def test_a_spoofed_source_port_of_zero_is_not_answered_and_harms_nobody(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, table = Owner(), Table(portable=portable)
    with server() as sock:
        port = sock.getsockname()[1]
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(port)
        for number in range(10):
            asker.send(struct.pack("!H", number) + PREPARED)
            if number == 4:
                _spoof_port_zero(port, b"\0\0" + PREPARED)
                _spoof_port_zero(port, b"\0\0slow")
        run(loop, door, lambda: owner.counts[CELL] >= 10)
        replies = asker.received()

    assert len(replies) == 10
    assert "port0" in owner.words
    assert owner.slow_packets == []


def _spoof_port_zero(port: int, payload: bytes) -> None:
    """A datagram with source port 0, written by hand through a raw socket. Needs root, as the suite in CI has."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw:
        raw.sendto(struct.pack("!HHHH", 0, port, 8 + len(payload), 0) + payload, ("127.0.0.1", 0))


def test_addresses_not_judged_yet_go_the_slow_way_even_when_prepared(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, table = Owner(), Table(portable=portable)
    judged = {socket.inet_aton("127.0.0.2"): True}
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, allowed=judged, portable=portable)
        known, unknown = (Asker(sock.getsockname()[1], source=address) for address in ("127.0.0.2", "127.0.0.3"))
        known.send(b"\0\1" + PREPARED)
        unknown.send(b"\0\2" + PREPARED)
        run(loop, door, lambda: len(owner.slow_packets) == 1 and owner.counts[CELL] == 1)
        replies = known.received(), unknown.received()

    assert replies == ([b"\0\1" + table.replies[0]], [b"\0\2-slow"])


def test_after_a_pause_packets_older_than_two_seconds_are_dropped_and_counted(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, table = Owner(), Table(portable=portable)
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(sock.getsockname()[1])
        asker.send(b"\0\1" + PREPARED)
        asker.send(b"\0\2slow")
        time.sleep(2.2)
        asker.send(b"\0\3" + PREPARED)
        run(loop, door, lambda: owner.counts[CELL] == 1)
        replies = asker.received()

    assert replies == [b"\0\3" + table.replies[0]]
    assert owner.words == ["old", "old"]


def test_a_closed_door_leaves_packets_for_whoever_reads_the_socket_next(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, table = Owner(), Table(portable=portable)
    with server() as sock:
        first = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(sock.getsockname()[1])
        run(loop, first, lambda: True)
        asker.send(b"\0\1" + PREPARED)
        second = make_door(sock, table, owner, CLOCK.now, portable=portable)
        run(loop, second, lambda: owner.counts[CELL] == 1)

    assert owner.counts[CELL] == 1


def test_a_reply_that_cannot_be_drawn_costs_one_answer_and_not_the_batch(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    class Broken(RoundRobin):
        """Draws one window, and then fails."""

        windows = 0

        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            self.cycle = 0

        def window(self, count: int, places: int, client: bytes = b"") -> Orders:
            self.windows += 1
            if self.windows > 1:
                raise ZeroDivisionError
            return super().window(count, places, client)

    owner, table = Owner(), Table(portable=portable, balancer=Broken)
    table.turning.cursor = WINDOW - 2
    last = table.entry.replies[WINDOW - 1]
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(sock.getsockname()[1])
        for number in range(3):
            asker.send(bytes([0, number]) + (PREPARED if number < 2 else b"slow"))
        run(loop, door, lambda: "surprise" in owner.words and len(owner.slow_packets) == 1)
        replies = asker.received()

    assert replies == [b"\0\0" + last, b"\0\1-sorry", b"\0\2-slow"]


@pytest.mark.parametrize(
    "asked",
    [
        PREPARED.replace(b"prepared", b"PrePareD"),
        PREPARED[:9] + b"\x01" + QUESTION + b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x0c\x00\x0a\x00\x08abcdefgh",
    ],
    ids=["another case", "a cookie"],
)
def test_a_packet_that_differs_in_case_or_options_is_answered_from_the_same_page(
    loop: asyncio.AbstractEventLoop, portable: bool, asked: bytes
) -> None:
    owner, table = Owner(), Table(portable=portable)
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(sock.getsockname()[1])
        for number in range(3):
            asker.send(bytes([0, number]) + (asked if number % 2 else PREPARED))
        run(loop, door, lambda: owner.counts[CELL] == 3)
        replies = asker.received()

    assert [reply[:2] for reply in replies] == [b"\0\0", b"\0\1", b"\0\2"]
    assert [reply[12 + len(QUESTION) :][15] for reply in replies] == [
        reply[10 + len(QUESTION) :][15] for reply in table.replies
    ]
    assert replies[1][12 : 12 + len(QUESTION)] == asked[10 : 10 + len(QUESTION)]
    assert owner.slow_packets == []


def test_what_is_dropped_while_it_is_on_its_way_is_still_sent_whole(
    loop: asyncio.AbstractEventLoop, portable: bool
) -> None:
    class Dropping(Owner):
        """A query that takes away what was prepared, and makes many objects in its place."""

        def slow(self, packet: bytes, client: Client, door: UdpDoor) -> bytes | None:
            table.drop("prepared")
            del table.entry
            self.rubbish = [bytes([255]) * size for size in range(40, 120) for _ in range(20)]
            return super().slow(packet, client, door)

    owner, table = Dropping(), Table(portable=portable)
    expected = [bytes(bytearray(reply)) for reply in table.replies]
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(sock.getsockname()[1])
        for number in range(3):
            asker.send(bytes([0, number]) + PREPARED)
        asker.send(b"\0\3slow")
        run(loop, door, lambda: len(owner.slow_packets) == 1)
        replies = asker.received()

    assert replies == [bytes([0, number]) + expected[number] for number in range(3)] + [b"\0\3-slow"]
    assert table.retired == []


def test_a_reply_that_this_host_does_not_let_out_is_told_to_the_owner(
    loop: asyncio.AbstractEventLoop, portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp_base, "HINDRANCES", {errno.EACCES})  # which a test can have: no broadcast is allowed
    owner, table = Owner(), Table(portable=portable)
    everybody = Client(struct.pack("<H", socket.AF_INET) + b"\x10\x00" + b"\xff" * 4 + bytes(8))
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        loop.call_soon(door.reply, everybody, b"\0\0reply")
        run(loop, door, lambda: bool(owner.words))

    assert owner.words == [f"answers to clients: {os.strerror(errno.EACCES)}"]


def test_what_holds_for_a_while_only_is_not_said_afterwards(loop: asyncio.AbstractEventLoop, portable: bool) -> None:
    owner, table = Owner(), Table(portable=portable)
    other = PREPARED.replace(b"prepared", b"outsider")
    for _ in range(2):
        table.keep_packet(b"\0\0" + other, b"\0\0" + other + b"-answer", cell=CELL, until=CLOCK.now(), about=())
    with server() as sock:
        door = make_door(sock, table, owner, CLOCK.now, portable=portable)
        asker = Asker(sock.getsockname()[1])
        asker.send(b"\0\1" + other)
        run(loop, door, lambda: len(owner.slow_packets) == 1)

    assert table.packets.keys() == {PREPARED}
