"""Other resolvers, by raw non-blocking UDP sockets and short TCP connections. Sends and reports; decides nothing.

Must not know: questions, health, the cache. Rules: every UDP query leaves from one of a few connected sockets of its
resolver, under a random id that is free on that socket; a socket takes no query after a random number of them or 30 s
and lives until its last one is answered or released, so that ports keep changing (RFC 5452 9.2); no task per UDP
query; everything is bounded; the callbacks are never called from inside ``send``. What is done for every query is
done with as few calls as can be: random numbers are drawn in bulk, and one call tells of the end of a batch.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from random import SystemRandom
from struct import pack
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core.resolvers import parse_endpoint
from nacosdns.errors import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from random import Random

SLOTS = 8
SOCKET_QUERIES_MAX = 500
SOCKET_AGE_S = 30.0
SOCKETS_MAX = 256
FLIGHTS_PER_SOCKET_MAX = 4096
DRAIN_MAX = 64
TCP_MAX = 64
TCP_DEADLINE_S = 2.5
TCP_MESSAGES_MAX = 8  # on one connection for one query: a server has one to say, and some say it twice
PACKET_BYTES_MAX = 65535
HEADER_BYTES = 12
DRAWS = 1024

Sockaddr = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool may use; the defaults are right for a host, tests take less."""

    slots: int = SLOTS
    socket_queries_max: int = SOCKET_QUERIES_MAX
    socket_age_s: float = SOCKET_AGE_S
    sockets_max: int = SOCKETS_MAX
    tcp_max: int = TCP_MAX
    tcp_deadline_s: float = TCP_DEADLINE_S


class _Socket:
    """One connected UDP socket: which token waits under which id, and how many queries it still takes."""

    __slots__ = ("flights", "left", "send", "sock", "worn_at")

    def __init__(self, sock: socket.socket, left: int, worn_at: float) -> None:
        self.sock = sock
        self.send = sock.send
        self.left = left
        self.worn_at = worn_at
        self.flights: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<_Socket fd={self.sock.fileno()} flights={len(self.flights)} left={self.left}>"


class UpstreamSockets:
    """``ports.Upstream``. ``received`` and ``failed`` as described there; ``spawn`` is the conductor's TaskGroup's.

    ``settled``, if given, is called after one or more calls of ``received`` or ``failed``, before the loop goes on.

    Words handed to ``failed``: refused (nobody listens), unreachable (no route, no such interface), closed (TCP ended
    without an answer), timeout (TCP only: the caller times UDP). What this host or a bound of ours did not allow goes to
    ``hindered`` in its place, with the reason for people.
    """

    def __init__(
        self,
        received: Callable[[int, bytes], bool],
        failed: Callable[[int, str], None],
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
        *,
        hindered: Callable[[int, str], None] | None = None,
        settled: Callable[[], None] | None = None,
        limits: Limits | None = None,
        rng: Random | None = None,
    ) -> None:
        self._received = received
        self._failed = failed
        self._hindered = hindered or failed
        self._settled = settled or _nothing
        self._spawn = spawn
        self._limits = limits or Limits()
        self._rng = rng or SystemRandom()
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(PACKET_BYTES_MAX))
        self._draws: list[int] = []
        self._slots: dict[str, list[_Socket | None]] = {}
        self._flights: dict[int, tuple[_Socket, int]] = {}
        self._open: set[_Socket] = set()
        self._connections: dict[int, asyncio.Task[None]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self.strays = 0

    def __repr__(self) -> str:
        return (
            f"<UpstreamSockets sockets={len(self._open)} flights={len(self._flights)} "
            f"tcp={len(self._connections)} strays={self.strays}>"
        )

    def send(self, address: str, packet: bytes, *, over_tcp: bool, token: int) -> None:
        """Sends the packet under an id of ours. ``failed`` comes later if it cannot be done; after ``close`` nothing."""
        if self._closed:
            return
        try:
            if over_tcp:
                self._send_over_tcp(address, packet, token)
            else:
                self._send_over_udp(address, packet, token)
        except (UpstreamError, OSError) as error:
            self._loop.call_soon(self._fail, (token,), error)

    def release(self, token: int) -> None:
        """No answer is wanted any more for this token."""
        flight = self._flights.pop(token, None)
        if flight is not None:
            sock, number = flight
            del sock.flights[number]
            if sock.left <= 0 and not sock.flights:
                self._shut(sock)
            return
        connection = self._connections.pop(token, None)
        if connection is not None:
            connection.cancel()

    def close(self) -> None:
        """Closes every socket and connection; nothing is reported after it."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for sock in tuple(self._open):
            self._shut(sock)
        for connection in self._connections.values():
            connection.cancel()
        self._flights.clear()
        self._connections.clear()

    def _fail(self, tokens: Iterable[int], error: Exception) -> None:
        if not self._closed:
            reason = hindrance(error)
            for token in tokens:
                if reason:
                    self._hindered(token, reason)
                else:
                    self._failed(token, _word(error))
            self._settled()

    # UDP

    def _send_over_udp(self, address: str, packet: bytes, token: int) -> None:
        drawn = self._draws.pop() if self._draws else self._draw()
        slots = self._slots.get(address)
        if slots is None:
            slots = self._slots[address] = [None] * self._limits.slots
        place = (drawn >> 16) % len(slots)
        chosen = slots[place]
        if chosen is None or chosen.left <= 0 or self._loop.time() > chosen.worn_at:
            chosen = self._renew(slots, place, address)
        flights = chosen.flights
        if len(flights) >= FLIGHTS_PER_SOCKET_MAX:
            raise _Full(f"{FLIGHTS_PER_SOCKET_MAX} questions wait on one socket")
        number = drawn & 0xFFFF
        while number in flights:
            number = self._draw() & 0xFFFF
        try:
            chosen.send(number.to_bytes(2, "big") + packet[2:])
        except ConnectionRefusedError as error:
            self._give_up(chosen, error)  # the kernel reports it for an earlier query, and has not sent this one
            raise
        chosen.left -= 1
        flights[number] = token
        self._flights[token] = (chosen, number)

    def _renew(self, slots: list[_Socket | None], place: int, address: str) -> _Socket:
        """Another socket in this place."""
        worn, slots[place] = slots[place], None
        if worn is not None:
            self._retire(worn)
        made = slots[place] = self._connect(address)
        return made

    def _draw(self) -> int:
        """32 random bits."""
        if not self._draws:
            drawn = self._rng.randbytes(4 * DRAWS)
            self._draws = list(memoryview(drawn).cast("I"))
        return self._draws.pop()

    def _retire(self, sock: _Socket) -> None:
        """It takes no query any more, and goes with its last one."""
        sock.left = 0
        if not sock.flights:
            self._shut(sock)

    def _is_worn(self, sock: _Socket) -> bool:
        return sock.left <= 0 or self._loop.time() > sock.worn_at

    def _connect(self, address: str) -> _Socket:
        if len(self._open) >= self._limits.sockets_max:
            raise _Full(f"{self._limits.sockets_max} sockets of upstreams are open")
        family, target = _target(address)
        raw = socket.socket(family, socket.SOCK_DGRAM)
        try:
            raw.setblocking(False)
            raw.connect(target)
        except OSError:
            raw.close()
            raise
        queries = self._rng.randint(1 + self._limits.socket_queries_max // 10, self._limits.socket_queries_max)
        made = _Socket(raw, queries, self._loop.time() + self._limits.socket_age_s)
        self._open.add(made)
        self._loop.add_reader(raw, self._drain, made)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._limits.socket_age_s, self._sweep_up)
        return made

    def _drain(self, sock: _Socket) -> None:
        receive, buffer, flights = sock.sock.recv_into, self._buffer, sock.flights
        failure: OSError | None = None
        for _ in range(DRAIN_MAX):
            try:
                size_bytes = receive(buffer)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                failure = error
                break
            token = flights.get(buffer[0] << 8 | buffer[1]) if size_bytes >= HEADER_BYTES else None
            if token is None:
                self.strays += 1
            elif self._received(token, buffer[:size_bytes].tobytes()):
                self.release(token)
            if not flights:  # nothing more is expected, and whatever comes wakes us again
                break
        self._settled()
        if failure is not None:
            self._give_up(sock, failure)

    def _give_up(self, sock: _Socket, error: OSError) -> None:
        """The kernel says that nothing comes by this socket: everything on it fails, the socket goes."""
        tokens = [token for token in sock.flights.values() if self._flights.pop(token, None) is not None]
        sock.flights.clear()
        self._shut(sock)
        if tokens:
            self._loop.call_soon(self._fail, tokens, error)

    def _shut(self, sock: _Socket) -> None:
        if sock not in self._open:
            return
        self._open.discard(sock)
        sock.left = 0
        self._loop.remove_reader(sock.sock)
        sock.sock.close()

    def _sweep_up(self) -> None:
        """Closes old sockets that nobody uses, so that an idle process holds none."""
        for address, slots in tuple(self._slots.items()):
            slots[:] = [None if sock is None or self._is_worn(sock) else sock for sock in slots]
            if not any(slots):
                del self._slots[address]
        for sock in tuple(self._open):
            if self._is_worn(sock):
                self._retire(sock)
        again = bool(self._open)
        self._sweep = self._loop.call_later(self._limits.socket_age_s, self._sweep_up) if again else None

    # TCP

    def _send_over_tcp(self, address: str, packet: bytes, token: int) -> None:
        if len(self._connections) >= self._limits.tcp_max:
            raise _Full(f"{self._limits.tcp_max} questions by TCP are on their way")
        family, target = _target(address)
        query = pack("!H", self._rng.getrandbits(16)) + packet[2:]
        self._connections[token] = self._spawn(self._converse(family, target, query, token))

    async def _converse(self, family: socket.AddressFamily, target: Sockaddr, query: bytes, token: int) -> None:
        """One connection for one query. Says one word when it fails; says nothing when it was released."""
        try:
            async with asyncio.timeout(self._limits.tcp_deadline_s):
                await self._ask(family, target, query, token)
        except (OSError, asyncio.IncompleteReadError, UpstreamError) as error:
            self._end(token, error)
        else:
            self._connections.pop(token, None)

    async def _ask(self, family: socket.AddressFamily, target: Sockaddr, query: bytes, token: int) -> None:
        with socket.socket(family, socket.SOCK_STREAM) as raw:
            raw.setblocking(False)
            await self._connect_tcp(raw, target)
            await self._loop.sock_sendall(raw, pack("!H", len(query)) + query)
            for _ in range(TCP_MESSAGES_MAX):
                size_bytes = int.from_bytes(await self._read(raw, 2), "big")
                packet = await self._read(raw, size_bytes)
                is_ours = packet[:2] == query[:2] and len(packet) >= HEADER_BYTES
                is_answer = is_ours and self._received(token, packet)
                self._settled()
                if is_answer:
                    return
                self.strays += 1
        raise UpstreamError("closed")  # by us: what never ends gives nobody else a turn, not even the deadline

    async def _connect_tcp(self, raw: socket.socket, target: Sockaddr) -> None:
        """Not by ``sock_connect``: uvloop's looks the address up again and loses the zone."""
        try:
            raw.connect(target)
        except BlockingIOError:
            done = self._loop.create_future()
            self._loop.add_writer(raw, _resolve, done)
            try:
                await done
            finally:
                self._loop.remove_writer(raw)
            error = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error)) from None

    async def _read(self, raw: socket.socket, size_bytes: int) -> bytes:
        got = bytearray()
        while len(got) < size_bytes:
            part = await self._loop.sock_recv(raw, size_bytes - len(got))
            if not part:
                raise asyncio.IncompleteReadError(bytes(got), size_bytes)
            got += part
        return bytes(got)

    def _end(self, token: int, error: Exception) -> None:
        if self._connections.pop(token, None) is not None:
            self._fail((token,), error)


def _nothing() -> None:
    """What is called when nobody wants to know."""


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Full(UpstreamError):
    """A bound of ours is reached."""


_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN, errno.EPERM, errno.EACCES}
"""What this host does not allow, whoever is asked: no descriptor, no memory, no free port, a rule of its firewall."""


def hindrance(error: Exception) -> str:
    """Why this host or a bound of ours is to blame for an error, for people; "" when it is not."""
    if isinstance(error, _Full):
        return str(error)
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno in _OURS else ""


def _word(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, TimeoutError) and not error.errno:
        return "timeout"
    is_closed = isinstance(error, ConnectionError) or not isinstance(error, OSError)
    return "closed" if is_closed else "unreachable"


def _target(address: str) -> tuple[socket.AddressFamily, Sockaddr]:
    """Numeric only, so it never blocks; not remembered, for the interface of a zone may come, go and be renumbered."""
    endpoint = parse_endpoint(address)
    found = socket.getaddrinfo(endpoint.host, endpoint.port, flags=socket.AI_NUMERICHOST)
    family, target = found[0][0], found[0][4]
    return family, target
