"""Configuration as one frozen, typed Config, and what follows from it in the core's own nouns.

Must not know: files, TOML, sockets, processes (config_load.py reads and checks). Rules: every field carries its own
documentation; a value that can be determined is not asked for; what comes out of ``decode`` has been checked before.
"""

from __future__ import annotations

import hashlib
import ipaddress
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from nacosdns.core import model
from nacosdns.core.dnsname import fold as fold_wire
from nacosdns.core.dnsname import text_name
from nacosdns.core.model import DEFAULT_NAMESPACE, NoneHealthy, ServiceKey, ServiceView
from nacosdns.core.naming import Names
from nacosdns.core.policy import Policies, fold

if TYPE_CHECKING:
    from collections.abc import Iterable

NACOS_PORT = 8848
PRIMARY_WINDOW_S = 5.0


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections."""


class Server(_Section, frozen=True):
    """[server]: who is answered, where and by how many processes."""

    listen: Annotated[
        tuple[str, ...],
        Meta(
            description='Addresses to answer on, UDP and TCP: "127.0.0.1:53", "[::1]:53", an interface "docker0:53". Addresses that come later are retried.'
        ),
    ] = ("127.0.0.1:53",)
    allow: Annotated[
        tuple[str, ...],
        Meta(
            description='Who may ask, by network ("10.1.0.0/16") or word (loopback, link = the interfaces\' own subnets, private, all). Others get REFUSED.'
        ),
    ] = ("loopback", "link", "private")
    fronts: Annotated[
        int, Meta(description="Active answering processes, a socket each, beside one warm standby.", ge=1, le=64)
    ] = 1
    user: Annotated[
        str, Meta(description='The user that every child runs as when started as root; "" keeps the present one.')
    ] = "nacosdns"
    control_group: Annotated[
        str, Meta(description='Group that may use the control socket; "" is the group of the process.')
    ] = ""
    lookup_ms: Annotated[
        int,
        Meta(
            description="How long a question for an unknown service is held while the registry is asked; then SERVFAIL.",
            ge=50,
            le=4500,
        ),
    ] = 1500
    ready_timeout_s: Annotated[
        float, Meta(description="With nothing on disk, readiness waits this long for the first snapshot.", ge=0)
    ] = 30.0
    tcp_connections: Annotated[
        int,
        Meta(description="Open TCP connections a front keeps; then the idlest of the client with the most goes.", ge=1),
    ] = 500
    tcp_idle_s: Annotated[
        float, Meta(description="A TCP connection without a question is closed after this time.", gt=0)
    ] = 10.0


class Nacos(_Section, frozen=True):
    """[nacos]: the registry, and how far it is believed."""

    servers: Annotated[
        tuple[str, ...],
        Meta(
            description='Nacos servers, "host:port" (HTTP port; gRPC is 1000 above). Empty: no Nacos, only static services.'
        ),
    ] = ("127.0.0.1:8848",)
    username: Annotated[str, Meta(description="User for a Nacos with authentication.")] = ""
    password_file: Annotated[
        str, Meta(description="File with the password, one line; read again on 403 and SIGHUP.")
    ] = ""
    ca_file: Annotated[
        str, Meta(description="CA certificates for TLS to Nacos; set all three of ca_file, cert_file, key_file.")
    ] = ""
    cert_file: Annotated[str, Meta(description="Client certificate for TLS to Nacos.")] = ""
    key_file: Annotated[str, Meta(description="Key of the client certificate.")] = ""
    endpoint: Annotated[str, Meta(description="Address server that lists the Nacos servers, instead of `servers`.")] = (
        ""
    )
    context_path: Annotated[str, Meta(description="HTTP context path of the Nacos servers.")] = "/nacos"
    settle_s: Annotated[
        float,
        Meta(
            description="After a reconnect, how long instances not yet confirmed on the new connection are kept at most.",
            ge=0,
        ),
    ] = 180.0
    stable_s: Annotated[
        float,
        Meta(description="After a reconnect, a list that has not changed for this long is taken as complete.", ge=0),
    ] = 30.0
    brake_max_s: Annotated[
        float,
        Meta(
            description="The brake (many services losing most instances at once) ends by itself after this time.", ge=0
        ),
    ] = 900.0
    pull_s: Annotated[
        float,
        Meta(
            description="Each subscribed service is queried at least this often as a net under push (more seldom with many services).",
            ge=1,
        ),
    ] = 60.0
    idle_s: Annotated[
        float,
        Meta(
            description="A subscription that nobody asked for in this time ends; its last answer stays on disk.", ge=1
        ),
    ] = 3600.0
    preload: Annotated[
        tuple[str, ...], Meta(description='Names ("orders.nacos") subscribed from the start, never idle.')
    ] = ()


class ZoneSection(_Section, frozen=True):
    """[[zone]]: a DNS zone and the namespace and group behind it."""

    name: Annotated[str, Meta(description='The zone, with or without the last dot; not "." (use bare_names).')] = (
        "nacos."
    )
    namespace: Annotated[str, Meta(description='Nacos namespace: an id, "public", or an alias of [namespaces].')] = (
        "public"
    )
    group: Annotated[str, Meta(description="The group meant when a name does not say one.")] = "DEFAULT_GROUP"
    bare_names: Annotated[
        bool, Meta(description="Also answer names outside every zone that are services of this zone.")
    ] = False
    bare_allow: Annotated[
        tuple[str, ...],
        Meta(description='Which bare names may be services: "single-label" and suffixes like "*.db.example.com".'),
    ] = ("single-label",)


class PolicySection(_Section, frozen=True):
    """[policy] and its sub-tables: how services are answered and protected."""

    answers: Annotated[
        int | str, Meta(description='How many addresses an A or AAAA answer holds: "all", "one" or a number.')
    ] = "all"
    balancer: Annotated[
        str,
        Meta(
            description="Who draws the order: weighted, random, round_robin, hash or an installed plugin (`nacosdns plugins`)."
        ),
    ] = "weighted"
    ttl_s: Annotated[int, Meta(description="TTL of our answers.", ge=0, le=86400)] = 1
    negative_ttl_s: Annotated[
        int, Meta(description="TTL of our NXDOMAIN and NODATA, and how long a miss is remembered.", ge=0, le=3600)
    ] = 1
    none_healthy: Annotated[
        NoneHealthy,
        Meta(
            description='No instance is healthy: "all" enabled ones (fail open, counted), "nodata", or the "last" healthy set.'
        ),
    ] = NoneHealthy.ALL
    txt_keys: Annotated[
        tuple[str, ...],
        Meta(description="Metadata keys shown in TXT answers; none by default, people keep passwords in metadata."),
    ] = ()
    grpc_config: Annotated[str, Meta(description="JSON served as TXT at _grpc_config.NAME (gRPC service config).")] = ""
    kind: Annotated[
        str, Meta(description='"service", or "primary": one answer, 5 s empty window, never fail open.')
    ] = "service"
    empty_window_s: Annotated[float, Meta(description="An empty list is not believed for this long.", ge=0)] = 45.0
    empty_confirmations: Annotated[
        int, Meta(description="Fresh queries within the window that must agree with an empty list.", ge=1)
    ] = 3
    shrink_max: Annotated[
        float,
        Meta(
            description="A push that takes more than this part of four or more instances is held 10 s for a fresh query.",
            gt=0,
            le=1,
        ),
    ] = 0.5
    accept_before: Annotated[
        str, Meta(description="RFC 3339 time; losses seen before it are not braked. Only in [policy].")
    ] = ""


DATABASE = "cache.db"
"""The file in ``cache.dir`` that outlives us."""


class Cache(_Section, frozen=True):
    """[cache]: what is kept, on disk and in memory."""

    dir: Annotated[str, Meta(description="Directory of the state; the control socket lies in it.")] = (
        "/var/lib/nacosdns"
    )
    external_entries: Annotated[
        int, Meta(description="Answers for outside names kept; the least recently asked goes first.", ge=0)
    ] = 100_000
    external_stale_s: Annotated[
        float,
        Meta(
            description="How long an outside answer may be served after its TTL when upstreams fail; 0 is for ever.",
            ge=0,
        ),
    ] = 0.0
    disk_fresh_s: Annotated[
        float,
        Meta(
            description="A service confirmed longer ago than this, without a subscription, waits stale_wait_ms for Nacos.",
            ge=0,
        ),
    ] = 600.0
    stale_wait_ms: Annotated[
        int, Meta(description="How long such a question waits for Nacos before the old answer goes out.", ge=0, le=2000)
    ] = 200


class Forward(_Section, frozen=True):
    """[forward]: names outside every zone."""

    upstreams: Annotated[
        tuple[str, ...],
        Meta(
            description='Resolvers for other names: "resolv.conf", "192.0.2.53", "192.0.2.53:5353", "[2001:db8::1]:53".'
        ),
    ] = ("resolv.conf",)
    resolv_conf: Annotated[
        str,
        Meta(
            description='The file meant by "resolv.conf"; "" is the first of systemd-resolved\'s, NetworkManager\'s and /etc/resolv.conf.'
        ),
    ] = ""


class Web(_Section, frozen=True):
    """[web]: metrics and health by HTTP."""

    listen: Annotated[str, Meta(description='Address of /metrics, /healthz and /readyz; "" switches it off.')] = (
        "127.0.0.1:9353"
    )


class Log(_Section, frozen=True):
    """[log]: what is written to stderr."""

    level: Annotated[str, Meta(description="debug, info, warning or error.")] = "info"
    queries: Annotated[str, Meta(description='Query log: "off", "all", "errors" or a sample "1/100".')] = "off"


class Host(_Section, frozen=True):
    """[host]: what we keep right on this host beside our own files."""

    guard: Annotated[
        bool,
        Meta(description="Keep our address first in resolv.conf, as `nacosdns resolvconf guard` does."),
    ] = False
    nodes: Annotated[
        tuple[str, ...],
        Meta(
            description="IP addresses of cluster nodes on port 53, which know our zones: they stand behind our own address; two at most."
        ),
    ] = ()
    restore_on_stop: Annotated[bool, Meta(description="The guard gives resolv.conf back when it is told to stop.")] = (
        False
    )
    resolv_conf: Annotated[str, Meta(description="The file that the guard keeps.")] = "/etc/resolv.conf"


class StaticInstance(_Section, frozen=True):
    """One instance of a static service."""

    ip: Annotated[str, Meta(description="IP address or host name.")]
    port: Annotated[int, Meta(description="Port.", ge=0, le=65535)] = 0
    weight: Annotated[float, Meta(description="Weight, at most 10,000 as in Nacos.", ge=0, le=10_000)] = 1.0
    healthy: Annotated[bool, Meta(description="Counts as healthy.")] = True
    enabled: Annotated[bool, Meta(description="Takes part at all.")] = True
    cluster: Annotated[str, Meta(description="Nacos cluster name.")] = "DEFAULT"
    metadata: Annotated[dict[str, str], Meta(description="Metadata.")] = {}


class Static(_Section, frozen=True):
    """[[static]]: a service that needs no registry."""

    name: Annotated[str, Meta(description="Service name as Nacos would spell it.")]
    namespace: Annotated[str, Meta(description="Namespace id or alias.")] = "public"
    group: Annotated[str, Meta(description="Group.")] = "DEFAULT_GROUP"
    instances: Annotated[
        tuple[StaticInstance, ...], Meta(description="Its instances; static services need no Nacos and win over it.")
    ] = ()


class Config(_Section, frozen=True):
    """Everything. ``policies`` and ``policy`` are one table in TOML: sub-tables of [policy] are patterns."""

    server: Server = Server()
    nacos: Nacos = Nacos()
    zones: tuple[ZoneSection, ...] = (ZoneSection(),)
    namespaces: Annotated[dict[str, str], Meta(description='Aliases of namespace ids: prod = "33ea21bc-…".')] = {}
    groups: Annotated[
        dict[str, str],
        Meta(description='Aliases of groups, for names and for groups with dots: pay = "com.example.PAY".'),
    ] = {}
    policy: PolicySection = PolicySection()
    policies: dict[str, PolicySection] = {}
    cache: Cache = Cache()
    forward: Forward = Forward()
    web: Web = Web()
    log: Log = Log()
    host: Host = Host()
    static: tuple[Static, ...] = ()
    static_file: Annotated[str, Meta(description="TOML file with [[static]] tables, watched for changes.")] = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Config)


def encode(config: Config) -> bytes:
    """The configuration as it goes to a child; never with a secret, for it holds none."""
    return _encoder.encode(config)


def decode(content: bytes) -> Config:
    """What ``encode`` gave."""
    return _decoder.decode(content)


def digest(config: Config) -> str:
    """A short fingerprint: equal on two hosts when their configurations are."""
    return hashlib.sha256(encode(config)).hexdigest()[:12]


def namespace_id(config: Config, word: str) -> str:
    """The namespace meant by an alias, an id or nothing; ``""`` and ``public`` are the same namespace."""
    return config.namespaces.get(word, word) or DEFAULT_NAMESPACE


def namespaces(config: Config) -> tuple[str, ...]:
    """The ids of all namespaces in the configuration, each once: no other one exists for us."""
    named = [zone.namespace for zone in config.zones] + list(config.namespaces)
    return tuple(dict.fromkeys(namespace_id(config, word) for word in named))


def zones(config: Config) -> tuple[model.Zone, ...]:
    """The zones as the core wants them; names were checked when the configuration was loaded."""
    return tuple(
        model.Zone(
            name=wire_name(zone.name),
            namespace=namespace_id(config, zone.namespace),
            group=config.groups.get(zone.group, zone.group),
            bare_names=zone.bare_names,
            bare_allow=tuple(fold(entry) for entry in zone.bare_allow),
        )
        for zone in config.zones
    )


def names(config: Config, known_groups: Iterable[str] = ()) -> Names:
    """The naming rules; ``known_groups`` are spellings of groups that services are known in."""
    hosts = [host_port(server, NACOS_PORT)[0] for server in config.nacos.servers if "://" not in server]
    return Names(
        zones(config),
        namespaces=config.namespaces,
        groups=config.groups,
        known_groups=known_groups,
        nacos_hosts=hosts,
    )


def wire_name(name: str) -> bytes:
    """A zone or full name as written, as folded wire form with the root. WireError says what is wrong."""
    return fold_wire(text_name(name))


def policies(config: Config) -> Policies:
    """The policy of every service."""
    return Policies(policy(config.policy), {name: policy(section) for name, section in config.policies.items()})


def policy(section: PolicySection) -> model.Policy:
    """One section as the core wants it. A primary answers one, waits 5 s at most, and never fails open."""
    primary = section.kind == "primary"
    answers = {"all": 0, "one": 1}.get(str(section.answers))
    return model.Policy(
        answers=1 if primary else int(section.answers) if answers is None else answers,
        balancer=section.balancer,
        ttl_s=section.ttl_s,
        negative_ttl_s=section.negative_ttl_s,
        none_healthy=NoneHealthy.NODATA if primary else section.none_healthy,
        txt_keys=section.txt_keys,
        grpc_config=section.grpc_config,
        primary=primary,
        empty_window_s=min(section.empty_window_s, PRIMARY_WINDOW_S) if primary else section.empty_window_s,
        empty_confirmations=section.empty_confirmations,
        shrink_max=section.shrink_max,
    )


def static_services(config: Config, sections: Iterable[Static] | None = None) -> dict[ServiceKey, ServiceView]:
    """The static services of the configuration, or of other ``sections`` (those of static_file)."""
    return {
        ServiceKey(
            namespace_id(config, section.namespace),
            config.groups.get(section.group, section.group),
            section.name,
        ): ServiceView(tuple(_instance(item) for item in section.instances))
        for section in (config.static if sections is None else sections)
    }


def _instance(item: StaticInstance) -> model.Instance:
    return model.Instance(
        address=item.ip,
        port=item.port,
        weight=item.weight,
        healthy=item.healthy,
        enabled=item.enabled,
        cluster=item.cluster,
        metadata=tuple(sorted(item.metadata.items())),
    )


def is_address(host: str) -> bool:
    """Whether this is an IP address; one of IPv6 may have a zone."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_port(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:53``, ``[::1]:53`` or ``docker0:53``; the host comes without brackets.

    ValueError when there is no port and no ``default_port``, or when the port is not 1 to 65535.
    """
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError("an IPv6 address with a port is written [::1]:53")
        port_text = rest.removeprefix(":")
    elif text.count(":") > 1:
        raise ValueError("an IPv6 address with a port is written [::1]:53")
    else:
        host, _, port_text = text.partition(":")
    if not host:
        raise ValueError("the address before the port is missing")
    if not port_text and default_port is not None:
        return host, default_port
    if not port_text.isascii() or not port_text.isdigit() or not 0 < int(port_text) < 65536:
        raise ValueError(
            f"{port_text!r} is not a port from 1 to 65535" if port_text else "the port after the address is missing"
        )
    return host, int(port_text)
