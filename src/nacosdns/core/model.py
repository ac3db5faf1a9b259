"""The nouns: what a query, a reply, a service, an instance and an outcome are. Values only.

Must not know: sockets, files, clocks, the SDK, dnslib. Rule: every value here is frozen and can be sent over the
link and written to the store as it is (msgspec, array_like).
"""

from __future__ import annotations

from enum import Enum, IntEnum

import msgspec

from nacosdns.core.dnsname import labels_of

DEFAULT_NAMESPACE = "public"
DEFAULT_GROUP = "DEFAULT_GROUP"
DEFAULT_CLUSTER = "DEFAULT"
MAIN_REGISTRY = "main"


class ServiceKey(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """One service, spelled exactly as the registry spells it. ``namespace`` is an id, never an alias or ``""``."""

    namespace: str
    group: str
    service: str
    registry: str = MAIN_REGISTRY

    def __str__(self) -> str:
        return f"{self.namespace}/{self.group}/{self.service}"


class Instance(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One provider of a service. ``address`` is an IP address as text, or a host name; ``metadata`` sorted pairs."""

    address: str
    port: int
    weight: float = 1.0
    healthy: bool = True
    enabled: bool = True
    cluster: str = DEFAULT_CLUSTER
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def identity(self) -> tuple[str, int, str]:
        """What makes it the same instance when weight, health or metadata change."""
        return (self.address, self.port, self.cluster)


class Source(Enum):
    """Where a snapshot came from last."""

    PUSH = "push"
    PULL = "pull"
    DISK = "disk"
    STATIC = "static"


class Protection(Enum):
    """Why what we serve differs from what the registry said last (DESIGN: Protection)."""

    NONE = "none"
    EMPTY = "empty"  # an empty list that is not believed yet
    SHRINK = "shrink"  # members known before a lost connection, not yet confirmed on the new one
    HELD = "held"  # one push that took more than shrink_max: waiting for a fresh query
    BRAKE = "brake"  # too many services lost too much at once


class ServiceView(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the registry says of a service at one moment: by push, by query or by file. Not yet believed."""

    instances: tuple[Instance, ...]
    threshold_reached: bool = False


class Snapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What we believe and serve of one service.

    ``instances`` are in the registry's order, those demoted by the brake last (``demoted`` of them).
    ``revision`` grows with every change within a keeper epoch. ``confirmed_at`` and ``protected_since`` are wall
    clock seconds; 0 means never. ``unconfirmed`` counts the members that only protection keeps. ``live``: the registry
    tells us of changes at present. ``last_healthy`` is filled only while no instance is healthy.
    """

    key: ServiceKey
    instances: tuple[Instance, ...]
    revision: int = 0
    source: Source = Source.PULL
    confirmed_at: float = 0.0
    protection: Protection = Protection.NONE
    protected_since: float = 0.0
    threshold_reached: bool = False
    unconfirmed: int = 0
    demoted: int = 0
    last_healthy: tuple[Instance, ...] = ()
    live: bool = False


class RecordType(IntEnum):
    """The record types that we answer or treat specially (IANA DNS parameters)."""

    A = 1
    NS = 2
    CNAME = 5
    SOA = 6
    PTR = 12
    MX = 15
    TXT = 16
    AAAA = 28
    SRV = 33
    OPT = 41
    SVCB = 64
    HTTPS = 65
    IXFR = 251
    AXFR = 252
    ANY = 255


class Rcode(IntEnum):
    """RFC 1035 and 6891 response codes that we use."""

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


def type_text(kind: int) -> str:
    """A record type as people write it (RFC 3597 5)."""
    return RecordType(kind).name if kind in set(RecordType) else f"TYPE{kind}"


def rcode_text(code: int) -> str:
    """A response code as people write it."""
    return Rcode(code).name if code in set(Rcode) else f"RCODE{code}"


class Edns(msgspec.Struct, frozen=True, gc=False):
    """The OPT record of a query (RFC 6891)."""

    payload_bytes: int
    version: int = 0
    dnssec_ok: bool = False
    options: tuple[tuple[int, bytes], ...] = ()


class Query(msgspec.Struct, frozen=True, gc=False):
    """One parsed question.

    ``question`` holds the bytes of name, type and class as they came (RFC 1035 4.1.2): they go back byte for byte.
    ``name`` is the same name in wire form with A-Z folded.
    """

    id: int
    flags: int
    question: bytes
    name: bytes
    type: int
    klass: int = 1
    edns: Edns | None = None
    over_tcp: bool = False
    client: bytes = b""  # raw address bytes, 4 or 16; b"" when unknown

    @property
    def labels(self) -> tuple[bytes, ...]:
        """The labels of the name as they came, without the root: made when asked for, since most queries need none."""
        return labels_of(self.question[:-4])

    @property
    def recursion_desired(self) -> bool:
        return bool(self.flags & 0x0100)

    @property
    def checking_disabled(self) -> bool:
        return bool(self.flags & 0x0010)


class Record(msgspec.Struct, frozen=True, gc=False):
    """One resource record. ``name`` and names inside ``rdata`` are uncompressed wire form; ``ttl_s`` in seconds."""

    name: bytes
    type: int
    ttl_s: int
    rdata: bytes
    klass: int = 1


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The sections of a reply, before they are cut to a size.

    ``glue`` goes first when it does not fit, then whole ``answers`` with TC set (RFC 2181 9). An answer of ours is
    authoritative; one from an upstream keeps ``authentic`` (AD) as it came.
    """

    rcode: Rcode = Rcode.NOERROR
    answers: tuple[Record, ...] = ()
    authority: tuple[Record, ...] = ()
    glue: tuple[Record, ...] = ()
    authoritative: bool = True
    authentic: bool = False
    truncated: bool = False


class NoneHealthy(Enum):
    """What to answer when no instance is healthy and no threshold flag says otherwise."""

    ALL = "all"  # fail open: every enabled one with a weight, counted
    NODATA = "nodata"
    LAST = "last"  # the last set that was healthy


class Policy(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How one service is answered and protected; times in seconds. ``answers`` 0 means all."""

    answers: int = 0
    balancer: str = "weighted"
    ttl_s: int = 1
    negative_ttl_s: int = 1
    none_healthy: NoneHealthy = NoneHealthy.ALL
    txt_keys: tuple[str, ...] = ()
    grpc_config: str = ""
    primary: bool = False
    empty_window_s: float = 45.0
    empty_confirmations: int = 3
    shrink_max: float = 0.5


class Zone(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    r"""A DNS zone that belongs to one namespace and one default group.

    ``name`` is folded wire form with the root (``b"\\x05nacos\\x00"``).
    """

    name: bytes
    namespace: str = DEFAULT_NAMESPACE
    group: str = DEFAULT_GROUP
    bare_names: bool = False
    bare_allow: tuple[str, ...] = ("single-label",)
