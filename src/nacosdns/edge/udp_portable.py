"""Clients by UDP on any Unix: recvmsg and sendmsg of the standard library, one packet a call.

Must not know: DNS beyond "the first two bytes are the id". Rule: it does what the fast back end does, seen from outside.
"""

from __future__ import annotations

import errno
import socket
import struct
import time

from nacosdns.edge.udp_base import BATCH, BATCHES_A_TURN, IN_BYTES, OLD_S, SO_TIMESTAMPNS, Client, Door


class PortableDoor(Door):
    """recvmsg and sendmsg, one packet a call; the same behaviour on any Unix."""

    def _readable(self) -> None:
        began = self._begin()
        drained = False
        for _ in range(BATCH * BATCHES_A_TURN):
            try:
                packet, ancillary, flags, address = self._sock.recvmsg(IN_BYTES, 256)
            except (BlockingIOError, InterruptedError):
                drained = True
                break
            except OSError as error:
                if error.errno == errno.ECONNREFUSED:
                    continue
                raise
            if self._behind and _stamp_age_s(ancillary) > OLD_S:
                self._owner.dropped("old")
            else:
                self._one(packet, self._client(address, ancillary), flags)
        self._end(began, drained=drained)

    def _one(self, packet: bytes, client: Client, flags: int) -> None:
        if client.port == 0:
            self._owner.dropped("port0")
            return
        if flags & socket.MSG_TRUNC:
            self._owner.dropped("malformed")
            return
        reply: bytes | None = None
        if self._allowed is None or self._allowed.get(client.address, False):
            reply = self._from_packet(packet) or self._similar(packet)
        if reply is None:
            reply = self._owner.slow(packet, client, self)
        if reply:
            self._send_one(client, reply)

    def _from_packet(self, packet: bytes) -> bytes | None:
        entry = self._prepared.packets.get(packet[2:])
        if entry is None:
            return None
        try:
            reply = self._prepared.next_reply(entry)
        except Exception:  # noqa: BLE001  # a balancer's fault, which may be a stranger's, costs one answer
            return self._owner.surprised(packet)
        self._counts[entry.page.cell] += 1
        return packet[:2] + reply

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
