"""The link between keeper and fronts: length-prefixed frames over a Unix stream socket.

Must not know: what the frames mean. Rules: the first frame each way is Hello, and a peer with a version that we do not
speak is dropped; the peer must run as root or as our own user (SO_PEERCRED); nothing here blocks; a frame that cannot
be read drops the connection, which is then made anew.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import sys
import termios
from typing import TYPE_CHECKING, cast

import msgspec

from nacosdns.core.frames import FRAME_BYTES_MAX, VERSION, Hello, decode_link, encode
from nacosdns.errors import LinkError

if TYPE_CHECKING:
    from nacosdns.core.frames import LinkFrame
    from nacosdns.ports import LinkListener, Log

_LENGTH = struct.Struct("!I")
_BUFFER_HIGH_BYTES = 512 * 1024
BACKOFF_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LARGE_BYTES = 16_384
HELLO_DEADLINE_S = 2.0


class FrameReader:
    """Bytes in, frames out. LinkError on a frame that is too long or cannot be read."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __repr__(self) -> str:
        return f"<FrameReader {len(self._buffer)} bytes>"

    def feed(self, data: bytes) -> list[LinkFrame]:
        """The frames that are complete now, in order."""
        buffer = self._buffer
        buffer += data
        frames: list[LinkFrame] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, start)
            if size > FRAME_BYTES_MAX:
                raise LinkError(f"frame of {size} bytes, at most {FRAME_BYTES_MAX}")
            end = start + _LENGTH.size + size
            if len(buffer) < end:
                break
            frames.append(_decode(bytes(buffer[start + _LENGTH.size : end])))
            start = end
        del buffer[:start]
        return frames


def _decode(body: bytes) -> LinkFrame:
    try:
        return decode_link(body)
    except (
        msgspec.MsgspecError,
        RecursionError,
    ) as error:  # the latter: arrays in arrays, where a body is left encoded
        raise LinkError(f"unreadable frame: {error}") from error


class StreamLink(asyncio.Protocol):
    """One connection; implements ports.Link. ``hello`` is what we say first."""

    def __init__(self, listener: LinkListener, hello: Hello, log: Log) -> None:
        self._listener = listener
        self._hello = hello
        self._log = log
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._peer: Hello | None = None
        self._congested = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<StreamLink peer={self._peer} congested={self._congested}>"

    @property
    def congested(self) -> bool:
        return self._congested

    @property
    def unread(self) -> bool:
        if self._transport is None or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size():
            return True
        sock: socket.socket = self._transport.get_extra_info("socket")
        try:
            left = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            return False
        return left != bytes(4)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        if not _trusted(transport.get_extra_info("socket")):
            self._log.warning("link.refused", reason="peer runs as another user")
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_BUFFER_HIGH_BYTES)
        self._deadline = asyncio.get_running_loop().call_later(HELLO_DEADLINE_S, self._no_hello)
        self.send(self._hello)

    def _no_hello(self) -> None:
        self._log.warning("link.dropped", reason="no hello")
        self.close()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._hear(frame)
        except LinkError as error:
            self._log.warning("link.dropped", reason=str(error))
            self.close()
        if len(data) >= LARGE_BYTES and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()  # a full state comes faster than it is taken in: others have their turn
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _hear(self, frame: LinkFrame) -> None:
        if self._peer is not None:
            self._listener.received(self, frame)
            return
        if not isinstance(frame, Hello):
            raise LinkError("the first frame is not Hello")
        if abs(frame.version - VERSION) > 1:  # the newer of two speaks the version of the older
            raise LinkError(f"peer speaks version {frame.version}, we speak {VERSION - 1} and {VERSION}")
        self._peer = frame
        if self._deadline is not None:
            self._deadline.cancel()
        self._listener.joined(self, frame)

    def send(self, frame: LinkFrame) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        body = encode(frame)
        self._transport.write(_LENGTH.pack(len(body)) + body)

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        if self._peer is not None:
            self._listener.drained(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        if self._peer is not None:
            self._listener.left(self)
            if exc is not None:
                self._log.info("link.lost", reason=str(exc))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _trusted(sock: socket.socket) -> bool:
    """Whether the peer runs as root or as us. Where the platform cannot tell, the socket's mode (0600) must do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in {0, os.geteuid()} or os.geteuid() == 0


async def serve(sock: socket.socket, listener: LinkListener, hello: Hello, log: Log) -> None:
    """Takes links on an inherited listening socket until cancelled."""
    loop = asyncio.get_running_loop()
    links: set[StreamLink] = set()

    def make() -> StreamLink:
        link = StreamLink(listener, hello, log)
        links.add(link)
        link.closed.add_done_callback(lambda _: links.discard(link))
        return link

    if sys.version_info >= (3, 13):
        server = await loop.create_unix_server(make, sock=sock, cleanup_socket=False)  # the file is the supervisor's
    else:
        server = await loop.create_unix_server(make, sock=sock)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        server.close()
        for link in list(links):
            link.close()


async def connect(path: str, listener: LinkListener, hello: Hello, log: Log) -> None:
    """Keeps one link to the listener at ``path``: connects again with back-off whenever it is lost, until cancelled."""
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        try:
            _, link = await loop.create_unix_connection(lambda: StreamLink(listener, hello, log), path)
        except OSError as error:
            if failures == 0:
                log.info("link.unreachable", reason=str(error))
            await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
            failures += 1
            continue
        started = loop.time()
        try:
            await link.closed
        finally:
            link.close()
        failures = 0 if loop.time() - started > 1.0 else failures + 1
        await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
