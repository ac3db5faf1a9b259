"""What is wrong with the ways of asyncio and asyncio-dgram to hold a datagram socket does not happen to the upstream edge.

It reads raw sockets (docs/decisions.md); one test for each fault that is known of the others. On both loops.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

from fakes.loop import LOOPS, run_on
from fakes.wire import query
from nacosdns.edge.upstream import Limits, UpstreamSockets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    Run = Callable[[Coroutine[object, object, None]], None]

QUERY = query("ext.test")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return run_on(request.param, 20)


class Heard:
    """What the edge reported: replies and failures by token."""

    def __init__(self, spawn: Callable[..., asyncio.Task[None]], limits: Limits) -> None:
        self.packets: dict[int, bytes] = {}
        self.words: dict[int, str] = {}
        self.edge = UpstreamSockets(self._received, self._failed, spawn, limits=limits, rng=Random(17))

    def _received(self, token: int, packet: bytes) -> bool:
        self.packets[token] = packet
        return True

    def _failed(self, token: int, word: str) -> None:
        self.words[token] = word

    async def of(self, *tokens: int) -> None:
        while not all(token in self.packets or token in self.words for token in tokens):
            await asyncio.sleep(0.005)


@asynccontextmanager
async def heard(limits: Limits | None = None) -> AsyncIterator[Heard]:
    async with asyncio.TaskGroup() as group:
        made = Heard(group.create_task, limits or Limits(slots=1))
        yield made
        made.edge.close()


@contextmanager
def resolver() -> Iterator[tuple[socket.socket, str]]:
    """A socket that the test answers from, and its address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.bind(("127.0.0.1", 0))
        yield sock, f"127.0.0.1:{sock.getsockname()[1]}"


def closed() -> str:
    """An address where nobody is."""
    with resolver() as (_, address):
        return address


def test_closing_ends_what_is_waited_for(run: Run) -> None:
    """With asyncio-dgram whoever waits for a packet when the stream is closed may wait for ever."""

    async def work() -> None:
        with resolver() as (_, address), socket.socket() as listener:
            listener.bind(("127.0.0.1", int(address.rpartition(":")[2])))
            listener.listen()
            async with heard() as got:
                got.edge.send(address, QUERY, over_tcp=False, token=1)
                got.edge.send(address, QUERY, over_tcp=True, token=2)
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)

            assert (got.packets, got.words) == ({}, {})
            assert "sockets=0 flights=0 tcp=0" in repr(got.edge)

    run(work())


def test_a_refused_packet_is_no_exception_of_the_next_send(run: Run) -> None:
    """A connected socket raises at the second send what the first one met; whoever sends then is not who it is about."""

    async def work() -> None:
        address = closed()
        async with heard() as got:
            for token in range(1, 7):
                got.edge.send(address, QUERY, over_tcp=False, token=token)
                await asyncio.sleep(0.01 * (token % 2))
            await got.of(*range(1, 7))

            assert set(got.words.values()) == {"refused"}

    run(work())


def test_an_error_of_one_resolver_is_not_kept_for_another_or_for_later(run: Run) -> None:
    """asyncio-dgram puts errors into a queue of its own, where they stay until somebody asks for them."""

    async def work() -> None:
        with resolver() as (sock, address):
            async with heard() as got:
                got.edge.send(closed(), QUERY, over_tcp=False, token=1)
                got.edge.send(address, QUERY, over_tcp=False, token=2)
                await got.of(1)
                packet, client = sock.recvfrom(512)
                sock.sendto(packet, client)
                await got.of(2)

                assert got.words == {1: "refused"}
                assert got.packets[2][2:] == QUERY[2:]

    run(work())


def test_an_empty_datagram_is_no_end(run: Run) -> None:
    """It reads as b"", which is what the end of a stream reads as."""

    async def work() -> None:
        with resolver() as (sock, address):
            async with heard() as got:
                got.edge.send(address, QUERY, over_tcp=False, token=1)
                packet, client = sock.recvfrom(512)
                for data in (b"", b"", packet[:1], packet):
                    sock.sendto(data, client)
                await got.of(1)

                assert (got.packets[1][2:], got.edge.strays) == (QUERY[2:], 3)

    run(work())


def test_the_largest_datagram_comes_whole(run: Run) -> None:
    """Asyncio reads datagrams into 256 KiB; a smaller buffer would cut one without a word."""

    async def work() -> None:
        with resolver() as (sock, address):
            async with heard() as got:
                got.edge.send(address, QUERY, over_tcp=False, token=1)
                packet, client = sock.recvfrom(512)
                sock.sendto(packet + bytes(65_507 - len(packet)), client)
                await got.of(1)

                assert len(got.packets[1]) == 65_507

    run(work())


def test_a_packet_that_is_too_large_to_send_fails_its_token_alone(run: Run) -> None:
    """EMSGSIZE ends up in ``error_received`` of a transport, without a word about which packet it was."""

    async def work() -> None:
        with resolver() as (sock, address):
            async with heard() as got:
                got.edge.send(address, QUERY, over_tcp=False, token=1)
                got.edge.send(address, QUERY + bytes(70_000), over_tcp=False, token=2)
                await got.of(2)
                packet, client = sock.recvfrom(512)
                sock.sendto(packet, client)
                await got.of(1)

                assert list(got.words) == [2]
                assert list(got.packets) == [1]

    run(work())


def test_packets_that_nobody_asked_for_are_not_queued(run: Run) -> None:
    """asyncio-dgram's queue of received packets has no bound: who is flooded grows until he reads."""

    async def work() -> None:
        with resolver() as (sock, address):
            async with heard() as got:
                got.edge.send(address, QUERY, over_tcp=False, token=1)
                packet, client = sock.recvfrom(512)
                false = bytes((packet[0] ^ 0x55, packet[1])) + packet[2:]
                for _ in range(100):
                    sock.sendto(false, client)
                sock.sendto(packet, client)
                await got.of(1)

                assert got.edge.strays == 100
                assert "flights=0" in repr(got.edge)

    run(work())
