"""Clients by TCP: two-byte lengths, pipelining, answers out of order, limits (RFC 7766).

Must not know: DNS beyond the length. Rules: a connection without a question for ``idle_s`` is closed; above
``connections_max`` the idlest of the client that holds the most goes; a client that does not read its answers is not
read from; what cannot be accepted is left in the queue for a while, and the owner is told why; a reply is sent to the
connection that asked, or dropped with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

PIPELINE_MAX = 128
MESSAGE_BYTES_MIN = 12
BACKLOG = 1024  # as the sockets were opened with; the last who listens decides
ACCEPTS_A_TURN = 64
PAUSE_S = 1.0  # when this host has no descriptor or memory for one more
_WRITE_BUFFER_BYTES = 256 * 1024
_PIECES_AT_ONCE = 128


class Asked(Protocol):
    """What the door tells its owner. ``asked`` gets a whole message; answers come by ``connection.reply``."""

    def asked(self, packet: bytes, address: bytes, connection: Connection) -> None: ...

    def closed_for_room(self) -> None: ...

    def hindered_here(self, reason: str) -> None:
        """This host does not let us take a connection."""


class TcpDoor:
    """All TCP connections of a front. ``listen`` takes inherited listening sockets; ``spawn`` is the conductor's TaskGroup's."""

    def __init__(
        self,
        owner: Asked,
        spawn: Callable[[Coroutine[object, object, None]], object],
        *,
        connections_max: int,
        idle_s: float,
    ) -> None:
        self._owner = owner
        self._spawn = spawn
        self._connections_max = connections_max
        self._idle_s = idle_s
        self._listeners: dict[int, _Listener] = {}
        self._connections: dict[Connection, None] = {}

    def configure(self, *, connections_max: int, idle_s: float) -> None:
        """New limits; connections that are open keep the idle time they have."""
        self._connections_max = connections_max
        self._idle_s = idle_s

    def __repr__(self) -> str:
        return f"<TcpDoor listeners={len(self._listeners)} connections={len(self._connections)}>"

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def idle_s(self) -> float:
        return self._idle_s

    def listen(self, sock: socket.socket) -> None:
        """Accepts on this listening socket, which stays the caller's."""
        if sock.fileno() not in self._listeners:
            self._listeners[sock.fileno()] = _Listener(sock, self._take, self._owner.hindered_here)

    def _take(self, raw: socket.socket) -> None:
        self._spawn(self._begin(raw))

    async def _begin(self, raw: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: Connection(self, self._owner), raw)
        except OSError:  # it is gone already
            raw.close()

    def stop(self, sock: socket.socket) -> None:
        """No new connections from this socket; those there go on."""
        listener = self._listeners.pop(sock.fileno(), None)
        if listener is not None:
            listener.close()

    def stop_listening(self) -> None:
        """No new connections; those there go on."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    def close(self) -> None:
        """Ends everything now."""
        self.stop_listening()
        for connection in list(self._connections):
            connection.close()

    def busy(self) -> bool:
        """Whether a connection still waits for an answer of ours."""
        return any(connection.waiting for connection in self._connections)

    def opened(self, connection: Connection) -> None:
        self._connections[connection] = None
        if len(self._connections) > self._connections_max:
            self._owner.closed_for_room()
            spared = self._to_spare()
            del self._connections[spared]
            spared.close()

    def _to_spare(self) -> Connection:
        """Of the client with the most connections the idlest that waits for no answer; so a flood closes its own."""
        [(most, _)] = Counter(connection.address for connection in self._connections).most_common(1)
        theirs = [connection for connection in self._connections if connection.address == most]
        return next((connection for connection in theirs if not connection.waiting), theirs[0])

    def used(self, connection: Connection) -> None:
        """The idlest connection stands first."""
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def gone(self, connection: Connection) -> None:
        self._connections.pop(connection, None)


class _Listener:
    """One listening socket being accepted from.

    Not by the loop's own server: without a descriptor left one of them says nothing and drops who comes, the other says it
    a thousand times in one turn.
    """

    def __init__(
        self, sock: socket.socket, take: Callable[[socket.socket], None], hindered: Callable[[str], None]
    ) -> None:
        self._sock = sock
        self._number = sock.fileno()
        self._take = take
        self._hindered = hindered
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._open()

    def __repr__(self) -> str:
        return f"<_Listener fd={self._number} paused={self._pause is not None}>"

    def _open(self) -> None:
        self._pause = None
        self._loop.add_reader(self._number, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                raw, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # who came is gone again
            except OSError as error:
                self._hindered(os.strerror(error.errno or 0))
                self._loop.remove_reader(self._number)
                self._pause = self._loop.call_later(PAUSE_S, self._open)
                return
            raw.setblocking(False)
            self._take(raw)

    def close(self) -> None:
        """Accepts no more; the socket stays open for others."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        else:
            self._loop.remove_reader(self._number)


class Connection(asyncio.Protocol):
    """One client. ``address`` is raw; ``waiting`` is how many of its questions are not answered yet."""

    def __init__(self, door: TcpDoor, owner: Asked) -> None:
        self._door = door
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self.address = b""
        self._timer: asyncio.TimerHandle | None = None
        self._used_at = 0.0
        self._out: list[bytes] = []
        self._taking = False
        self._paused = False
        self._ended = False
        self._given_up = False
        self.waiting = 0

    def __repr__(self) -> str:
        return f"<Connection waiting={self.waiting} buffered={len(self._buffer)}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.address = _raw_address(transport.get_extra_info("peername"))
        self._door.opened(self)
        self._used_at = asyncio.get_running_loop().time()
        self._wait_idle(self._door.idle_s)

    def _idle(self) -> None:
        """Closes a connection that had no question for a while; one timer looks, however many questions come."""
        left_s = self._used_at + self._door.idle_s - asyncio.get_running_loop().time()
        if left_s > 0 or self.waiting:
            self._wait_idle(left_s if left_s > 0 else self._door.idle_s)
        else:
            self.close()

    def _wait_idle(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._idle)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._take()

    def _take(self) -> None:
        """Hands over whole messages, as long as not too many wait for an answer; what is answered at once leaves together."""
        self._taking = True
        at = 0
        buffer = self._buffer
        end = len(buffer)
        while end - at >= 2 and self.waiting < PIPELINE_MAX and self._takes_more:
            size = (buffer[at] << 8) + buffer[at + 1]
            if size < MESSAGE_BYTES_MIN:
                self._ended = self._given_up = True
                break
            if end - at < 2 + size:
                break
            packet = bytes(buffer[at + 2 : at + 2 + size])
            at += 2 + size
            self.waiting += 1
            self._owner.asked(packet, self.address, self)
            if len(self._out) >= _PIECES_AT_ONCE:
                self._flush()  # which says when the client does not read
        self._taking = False
        if at:
            del buffer[:at]
            self._used_at = asyncio.get_running_loop().time()
            self._door.used(self)
        self._flush()
        if self._given_up and not self.waiting and self._transport is not None:
            self._transport.close()
        self._adjust_reading()

    def _flush(self) -> None:
        if self._out:
            if self._transport is not None and not self._closing:
                self._transport.write(b"".join(self._out))
            self._out.clear()

    @property
    def _takes_more(self) -> bool:
        return not (self._paused or self._given_up or self._closing)

    @property
    def _closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _adjust_reading(self) -> None:
        if self._closing or self._transport is None:
            return
        full = self.waiting >= PIPELINE_MAX or self._paused or self._given_up
        if full and self._transport.is_reading():
            self._transport.pause_reading()
        elif not full and not self._transport.is_reading() and not self._ended:
            self._transport.resume_reading()

    def reply(self, packet: bytes) -> None:
        """Sends the answer to one of this connection's questions."""
        self.waiting = max(0, self.waiting - 1)
        self._out += (len(packet).to_bytes(2, "big"), packet)
        if not self._taking:
            self._flush()
            self._settle()

    def give_up(self) -> None:
        """One message gets no answer (it was a reply, or could not be read at all): the client is none of DNS.

        What it asked before is answered, nothing more is read, and then the connection ends. So it goes with a length
        that is below a header's.
        """
        self.waiting = max(0, self.waiting - 1)
        self._ended = self._given_up = True
        if not self._taking:
            self._settle()

    def _settle(self) -> None:
        if self._ended and not self.waiting and self._transport is not None:
            self._transport.close()
        elif len(self._buffer) >= 2 + MESSAGE_BYTES_MIN:
            asyncio.get_running_loop().call_soon(self._take)
        else:
            self._adjust_reading()

    def eof_received(self) -> bool:
        """The client has said all; it still gets the answers it waits for."""
        self._ended = True
        return self.waiting > 0

    def pause_writing(self) -> None:
        self._paused = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._timer is not None:
            self._timer.cancel()
        self._door.gone(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _raw_address(peer: object) -> bytes:
    if not isinstance(peer, tuple):
        return b""
    text = str(peer[0]).partition("%")[0]
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    return socket.inet_pton(family, text)
