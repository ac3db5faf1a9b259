"""Clients by UDP: drains a readable socket in batches and sends prepared replies back, each from the address asked.

Must not know: DNS beyond "the first two bytes are the id". Rules: the fast path is one look-up of the whole packet and
no Python object for the client's address; a slot that was not filled now is never sent; a reply that cannot be sent
does not take the rest of its batch with it. Two back ends, chosen at start, do the same: libc's recvmmsg and sendmmsg
through ctypes (Linux, 64-bit little-endian), and recvmsg and sendmsg of the standard library (other Unix).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nacosdns.core.book import Entry

BATCH = 64
BATCHES_A_TURN = 4
IN_BYTES = 2048
OUT_BYTES = 2048
NAME_BYTES = 28
CONTROL_BYTES = 96
PAUSE_S = 1.0
OLD_S = 2.0
SO_TIMESTAMPNS = 35
_MSG_DONTWAIT = 0x40
_MSG_TRUNC = 0x20
_HEADER_WORDS = 8
_STAMP_BYTES = 32
_PKTINFO_V4 = 28
_PKTINFO_V6 = 36


LAYOUT = tuple((slot, slot * IN_BYTES, 16 * slot + 14, slot * OUT_BYTES, 2 * slot + 1) for slot in range(BATCH))
"""Of each slot: its number, its data, the word of its length in the headers, its reply, the word of the reply's size."""


class Client:
    """Where a reply goes: the raw socket address, and the raw control message that names the address asked."""

    __slots__ = ("control", "name")

    def __init__(self, name: bytes, control: bytes = b"") -> None:
        self.name = name
        self.control = control

    @property
    def address(self) -> bytes:
        """The client's address, 4 or 16 raw bytes."""
        return self.name[4:8] if len(self.name) == 16 else self.name[8:24]

    @property
    def port(self) -> int:
        return int.from_bytes(self.name[2:4], "big")


class Asked(Protocol):
    """What a door tells its owner. ``slow`` returns the whole reply, or None: none, or one sent later by ``reply``."""

    def slow(self, packet: bytes, client: Client, door: UdpDoor) -> bytes | None: ...

    def batch(self, cells: Mapping[int, int], elapsed_us: int) -> None: ...

    def dropped(self, reason: str) -> None: ...

    def surprised(self, packet: bytes) -> bytes | None:
        """A prepared reply could not be made; called while the exception is handled. What to say instead."""


class UdpDoor(Protocol):
    """One UDP socket being answered."""

    def open(self) -> None:
        """Starts to read."""

    def reply(self, client: Client, packet: bytes) -> None:
        """Sends a reply that took longer."""

    def close(self) -> None:
        """Stops to read; the socket stays open for others."""

    def use_allowed(self, allowed: dict[bytes, bool] | None) -> None:
        """Another table of judged addresses, from a new configuration."""


def mmsg_works() -> bool:
    """Whether the platform's structures are those that the fast back end lays out by hand."""
    return sys.platform == "linux" and struct.calcsize("P") == 8 and sys.byteorder == "little"


def make_door(
    sock: socket.socket,
    replies: dict[bytes, Entry],
    owner: Asked,
    *,
    allowed: dict[bytes, bool] | None = None,
    portable: bool = False,
) -> UdpDoor:
    """A door on an inherited, bound, non-blocking socket. ``allowed``: addresses already judged; None asks nobody."""
    kind = PortableDoor if portable or not mmsg_works() else FastDoor
    return kind(sock, replies, owner, allowed)


def _is_wildcard(sock: socket.socket) -> bool:
    return sock.getsockname()[0] in {"0.0.0.0", "::"}  # noqa: S104  # compared, not bound


class _Libc:
    """recvmmsg, sendmmsg and sendmsg without giving up the GIL: they cannot block."""

    def __init__(self) -> None:
        libc = ctypes.PyDLL(None, use_errno=True)
        self.recvmmsg = libc.recvmmsg
        self.recvmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
        self.sendmmsg = libc.sendmmsg
        self.sendmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int]


class _Slots:
    """The buffers of a batch: one array each of data, addresses, control data, iovecs and headers."""

    def __init__(
        self, data_bytes: int, names: ctypes.Array[ctypes.c_char], controls: ctypes.Array[ctypes.c_char]
    ) -> None:
        self.data = (ctypes.c_char * (BATCH * data_bytes))()
        self.view = memoryview(self.data).cast("B")
        self.iovecs = (ctypes.c_uint64 * (2 * BATCH))()
        self.headers = (ctypes.c_uint64 * (_HEADER_WORDS * BATCH))()
        for slot in range(BATCH):
            self.iovecs[2 * slot] = ctypes.addressof(self.data) + slot * data_bytes
            self.iovecs[2 * slot + 1] = data_bytes
            head = _HEADER_WORDS * slot
            self.headers[head] = ctypes.addressof(names) + slot * NAME_BYTES
            self.headers[head + 1] = NAME_BYTES
            self.headers[head + 2] = ctypes.addressof(self.iovecs) + 16 * slot
            self.headers[head + 3] = 1
            self.headers[head + 4] = ctypes.addressof(controls) + slot * CONTROL_BYTES
            self.headers[head + 5] = CONTROL_BYTES


class _Door:
    """What both back ends share: the socket, whether it is read, and replies that come later."""

    def __init__(
        self, sock: socket.socket, replies: dict[bytes, Entry], owner: Asked, allowed: dict[bytes, bool] | None
    ) -> None:
        self._sock = sock
        self._replies = replies
        self._owner = owner
        self._allowed = allowed
        self._v6 = sock.family == socket.AF_INET6
        self._read_at = time.monotonic()
        self._open = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._sock.getsockname()[:2]} open={self._open}>"

    def open(self) -> None:
        if not self._open:
            self._open = True
            asyncio.get_running_loop().add_reader(self._sock.fileno(), self._readable)

    def close(self) -> None:
        if self._open:
            self._open = False
            asyncio.get_running_loop().remove_reader(self._sock.fileno())

    def use_allowed(self, allowed: dict[bytes, bool] | None) -> None:
        self._allowed = allowed

    def reply(self, client: Client, packet: bytes) -> None:
        _send_one(self._sock, client, packet)

    def _readable(self) -> None:
        raise NotImplementedError


class FastDoor(_Door):
    """recvmmsg and sendmmsg. Layout of struct mmsghdr (64 bytes): name, namelen, iov, iovlen, control, controllen, flags, len."""

    def __init__(
        self, sock: socket.socket, replies: dict[bytes, Entry], owner: Asked, allowed: dict[bytes, bool] | None
    ) -> None:
        super().__init__(sock, replies, owner, allowed)
        self._name_size = 28 if self._v6 else 16
        self._libc = _Libc()
        self._names = (ctypes.c_char * (BATCH * NAME_BYTES))()
        self._controls = (ctypes.c_char * (BATCH * CONTROL_BYTES))()
        self._in = _Slots(IN_BYTES, self._names, self._controls)
        self._out = _Slots(OUT_BYTES, self._names, self._controls)
        self._name_view = memoryview(self._names).cast("B")
        self._control_view = memoryview(self._controls).cast("B")
        self._header_view = memoryview(self._in.headers).cast("B")
        self._lengths = self._header_view.cast("I")
        self._sizes = memoryview(self._out.iovecs).cast("B").cast("Q")
        self._fresh = bytes(self._in.headers)
        self._control_offset = self._set_up_control()

    def _set_up_control(self) -> int:
        """Where in a slot's control data the asked address stands; -1 when it need not be handed back."""
        stamped = self._sock.getsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS) != 0
        wildcard = _is_wildcard(self._sock)
        offset = _STAMP_BYTES if stamped else 0
        space = 40 if self._v6 else 32
        for slot in range(BATCH):
            head = _HEADER_WORDS * slot
            self._out.headers[head + 1] = self._name_size
            self._out.headers[head + 4] = (
                ctypes.addressof(self._controls) + slot * CONTROL_BYTES + offset if wildcard else 0
            )
            self._out.headers[head + 5] = space if wildcard else 0
        return offset if wildcard else -1

    def _readable(self) -> None:
        for _ in range(BATCHES_A_TURN):
            if self._drain() < BATCH or not self._open:
                return

    def _drain(self) -> int:
        """One batch: read, answer what is prepared, hand the rest over, send. Returns how many packets were read."""
        self._header_view[:] = self._fresh
        count: int = self._libc.recvmmsg(
            self._sock.fileno(), ctypes.addressof(self._in.headers), BATCH, _MSG_DONTWAIT, None
        )
        if count <= 0:
            return 0
        started = time.monotonic()
        careful = started - self._read_at > PAUSE_S or self._allowed is not None
        self._zero_interfaces(count)
        cells: dict[int, int] = {}
        missed = self._judge(count, started) if careful else None
        unfilled = self._answer(count, cells, missed or ())
        self._send(count, unfilled)
        self._read_at = time.monotonic()
        self._owner.batch(cells, int((self._read_at - started) * 1e6))
        return count

    def _answer(self, count: int, cells: dict[int, int], dropped: tuple[int, ...] | list[int]) -> list[int]:
        """Fills the outgoing slots. Returns the slots that stay empty."""
        data = self._in.data
        out = self._out.view
        lengths = self._lengths
        sizes = self._sizes
        find = self._replies.get
        unfilled: list[int] = []
        cell = times = 0
        for slot, at, length_at, start, size_at in LAYOUT[:count]:
            packet: bytes = data[at : at + lengths[length_at]]  # type: ignore[assignment]  # c_char arrays give bytes
            entry = find(packet[2:])
            if entry is not None and not (dropped and slot in dropped):
                page = entry.page
                cursor = page.cursor + 1
                if cursor < page.size and entry.turn == page.turn:
                    page.cursor = cursor
                    reply = packet[:2] + entry.replies[cursor]
                else:
                    reply = _next_reply(entry, packet, self._owner)
                if page.cell != cell:
                    _count(cells, cell, times)
                    cell, times = page.cell, 0
                times += 1
            else:
                reply = b"" if dropped and slot in dropped else self._slow(packet, slot, lengths[length_at - 2])
            if reply:
                size = len(reply)
                out[start : start + size] = reply
                sizes[size_at] = size
            else:
                unfilled.append(slot)
        _count(cells, cell, times)
        return unfilled

    def _slow(self, packet: bytes, slot: int, flags: int) -> bytes:
        client = self._client(slot)
        if client.port == 0:
            self._owner.dropped("port0")
            return b""
        if flags & _MSG_TRUNC:
            self._owner.dropped("malformed")
            return b""
        reply = self._owner.slow(packet, client, self)
        if reply is None:
            return b""
        return reply if len(reply) <= OUT_BYTES else b""

    def _client(self, slot: int) -> Client:
        name = self._name_view[slot * NAME_BYTES : slot * NAME_BYTES + self._name_size].tobytes()
        if self._control_offset < 0:
            return Client(name)
        at = slot * CONTROL_BYTES + self._control_offset
        return Client(name, self._control_view[at : at + (40 if self._v6 else 32)].tobytes())

    def _zero_interfaces(self, count: int) -> None:
        """The reply leaves from the asked address by whatever route: the interface index goes back as 0 (but link-local)."""
        if self._control_offset < 0:
            return
        controls = self._control_view
        for slot in range(count):
            at = slot * CONTROL_BYTES + self._control_offset + 16
            if not self._v6:
                controls[at : at + 4] = b"\0\0\0\0"
            elif controls[at] != 0xFE or controls[at + 1] & 0xC0 != 0x80:
                controls[at + 16 : at + 20] = b"\0\0\0\0"

    def _judge(self, count: int, now: float) -> list[int]:
        """Slots that must not be answered from the table: older than OLD_S after a pause, or of a client not judged yet."""
        dropped: list[int] = []
        paused = now - self._read_at > PAUSE_S
        wall_ns = time.time_ns()
        for slot in range(count):
            if paused and self._age_s(slot, wall_ns) > OLD_S:
                self._owner.dropped("old")
                dropped.append(slot)
            elif self._allowed is not None and not self._allowed.get(self._client_address(slot), False):
                self._refuse(slot, dropped)
        return dropped

    def _refuse(self, slot: int, dropped: list[int]) -> None:
        """A client that is not known to be allowed goes the slow way, which judges it; its packet is not looked up."""
        lengths = self._lengths
        at = slot * IN_BYTES
        packet = self._in.view[at : at + lengths[16 * slot + 14]].tobytes()
        reply = self._slow(packet, slot, lengths[16 * slot + 12])
        if reply:
            self.reply(self._client(slot), reply)
        dropped.append(slot)

    def _client_address(self, slot: int) -> bytes:
        at = slot * NAME_BYTES
        return self._name_view[at + 8 : at + 24].tobytes() if self._v6 else self._name_view[at + 4 : at + 8].tobytes()

    def _age_s(self, slot: int, wall_ns: int) -> float:
        at = slot * CONTROL_BYTES
        size, level, kind = struct.unpack_from("<QII", self._controls, at)
        if size < _STAMP_BYTES or level != socket.SOL_SOCKET or kind != SO_TIMESTAMPNS:
            return 0.0
        seconds, nanoseconds = struct.unpack_from("<qq", self._controls, at + 16)
        age_ns = wall_ns - (int(seconds) * 1_000_000_000 + int(nanoseconds))
        return age_ns / 1e9

    def _send(self, count: int, unfilled: list[int]) -> None:
        """Sends the filled slots, run by run; a slot that the kernel refuses is skipped and the rest goes on."""
        start = 0
        for stop in (*unfilled, count):
            while start < stop:
                head = ctypes.addressof(self._out.headers) + start * _HEADER_WORDS * 8
                sent: int = self._libc.sendmmsg(self._sock.fileno(), head, stop - start, _MSG_DONTWAIT)
                start += sent if sent > 0 else 1
            start = stop + 1


def _next_reply(entry: Entry, packet: bytes, owner: Asked) -> bytes:
    """The next prepared reply, when it may have to be drawn anew: a balancer's fault costs one answer, not the batch."""
    try:
        return packet[:2] + entry.reply()
    except Exception:  # noqa: BLE001  # balancers may be a stranger's
        return owner.surprised(packet) or b""


def _count(cells: dict[int, int], cell: int, times: int) -> None:
    if times:
        cells[cell] = cells.get(cell, 0) + times


def _send_one(sock: socket.socket, client: Client, packet: bytes) -> None:
    """One reply. What the kernel refuses (EPERM, EINVAL, a full buffer) is the client's loss alone."""
    if client.port == 0:
        return
    address: tuple[str, int] | tuple[str, int, int, int]
    if len(client.name) == 16:
        address = (socket.inet_ntop(socket.AF_INET, client.address), client.port)
        level, kind, size = socket.IPPROTO_IP, getattr(socket, "IP_PKTINFO", 8), _PKTINFO_V4 - 16
    else:
        scope = struct.unpack_from("<I", client.name, 24)[0]
        address = (socket.inet_ntop(socket.AF_INET6, client.address), client.port, 0, scope)
        level, kind, size = socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _PKTINFO_V6 - 16
    ancillary = [(level, kind, client.control[16 : 16 + size])] if client.control else []
    with contextlib.suppress(OSError):
        sock.sendmsg([packet], ancillary, 0, address)


class PortableDoor(_Door):
    """recvmsg and sendmsg, one packet a call; the same behaviour on any Unix."""

    def __init__(
        self, sock: socket.socket, replies: dict[bytes, Entry], owner: Asked, allowed: dict[bytes, bool] | None
    ) -> None:
        super().__init__(sock, replies, owner, allowed)
        self._wildcard = _is_wildcard(sock)

    def _readable(self) -> None:
        started = time.monotonic()
        paused = started - self._read_at > PAUSE_S
        cells: dict[int, int] = {}
        for _ in range(BATCH * BATCHES_A_TURN):
            try:
                packet, ancillary, flags, address = self._sock.recvmsg(IN_BYTES, 256)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno == errno.ECONNREFUSED:
                    continue
                raise
            if paused and _stamp_age_s(ancillary) > OLD_S:
                self._owner.dropped("old")
            else:
                self._one(packet, self._client(address, ancillary), flags, cells)
        self._read_at = time.monotonic()
        self._owner.batch(cells, int((self._read_at - started) * 1e6))

    def _one(self, packet: bytes, client: Client, flags: int, cells: dict[int, int]) -> None:
        if client.port == 0:
            self._owner.dropped("port0")
            return
        if flags & socket.MSG_TRUNC:
            self._owner.dropped("malformed")
            return
        judged = self._allowed is None or self._allowed.get(client.address, False)
        entry = self._replies.get(packet[2:]) if judged else None
        if entry is not None:
            reply: bytes | None = _next_reply(entry, packet, self._owner)
            cells[entry.page.cell] = cells.get(entry.page.cell, 0) + 1
        else:
            reply = self._owner.slow(packet, client, self)
        if reply:
            _send_one(self._sock, client, reply)

    def _client(
        self, address: tuple[str, int] | tuple[str, int, int, int], ancillary: list[tuple[int, int, bytes]]
    ) -> Client:
        family = struct.pack("<H", self._sock.family) + address[1].to_bytes(2, "big")
        if self._v6:
            scope = struct.pack("<I", address[3] if len(address) == 4 else 0)
            name = family + bytes(4) + socket.inet_pton(socket.AF_INET6, address[0].partition("%")[0]) + scope
        else:
            name = family + socket.inet_aton(address[0]) + bytes(8)
        return Client(name, self._control(ancillary) if self._wildcard else b"")

    def _control(self, ancillary: list[tuple[int, int, bytes]]) -> bytes:
        wanted = (
            (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO)
            if self._v6
            else (socket.IPPROTO_IP, getattr(socket, "IP_PKTINFO", 8))
        )
        for level, kind, data in ancillary:
            if (level, kind) == wanted:
                info = (
                    data[:16] + bytes(4)
                    if self._v6 and data[:1] != b"\xfe"
                    else data
                    if self._v6
                    else bytes(4) + data[4:12]
                )
                return bytes(16) + info
        return b""


def _stamp_age_s(ancillary: list[tuple[int, int, bytes]]) -> float:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= 16:
            seconds, nanoseconds = struct.unpack_from("<qq", data)
            return time.time() - (int(seconds) + int(nanoseconds) / 1e9)
    return 0.0
