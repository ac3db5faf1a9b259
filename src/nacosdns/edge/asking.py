"""One question to one DNS server by UDP: for the canary and for whoever looks at a host, not for forwarding.

Must not know: what is asked, what follows from the reply. Rules: a connected socket of its own for each question, so that
its port is new and replies from elsewhere are none; only a reply with its id counts; how long to wait is the caller's.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER_BYTES = 12
_RESPONSE = 0x80
_ONE_QUESTION = b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"  # RD, QDCOUNT 1 (RFC 1035 4.1.1)


async def exchange(server: str, port: int, question: bytes, *, fits: Callable[[bytes], bool] = bool) -> bytes:
    """The first reply to this question (wire form) that ``fits``; ``server`` may have a zone. OSError when it is refused."""
    loop = asyncio.get_running_loop()
    query_id = secrets.token_bytes(2)
    host, _, zone = server.partition("%")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect((host, port, 0, _index(zone)) if family is socket.AF_INET6 else (host, port))
        await loop.sock_sendall(sock, query_id + _ONE_QUESTION + question)
        while True:
            reply = await loop.sock_recv(sock, 65535)
            if len(reply) >= _HEADER_BYTES and reply[:2] == query_id and reply[2] & _RESPONSE and fits(reply):
                return reply


def _index(zone: str) -> int:
    if not zone:
        return 0
    return int(zone) if zone.isdigit() else socket.if_nametoindex(zone)
