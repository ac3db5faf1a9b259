"""Clients by UDP on Linux: libc's recvmmsg and sendmmsg through ctypes.

Must not know: DNS beyond "the first two bytes are the id". Rules: the fast path is one look-up of the whole packet, no
Python object for the client's address, and no copy: a reply is sent as two pieces, the id from the buffer it was read
into and the prepared rest from where it lies; a slot that was not filled now is never sent; a reply that cannot be sent
does not take the rest of its batch with it; what is on its way stays alive until it is sent.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING

from nacosdns.edge.udp_base import BATCH, BATCHES_A_TURN, IN_BYTES, OLD_S, SO_TIMESTAMPNS, Client, Door

if TYPE_CHECKING:
    from collections.abc import Callable

    from nacosdns.core.page import Entry
    from nacosdns.core.prepared import Prepared
    from nacosdns.edge.udp_base import Asked

NAME_BYTES = 28
CONTROL_BYTES = 96
_MSG_DONTWAIT = 0x40
_MSG_TRUNC = 0x20
_HEADER_WORDS = 8  # of struct mmsghdr: name, namelen, iov, iovlen, control, controllen, flags, len
_STAMP_BYTES = 32
_BYTES_AT = bytes.__basicsize__ - 1  # where CPython keeps the content of a bytes object
_VECTOR = struct.Struct("=QQ")

_SIZES = [struct.Struct("=" + "56xI4x" * count).unpack_from for count in range(BATCH + 1)]
"""Reads the sizes of so many received packets from their headers."""
_ADDRESSES = {
    socket.AF_INET: [struct.Struct("=" + "4x4s20x" * count).unpack_from for count in range(BATCH + 1)],
    socket.AF_INET6: [struct.Struct("=" + "8x16s4x" * count).unpack_from for count in range(BATCH + 1)],
}
"""Reads so many clients' addresses from their names."""
_PLACES = [(slot, slot * IN_BYTES, slot * IN_BYTES + 2, 32 * slot + 16, 32 * slot + 32) for slot in range(BATCH)]
_LAYOUTS = [_PLACES[:count] for count in range(BATCH + 1)]
"""Of each slot: its number, its packet, the packet without the id, and the vector of its reply from and to."""
_ZEROS = memoryview(bytes(4 * BATCH)).cast("I")


def vector(reply: bytes) -> bytes:
    """A struct iovec of these bytes, which must live until it has been sent."""
    return _VECTOR.pack(id(reply) + _BYTES_AT, len(reply))


def mmsg_works() -> bool:
    """Whether the platform is laid out as this back end takes it to be."""
    if sys.platform != "linux" or struct.calcsize("P") != 8 or sys.byteorder != "little":
        return False
    if sys.implementation.name != "cpython":
        return False
    probe = b"where do bytes lie?"
    return ctypes.string_at(*_VECTOR.unpack(vector(probe))) == probe


class FastDoor(Door):
    """recvmmsg and sendmmsg; its buffers are laid out once, and what stays the same between batches is kept."""

    def __init__(
        self,
        sock: socket.socket,
        prepared: Prepared,
        owner: Asked,
        now: Callable[[], float],
        allowed: dict[bytes, bool] | None,
    ) -> None:
        super().__init__(sock, prepared, owner, now, allowed)
        self._name_size = 28 if self._v6 else 16
        self._control_size = 40 if self._v6 else 32
        self._addresses = _ADDRESSES[sock.family]
        self._data = (ctypes.c_char * (BATCH * IN_BYTES))()
        self._names = (ctypes.c_char * (BATCH * NAME_BYTES))()
        self._controls = (ctypes.c_char * (BATCH * CONTROL_BYTES))()
        self._vectors_in = (ctypes.c_uint64 * (2 * BATCH))()
        self._vectors_out = (ctypes.c_uint64 * (4 * BATCH))()
        self._headers_in = (ctypes.c_uint64 * (_HEADER_WORDS * BATCH))()
        self._headers_out = (ctypes.c_uint64 * (_HEADER_WORDS * BATCH))()
        self._late: list[tuple[Client, bytes]] = []
        self._lay_out()
        self._name_view = memoryview(self._names).cast("B")
        self._control_view = memoryview(self._controls).cast("B")
        self._control_words = self._control_view.cast("I")
        self._header_view = memoryview(self._headers_in).cast("B")
        self._vector_view = memoryview(self._vectors_out).cast("B")
        plain, stamped = self._templates()
        self._plain, self._stamped = memoryview(plain), memoryview(stamped)
        self._header_view[:] = self._plain
        self._bind_calls()

    def _lay_out(self) -> None:
        data, names, controls = map(ctypes.addressof, (self._data, self._names, self._controls))
        for slot in range(BATCH):
            self._vectors_in[2 * slot : 2 * slot + 2] = [data + slot * IN_BYTES, IN_BYTES]
            self._vectors_out[4 * slot : 4 * slot + 2] = [data + slot * IN_BYTES, 2]
            head = _HEADER_WORDS * slot
            name, control = names + slot * NAME_BYTES, controls + slot * CONTROL_BYTES
            vectors_in = ctypes.addressof(self._vectors_in) + 16 * slot
            vectors_out = ctypes.addressof(self._vectors_out) + 32 * slot
            wild = self._wildcard
            self._headers_in[head : head + 6] = [name, NAME_BYTES, vectors_in, 1, control, CONTROL_BYTES]
            self._headers_out[head : head + 6] = [
                name,
                self._name_size,
                vectors_out,
                2,
                control if wild else 0,
                self._control_size if wild else 0,
            ]

    def _templates(self) -> tuple[bytes, bytes]:
        """The headers as they stand before a read: as a rule without room for control data that nobody needs."""
        stamped = bytes(self._headers_in)
        if not self._wildcard:
            for slot in range(BATCH):
                self._headers_in[_HEADER_WORDS * slot + 4 : _HEADER_WORDS * slot + 6] = [0, 0]
        return bytes(self._headers_in), stamped

    def _bind_calls(self) -> None:
        """The arguments as ctypes wants them: converting them costs as much again as the call."""
        libc = ctypes.PyDLL(None)  # they cannot block, so the GIL is kept
        self._recvmmsg, self._sendmmsg = libc.recvmmsg, libc.sendmmsg
        self._errno = libc["__errno_location"]  # ctypes' own copy of it would cost something in every call
        self._errno.restype = ctypes.POINTER(ctypes.c_int)
        self._fd = ctypes.c_int(self._sock.fileno())
        self._flags = ctypes.c_int(_MSG_DONTWAIT)
        self._read = (
            self._fd,
            ctypes.c_void_p(ctypes.addressof(self._headers_in)),
            ctypes.c_uint(BATCH),
            self._flags,
            ctypes.c_void_p(None),
        )
        head = ctypes.c_void_p(ctypes.addressof(self._headers_out))
        self._sends = [(self._fd, head, ctypes.c_uint(count), self._flags) for count in range(BATCH + 1)]

    def reply(self, client: Client, packet: bytes) -> None:
        """Sent together with the other late ones of this turn of the loop."""
        if not self._late:
            asyncio.get_running_loop().call_soon(self._send_late)
        self._late.append((client, packet))

    def _send_late(self) -> None:
        """By the outgoing slots, which are free between two batches."""
        late, self._late = self._late, []
        for start in range(0, len(late), BATCH):
            kept: list[bytes] = []
            batch = late[start : start + BATCH]
            for slot, (client, packet) in enumerate(batch):
                at = slot * NAME_BYTES
                self._name_view[at : at + self._name_size] = client.name
                self._data[slot * IN_BYTES : slot * IN_BYTES + 2] = packet[:2]  # type: ignore[call-overload]  # takes bytes
                if self._wildcard:
                    at = slot * CONTROL_BYTES
                    self._control_view[at : at + self._control_size] = client.control
                self._put(slot, packet, kept)
            self._send(len(batch), [])

    def _readable(self) -> None:
        for _ in range(BATCHES_A_TURN):
            if self._drain() < BATCH or not self._open:
                return

    def _drain(self) -> int:
        """One batch: read, answer what is prepared, hand the rest over, send. Returns how many packets were read."""
        began = self._begin()
        if self._behind:
            self._header_view[:] = self._stamped
        count: int = self._recvmmsg(*self._read)
        if count <= 0:
            if self._behind:
                self._reset(0)
                self._end(began, drained=True)
            return 0
        skipped = self._judge(count) if self._behind or self._allowed is not None else None
        if self._wildcard:
            self._zero_interfaces(count)
        kept: list[bytes] = []
        unfilled = self._answer(count, kept) if not skipped else self._answer_some(count, kept, skipped)
        self._send(count, unfilled)
        self._reset(count)
        self._end(began, drained=count < BATCH)
        return count

    def _reset(self, count: int) -> None:
        """The headers that were read into, as they were before: after the answers have left, so that none waits for it."""
        if self._behind:
            self._header_view[:] = self._plain
        else:
            size = count * 8 * _HEADER_WORDS
            self._header_view[:size] = self._plain[:size]

    def _answer(self, count: int, kept: list[bytes]) -> list[int]:
        """Fills the outgoing vectors; ``kept`` holds replies that live only there. Returns the slots that stay empty."""
        data, vectors, counts, prepared, pack = (
            self._data,
            self._vector_view,
            self._counts,
            self._prepared,
            _VECTOR.pack,
        )
        find, similar = prepared.packets.get, prepared.similar
        unfilled: list[int] = []
        cell = times = 0
        for (slot, at, key_at, start, stop), size in zip(
            _LAYOUTS[count], _SIZES[count](self._header_view), strict=True
        ):
            key: bytes = data[key_at : at + size]  # type: ignore[assignment]  # a c_char array gives bytes
            entry = find(key)
            if entry is not None:
                page = entry.page
                page.cursor = cursor = page.cursor + 1
                try:
                    vectors[start:stop] = entry.vectors[cursor]
                except (IndexError, ValueError):
                    self._turn(slot, entry, kept)
                if page.cell != cell:
                    counts[cell] += times
                    cell, times = page.cell, 0
                times += 1
                continue
            try:
                reply = similar(key)
            except Exception:  # noqa: BLE001  # a balancer's fault, which may be a stranger's, costs one answer
                sorry = self._owner.surprised(self._packet(slot))
                reply = sorry[2:] if sorry else None
            if reply is not None:
                kept.append(reply)
                vectors[start:stop] = pack(id(reply) + _BYTES_AT, len(reply))
                if prepared.cell != cell:
                    counts[cell] += times
                    cell, times = prepared.cell, 0
                times += 1
            elif not self._fill(slot, self._packet(slot), kept):
                unfilled.append(slot)
        counts[cell] += times
        return unfilled

    def _turn(self, slot: int, entry: Entry, kept: list[bytes]) -> None:
        """At the end of a window, or where a reply is not rendered yet: the entry's next reply."""
        entry.page.cursor -= 1
        try:
            self._vector_view[32 * slot + 16 : 32 * slot + 32] = self._prepared.next_reply(entry)
        except Exception:  # noqa: BLE001  # a balancer's fault, which may be a stranger's, costs one answer
            packet = self._packet(slot)
            self._put(slot, self._owner.surprised(packet) or packet, kept)

    def _answer_some(self, count: int, kept: list[bytes], skipped: dict[int, bool]) -> list[int]:
        """As ``_answer``, slot by slot: some are too old, and some are of clients that must be judged first."""
        unfilled = []
        for slot in range(count):
            old = skipped.get(slot)
            packet = self._packet(slot)
            entry = self._prepared.packets.get(packet[2:]) if old is None else None
            if entry is not None:
                entry.page.cursor += 1
                self._turn(slot, entry, kept)
                self._counts[entry.page.cell] += 1
                continue
            reply = self._similar(packet) if old is None else None
            if reply is not None:
                self._put(slot, reply, kept)
            elif old or not self._fill(slot, packet, kept):
                unfilled.append(slot)
        return unfilled

    def _fill(self, slot: int, packet: bytes, kept: list[bytes]) -> bool:
        """A reply that comes the slow way, when it comes at once."""
        reply = self._slow(packet, slot)
        if not reply:
            return False
        self._put(slot, reply, kept)
        return True

    def _put(self, slot: int, reply: bytes, kept: list[bytes]) -> None:
        kept.append(reply)
        self._vector_view[32 * slot + 16 : 32 * slot + 32] = _VECTOR.pack(id(reply) + _BYTES_AT + 2, len(reply) - 2)

    def _packet(self, slot: int) -> bytes:
        at = slot * IN_BYTES
        size = self._headers_in[_HEADER_WORDS * slot + 7] & 0xFFFFFFFF
        return self._data[at : at + size]  # type: ignore[return-value]  # a c_char array gives bytes

    def _slow(self, packet: bytes, slot: int) -> bytes | None:
        client = self._client(slot)
        if client.port == 0:
            self._owner.dropped("port0")
            return None
        if self._headers_in[_HEADER_WORDS * slot + 6] & _MSG_TRUNC:
            self._owner.dropped("malformed")
            return None
        return self._owner.slow(packet, client, self)

    def _client(self, slot: int) -> Client:
        name = self._name_view[slot * NAME_BYTES : slot * NAME_BYTES + self._name_size].tobytes()
        if not self._wildcard:
            return Client(name)
        at = slot * CONTROL_BYTES
        return Client(name, self._control_view[at : at + self._control_size].tobytes())

    def _zero_interfaces(self, count: int) -> None:
        """The reply leaves from the asked address by whatever route: the interface index goes back as 0 (but link-local)."""
        controls = self._control_view
        if self._behind:
            for at in range(0, count * CONTROL_BYTES, CONTROL_BYTES):
                controls[at : at + self._control_size] = controls[
                    at + _STAMP_BYTES : at + _STAMP_BYTES + self._control_size
                ].tobytes()
        if not self._v6:
            self._control_words[4 : 24 * count : 24] = _ZEROS[:count]
            return
        for slot in range(count):
            at = slot * CONTROL_BYTES + 16
            if controls[at] != 0xFE or controls[at + 1] & 0xC0 != 0x80:
                controls[at + 16 : at + 20] = b"\0\0\0\0"

    def _judge(self, count: int) -> dict[int, bool] | None:
        """Slots that are not simply answered: True those that are too old, False those of clients not judged yet."""
        allowed = self._allowed
        addresses = self._addresses[count](self._names)
        if not self._behind and allowed is not None and all(map(allowed.get, addresses)):
            return None
        skipped: dict[int, bool] = {}
        wall_ns = time.time_ns()
        for slot, address in enumerate(addresses):
            if self._behind and self._age_s(slot, wall_ns) > OLD_S:
                self._owner.dropped("old")
                skipped[slot] = True
            elif allowed is not None and not allowed.get(address, False):
                skipped[slot] = False
        return skipped

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
        if not unfilled:
            start = self._sendmmsg(*self._sends[count])
            if start == count:
                return
            if start < 0:
                self._refused(self._errno()[0])
            start = max(start, 1)
        for stop in (*unfilled, count):
            while start < stop:
                head = ctypes.addressof(self._headers_out) + start * _HEADER_WORDS * 8
                sent: int = self._sendmmsg(self._fd, ctypes.c_void_p(head), ctypes.c_uint(stop - start), self._flags)
                if sent < 0:
                    self._refused(self._errno()[0])
                start += sent if sent > 0 else 1
            start = stop + 1
