"""What the doors for UDP share: the client of a packet, what a door tells its owner, replies that come later.

Must not know: DNS beyond "the first two bytes are the id". Rule: a reply that the kernel refuses is its client's loss
alone; the owner hears of it where a rule or a lack of this host is the reason.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol

from nacosdns.core.metrics import BATCH_TIME

if TYPE_CHECKING:
    from collections.abc import Callable

    from nacosdns.core.metrics import Counters
    from nacosdns.core.prepared import Prepared

BATCH = 64
BATCHES_A_TURN = 4
IN_BYTES = 2048
PAUSE_S = 1.0
OLD_S = 2.0
SO_TIMESTAMPNS = 35
HINDRANCES = {errno.EPERM, errno.ENOBUFS, errno.ENOMEM}
"""What the kernel says when a firewall or a lack of memory, and nothing about the client, is in the way."""
_PKTINFO_V4 = 28
_PKTINFO_V6 = 36
_BOUNDS = BATCH_TIME.bounds


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
    """What a door tells its owner. ``slow`` returns the whole reply, or None: none, or one sent later by ``reply``.

    ``counts`` has a cell for each kind of answer given from what is prepared; ``batches`` a cell for each of the bounds
    of metrics.BATCH_TIME, one for what is above, and the sum, in µs: from reading a batch to having sent its answers.
    """

    counts: Counters
    batches: list[int]

    @property
    def unsettled(self) -> bool:
        """Whether ``settle`` must be called after the batch."""

    def settle(self) -> None:
        """Does what is to be done for all packets of the batch together."""

    def slow(self, packet: bytes, client: Client, door: UdpDoor) -> bytes | None: ...

    def dropped(self, reason: str) -> None: ...

    def hindered_here(self, reason: str) -> None:
        """This host does not let answers out."""

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


class Door:
    """What both back ends share: the socket, whether it is read, and replies that come later."""

    def __init__(
        self,
        sock: socket.socket,
        prepared: Prepared,
        owner: Asked,
        now: Callable[[], float],
        allowed: dict[bytes, bool] | None,
    ) -> None:
        self._sock = sock
        self._prepared = prepared
        self._owner = owner
        self._counts = owner.counts
        self._batches = owner.batches
        self._allowed = allowed
        self._v6 = sock.family == socket.AF_INET6
        self._wildcard = sock.getsockname()[0] in {"0.0.0.0", "::"}  # noqa: S104  # compared, not bound
        self._now = now
        self._read_at = self._now()
        self._behind = False
        self._open = False
        self._stamp(on=True)
        self._stamp(on=False)

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
        self._send_one(client, packet)

    def _send_one(self, client: Client, packet: bytes) -> None:
        try:
            send_one(self._sock, client, packet)
        except OSError as error:
            self._refused(error.errno or 0)

    def _refused(self, number: int) -> None:
        """The kernel did not take a reply."""
        if number in HINDRANCES:
            self._owner.hindered_here(f"answers to clients: {os.strerror(number)}")

    def _readable(self) -> None:
        raise NotImplementedError

    def _stamp(self, *, on: bool) -> None:
        """Whether packets come with the time of their arrival.

        Linux goes on noting it for a socket that ever asked, so it is asked for only after a pause: handing it over
        with each packet costs as much as a twentieth of an answer.
        """
        if _HAS_STAMPS:
            self._sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, int(on))

    def _begin(self) -> float:
        """The time, at the start of a batch; after a pause the packets' ages are looked at until none is left."""
        now = self._now()
        if now - self._read_at > PAUSE_S and not self._behind:
            self._behind = True
            self._stamp(on=True)
        self._prepared.begin(now)
        return now

    def _end(self, began: float, *, drained: bool) -> None:
        """The batch is sent: nothing of it is on its way any more."""
        self._read_at = self._now()
        if self._behind and drained:
            self._behind = False
            self._stamp(on=False)
        if self._prepared.retired:
            self._prepared.retired.clear()
        if self._owner.unsettled:
            self._owner.settle()
        elapsed_us = int((self._read_at - began) * 1e6)
        batches = self._batches
        batches[bisect_left(_BOUNDS, elapsed_us)] += 1
        batches[-1] += elapsed_us

    def _similar(self, packet: bytes) -> bytes | None:
        """A reply, with its id, from the page of the question; counted. None: the packet goes the slow way."""
        try:
            found = self._prepared.similar(packet[2:])
        except Exception:  # noqa: BLE001  # a balancer's fault, which may be a stranger's, costs one answer
            return self._owner.surprised(packet)
        if found is None:
            return None
        self._counts[self._prepared.cell] += 1
        return packet[:2] + found


_HAS_STAMPS = hasattr(socket, "AF_NETLINK")  # Linux


def send_one(sock: socket.socket, client: Client, packet: bytes) -> None:
    """One reply; OSError for what the kernel refuses (EPERM, EINVAL, a full buffer)."""
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
    sock.sendmsg([packet], ancillary, 0, address)
