"""DNS names and services: what a name means, what a service is called, what is ours and what is not.

Must not know: what is registered, packets, policy. Rules (docs/names.md): one name has one meaning, found from its
labels and the configuration alone; every service that can be named has exactly one full name, and it leads back to it.
"""

from __future__ import annotations

import re
import unicodedata
from enum import Enum
from ipaddress import IPv6Address
from struct import unpack
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core.dnsname import LABEL_BYTES_MAX, NAME_BYTES_MAX, labels_of, name_text, name_to_wire, text_name
from nacosdns.core.dnsrecord import pack_address
from nacosdns.core.model import DEFAULT_NAMESPACE, ServiceKey, Zone
from nacosdns.core.spelling import FoldedKey, fold_text, folded_key, label_text
from nacosdns.core.suffixes import Suffixes
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "AddressName",
    "Apex",
    "Candidate",
    "FoldedKey",
    "Marker",
    "Names",
    "Nothing",
    "Outside",
    "Prefix",
    "ServiceName",
    "Suffixes",
    "Target",
    "address_name",
    "fold_text",
    "folded_key",
    "label_text",
]

ANY_CLUSTER = "_any"
LOOKUPS_MAX = 3
ZONE_BYTES_MAX = NAME_BYTES_MAX - LABEL_BYTES_MAX - 1

_NEVER_BARE_TOP = frozenset({"localhost", "arpa"})
_NEVER_BARE_FIRST = "wpad"
_NEVER_A_PORT = frozenset({"_", "_grpclb"})
_PROTOCOLS = frozenset({"_tcp", "_udp"})
_ADDRESS_LABEL = re.compile("[0-9a-f-]+")


# What a name means


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One service that a name may mean. ``spellings`` are what to ask the registry for, in this order.

    ``folded`` is the key of the book, ``asked`` the service as the question spells it.
    """

    folded: FoldedKey
    spellings: tuple[ServiceKey, ...]
    asked: str


class Prefix(Enum):
    """What stands before a service name. ``PROTOCOL`` (``_tcp.NAME``) is an empty non-terminal above the SRV names."""

    NONE = ""
    SRV = "_PORT-OR-NAME._tcp"
    PROTOCOL = "_tcp"
    GRPC_CONFIG = "_grpc_config"


class Outside(msgspec.Struct, frozen=True, gc=False):
    """Outside every zone: forwarded, unless ``bare`` names a service that the catalogue of ``bare_zone`` lists."""

    bare: tuple[Candidate, ...] = ()
    bare_zone: Zone | None = None


class Apex(msgspec.Struct, frozen=True, gc=False):
    """The zone itself: SOA, NS."""

    zone: Zone


class Marker(msgspec.Struct, frozen=True, gc=False):
    """An empty non-terminal of the naming scheme (``group``, ``PAY.group``, ``addr``): NODATA (RFC 8020)."""

    zone: Zone


class AddressName(msgspec.Struct, frozen=True, gc=False):
    """``10-0-0-1.addr.ZONE``; ``address`` is its canonical text."""

    zone: Zone
    address: str


class ServiceName(msgspec.Struct, frozen=True, gc=False):
    """A service, if one exists; candidates in the order in which they count.

    ``cluster`` is folded, ``""`` means all. ``port`` is the folded text of ``_PORT-OR-NAME`` without its underscore.
    ``marked``: the name has a marker, and so cannot be the alias ``SERVICE.GROUP``.
    """

    zone: Zone
    namespace: str
    candidates: tuple[Candidate, ...]
    cluster: str = ""
    prefix: Prefix = Prefix.NONE
    port: str = ""
    marked: bool = False


class Nothing(msgspec.Struct, frozen=True, gc=False):
    """NXDOMAIN by its form alone. ``why``: namespace (not in the configuration), prefix, length."""

    zone: Zone
    why: str


WHY_NOTHING = {
    "length": "a part of the name is longer than 63 bytes",
    "namespace": "this namespace is not in the configuration",
    "prefix": "nothing can exist under this prefix",
}
"""What the word of ``Nothing`` means, for people."""

Target = Outside | Apex | Marker | AddressName | ServiceName | Nothing


class Names:
    """The naming rules of one configuration.

    ``zones`` carry namespace ids; ``namespaces`` and ``groups`` map aliases to ids and groups; ``known_groups`` are
    spellings of groups met elsewhere (policy, disk); ``nacos_hosts`` the names of the Nacos servers, which are never
    taken from Nacos. ValueError says in words what is wrong with them.
    """

    def __init__(
        self,
        zones: Iterable[Zone],
        *,
        namespaces: Mapping[str, str] | None = None,
        groups: Mapping[str, str] | None = None,
        known_groups: Iterable[str] = (),
        nacos_hosts: Iterable[str] = (),
    ) -> None:
        self.zones = tuple(zones)
        self._zone_by_labels = _zones_by_labels(self.zones)
        self._zone_labels_max = max(map(len, self._zone_by_labels), default=0)
        ids = {alias: value or DEFAULT_NAMESPACE for alias, value in (namespaces or {}).items()}
        self._namespaces = _namespaces_by_label(self.zones, _aliases(ids, "namespaces"))
        self._group_aliases = _aliases(groups or {}, "groups")
        self._group_spellings: dict[str, list[str]] = {}
        self._bare_zone, self._bare_suffixes = _bare_names(self.zones)
        self._plain_ends = tuple(_plain_wires((*self._zone_by_labels, *self._bare_suffixes)))
        self._hosts = frozenset(_folded_labels(host) for host in nacos_hosts if pack_address(host) is None)
        for group in (*(zone.group for zone in self.zones), *self._group_aliases.values(), *known_groups):
            self.learn_group(group)

    def __repr__(self) -> str:
        zones = " ".join(name_text(zone.name) for zone in self.zones)
        return f"<Names {zones} namespaces={len(set(self._namespaces.values()))} groups={len(self._group_spellings)}>"

    def learn_group(self, group: str) -> None:
        """A group exists with this spelling: names that fold to it will ask the registry for it."""
        spellings = self._group_spellings.setdefault(fold_text(group), [])
        if group not in spellings:
            spellings.append(group)

    def resolve(self, labels: tuple[bytes, ...]) -> Target:
        """What a name means; ``labels`` as they came, without the root."""
        texts = tuple(map(label_text, labels))
        folded = tuple(map(fold_text, texts))
        if folded in self._hosts:
            return Outside()
        for start in range(max(0, len(folded) - self._zone_labels_max), len(folded)):
            zone = self._zone_by_labels.get(folded[start:])
            if zone is not None:
                if any(len(label) > LABEL_BYTES_MAX for label in labels):
                    return Nothing(zone, "length")
                return self._inside(zone, texts[:start], folded[:start])
        return self._outside(texts, folded)

    def is_plainly_outside(self, name: bytes) -> bool:
        """Whether this folded wire name is ``Outside()``: told by its end, when it means what it spells; else False."""
        if name.endswith(self._plain_ends) or not name.isascii() or b"xn--" in name:
            return False
        return self._bare_zone is None or len(name) != name[0] + 2  # two lengths: a single label

    def _outside(self, texts: tuple[str, ...], folded: tuple[str, ...]) -> Outside:
        zone = self._bare_zone
        if zone is None or not self._may_be_bare(folded):
            return Outside()
        candidate = _candidate(zone.namespace, zone.group, ".".join(texts), LOOKUPS_MAX)
        return Outside((candidate,), zone)

    def _may_be_bare(self, folded: tuple[str, ...]) -> bool:
        if not folded or folded[-1] in _NEVER_BARE_TOP or folded[0] == _NEVER_BARE_FIRST:
            return False
        for suffix in self._bare_suffixes:
            if len(folded) > len(suffix) and folded[-len(suffix) :] == suffix:
                return True
        return len(folded) == 1 and () in self._bare_suffixes

    def _inside(self, zone: Zone, texts: tuple[str, ...], folded: tuple[str, ...]) -> Target:
        fixed = _without_service(zone, folded)
        if fixed is not None:
            return fixed
        prefix, before = _prefix(folded)
        if prefix is None:
            return Nothing(zone, "prefix")
        end, marked = _read_markers(folded, before)
        namespace = zone.namespace
        if "ns" in marked:
            known = self._namespaces.get(folded[marked["ns"]])
            if known is None:
                return Nothing(zone, "namespace")
            namespace = known
        if end == before:
            return Marker(zone) if prefix is Prefix.NONE else Nothing(zone, "prefix")
        cluster = folded[marked["cluster"]] if "cluster" in marked else ""
        group = texts[marked["group"]] if "group" in marked else ""
        return ServiceName(
            zone,
            namespace,
            self._candidates(zone, namespace, texts[before:end], group, may_be_alias=not marked),
            cluster="" if cluster == ANY_CLUSTER else cluster,
            prefix=prefix,
            port=folded[0][1:] if prefix is Prefix.SRV else "",
            marked=bool(marked),
        )

    def _candidates(
        self, zone: Zone, namespace: str, parts: tuple[str, ...], group: str, *, may_be_alias: bool
    ) -> tuple[Candidate, ...]:
        """The service of the marked group; ``GROUP@@SERVICE``; or one of the zone's, and behind it ``SERVICE.GROUP``."""
        service = ".".join(parts)
        if not group:
            joined, joint, rest = service.partition("@@")
            if joined and joint and rest:
                group, service = joined, rest
        if group:
            return (_candidate(namespace, self._spell_group(group), service, LOOKUPS_MAX),)
        plain = _candidate(namespace, zone.group, service, LOOKUPS_MAX)
        if len(parts) == 1 or not may_be_alias:
            return (plain,)
        left = LOOKUPS_MAX - len(plain.spellings)
        return plain, _candidate(namespace, self._spell_group(parts[-1]), ".".join(parts[:-1]), left)

    def _spell_group(self, asked: str) -> str:
        """The group that a label means: by alias, as it is known to be spelled, or as asked."""
        folded = fold_text(asked)
        if folded in self._group_aliases:
            return self._group_aliases[folded]
        spellings = self._group_spellings.get(folded, ())
        return asked if asked in spellings or not spellings else min(spellings)

    # What a service is called

    def full_name(self, key: ServiceKey, zone: Zone | None = None) -> bytes | None:
        """The one name that says everything: ``SERVICE[._any.cluster].GROUP.group.NAMESPACE.ns.ZONE`` in wire form.

        Under ``zone``, or under the zone of the service, or any other. None when there is none (``unnameable``).
        """
        for under in (zone,) if zone is not None else self._zones_for(key):
            for tail in self._full_tails(key):
                wire = self._name_that_leads_to(key, tail, under)
                if wire is not None:
                    return wire
        return None

    def short_name(self, key: ServiceKey, zone: Zone | None = None) -> bytes | None:
        """The shortest name that means this service first, for people; the full name when nothing shorter does."""
        for under in (zone,) if zone is not None else self._zones_for(key):
            for tail in ((), *self._group_tails(key), *self._namespace_tails(key)):
                wire = self._name_that_leads_to(key, tail, under)
                if wire is not None:
                    return wire
        return self.full_name(key, zone)

    def unnameable(self, key: ServiceKey) -> str | None:
        """Why no name leads to this service, for people; None when one does."""
        if self.full_name(key) is not None:
            return None
        if key.namespace not in self._namespaces.values():
            return f"namespace {key.namespace!r} is not in the configuration"
        return _fault((key.group, *key.service.split(".")))

    def _zones_for(self, key: ServiceKey) -> Iterator[Zone]:
        """Zones from the nearest: same namespace and group, same namespace, others."""
        return iter(sorted(self.zones, key=lambda zone: (zone.namespace != key.namespace, zone.group != key.group)))

    def _group_tails(self, key: ServiceKey) -> Iterator[tuple[str, ...]]:
        aliases = sorted(alias for alias, group in self._group_aliases.items() if group == key.group)
        words = [*aliases, key.group] if "." in key.group else [key.group, *aliases]
        return ((word, "group") for word in words)

    def _namespace_tails(self, key: ServiceKey) -> Iterator[tuple[str, ...]]:
        aliases = sorted(alias for alias, namespace in self._namespaces.items() if namespace == key.namespace)
        return ((word, "ns") for word in dict.fromkeys((key.namespace, *aliases)))

    def _full_tails(self, key: ServiceKey) -> Iterator[tuple[str, ...]]:
        marked = (ANY_CLUSTER, "cluster") if fold_text(key.service).split(".")[-1] == "cluster" else ()
        return (
            (*marked, *group, *namespace)
            for group in self._group_tails(key)
            for namespace in self._namespace_tails(key)
        )

    def _name_that_leads_to(self, key: ServiceKey, tail: tuple[str, ...], zone: Zone) -> bytes | None:
        """The name of these parts under the zone, if it can be written and its first meaning is this service."""
        parts = key.service.split(".")
        service = parts if all(parts) else [key.service]
        try:
            labels = (*(part.encode("utf-8") for part in (*service, *tail)), *labels_of(zone.name))
            wire = name_to_wire(labels)
        except (UnicodeEncodeError, WireError):
            return None
        target = self.resolve(labels)
        if not isinstance(target, ServiceName) or target.cluster or target.prefix is not Prefix.NONE:
            return None
        meant = target.candidates[0].folded
        return wire if meant == folded_key(key.namespace, key.group, key.service) else None


def address_name(address: str, zone: bytes) -> bytes:
    """``10-0-0-1.addr.ZONE`` in wire form; ``zone`` is one too. WireError when ``address`` is no IP address.

    A label never begins or ends with a hyphen, since resolvers refuse that in host names: ``::1`` is ``0--1``.
    """
    packed = pack_address(address)
    if packed is None:
        raise WireError("address")
    if len(packed) == 4:
        label = "-".join(map(str, packed))
    else:
        text = str(IPv6Address(packed))
        if "." in text:
            text = ":".join(f"{group:x}" for group in unpack("!8H", packed))
        label = text.replace(":", "-")
        label = f"{'0' if label[0] == '-' else ''}{label}{'0' if label[-1] == '-' else ''}"
    return name_to_wire((label.encode("ascii"), b"addr", *labels_of(zone)))


# Reading a name


def _candidate(namespace: str, group: str, service: str, spellings_max: int) -> Candidate:
    spellings = dict.fromkeys((unicodedata.normalize("NFC", service).lower(), service))
    keys = tuple(ServiceKey(namespace, group, spelling) for spelling in spellings)
    return Candidate(folded_key(namespace, group, service), keys[:spellings_max], service)


def _without_service(zone: Zone, folded: tuple[str, ...]) -> Apex | Marker | AddressName | None:
    """The zone itself and its ``addr`` names; None for all others."""
    if not folded:
        return Apex(zone)
    if folded == ("addr",):
        return Marker(zone)
    address = _label_address(folded[0]) if folded[1:] == ("addr",) else ""
    return AddressName(zone, address) if address else None


def _prefix(folded: tuple[str, ...]) -> tuple[Prefix | None, int]:
    """The prefix of a name and how many labels it takes; None when it is one under which nothing can exist."""
    if not _PROTOCOLS.intersection(folded):
        return (Prefix.GRPC_CONFIG, 1) if folded[0] == Prefix.GRPC_CONFIG.value else (Prefix.NONE, 0)
    if folded[0] == "_tcp" and not _PROTOCOLS.intersection(folded[1:]):
        return Prefix.PROTOCOL, 1
    is_port = folded[0].startswith("_") and folded[0] not in _NEVER_A_PORT | _PROTOCOLS
    if is_port and folded[1] == "_tcp" and not _PROTOCOLS.intersection(folded[2:]):
        return Prefix.SRV, 2
    return None, 0


def _read_markers(folded: tuple[str, ...], before: int) -> tuple[int, dict[str, int]]:
    """Where the service's labels end, and which label each marker marks; the service begins at ``before``.

    A marker with nothing before it leaves no service.
    """
    end = len(folded)
    marked: dict[str, int] = {}
    for marker in ("ns", "group", "cluster"):
        if end > before and folded[end - 1] == marker:
            if end - 1 == before:
                return before, marked
            marked[marker] = end - 2
            end -= 2
    return end, marked


def _label_address(label: str) -> str:
    """The canonical address that a label spells, or ``""``."""
    if not _ADDRESS_LABEL.fullmatch(label):
        return ""
    dotted = label.replace("-", ".")
    if pack_address(dotted) is not None:
        return dotted
    packed = pack_address(label.replace("-", ":"))
    return "" if packed is None else str(IPv6Address(packed))


def _fault(parts: tuple[str, ...]) -> str:
    """What keeps a group and the parts of a service out of every name."""
    if not all((parts[0], "".join(parts[1:]))):
        return "its service or group is empty"
    if any(map(_is_surrogate, parts)):
        return "it holds half a character, which no name can carry"
    longest = max(parts, key=lambda part: len(part.encode()))
    if len(longest.encode()) > LABEL_BYTES_MAX:
        return f"{longest!r} has {len(longest.encode())} bytes; a part of a name holds {LABEL_BYTES_MAX}"
    if _PROTOCOLS.intersection(map(fold_text, parts)) or fold_text(parts[1]) == Prefix.GRPC_CONFIG.value:
        return "it reads as a name with a prefix (_PORT._tcp, _grpc_config)"
    return f"its name would have over {NAME_BYTES_MAX} bytes, or an alias or another zone hides it"


def _is_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


# Reading the configuration


def _zones_by_labels(zones: tuple[Zone, ...]) -> dict[tuple[str, ...], Zone]:
    by_labels: dict[tuple[str, ...], Zone] = {}
    for zone in zones:
        labels = tuple(fold_text(label_text(label)) for label in labels_of(zone.name))
        if not labels:
            raise ValueError('zone "." would take every name; use bare_names')
        if len(zone.name) > ZONE_BYTES_MAX:
            raise ValueError(f'zone "{name_text(zone.name)}" leaves no room for a service of {LABEL_BYTES_MAX} bytes')
        if labels in by_labels:
            raise ValueError(f'zone "{name_text(zone.name)}" stands twice; a zone belongs to one namespace and group')
        by_labels[labels] = zone
    return by_labels


def _namespaces_by_label(zones: tuple[Zone, ...], aliases: dict[str, str]) -> dict[str, str]:
    """Folded label to namespace id: the aliases, and each id itself."""
    by_label = dict(aliases)
    for namespace in (*(zone.namespace for zone in zones), *aliases.values()):
        meant = by_label.setdefault(fold_text(namespace), namespace)
        if meant != namespace:
            raise ValueError(f'namespace "{namespace}" is hidden by "{meant}", whose id or alias reads alike')
    return by_label


def _aliases(aliases: Mapping[str, str], table: str) -> dict[str, str]:
    by_folded: dict[str, str] = {}
    for alias, value in aliases.items():
        if not 0 < len(alias.encode("utf-8", "surrogateescape")) <= LABEL_BYTES_MAX:
            raise ValueError(f'[{table}]: alias "{alias}" is no label of 1 to {LABEL_BYTES_MAX} bytes')
        if by_folded.setdefault(fold_text(alias), value) != value:
            raise ValueError(f'[{table}]: alias "{alias}" stands twice, with different values')
    return by_folded


def _bare_names(zones: tuple[Zone, ...]) -> tuple[Zone | None, tuple[tuple[str, ...], ...]]:
    """The zone of bare names, and the suffixes that may be asked; the empty suffix stands for single labels."""
    bare = [zone for zone in zones if zone.bare_names]
    if not bare:
        return None, ()
    if len(bare) > 1:
        names = " and ".join(name_text(zone.name) for zone in bare)
        raise ValueError(f"bare_names is set in {names}; only one zone can have bare names")
    return bare[0], tuple(map(_bare_suffix, bare[0].bare_allow))


def _plain_wires(names: Iterable[tuple[str, ...]]) -> Iterator[bytes]:
    """Those that a name in ASCII can have at its end, on the wire."""
    for labels in names:
        if labels and all(label.isascii() and len(label) <= LABEL_BYTES_MAX for label in labels):
            yield name_to_wire(map(str.encode, labels))


def _bare_suffix(entry: str) -> tuple[str, ...]:
    if entry == "single-label":
        return ()
    suffix = _folded_labels(entry[2:]) if entry.startswith("*.") and len(entry) > 2 else ()
    if not suffix:
        raise ValueError(f'bare_allow "{entry}" is neither "single-label" nor a suffix such as "*.db.example.com"')
    return suffix


def _folded_labels(text: str) -> tuple[str, ...]:
    try:
        return tuple(fold_text(label_text(label)) for label in labels_of(text_name(text)))
    except WireError as error:
        raise ValueError(f'"{text}" is not a DNS name: {error}') from error
