"""The link: frames arrive whole and in order, bad peers are dropped, lost links come back, a slow reader is not waited for."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from nacosdns.core.frames import FRAME_BYTES_MAX, VERSION, Asked, Hello, LookedUp, Removed, Synced, encode
from nacosdns.core.model import ServiceKey
from nacosdns.edge import link
from nacosdns.edge.link import FrameReader
from nacosdns.errors import LinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from nacosdns.core.frames import LinkFrame
    from nacosdns.ports import Link

LOG = structlog.get_logger()
KEY = ServiceKey("public", "DEFAULT_GROUP", "orders")
FRAMES: list[LinkFrame] = [
    Hello(1, "front"),
    Asked((KEY,)),
    Removed(KEY, "gone"),
    Synced(5, 6),
    LookedUp((KEY,), "found"),
]


def packed(frame: LinkFrame) -> bytes:
    body = encode(frame)
    return struct.pack("!I", len(body)) + body


class Ear:
    """A LinkListener that keeps what it hears."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.peers: list[Hello] = []
        self.frames: list[LinkFrame] = []
        self.drains = 0
        self.lost = 0

    def joined(self, to: Link, peer: Hello) -> None:
        self.links.append(to)
        self.peers.append(peer)

    def received(self, to: Link, frame: LinkFrame) -> None:
        assert to in self.links
        self.frames.append(frame)

    def drained(self, to: Link) -> None:
        assert to in self.links
        self.drains += 1

    def left(self, to: Link) -> None:
        self.links.remove(to)
        self.lost += 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def listening(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


def together(tmp_path: Path, work: Callable[[Ear, Ear, str], Coroutine[None, None, None]]) -> None:
    """Runs ``work(keeper ear, front ear, path)`` with a server and a client."""

    async def run() -> None:
        path = tmp_path / "link.sock"
        keeper, front = Ear(), Ear()
        server = asyncio.create_task(link.serve(listening(path), keeper, Hello(VERSION, "keeper", 7), LOG))
        client = asyncio.create_task(link.connect(str(path), front, Hello(VERSION, "front"), LOG))
        try:
            await until(lambda: bool(keeper.links and front.links))
            await work(keeper, front, str(path))
        finally:
            for task in (client, server):
                task.cancel()
            await asyncio.gather(client, server, return_exceptions=True)
            await asyncio.sleep(0.01)

    asyncio.run(run())


@given(st.data())
def test_frames_are_whole_and_in_order_however_the_bytes_are_cut(data: st.DataObject) -> None:
    stream = b"".join(map(packed, FRAMES))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = FrameReader()
    heard = [
        frame
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for frame in reader.feed(stream[start:end])
    ]

    assert heard == FRAMES


@given(st.binary(max_size=200))
def test_hostile_bytes_raise_nothing_but_link_error(data: bytes) -> None:
    reader = FrameReader()
    try:
        reader.feed(struct.pack("!I", len(data)) + data)
        reader.feed(data)
    except LinkError:
        return


def test_a_frame_over_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(LinkError, match=f"at most {FRAME_BYTES_MAX}"):
        FrameReader().feed(struct.pack("!I", FRAME_BYTES_MAX + 1))


def test_both_sides_hear_who_the_other_is_and_what_it_says(tmp_path: Path) -> None:
    async def work(keeper: Ear, front: Ear, _: str) -> None:
        front.links[0].send(Asked((KEY,)))
        keeper.links[0].send(Synced(7, 9))
        await until(lambda: bool(keeper.frames and front.frames))

        assert (keeper.peers, front.peers) == ([Hello(VERSION, "front")], [Hello(VERSION, "keeper", 7)])
        assert (keeper.frames, front.frames) == ([Asked((KEY,))], [Synced(7, 9)])

    together(tmp_path, work)


def test_a_lost_link_is_made_anew(tmp_path: Path) -> None:
    async def work(keeper: Ear, front: Ear, _: str) -> None:
        keeper.links[0].close()
        await until(lambda: front.lost == 1 and len(front.links) == 1)

        assert len(front.peers) == 2

    together(tmp_path, work)


@pytest.mark.parametrize(
    "said", [packed(Hello(VERSION + 2, "front")), packed(Asked((KEY,))), struct.pack("!I", 5) + b"xxxxx", b"\xff" * 8]
)
def test_a_peer_that_does_not_say_hello_in_a_version_we_speak_is_dropped(tmp_path: Path, said: bytes) -> None:
    async def work(keeper: Ear, _: Ear, path: str) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(said)
        async with asyncio.timeout(5):
            while await reader.read(1000):
                pass
        writer.close()

        assert len(keeper.links) == 1

    together(tmp_path, work)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_peer_of_the_previous_or_the_next_version_is_welcome(tmp_path: Path, version: int) -> None:
    """In an upgrade the new fronts are there before the new keeper, and the other way round on the way back."""

    async def work(keeper: Ear, _: Ear, path: str) -> None:
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(packed(Hello(version, "front")))
        await until(lambda: len(keeper.links) == 2)
        writer.close()
        await until(lambda: len(keeper.links) == 1)

        assert keeper.peers[-1] == Hello(version, "front")

    together(tmp_path, work)


def test_a_reader_that_is_too_slow_congests_the_link_and_is_told_when_it_drains(tmp_path: Path) -> None:
    async def work(keeper: Ear, _: Ear, path: str) -> None:
        reader, writer = await asyncio.open_unix_connection(path, limit=1024)
        writer.write(packed(Hello(VERSION, "front")))
        await until(lambda: len(keeper.links) == 2)
        slow = keeper.links[1]
        for _ in range(4000):
            slow.send(Asked((KEY,) * 20))

        assert slow.congested

        async with asyncio.timeout(5):
            while slow.congested:
                await reader.read(65536)
        writer.close()

        assert keeper.drains == 1

    together(tmp_path, work)
