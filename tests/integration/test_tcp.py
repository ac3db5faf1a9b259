"""Clients by TCP: pipelining, answers out of order, slow and silent clients, too many of them."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from fakes.loop import LOOPS, run_on
from nacosdns.edge.tcp import PIPELINE_MAX, TcpDoor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from nacosdns.edge.tcp import Connection


class Owner:
    """Answers at once, unless ``hold`` is set: then questions are kept."""

    def __init__(self) -> None:
        self.hold = False
        self.kept: list[tuple[bytes, Connection]] = []
        self.addresses: set[bytes] = set()
        self.closed = 0
        self.hindered: list[str] = []

    def asked(self, packet: bytes, address: bytes, connection: Connection) -> None:
        self.addresses.add(address)
        if self.hold:
            self.kept.append((packet, connection))
        else:
            connection.reply(packet[::-1])

    def closed_for_room(self) -> None:
        self.closed += 1

    def hindered_here(self, reason: str) -> None:
        self.hindered.append(reason)


def message(number: int) -> bytes:
    body = number.to_bytes(2, "big") + bytes(12)
    return len(body).to_bytes(2, "big") + body


async def reply(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await asyncio.wait_for(reader.readexactly(2), 5), "big")
    return await reader.readexactly(size)


def run(
    work: Callable[[TcpDoor, Owner, int], Coroutine[None, None, None]],
    *,
    most: int = 100,
    idle_s: float = 5.0,
    loop: str = "asyncio",
) -> None:
    async def main() -> None:
        owner = Owner()
        async with asyncio.TaskGroup() as group:
            door = TcpDoor(owner, group.create_task, connections_max=most, idle_s=idle_s)
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 0))
                sock.listen()
                door.listen(sock)
                await work(door, owner, sock.getsockname()[1])
                door.close()
                await asyncio.sleep(0.02)

    run_on(loop, 30)(main())


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1000), 5) == b""
    except ConnectionError:
        return True


def test_pipelined_questions_are_all_answered_however_they_are_cut() -> None:
    async def work(_: TcpDoor, owner: Owner, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        stream = b"".join(map(message, range(500)))
        for at in range(0, len(stream), 7):
            writer.write(stream[at : at + 7])
        replies = [await reply(reader) for _ in range(500)]
        writer.close()

        assert replies == [message(n)[2:][::-1] for n in range(500)]
        assert owner.addresses == {b"\x7f\0\0\1"}

    run(work)


def test_answers_may_leave_in_another_order() -> None:
    async def work(_: TcpDoor, owner: Owner, port: int) -> None:
        owner.hold = True
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(message(1) + message(2) + message(3))
        while len(owner.kept) < 3:
            await asyncio.sleep(0.005)
        for packet, connection in reversed(owner.kept):
            connection.reply(packet)
        replies = [await reply(reader) for _ in range(3)]
        writer.close()

        assert [int.from_bytes(one[:2], "big") for one in replies] == [3, 2, 1]

    run(work)


def test_more_questions_than_may_wait_are_read_when_there_is_room() -> None:
    async def work(door: TcpDoor, owner: Owner, port: int) -> None:
        owner.hold = True
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(map(message, range(PIPELINE_MAX + 50))))
        await asyncio.sleep(0.1)
        waiting = len(owner.kept)
        for packet, connection in owner.kept[:60]:
            connection.reply(packet)
        await asyncio.sleep(0.1)
        writer.close()

        assert waiting == PIPELINE_MAX
        assert len(owner.kept) == PIPELINE_MAX + 50
        assert door.busy()
        assert reader is not None

    run(work)


def test_a_silent_connection_is_closed_and_one_that_waits_for_us_is_not() -> None:
    async def work(_: TcpDoor, owner: Owner, port: int) -> None:
        silent, writer = await asyncio.open_connection("127.0.0.1", port)
        owner.hold = True
        waiting, second = await asyncio.open_connection("127.0.0.1", port)
        second.write(message(1))

        assert await closed(silent)

        packet, connection = owner.kept[0]
        connection.reply(packet)

        assert await reply(waiting) == message(1)[2:]

        writer.close()
        second.close()

    run(work, idle_s=0.2)


def test_a_half_sent_question_does_not_keep_a_connection_for_ever() -> None:
    async def work(_: TcpDoor, __: Owner, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(message(1)[:5])

        assert await closed(reader)

        writer.close()

    run(work, idle_s=0.2)


@pytest.mark.parametrize("size", [0, 1, 11])
def test_a_length_below_a_header_closes_the_connection(size: int) -> None:
    async def work(_: TcpDoor, owner: Owner, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(size.to_bytes(2, "big") + bytes(size))

        assert await closed(reader)
        assert owner.kept == []

        writer.close()

    run(work)


def test_what_was_asked_before_a_length_below_a_header_is_answered() -> None:
    async def work(_: TcpDoor, owner: Owner, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(message(1) + message(2) + b"\0\0" + message(3))
        replies = [await reply(reader) for _ in range(2)]

        assert replies == [message(n)[2:][::-1] for n in (1, 2)]
        assert await closed(reader)

        writer.close()

    run(work)


@pytest.mark.parametrize("last", [b"\0\0", message(99)], ids=["short", "given up"])
def test_behind_what_is_no_dns_nothing_is_read_while_answers_are_waited_for(last: bytes) -> None:
    async def work(_: TcpDoor, owner: Owner, port: int) -> None:
        def keep(packet: bytes, _: bytes, connection: Connection) -> None:
            owner.kept.append((packet, connection))
            if packet == message(99)[2:]:
                connection.give_up()

        owner.asked = keep  # type: ignore[method-assign]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(message(1) + last)
        while not owner.kept:
            await asyncio.sleep(0.005)
        connection = owner.kept[0][1]
        writer.write(bytes(64 << 20))
        for _ in range(50):
            await asyncio.sleep(0.005)
        held = len(connection._buffer)
        connection.reply(owner.kept[0][0])

        assert held < 1 << 20
        assert len(owner.kept) <= 2
        assert reader is not None

        writer.transport.abort()

    run(work)


def test_the_idlest_connection_goes_when_there_are_too_many() -> None:
    async def work(door: TcpDoor, owner: Owner, port: int) -> None:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await asyncio.sleep(0.05)
        pairs[0][1].write(message(1))
        await reply(pairs[0][0])
        pairs.append(await asyncio.open_connection("127.0.0.1", port))

        assert await closed(pairs[1][0])
        assert len(door) == 3
        assert owner.closed == 1

        for _, writer in pairs:
            writer.close()

    run(work, most=3)


def test_a_client_that_opens_too_many_connections_closes_its_own_and_none_that_waits_for_an_answer() -> None:
    async def work(door: TcpDoor, owner: Owner, port: int) -> None:
        owner.hold = True
        asking_reader, asking = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.3", 0))
        asking.write(message(7))
        quiet = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(2)]
        flood = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        while not owner.kept:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        kept = [connection.address[-1] for connection in door._connections]
        owner.kept[0][1].reply(owner.kept[0][0])

        assert sorted(kept) == [1, 1, 1, 2, 2, 3]
        assert owner.closed == 37
        assert await reply(asking_reader) == message(7)[2:]

        for _, writer in (*quiet, *flood):
            writer.close()
        asking.close()

    run(work, most=6)


def test_a_client_that_has_said_all_still_gets_its_answers() -> None:
    async def work(_: TcpDoor, owner: Owner, port: int) -> None:
        owner.hold = True
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(message(1) + message(2))
        writer.write_eof()
        while len(owner.kept) < 2:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        for packet, connection in owner.kept:
            connection.reply(packet)

        assert [await reply(reader), await reply(reader)] == [message(1)[2:], message(2)[2:]]
        assert await closed(reader)

        writer.close()

    run(work)


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    async def work(_: TcpDoor, owner: Owner, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = 0

        def answer(packet: bytes, _: bytes, connection: Connection) -> None:
            nonlocal asked
            asked += 1
            connection.reply(packet * 2000)

        owner.asked = answer  # type: ignore[method-assign]
        writer.write(b"".join(map(message, range(3000))))
        await asyncio.sleep(0.3)
        before = asked
        await asyncio.sleep(0.2)

        assert asked == before < 3000
        assert reader is not None

        writer.close()

    run(work)


def test_a_burst_of_connections_in_one_turn_stays_within_the_bound() -> None:
    async def work(door: TcpDoor, _: Owner, port: int) -> None:
        socks = []
        for _number in range(30):
            sock = socket.create_connection(("127.0.0.1", port), timeout=5)
            socks.append(sock)
        await asyncio.sleep(0.1)

        assert len(door) == 4
        for sock in socks:
            sock.close()

    run(work, most=4)


def test_one_socket_is_listened_on_once_and_stops_however_close_the_calls_are() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            door = TcpDoor(Owner(), group.create_task, connections_max=10, idle_s=5.0)
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 0))
                sock.listen()
                for _ in range(3):
                    door.listen(sock)
                door.stop(sock)
                door.listen(sock)
                await asyncio.sleep(0)
                door.stop(sock)
                reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
                writer.write(message(1))
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.read(10), 0.2)
                writer.close()
                door.close()

    asyncio.run(main())


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """The limit stands where it would take one more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("loop", LOOPS)
def test_without_a_descriptor_left_it_says_so_once_a_second_and_answers_when_there_is_one(loop: str) -> None:
    async def work(_: TcpDoor, owner: Owner, port: int) -> None:
        with socket.socket() as client:
            client.setblocking(False)
            with no_descriptor_left():
                client.connect_ex(("127.0.0.1", port))
                await asyncio.sleep(0.5)
                told = list(owner.hindered)
            client.send(message(1))
            client.setblocking(True)
            client.settimeout(5)
            got = await asyncio.to_thread(client.recv, 100)

            assert told == ["Too many open files"]
            assert len(got) == len(message(1))

    run(work, loop=loop)
