"""What our processes say to each other: the frames of the link and of the supervisor's channels, as values.

Must not know: sockets. A frame is a msgspec/MessagePack value; edge/link.py adds the length before it. The same link
frames will go over TCP from a cluster node to an agent. Rules: the first frame each way is ``Hello`` with the version;
a full state never removes, only ``Removed`` does; ``Known.body`` stays encoded until a front needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nacosdns.core.model import ServiceKey, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1
CONTROL_VERSION = 2
"""Of the requests and answers on the control socket: raised when an older bridge or command would get them wrong."""
FRAME_BYTES_MAX = 32 << 20
"""A service is told in one frame, whatever its size; Nacos sends at most 10 MB in one message."""
STATE_FRAME_BYTES = 64 * 1024


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="t", tag=str.lower):
    """Base of all frames; the tag is the lower-case class name."""


class Hello(Frame, frozen=True):
    """First frame each way. ``epoch`` is the keeper's (0 from a front), ``role`` keeper, front, web."""

    version: int
    role: str
    epoch: int = 0


class Known(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One snapshot on the way: the key in clear, the Snapshot still encoded."""

    key: ServiceKey
    revision: int
    body: msgspec.Raw


class Updates(Frame, frozen=True):
    """Keeper to front: newer snapshots (a part of a full state, or changes)."""

    items: tuple[Known, ...]


class Removed(Frame, frozen=True):
    """Keeper to front: this service is gone. The only way a service leaves a front."""

    key: ServiceKey
    reason: str


class Synced(Frame, frozen=True):
    """Keeper to front: the full state of this epoch has been sent up to ``revision``."""

    epoch: int
    revision: int


class LookedUp(Frame, frozen=True):
    """Keeper to front: what became of a ``Lookup``. ``outcome`` is found, missing, unreachable or refused (budget)."""

    keys: tuple[ServiceKey, ...]
    outcome: str


class Names(Frame, frozen=True):
    """Keeper to front: the services a catalogue read lists for one namespace and group; ``at`` wall clock seconds.

    A long list comes in parts, numbered from 0; it counts when the ``last`` one is there.
    """

    namespace: str
    group: str
    names: tuple[str, ...]
    at: float
    part: int = 0
    last: bool = True


class Reachable(Frame, frozen=True):
    """Keeper to front: whether the registry answers for this namespace, and what it or we complain of, for people."""

    namespace: str
    up: bool
    settled: bool = True
    problem: str = ""


class External(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One cached answer for a name outside every zone.

    ``question`` is folded wire name + type + class; ``flags`` the DO and CD bits it was asked with. ``reply`` is the
    upstream's packet after the id; ``stored_at`` wall clock seconds; ``ttl_s`` the lowest TTL at that time.
    """

    question: bytes
    flags: int
    reply: bytes
    stored_at: float
    ttl_s: int


class Externals(Frame, frozen=True):
    """Either way: external answers that the other side may not have."""

    items: tuple[External, ...]


class Lookup(Frame, frozen=True):
    """Front to keeper: find the first of these spellings that exists."""

    keys: tuple[ServiceKey, ...]


class Asked(Frame, frozen=True):
    """Front to keeper, batched: these services were asked for since the last ``Asked``."""

    keys: tuple[ServiceKey, ...]


class Have(Frame, frozen=True):
    """Front to a keeper whose store is empty or damaged: what the front holds, as 'from disk, unconfirmed'."""

    items: tuple[Known, ...]


LinkFrame = Hello | Updates | Removed | Synced | LookedUp | Names | Reachable | Externals | Lookup | Asked | Have


class Configure(Frame, frozen=True):
    """Supervisor to child: the configuration to use from now on (encoded Config) and the password."""

    config: bytes
    password: str = ""


class Activate(Frame, frozen=True):
    """Supervisor to a front: read and answer the sockets of these slots."""

    slots: tuple[int, ...]


class Drain(Frame, frozen=True):
    """Supervisor to child: finish what is in hand within ``deadline_s``, save, and exit 0."""

    deadline_s: float


class Ready(Frame, frozen=True):
    """Child to supervisor: everything is imported and set up. A keeper says it with what it found on disk."""

    services: int = 0


class Failed(Frame, frozen=True):
    """Child to supervisor: why it ends, in one sentence. Its last word."""

    reason: str


class Ask(Frame, frozen=True):
    """Supervisor to child: a command from the control socket. ``arguments`` as in docs/operating.md.

    ``version`` is the ``CONTROL_VERSION`` of the command that began it. ``until``: when nobody waits for the answer any more, by
    CLOCK_MONOTONIC in seconds; 0 for never.
    """

    id: int
    verb: str
    arguments: dict[str, msgspec.Raw] = {}
    version: int = CONTROL_VERSION
    until: float = 0.0


class Told(Frame, frozen=True):
    """Child to supervisor: the answer to ``Ask``; ``error`` is empty when it went well."""

    id: int
    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""


class SocketSet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The inherited sockets of one front slot: pairs of descriptor and the address it is bound to, as configured."""

    slot: int
    udp: tuple[tuple[int, str], ...] = ()
    tcp: tuple[tuple[int, str], ...] = ()


class ChildSetup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a child is born with; read once from the descriptor named by its only argument, never from argv or env.

    ``role`` keeper, front or web; ``slot`` its page slot; ``pages`` descriptors of all pages by slot (web reads them);
    ``active`` the front slots whose sockets this child reads from the start (empty for the standby).
    """

    role: str
    slot: int
    channel_fd: int
    page_fd: int
    link_path: str
    config: bytes
    password: str = ""
    link_fd: int = -1
    sockets: tuple[SocketSet, ...] = ()
    active: tuple[int, ...] = ()
    pages: tuple[int, ...] = ()


ChannelFrame = Configure | Activate | Drain | Ready | Failed | Ask | Told

_encoder = msgspec.msgpack.Encoder()
_link_decoder: msgspec.msgpack.Decoder[LinkFrame] = msgspec.msgpack.Decoder(LinkFrame)
_channel_decoder: msgspec.msgpack.Decoder[ChannelFrame] = msgspec.msgpack.Decoder(ChannelFrame)
_snapshot_decoder = msgspec.msgpack.Decoder(Snapshot)

encode = _encoder.encode
decode_link = _link_decoder.decode
decode_snapshot = _snapshot_decoder.decode


def decode_channel(body: bytes) -> ChannelFrame:
    """A frame of a channel or of the control socket; MsgspecError for anything else.

    Also for an argument that cannot be read: a child would find that out later, where nobody can be told any more.
    """
    try:
        frame = _channel_decoder.decode(body)
        if isinstance(frame, Ask):
            for argument in frame.arguments.values():
                msgspec.msgpack.decode(argument)
    except RecursionError as error:
        raise msgspec.DecodeError("values are nested too deeply") from error
    return frame


def known(snapshot: Snapshot) -> Known:
    """The snapshot as it goes over the link and into the store: key in clear, the rest encoded once."""
    return Known(snapshot.key, snapshot.revision, msgspec.Raw(encode(snapshot)))


def holds(body: bytes, key: ServiceKey) -> bool:
    """Whether this is an encoded snapshot of this service, by its first bytes: all that is looked at."""
    return body[:1] == _SNAPSHOT_HEAD and body.startswith(_key_encoded(key), 1)


def is_empty(item: Known) -> bool:
    """Whether the encoded snapshot has no instance (MessagePack: an array of none after the key)."""
    body = bytes(item.body)
    return body[1 + len(_key_encoded(item.key))] == 0x90


_key_encoded: Callable[[ServiceKey], bytes] = msgspec.msgpack.Encoder().encode
_SNAPSHOT_HEAD = encode(Snapshot(ServiceKey("", "", ""), ()))[:1]

LENGTH_BYTES = 4
CHANNEL_BYTES_MAX = 64 << 20
"""The longest frame of a channel or of the control socket: a list of every service has to fit."""


def framed(frame: ChannelFrame) -> bytes:
    """The frame as it goes over a channel and over the control socket: its length (4 bytes, big-endian), then itself."""
    body = encode(frame)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
