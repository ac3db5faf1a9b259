"""Who waits for an answer: a UDP client, a question on a TCP connection, the question behind an alias, a command.

Must not know: how the answer is found. Rule: ``give`` is called exactly once for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from nacosdns.core.composing import Reply
from nacosdns.core.model import Query
from nacosdns.core.pipeline import Chase

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from nacosdns.edge.tcp import Connection
    from nacosdns.edge.udp import Client, UdpDoor


class Waiter(Protocol):
    """Who gets a reply: exactly one call of ``give``; None when there is none to give."""

    depth: int

    def give(self, packet: bytes | None) -> None: ...


class Question(msgspec.Struct, frozen=True, gc=False):
    """One question that waits; ``otherwise`` is said when a look-up does not come in time."""

    query: Query
    waiter: Waiter
    started: float
    otherwise: Reply | Chase | None = None


class UdpWaiter:
    """A client by UDP."""

    __slots__ = ("_client", "_door", "depth")

    def __init__(self, door: UdpDoor, client: Client) -> None:
        self._door = door
        self._client = client
        self.depth = 0

    def give(self, packet: bytes | None) -> None:
        """Sends it, from the address that was asked."""
        if packet is not None:
            self._door.reply(self._client, packet)


class TcpWaiter:
    """A question on a TCP connection."""

    __slots__ = ("_connection", "depth")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.depth = 0

    def give(self, packet: bytes | None) -> None:
        """Sends it on the connection that asked."""
        if packet is None:
            self._connection.give_up()
        else:
            self._connection.reply(packet)


class ChaseWaiter:
    """The question behind an alias; ``complete`` makes the answer of ``outer`` from its reply."""

    __slots__ = ("_complete", "_outer", "depth")

    def __init__(self, complete: Callable[[bytes | None], bytes], outer: Waiter) -> None:
        self._complete = complete
        self._outer = outer
        self.depth = outer.depth + 1

    def give(self, packet: bytes | None) -> None:
        """Completes the outer answer."""
        self._outer.give(self._complete(packet))


class LoggedWaiter:
    """Another waiter whose reply is noted on its way."""

    __slots__ = ("_note", "_outer", "depth")

    def __init__(self, outer: Waiter, note: Callable[[bytes | None], None]) -> None:
        self._outer = outer
        self._note = note
        self.depth = outer.depth

    def give(self, packet: bytes | None) -> None:
        """Notes it and hands it on."""
        self._note(packet)
        self._outer.give(packet)


class CommandWaiter:
    """`nacosdns ask`: a future that gets the packet."""

    __slots__ = ("_future", "depth")

    def __init__(self, future: asyncio.Future[bytes | None]) -> None:
        self._future = future
        self.depth = 0

    def give(self, packet: bytes | None) -> None:
        """Ends the wait, unless the command gave up before."""
        if not self._future.done():
            self._future.set_result(packet)
