"""What a host tells only when it is asked: other resolvers about our zone, Nacos ports, the clock.

Must not know: what follows from an answer. Rules: every probe has a deadline and says why it failed; nothing is changed;
one packet to each, no retry storm.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from contextlib import suppress

from nacosdns.core.dnsname import text_name
from nacosdns.core.model import Rcode
from nacosdns.edge import asking

ASK_S = 1.0
ASKED_TWICE = 2
_SOA_IN = b"\x00\x06\x00\x01"
_ROOT_NS_IN = b"\x00\x00\x02\x00\x01"
_AUTHORITATIVE = 0x04
_PREFACE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # RFC 9113 3.4: preface, empty SETTINGS
)
_SETTINGS = 4
_TIMEX_BYTES, _STATUS_AT, _STA_UNSYNC = 208, 40, 0x0040  # linux/timex.h, LP64


async def zone_verdict(server: str, zone: str, port: int = 53) -> str:
    """What a server says of our zone: ``zone`` (it has authority), ``silent``, or the name of its rcode."""
    question = text_name(zone if zone.endswith(".") else zone + ".") + _SOA_IN
    for _ in range(ASKED_TWICE):
        with suppress(OSError, TimeoutError):
            return _verdict(await _ask(server, port, question))
    return "silent"


async def root_verdict(server: str, port: int) -> str:
    """What a resolver does when it is asked for the servers of the root: the name of its rcode, or why it says nothing."""
    said = ""
    for _ in range(ASKED_TWICE):
        try:
            return _rcode((await _ask(server, port, _ROOT_NS_IN))[3] & 0x0F)
        except TimeoutError:
            said = f"no answer within {ASK_S:g} s"
        except OSError as error:
            said = error.strerror or str(error)
    return said


def _verdict(reply: bytes) -> str:
    rcode = reply[3] & 0x0F
    answers = int.from_bytes(reply[6:8], "big")
    if rcode == Rcode.NOERROR and answers and reply[2] & _AUTHORITATIVE:
        return "zone"
    if rcode == Rcode.NOERROR:
        return "zone" if answers else "no data"
    return _rcode(rcode)


def _rcode(rcode: int) -> str:
    return Rcode(rcode).name if rcode in set(Rcode) else f"rcode {rcode}"


async def _ask(server: str, port: int, question: bytes) -> bytes:
    """The reply; OSError or TimeoutError when there is none."""
    async with asyncio.timeout(ASK_S):
        return await asking.exchange(server, port, question)


async def grpc_error(host: str, port: int, *, speaks_first: bool, timeout_s: float) -> str:
    """Why nobody speaks HTTP/2 at this port; "" when somebody does. With TLS only the connection is tried."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                if not speaks_first:
                    return ""
                writer.write(_PREFACE)
                head = await reader.readexactly(9)
            finally:
                writer.transport.abort()
    except TimeoutError:
        return f"port {port} does not answer within {timeout_s:g} s"
    except asyncio.IncompleteReadError:
        return f"port {port} closes the connection"
    except OSError as error:
        return f"port {port}: {error.strerror or error}"
    return "" if head[3] == _SETTINGS else f"port {port} does not speak gRPC"


def clock_synchronised() -> bool | None:
    """Whether the kernel's clock follows a better one (adjtimex(2)); None where it does not say."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.CDLL(None).adjtimex(timex) < 0:
        return None
    status = int.from_bytes(timex.raw[_STATUS_AT : _STATUS_AT + 4], sys.byteorder)
    return not status & _STA_UNSYNC


def close_to_others(path: str) -> None:
    """Takes the rights of others from a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o770)
    finally:
        os.close(descriptor)
