"""Answers SERVFAIL on sockets that no front reads, so that a client's libc turns to its next server at once.

Must not know: names, zones, why nobody is there. Rules: nothing of the packet is understood but its first three bytes
and its length; the reply is never longer than the query, and goes back from the address that was asked.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PACKET_BYTES = 4096
_ANCILLARY_BYTES = 256
_BATCH = 64
_IP_PKTINFO = 8  # linux/in.h


def servfail(packet: bytes) -> bytes | None:
    """The reply: the packet itself as a response with RCODE 2 (RFC 1035 4.1.1). None for what must not be answered.

    The question and a client's OPT go back as they came, so that no resolver has to guess whose answer this is.
    """
    if len(packet) < 12 or packet[2] & 0x80:
        return None
    return packet[:2] + bytes((0x80 | packet[2] & 0x79, 0x82)) + packet[4:]


class Cover:
    """Reads sockets in the place of a front. ``answered`` is called with the number of replies, batch by batch."""

    def __init__(self, answered: Callable[[int], None]) -> None:
        self._answered = answered
        self._pairs: list[tuple[socket.socket, socket.socket]] = []

    def __repr__(self) -> str:
        return f"<Cover {len(self._pairs)} pairs>"

    def set(self, pairs: Iterable[tuple[socket.socket, socket.socket]]) -> None:
        """Covers exactly these UDP and TCP sockets from now on."""
        loop = asyncio.get_running_loop()
        for udp, tcp in self._pairs:
            loop.remove_reader(udp)
            loop.remove_reader(tcp)
        self._pairs = list(pairs)
        for udp, tcp in self._pairs:
            loop.add_reader(udp, self._answer, udp)
            loop.add_reader(tcp, _refuse, tcp)

    def _answer(self, udp: socket.socket) -> None:
        sent = 0
        for _ in range(_BATCH):
            try:
                packet, ancillary, _, client = udp.recvmsg(_PACKET_BYTES, _ANCILLARY_BYTES)
            except OSError:
                break  # empty, or an ICMP error of an earlier reply
            reply = servfail(packet)
            if reply is not None and client[1] != 0:
                sent += _send(udp, reply, [_sender(item) for item in ancillary if _is_pktinfo(item)], client)
        self._answered(sent)


def _send(udp: socket.socket, reply: bytes, ancillary: list[tuple[int, int, bytes]], client: tuple[str, int]) -> int:
    try:
        udp.sendmsg([reply], ancillary, 0, client)
    except OSError:
        return 0  # the client is out of reach, or our send buffer is full: it will ask again
    return 1


def _is_pktinfo(item: tuple[int, int, bytes]) -> bool:
    return item[:2] in {(socket.IPPROTO_IP, _IP_PKTINFO), (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO)}


def _sender(item: tuple[int, int, bytes]) -> tuple[int, int, bytes]:
    """The address that was asked, as the one to send from; on any interface but for link-local IPv6 (ip(7), ipv6(7))."""
    level, kind, data = item
    if level == socket.IPPROTO_IP:
        return level, kind, struct.pack("=i", 0) + data[4:8] + bytes(4)
    link_local = data[0] == 0xFE and data[1] & 0xC0 == 0x80
    return level, kind, data if link_local else data[:16] + struct.pack("=i", 0)


def _refuse(tcp: socket.socket) -> None:
    """Takes connections and closes them: the client sees it at once."""
    for _ in range(_BATCH):
        try:
            connection, _ = tcp.accept()
        except OSError:
            return
        connection.close()
