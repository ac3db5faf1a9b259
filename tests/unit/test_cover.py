"""What is said in the place of a front that is not there: the query itself, as a failure."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.wire import AA, AD, CD, QR, RA, RD, TC, Z, edns, query, read
from nacosdns.edge.cover import Cover, servfail


@pytest.mark.parametrize("packet", [query("OrDeRs.nacos"), edns("orders.nacos", flags=RD | AA | TC | RA | Z | AD | CD)])
def test_a_query_comes_back_as_servfail(packet: bytes) -> None:
    """docs/answers.md 8.2."""
    made = servfail(packet)

    assert made is not None
    assert (read(made).rcode, read(made).flags, made[4:]) == ("SERVFAIL", RD | RA, packet[4:])


@given(st.binary(max_size=60))
def test_what_is_no_query_gets_nothing_and_nothing_gets_longer(packet: bytes) -> None:
    """docs/answers.md 8.2: no reply to a reply, not here either."""
    made = servfail(packet)

    assert (made is None) == (len(packet) < 12 or bool(packet[2] & QR >> 8))
    assert made is None or (len(made), made[:2], made[3] & 15) == (len(packet), packet[:2], 2)


def test_a_connection_is_taken_and_closed() -> None:
    """docs/answers.md 8.2."""

    async def work() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
            for sock in (udp, tcp):
                sock.bind(("127.0.0.1", 0))
                sock.setblocking(False)
            tcp.listen()
            counted: list[int] = []
            cover = Cover(counted.append)
            cover.set([(udp, tcp)])
            reader, writer = await asyncio.open_connection(*tcp.getsockname())

            assert await asyncio.wait_for(reader.read(), 5) == b""

            writer.close()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.setblocking(False)
                client.connect(udp.getsockname())
                client.send(query())
                reply = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 512), 5)

            assert (read(reply).rcode, counted) == ("SERVFAIL", [1])
            cover.set([])

    asyncio.run(work())
