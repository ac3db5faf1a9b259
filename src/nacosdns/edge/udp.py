"""Clients by UDP: the door for this platform, chosen at start; both back ends do the same.

Must not know: what is answered. Rule: the fast back end only where its layout is the platform's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.edge.udp_base import BATCH, IN_BYTES, SO_TIMESTAMPNS, Asked, Client, UdpDoor
from nacosdns.edge.udp_mmsg import FastDoor, mmsg_works, vector
from nacosdns.edge.udp_portable import PortableDoor

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from nacosdns.core.prepared import Prepared

__all__ = ["BATCH", "IN_BYTES", "SO_TIMESTAMPNS", "Asked", "Client", "UdpDoor", "make_door", "reply_vector"]


def reply_vector() -> Callable[[bytes], bytes] | None:
    """What ``Prepared`` must make of its replies for the doors of this platform."""
    return vector if mmsg_works() else None


def make_door(
    sock: socket.socket,
    prepared: Prepared,
    owner: Asked,
    now: Callable[[], float],
    *,
    allowed: dict[bytes, bool] | None = None,
    portable: bool = False,
) -> UdpDoor:
    """A door on an inherited, bound, non-blocking socket.

    ``now`` is the clock of ``prepared``. ``allowed``: addresses already judged; None asks nobody.
    ``prepared`` was made with ``reply_vector()``, or without one for the portable door.
    """
    kind = PortableDoor if portable or not mmsg_works() else FastDoor
    return kind(sock, prepared, owner, now, allowed)
