"""What a supervisor leaves to the program that takes its place in an upgrade, as values.

Must not know: descriptors beyond their numbers, execv. Rules: both sides may be one release apart, so structs travel as
maps, a field is only ever added, with a default, and an unknown one is ignored; ``VERSION`` rises when that is not
enough, and the self-check of the new code then says no before anything is given up.
"""

from __future__ import annotations

import zlib

import msgspec

from nacosdns.core.metrics import FAMILIES

VERSION = 1


class HeldPair(msgspec.Struct, frozen=True, kw_only=True):
    """The two sockets of one address and front slot. ``given`` by the service manager, which holds them too."""

    host: str
    port: int
    slot: int
    udp_fd: int
    tcp_fd: int
    given: bool = False


class HeldFile(msgspec.Struct, frozen=True, kw_only=True):
    """A listening Unix socket and the device and number of its file."""

    fd: int
    device: int
    number: int


class HeldChild(msgspec.Struct, frozen=True, kw_only=True):
    """One slot: its page and the process in it (``pid`` 0: none), with what was half read and half sent to it.

    ``fresh`` is the front that was tried: it runs the new code already.
    """

    slot: int
    role: str
    page_fd: int
    pid: int = 0
    channel_fd: int = -1
    unread: bytes = b""
    unsent: bytes = b""
    phase: str = "down"
    reads: tuple[int, ...] = ()
    failures: int = 0
    since: float = 0.0
    due_at: float = 0.0
    fresh: bool = False


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """How an upgrade went. ``state`` is checking, trying, replacing, done or failed; ``reason`` belongs to failed.

    ``after`` is the release of the new code, once that is known.
    """

    number: int
    state: str
    after: str = ""
    reason: str = ""
    started_at: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in {"done", "failed"}


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What the self-check of the new code found: its release, the configuration as it reads it, its front.

    ``takes_web``: it goes on with the socket of web; one that does not know it would only keep the port from its own web.
    """

    release: str
    config: bytes
    password: str
    front: str
    takes_web: bool = False


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """All of a running bridge that outlives its supervisor's code.

    ``sockets``, ``link``, ``control``, ``pages``, ``web_fd`` and children name descriptors. ``directory`` is where the Unix
    sockets are. ``pages`` are of slots without a child. ``web_fd`` listens at ``web_listen`` (-1: nobody does, or the new
    code does not take it). ``counters`` is the layout of the counters. ``config`` and ``password`` are as ``Checked`` has them
    (as the old code has them, when it is only to be checked); ``config_file`` must be there to be read again.
    """

    version: int = VERSION
    upgrade: Upgrade
    config: bytes
    password: str
    directory: str
    disk_fault: str = ""
    cache_dir: str
    control_group: str
    web_listen: str
    web_fd: int = -1
    user: str = ""
    config_file: str = ""
    fronts: int
    sockets: tuple[HeldPair, ...]
    late: tuple[tuple[str, int], ...] = ()
    link: HeldFile
    control: HeldFile
    own_page_fd: int
    pages: dict[int, int] = {}
    children: tuple[HeldChild, ...] = ()
    counters: tuple[int, int] = (0, 0)
    next_id: int = 1
    announced: bool = False

    @property
    def descriptors(self) -> list[int]:
        """Every descriptor that has to outlive the old code."""
        found = [self.link.fd, self.control.fd, self.web_fd, self.own_page_fd, *self.pages.values()]
        found += [fd for pair in self.sockets for fd in (pair.udp_fd, pair.tcp_fd)]
        found += [fd for child in self.children for fd in (child.page_fd, child.channel_fd)]
        return [fd for fd in dict.fromkeys(found) if fd >= 0]


class _Head(msgspec.Struct, frozen=True):
    version: int = VERSION


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Handover).decode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
decode_checked = msgspec.msgpack.Decoder(Checked).decode


def decode(content: bytes) -> Handover:
    """ValueError for what this code cannot take over."""
    version = _decode_head(content).version
    if version > VERSION:
        raise ValueError(f"the running nacosdns hands over in version {version}, this one knows {VERSION}")
    return _decode(content)


def counters() -> tuple[int, int]:
    """The layout of the counters in a page: how many families there are, and a digest of the places of these."""
    return len(FAMILIES), _layout(len(FAMILIES))


def has_counters_of(other: tuple[int, int]) -> bool:
    """Whether pages of that layout mean the same to us: new families go to the end."""
    return other[0] <= len(FAMILIES) and _layout(other[0]) == other[1]


def _layout(families: int) -> int:
    places = [(family.name, family.first, len(family)) for family in FAMILIES[:families]]
    return zlib.crc32(encode(places))
