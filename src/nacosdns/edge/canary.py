"""Asks our own DNS through the real socket, as a client does.

Must not know: what follows from the answer. Rules: a new source port each time, so that over time every front's socket
is asked; SERVFAIL is no answer, for the supervisor gives that by itself; REFUSED is one, for only a front says it.
"""

from __future__ import annotations

import asyncio

from nacosdns.core.dnsname import text_name
from nacosdns.core.model import Rcode
from nacosdns.edge import asking

NAME = "canary.nacosdns.invalid."
DEADLINE_S = 0.9
_QUESTION = text_name(NAME) + b"\x00\x01\x00\x01"


async def answered(host: str, port: int) -> bool:
    """Whether a front answers the canary at this IP address within ``DEADLINE_S``."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            reply = await asking.exchange(host, port, _QUESTION)
    except (OSError, TimeoutError):
        return False  # no descriptor left for us is no answer too
    return reply[3] & 0x0F != Rcode.SERVFAIL
