"""What makes a configuration wrong although every key and type is right.

Must not know: files and lines (config_load.py adds them). Rule: a complaint names the key, what is wrong with the
value, and what to write instead.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import re
from collections import Counter
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

from nacosdns.config import host_port, is_address, names, namespace_id, wire_name
from nacosdns.core import access
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nacosdns import config as configuration
    from nacosdns.config import Config, PolicySection

Path = tuple[str | int, ...]

BALANCERS = ("weighted", "random", "round_robin", "hash")
BALANCER_GROUP = "nacosdns.balancers"
LOG_LEVELS = ("debug", "info", "warning", "error")
_GRPC_CONFIG_BYTES_MAX = 16_000
_NODES_MAX = 2
_INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")
_COUNT = re.compile(r"0*[1-9][0-9]{0,17}")
_SAMPLE = re.compile(r"1/[1-9][0-9]{0,8}")


class Complaint(NamedTuple):
    """One fault: the path of the key in the TOML file, what is wrong, what to do."""

    path: Path
    what: str
    remedy: str


def complaints(config: Config) -> Iterator[Complaint]:
    """Every fault of a configuration whose keys and types are right; none when it can be used."""
    yield from _server(config)
    yield from _nacos(config)
    yield from _zones(config)
    yield from _names(config)
    yield from _policy(config.policy, ("policy",))
    for pattern, section in config.policies.items():
        yield from _policy(section, ("policy", pattern))
        if section.accept_before != config.policy.accept_before:
            yield Complaint(
                ("policy", pattern, "accept_before"), "belongs to all services", "write it in [policy] itself"
            )
    yield from _rest(config)
    yield from _host(config)
    yield from _static(config)


def _server(config: Config) -> Iterator[Complaint]:
    path: Path = ("server", "listen")
    if not config.server.listen:
        yield Complaint(path, "is empty", 'write the addresses to answer on, as in ["127.0.0.1:53"]')
    for entry, times in Counter(config.server.listen).items():
        fault = "stands twice" if times > 1 else _listen_fault(entry)
        if fault:
            yield Complaint(path, f'"{entry}": {fault}', 'write "ADDRESS:PORT", "[IPV6]:PORT" or "INTERFACE:PORT"')
    for wide, narrow in _overlaps(config.server.listen):
        yield Complaint(path, f'"{wide}" and "{narrow}" overlap', "name one of them: the first takes in the second")
    if config.web.listen and any(_meets(entry, config.web.listen) for entry in config.server.listen):
        yield Complaint(("web", "listen"), "is an address of server.listen", "give it a port of its own")
    for entry in config.server.allow:
        if entry not in access.WORDS and not _is_network(entry):
            yield Complaint(
                ("server", "allow"),
                f'"{entry}" is neither a network nor a word',
                f'write a network such as "10.1.0.0/16" or one of {", ".join(sorted(access.WORDS))}',
            )


def _listen_fault(entry: str) -> str:
    try:
        host, _ = host_port(entry)
    except ValueError as error:
        return str(error)
    if _is_address(host) or (_INTERFACE.fullmatch(host) and host != "localhost" and not _looks_numeric(host)):
        return ""
    return f'"{host}" is neither an IP address nor the name of an interface'


def _overlaps(listen: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Pairs of which one is every address of the host, the other one of these."""
    good = [entry for entry in listen if not _listen_fault(entry)]
    for wide, narrow in permutations(good, 2):
        if _is_every_address(wide) and not _is_every_address(narrow) and _meets(wide, narrow):
            yield wide, narrow


def _meets(one: str, other: str) -> bool:
    """Whether both cannot be bound, as far as names tell: an interface may have addresses of both families."""
    if _listen_fault(one) or _listen_fault(other):
        return False
    (host, port), (other_host, other_port) = host_port(one), host_port(other)
    if port != other_port:
        return False
    if host == other_host:
        return True
    wide = _is_every_address(one) or _is_every_address(other)
    return wide and (not _is_address(host) or not _is_address(other_host) or (":" in host) == (":" in other_host))


def _is_every_address(entry: str) -> bool:
    host, _ = host_port(entry)
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _looks_numeric(host: str) -> bool:
    return bool(re.fullmatch(r"[0-9.]+", host))


def _is_address(text: str) -> bool:
    if not is_address(text):
        return False
    _, scoped, interface = text.partition("%")
    return not scoped or bool(_INTERFACE.fullmatch(interface))


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _nacos(config: Config) -> Iterator[Complaint]:
    for entry in config.nacos.servers:
        fault = _server_fault(entry)
        if fault:
            yield Complaint(("nacos", "servers"), f'"{entry}": {fault}', 'write "HOST:PORT", as in "10.0.0.5:8848"')
    tls = {name: getattr(config.nacos, name) for name in ("ca_file", "cert_file", "key_file")}
    missing = [name for name, value in tls.items() if not value]
    if missing and len(missing) < len(tls):
        yield Complaint(("nacos", missing[0]), "is missing", f"TLS to Nacos needs all of {', '.join(tls)}")
    if config.nacos.password_file and not config.nacos.username:
        yield Complaint(("nacos", "username"), "is missing", "password_file is of no use without it")
    ours = [wire_name(zone.name) for zone in config.zones if not _zone_fault(zone.name)]
    for name in config.nacos.preload:
        if _zone_fault(name) or not any(wire_name(name).endswith(zone) for zone in ours):
            yield Complaint(
                ("nacos", "preload"), f'"{name}" is not under a zone', 'write a full name, as in "orders.nacos"'
            )


def _server_fault(entry: str) -> str:
    if "://" in entry:
        return "has a scheme"
    if entry.startswith("[") or entry.count(":") > 1:
        return "is an IPv6 address, which nacos-sdk-python 3.2 cannot use"
    try:
        host, _ = host_port(entry)
    except ValueError as error:
        return str(error)
    return "" if host.isprintable() and " " not in host else "no host has such a name"


def _zones(config: Config) -> Iterator[Complaint]:
    seen: set[bytes] = set()
    bare = False
    for number, zone in enumerate(config.zones):
        path: Path = ("zone", number, "name")
        fault = _zone_fault(zone.name)
        if fault:
            yield Complaint(path, f'"{zone.name}": {fault}', 'write a name such as "nacos." or "nacos.internal."')
            continue
        if wire_name(zone.name) in seen:
            yield Complaint(path, f'"{zone.name}" stands twice', "each zone belongs to one namespace: remove one")
        seen.add(wire_name(zone.name))
        if zone.bare_names and bare:
            yield Complaint(("zone", number, "bare_names"), "is set in two zones", "only one zone can have bare names")
        bare = bare or zone.bare_names
        yield from _bare_allow(zone.bare_allow, number)
    if not config.zones:
        yield Complaint(("zone",), "is empty", 'write at least one [[zone]] with name = "nacos."')


def _zone_fault(name: str) -> str:
    if name == ".":
        return "is every name there is; use bare_names"
    try:
        wire_name(name)
    except WireError as error:
        return str(error)
    return ""


def _bare_allow(entries: tuple[str, ...], number: int) -> Iterator[Complaint]:
    for entry in entries:
        if entry != "single-label" and (not entry.startswith("*.") or _zone_fault(entry[2:])):
            yield Complaint(
                ("zone", number, "bare_allow"),
                f'"{entry}" is neither "single-label" nor a suffix',
                'write a suffix as "*.db.example.com"',
            )


def _names(config: Config) -> Iterator[Complaint]:
    for table, aliases in (("namespaces", config.namespaces), ("groups", config.groups)):
        for alias in aliases:
            if not 0 < len(alias.encode()) < 64 or "." in alias:
                yield Complaint(
                    (table, alias), "cannot stand in a name", "an alias is one label: 1 to 63 bytes, no dot"
                )
    for alias, target in config.namespaces.items():
        if target in config.namespaces and target != alias:
            yield Complaint(("namespaces", alias), f'"{target}" is an alias itself', "write the id of the namespace")
        if alias == "public" and target not in {"", "public"}:
            yield Complaint(("namespaces", alias), "means the namespace public", "take another alias")
    yield from _clashes(config)


def _clashes(config: Config) -> Iterator[Complaint]:
    """Zones and aliases of which each is right, but that cannot stand beside each other (core/naming.py)."""
    try:
        names(config)
    except ValueError as error:
        yield Complaint(("zone",), str(error), "write zones and aliases that differ by more than letter case")


def _policy(section: PolicySection, path: Path) -> Iterator[Complaint]:
    if section.answers not in {"all", "one"} and not _is_count(section.answers):
        yield Complaint(
            (*path, "answers"), f'"{section.answers}" is not known', 'write "all", "one" or a number from 1'
        )
    if section.kind not in {"service", "primary"}:
        yield Complaint((*path, "kind"), f'"{section.kind}" is not known', 'write "service" or "primary"')
    if section.balancer not in BALANCERS:
        from importlib.metadata import entry_points  # noqa: PLC0415  # 30 ms that a start without plugins saves

        installed = sorted({*BALANCERS, *(point.name for point in entry_points(group=BALANCER_GROUP))})
        if section.balancer not in installed:
            remedy = f"installed are {', '.join(installed)}; see `nacosdns plugins`"
            yield Complaint((*path, "balancer"), f'"{section.balancer}" is not installed', remedy)
    if section.grpc_config:
        fault = _grpc_config_fault(section.grpc_config)
        if fault:
            yield Complaint((*path, "grpc_config"), fault, "write one JSON object, as gRPC's service config wants it")
    if section.accept_before and not _is_time(section.accept_before):
        yield Complaint(
            (*path, "accept_before"),
            f'"{section.accept_before}" is not a time with a zone',
            'write it as "2026-11-29T20:00:00Z"',
        )


def _is_count(answers: int | str) -> bool:
    return bool(_COUNT.fullmatch(str(answers)))


def _grpc_config_fault(text: str) -> str:
    if len(text.encode()) > _GRPC_CONFIG_BYTES_MAX:
        return f"has more than {_GRPC_CONFIG_BYTES_MAX} bytes"
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"is not JSON: {error}"
    except RecursionError:
        return "is nested too deeply"
    return "" if isinstance(value, dict) else "is JSON, but not an object"


def _is_time(text: str) -> bool:
    try:
        return dt.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _paths(config: Config) -> Iterator[Complaint]:
    nacos = config.nacos
    files: dict[Path, str] = {
        ("nacos", "password_file"): nacos.password_file,
        ("nacos", "ca_file"): nacos.ca_file,
        ("nacos", "cert_file"): nacos.cert_file,
        ("nacos", "key_file"): nacos.key_file,
        ("cache", "dir"): config.cache.dir,
        ("forward", "resolv_conf"): config.forward.resolv_conf,
        ("static_file",): config.static_file,
    }
    for path, file in files.items():
        if "\0" in file:
            yield Complaint(path, "holds a zero byte, which no name of a file does", "write a path")


def _rest(config: Config) -> Iterator[Complaint]:
    yield from _paths(config)
    if not config.cache.dir.startswith("/"):
        yield Complaint(("cache", "dir"), f'"{config.cache.dir}" is not absolute', "write a path that starts with /")
    for entry in config.forward.upstreams:
        fault = _upstream_fault(entry)
        if fault:
            yield Complaint(("forward", "upstreams"), f'"{entry}": {fault}', 'write "resolv.conf", "IP" or "IP:PORT"')
    if config.web.listen:
        yield from _web(config.web.listen)
    if config.log.level not in LOG_LEVELS:
        yield Complaint(("log", "level"), f'"{config.log.level}" is not known', f"write one of {', '.join(LOG_LEVELS)}")
    if config.log.queries not in {"off", "all", "errors"} and not _SAMPLE.fullmatch(config.log.queries):
        yield Complaint(
            ("log", "queries"), f'"{config.log.queries}" is not known', 'write "off", "all", "errors" or "1/100"'
        )


def _host(config: Config) -> Iterator[Complaint]:
    section = config.host
    for node in section.nodes:
        if not _is_address(node):
            yield Complaint(("host", "nodes"), f'"{node}" is not an IP address', "write addresses without a port")
    if len(section.nodes) > _NODES_MAX:
        yield Complaint(("host", "nodes"), "holds more than two", "glibc reads three servers, and the first is ours")
    if not section.resolv_conf.startswith("/") or "\0" in section.resolv_conf:
        yield Complaint(("host", "resolv_conf"), f'"{section.resolv_conf}" is not absolute', "write a path")
    if section.guard and config.forward.resolv_conf == section.resolv_conf:
        remedy = 'leave forward.resolv_conf at "": the copy that the guard keeps is found'
        yield Complaint(("forward", "resolv_conf"), "is the file that the guard keeps, which names only us", remedy)


def _upstream_fault(entry: str) -> str:
    if entry == "resolv.conf" or _is_address(entry):
        return ""
    if "://" in entry:
        return "this version forwards by UDP and TCP only"
    try:
        host, _ = host_port(entry, 53)
    except ValueError as error:
        return str(error)
    return "" if _is_address(host) else "is not an IP address"


def _web(listen: str) -> Iterator[Complaint]:
    try:
        host, _ = host_port(listen)
    except ValueError as error:
        yield Complaint(("web", "listen"), f'"{listen}": {error}', 'write "127.0.0.1:9353", or "" to switch it off')
        return
    if not _is_address(host):
        yield Complaint(("web", "listen"), f'"{host}" is not an IP address', 'write it as in "127.0.0.1:9353"')


def _static(config: Config) -> Iterator[Complaint]:
    yield from static_complaints(config.static)
    keys = Counter((namespace_id(config, entry.namespace), entry.group, entry.name) for entry in config.static)
    for number, entry in enumerate(config.static):
        if keys[namespace_id(config, entry.namespace), entry.group, entry.name] > 1:
            yield Complaint(("static", number, "name"), f'"{entry.name}" stands twice', "put its instances together")


def static_complaints(sections: tuple[configuration.Static, ...]) -> Iterator[Complaint]:
    """The faults of static services, in the configuration or in static_file."""
    for number, entry in enumerate(sections):
        if not entry.name:
            yield Complaint(("static", number, "name"), "is empty", "write the name of the service")
        for item in entry.instances:
            if not item.ip or any(letter.isspace() for letter in item.ip):
                yield Complaint(
                    ("static", number, "instances"), f'ip "{item.ip}"', "write an IP address or a host name"
                )
