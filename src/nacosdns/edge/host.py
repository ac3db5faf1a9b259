"""What this host is: its interfaces and their addresses; which descriptors this process has open.

Must not know: what the addresses are for. Rule: asks the kernel anew each time; an answer that cannot be had is an
empty one, for a host without netlink (another Unix) has interfaces too.
"""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_MESSAGE = struct.Struct("=IHHII")  # length, type, flags, sequence, port (netlink(7))
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface index (rtnetlink(7))
_ATTRIBUTE = struct.Struct("=HH")
_RTM_NEWADDR, _RTM_GETADDR, _NLMSG_ERROR, _NLMSG_DONE = 20, 22, 2, 3
_REQUEST_DUMP = 0x0301
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_ANSWER_BYTES = 1 << 16
_DEADLINE_S = 1.0
_FILES_LOOKED_AT = 4096


class HostAddress(NamedTuple):
    """One address of one interface; ``network`` is the subnet that it says it lies in."""

    interface: str
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    network: ipaddress.IPv4Network | ipaddress.IPv6Network


def open_files() -> tuple[int, int]:
    """How many descriptors this process has open, and how many it may have. Works without one that is free."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # without that of the listing
    except OSError:
        used = sum(map(_is_open, range(_FILES_LOOKED_AT)))
    return used, limit


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def addresses() -> tuple[HostAddress, ...]:
    """The addresses of all interfaces, in the kernel's order; empty where the kernel has no netlink."""
    if sys.platform != "linux":
        return ()
    request = _MESSAGE.pack(_MESSAGE.size + _ADDRESS.size, _RTM_GETADDR, _REQUEST_DUMP, 1, 0) + bytes(_ADDRESS.size)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
            netlink.settimeout(_DEADLINE_S)
            netlink.sendto(request, (0, 0))
            return tuple(_answers(netlink))
    except OSError:
        return ()


def _answers(netlink: socket.socket) -> Iterator[HostAddress]:
    while True:
        data = netlink.recv(_ANSWER_BYTES)
        while data:
            size, kind, *_ = _MESSAGE.unpack_from(data)
            if kind in {_NLMSG_DONE, _NLMSG_ERROR}:
                return
            if kind == _RTM_NEWADDR:
                yield from _address(data[_MESSAGE.size : size])
            data = data[_aligned(size) :]


def _address(body: bytes) -> Iterator[HostAddress]:
    family, prefix, _, _, index = _ADDRESS.unpack_from(body)
    attributes = dict(_attributes(body[_ADDRESS.size :]))
    raw = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
    if family not in {socket.AF_INET, socket.AF_INET6} or raw is None:
        return
    try:
        interface = socket.if_indextoname(index)
    except OSError:
        return  # it went away between the two questions
    address = ipaddress.ip_address(raw)
    yield HostAddress(interface, address, ipaddress.ip_network((raw, prefix), strict=False))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : size]
        data = data[_aligned(size) :]


def _aligned(size: int) -> int:
    return (size + 3) & ~3
