"""Both back ends of the UDP door do the same: batches, prepared and slow replies, wildcards, odd packets."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import TYPE_CHECKING, ClassVar

import pytest
import uvloop

from nacosdns.edge.udp import BATCH, IN_BYTES, SO_TIMESTAMPNS, make_door

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nacosdns.edge.udp import Client, UdpDoor

PREPARED = b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00prepared-question"


class Page:
    """As much of a book's page as the door reads."""

    def __init__(self) -> None:
        self.cursor = -1
        self.size = 3
        self.turn = 1
        self.cell = 7


class Entry:
    """Three prepared replies that rotate."""

    def __init__(self) -> None:
        self.page = Page()
        self.turn = 1
        self.replies = [b"-first", b"-second", b"-third"]

    def reply(self) -> bytes:
        self.page.cursor = (self.page.cursor + 1) % 3
        return self.replies[self.page.cursor]


class Owner:
    """Answers slow packets with their own bytes reversed, drops ``drop``, and keeps ``later`` for later."""

    def __init__(self) -> None:
        self.slow_packets: list[bytes] = []
        self.clients: list[Client] = []
        self.kept: list[tuple[bytes, Client, UdpDoor]] = []
        self.cells: dict[int, int] = {}
        self.words: list[str] = []

    def slow(self, packet: bytes, client: Client, door: UdpDoor) -> bytes | None:
        self.slow_packets.append(packet)
        self.clients.append(client)
        if packet.endswith(b"drop"):
            return None
        if packet.endswith(b"later"):
            self.kept.append((packet, client, door))
            return None
        return packet[:2] + b"-slow"

    def batch(self, cells: dict[int, int], elapsed_us: int) -> None:
        assert elapsed_us >= 0
        for cell, times in cells.items():
            self.cells[cell] = self.cells.get(cell, 0) + times

    def dropped(self, reason: str) -> None:
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


def test_prepared_replies_rotate_keep_their_id_and_are_counted(loop: asyncio.AbstractEventLoop, portable: bool) -> None:
    owner, entry = Owner(), Entry()
    with server() as sock:
        door = make_door(sock, {PREPARED: entry}, owner, portable=portable)  # type: ignore[dict-item]
        asker = Asker(sock.getsockname()[1])
        for number in range(6):
            asker.send(struct.pack("!H", number) + PREPARED)
        run(loop, door, lambda: owner.cells.get(7) == 6)
        replies = asker.received()

    assert replies == [struct.pack("!H", n) + entry.replies[n % 3] for n in range(6)]
    assert owner.cells == {7: 6}
    assert owner.slow_packets == []


def test_a_batch_may_mix_prepared_slow_dropped_and_later_replies(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, entry = Owner(), Entry()
    kinds = {b"p": PREPARED, b"s": b"slow-question", b"d": b"drop", b"l": b"later"}
    with server() as sock:
        door = make_door(sock, {PREPARED: entry}, owner, portable=portable)  # type: ignore[dict-item]
        asker = Asker(sock.getsockname()[1])
        for number in range(200):
            asker.send(struct.pack("!H", number) + list(kinds.values())[number % 4])
        run(loop, door, lambda: owner.cells.get(7) == 50 and len(owner.slow_packets) == 150)
        at_once = asker.received()
        for packet, client, kept_door in owner.kept:
            kept_door.reply(client, packet[:2] + b"-late")
        late = asker.received()
    by_id = {struct.unpack("!H", reply[:2])[0]: reply[2:] for reply in at_once}

    assert len(at_once) == len(by_id) == 100
    assert all(by_id[number] == b"-slow" for number in range(200) if number % 4 == 1)
    assert all(by_id[number] in entry.replies for number in range(200) if number % 4 == 0)
    assert sorted(reply[2:] for reply in late) == [b"-late"] * 50


@pytest.mark.parametrize(("bound", "asked"), [("0.0.0.0", "127.0.0.5"), ("0.0.0.0", "127.8.9.10"), ("::", "::1")])
def test_a_wildcard_socket_answers_from_the_address_that_was_asked(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
    bound: str,
    asked: str,
) -> None:
    owner, entry = Owner(), Entry()
    with server(bound) as sock:
        door = make_door(sock, {PREPARED: entry}, owner, portable=portable)  # type: ignore[dict-item]
        asker = Asker(sock.getsockname()[1], asked)
        asker.send(b"\0\1" + PREPARED)
        asker.send(b"\0\2" + b"slow")
        asker.send(b"\0\3" + b"later")
        run(loop, door, lambda: len(owner.slow_packets) == 2)
        packet, client, kept_door = owner.kept[0]
        kept_door.reply(client, packet[:2] + b"-late")
        replies = asker.received()

    assert sorted(replies) == [b"\0\1-first", b"\0\2-slow", b"\0\3-late"]
    assert all(len(client.address) == (16 if ":" in asked else 4) for client in owner.clients)


def test_a_packet_larger_than_the_buffer_is_dropped_and_the_next_is_answered(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, entry = Owner(), Entry()
    with server() as sock:
        door = make_door(sock, {PREPARED: entry}, owner, portable=portable)  # type: ignore[dict-item]
        asker = Asker(sock.getsockname()[1])
        asker.send(bytes(IN_BYTES + 10))
        asker.send(b"\0\1" + PREPARED)
        run(loop, door, lambda: owner.cells.get(7) == 1)
        replies = asker.received()

    assert replies == [b"\0\1-first"]
    assert owner.words == ["malformed"]


def test_a_client_whose_socket_is_gone_does_not_take_the_others_answers_with_it(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, entry = Owner(), Entry()
    with server() as sock:
        door = make_door(sock, {PREPARED: entry}, owner, portable=portable)  # type: ignore[dict-item]
        gone, there = Asker(sock.getsockname()[1]), Asker(sock.getsockname()[1])
        for number in range(BATCH):
            (gone if number % 3 == 0 else there).send(struct.pack("!H", number) + PREPARED)
        gone.sock.close()
        run(loop, door, lambda: owner.cells.get(7) == BATCH)
        replies = there.received()

    assert len(replies) == BATCH - len(range(0, BATCH, 3))


def test_a_spoofed_source_port_of_zero_is_not_answered_and_harms_nobody(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, entry = Owner(), Entry()
    with server() as sock:
        port = sock.getsockname()[1]
        door = make_door(sock, {PREPARED: entry}, owner, portable=portable)  # type: ignore[dict-item]
        asker = Asker(port)
        for number in range(10):
            asker.send(struct.pack("!H", number) + PREPARED)
            if number == 4:
                _spoof_port_zero(port, b"\0\0" + PREPARED)
                _spoof_port_zero(port, b"\0\0slow")
        run(loop, door, lambda: owner.cells.get(7, 0) >= 10)
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
    owner, entry = Owner(), Entry()
    judged = {socket.inet_aton("127.0.0.2"): True}
    with server() as sock:
        door = make_door(sock, {PREPARED: entry}, owner, allowed=judged, portable=portable)  # type: ignore[dict-item]
        known, unknown = (Asker(sock.getsockname()[1], source=address) for address in ("127.0.0.2", "127.0.0.3"))
        known.send(b"\0\1" + PREPARED)
        unknown.send(b"\0\2" + PREPARED)
        run(loop, door, lambda: len(owner.slow_packets) == 1 and owner.cells.get(7) == 1)
        replies = known.received(), unknown.received()

    assert replies == ([b"\0\1-first"], [b"\0\2-slow"])


def test_after_a_pause_packets_older_than_two_seconds_are_dropped_and_counted(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, entry = Owner(), Entry()
    with server() as sock:
        door = make_door(sock, {PREPARED: entry}, owner, portable=portable)  # type: ignore[dict-item]
        asker = Asker(sock.getsockname()[1])
        asker.send(b"\0\1" + PREPARED)
        asker.send(b"\0\2slow")
        time.sleep(2.2)
        asker.send(b"\0\3" + PREPARED)
        run(loop, door, lambda: owner.cells.get(7) == 1)
        replies = asker.received()

    assert replies == [b"\0\3-first"]
    assert owner.words == ["old", "old"]


def test_a_closed_door_leaves_packets_for_whoever_reads_the_socket_next(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    owner, entry = Owner(), Entry()
    with server() as sock:
        first = make_door(sock, {PREPARED: entry}, owner, portable=portable)  # type: ignore[dict-item]
        asker = Asker(sock.getsockname()[1])
        run(loop, first, lambda: True)
        asker.send(b"\0\1" + PREPARED)
        second = make_door(sock, {PREPARED: entry}, owner, portable=portable)  # type: ignore[dict-item]
        run(loop, second, lambda: owner.cells.get(7) == 1)

    assert owner.cells == {7: 1}


def test_a_reply_that_cannot_be_drawn_costs_one_answer_and_not_the_batch(
    loop: asyncio.AbstractEventLoop,
    portable: bool,
) -> None:
    class Broken(Entry):
        def reply(self) -> bytes:
            raise ZeroDivisionError

    owner, broken = Owner(), Broken()
    broken.page.size = 0
    other = PREPARED[:-1] + b"N"
    with server() as sock:
        door = make_door(sock, {PREPARED: broken, other: Entry()}, owner, portable=portable)  # type: ignore[dict-item]
        asker = Asker(sock.getsockname()[1])
        for packet in (other, PREPARED, other):
            asker.send(b"\0\1" + packet)
        run(loop, door, lambda: "surprise" in owner.words)
        replies = asker.received()

    assert replies == [b"\0\1-first", b"\0\1-sorry", b"\0\1-second"]
