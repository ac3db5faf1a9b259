"""Asks our own DNS through the real socket, as a client does.

Must not know: what follows from the answer. Rules: a new source port each time, so that over time every front's socket
is asked; SERVFAIL is no answer, for the supervisor gives that by itself; REFUSED is one, for only a front says it.
"""

from __future__ import annotations

import asyncio
import secrets
import socket

from nacosdns.core.dnsname import text_name
from nacosdns.core.model import Rcode

NAME = "canary.nacosdns.invalid."
DEADLINE_S = 0.9
_QUESTION = text_name(NAME) + b"\x00\x01\x00\x01"


def query(query_id: bytes) -> bytes:
    """The canary query: one question of type A, RD set (RFC 1035 4.1)."""
    return query_id + b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + _QUESTION


def is_answer(packet: bytes, query_id: bytes) -> bool:
    """Whether a front answered this query: its id, a response, and not SERVFAIL."""
    return (
        len(packet) >= 12 and packet[:2] == query_id and bool(packet[2] & 0x80) and packet[3] & 0x0F != Rcode.SERVFAIL
    )


async def answered(host: str, port: int) -> bool:
    """Whether a front answers the canary at this IP address within ``DEADLINE_S``."""
    loop = asyncio.get_running_loop()
    query_id = secrets.token_bytes(2)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            async with asyncio.timeout(DEADLINE_S):
                sock.connect((host, port))
                await loop.sock_sendall(sock, query(query_id))
                return is_answer(await loop.sock_recv(sock, 4096), query_id)
    except (OSError, TimeoutError):
        return False  # no descriptor left for us is no answer too
