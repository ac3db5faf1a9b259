"""A TCP proxy on loopback for a test: what goes through it can be cut, delayed, damaged and held up, and may go elsewhere.

For a Nacos it listens on P and P+1000, as that does. It runs in a thread of its own; its methods may be called from any.

    with Proxy(nacos.port) as way:
        way.refuse()
        ...
        way.clear()
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self

from fakes.real_nacos import free_nacos_port

if TYPE_CHECKING:
    from collections.abc import Callable

GRPC_ABOVE_HTTP = 1000
CHUNK_BYTES = 65_536
RESET = struct.pack("ii", 1, 0)


class Proxy:
    """See the module. ``connections`` counts those that were accepted, ``resets`` those that it broke."""

    def __init__(self, target: int, *, offsets: tuple[int, ...] = (0, GRPC_ABOVE_HTTP), seed: int = 6) -> None:
        self.port = free_nacos_port()
        self.target = target
        self.connections = 0
        self.resets = 0
        self._offsets = offsets
        self._delay_s = 0.0
        self._stalls = self._breaks = 0.0
        self._chance = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._flows: asyncio.Event
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # ---- life

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything."""
        if self._thread.is_alive():
            self._do(self._refuse)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._flows = asyncio.Event()
        self._flows.set()
        self._loop.run_forever()
        for task in self._carrying:
            task.cancel()
        if self._carrying:
            self._loop.run_until_complete(asyncio.wait(self._carrying, timeout=3))
        self._loop.close()

    def _do(self, act: Callable[[], object]) -> None:
        """Runs it in the thread, and waits for it."""

        async def run() -> None:
            result = act()
            if asyncio.iscoroutine(result):
                await result

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    # ---- what may happen to it

    def aim(self, target: int) -> None:
        """New connections go to another server; those that are open break."""
        self.target = target
        self._do(self._reset_all)

    def refuse(self) -> None:
        """Every connection is reset, and new ones are refused."""
        self._do(self._refuse)

    def slow(self, seconds: float) -> None:
        """What is sent arrives so much later, each way."""
        self._delay_s = seconds

    def lose(self, stalls: float, breaks: float) -> None:
        """These shares of what is sent are held up for a fifth to one second as by a retransmission, or reset the connection."""
        self._stalls, self._breaks = stalls, breaks

    def hang(self) -> None:
        """Nothing is forwarded and nothing is closed; new connections are accepted and hang too."""
        self._do(lambda: self._flows.clear())  # noqa: PLW0108 - it is made in the thread

    def clear(self) -> None:
        """Everything is well again; what was held up goes on."""
        self._delay_s = self._stalls = self._breaks = 0.0

        async def restore() -> None:
            self._flows.set()
            if not self._servers:
                await self._listen()

        self._do(restore)

    # ---- in the thread

    async def _listen(self) -> None:
        for offset in self._offsets:

            def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, offset: int = offset) -> None:
                task = self._loop.create_task(self._carry(reader, writer, offset))
                self._carrying.add(task)
                task.add_done_callback(self._carrying.discard)

            self._servers.append(await asyncio.start_server(take, "127.0.0.1", self.port + offset))

    def _refuse(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._flows.set()
        self._reset_all()

    def _reset_all(self) -> None:
        for writer in list(self._open):
            self._reset(writer)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        if sock is not None and not writer.transport.is_closing():
            with contextlib.suppress(OSError):  # the other end may have closed it a moment ago
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.resets += 1
        writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, offset: int) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            await self._flows.wait()
            onward, back = await asyncio.open_connection("127.0.0.1", self.target + offset)
        except OSError:
            self._reset(writer)
            self._open.discard(writer)
            return
        self._open.add(back)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, back, writer))
                group.create_task(self._pump(onward, writer, back))
        finally:
            for end in (writer, back):
                self._open.discard(end)
                end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: asyncio.StreamWriter
    ) -> None:
        """One direction; its end or a reset ends both."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                if not await self._way():
                    self._reset(writer)
                    self._reset(other)
                    return
                writer.write(data)
                await writer.drain()
        writer.close()
        other.close()

    async def _way(self) -> bool:
        """Waits as long as it takes what is sent to arrive; False: the connection breaks."""
        await self._flows.wait()
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        if self._stalls and self._chance.random() < self._stalls:
            await asyncio.sleep(self._chance.uniform(0.2, 1.0))
        return not (self._breaks and self._chance.random() < self._breaks)
