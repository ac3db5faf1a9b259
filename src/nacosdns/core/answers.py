"""From what we believe of a service to what we say of it: which instances count, and their records.

Must not know: packets, queries' sizes, rotation state. Rules (DESIGN 3): instances that count are enabled, with a
weight, healthy; with none healthy the threshold flag and the policy decide; an address appears once, with the weights
of its instances added; SRV has one record an instance, its target never compressed and resolvable by ourselves.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from operator import sub
from typing import TYPE_CHECKING, TypeVar

import msgspec

from nacosdns.core import dnsname, dnsrecord
from nacosdns.core.balance import Member
from nacosdns.core.model import Instance, NoneHealthy, RecordType
from nacosdns.core.naming import address_name, fold_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nacosdns.core.model import Policy, Record, Snapshot


PORT_NAME_KEYS = ("port_name", "protocol")
"""Metadata keys whose value names an instance's port in ``_NAME._tcp`` questions."""
WEIGHT_MAX = 65535
PACKED_MAX = 16_384
"""Addresses of which the bytes are remembered: about 200 bytes each."""
TARGETS_MAX = 8_192
INSTANCES_A_SLICE = 250
_FAMILIES = {0: 0, 4: 4, 16: 6}

Made = TypeVar("Made")
Slices = Generator[None, None, Made]
"""Work that pauses after each slice of it, where others may have their turn."""


def at_once(slices: Slices[Made]) -> Made:
    """The same work without a pause."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            made: Made = end.value
            return made


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The instances that count, better tier first; ``tier`` of each; why when it is not the plain rule."""

    instances: tuple[Instance, ...]
    tiers: tuple[int, ...]
    why: str = ""


class Material(msgspec.Struct, frozen=True, gc=False):
    """What a page is rendered from: records by member, the members' weights and tiers, glue by member.

    ``wires`` and ``glue_wires`` are the bytes of the records, their owner a pointer to the question; a glue record has
    its whole name, and is b"" for a member that needs none. ``glue_wires`` is empty when no member has any. ``alias``
    is the host name to chase when the service has only host names.
    """

    wires: tuple[bytes, ...] = ()
    glue_wires: tuple[bytes, ...] = ()
    members: tuple[Member, ...] = ()
    tiers: tuple[int, ...] = ()
    alias: str = ""


def of_cluster(instances: tuple[Instance, ...], cluster: str) -> tuple[Instance, ...]:
    """The instances of a cluster (folded); ``""`` is all of them."""
    return tuple(i for i in instances if fold_text(i.cluster) == cluster) if cluster else instances


def choose(snapshot: Snapshot, policy: Policy, cluster: str = "") -> Choice:
    """The instances that count for a question; ``cluster`` folded, ``""`` for all clusters."""
    instances = of_cluster(snapshot.instances, cluster)
    if not snapshot.demoted and not snapshot.threshold_reached:
        healthy = [one for one in instances if one.healthy and one.enabled and one.weight > 0]
        if healthy:
            return Choice(tuple(healthy), (0,) * len(healthy))
    return _choose_by_tier(snapshot, policy, cluster)


def _choose_by_tier(snapshot: Snapshot, policy: Policy, cluster: str) -> Choice:
    first_demoted = len(snapshot.instances) - snapshot.demoted
    able = [
        (instance, int(at >= first_demoted))
        for at, instance in enumerate(snapshot.instances)
        if instance.enabled and instance.weight > 0 and (not cluster or fold_text(instance.cluster) == cluster)
    ]
    healthy = [(instance, tier) for instance, tier in able if instance.healthy]
    if healthy and snapshot.threshold_reached and not policy.primary:
        return _choice(able, "" if len(able) == len(healthy) else "below the protection threshold: all")
    if healthy or not able:
        return _choice(healthy, "" if able or not snapshot.instances else "no instance is enabled and has a weight")
    if snapshot.threshold_reached:
        return _choice(able, "none healthy: the protection threshold says all")
    if policy.none_healthy is NoneHealthy.NODATA or policy.primary:
        return _choice([], "none healthy: no answer by policy")
    if policy.none_healthy is NoneHealthy.LAST and (last := _last_healthy(snapshot, able)):
        return _choice(last, "none healthy: the last healthy ones")
    return _choice(able, "none healthy: all of them by policy")


def _last_healthy(snapshot: Snapshot, able: list[tuple[Instance, int]]) -> list[tuple[Instance, int]]:
    known = {instance.identity for instance in snapshot.last_healthy}
    return [(instance, tier) for instance, tier in able if instance.identity in known]


def _choice(chosen: Sequence[tuple[Instance, int]], why: str) -> Choice:
    return Choice(tuple(i for i, _ in chosen), tuple(t for _, t in chosen), why)


def address_family(address: str) -> int:
    """4, 6, or 0 for a host name."""
    return _FAMILIES[len(_packed(address))]


@lru_cache(maxsize=PACKED_MAX)
def _packed(address: str) -> bytes:
    """The 4 or 16 bytes of an address, b"" for a host name. A push brings a thousand, all but one known already."""
    return dnsrecord.pack_address(address) or b""


def addresses(choice: Choice, kind: RecordType, ttl_s: int) -> Material:
    """A or AAAA: each address once, weights of equal addresses added; an alias when there are host names only."""
    return at_once(addresses_in_slices(choice, kind, ttl_s))


def addresses_in_slices(choice: Choice, kind: RecordType, ttl_s: int) -> Slices[Material]:
    """As ``addresses``."""
    size = 4 if kind is RecordType.A else 16
    texts = [instance.address for instance in choice.instances]
    packed = list(map(_packed, texts))
    sizes = set(map(len, packed))
    if sizes == {0}:
        return Material(alias=texts[0])
    if size not in sizes:
        return Material()
    weights = [instance.weight for instance in choice.instances]
    tiers = choice.tiers
    if sizes != {size} or len(set(packed)) < len(packed):
        texts, packed, weights, tiers = _each_once(choice, packed, size)
    head = dnsrecord.record_head(kind, ttl_s, size)
    wires = tuple([head + address for address in packed])
    yield
    return Material(wires, (), tuple(map(Member, texts, weights)), tuple(tiers))


def _each_once(
    choice: Choice, packed: Sequence[bytes], size: int
) -> tuple[list[str], list[bytes], list[float], tuple[int, ...]]:
    """The addresses of this size, each once: its first spelling, itself, the sum of its weights, its best tier."""
    texts: dict[bytes, str] = {}
    weights: dict[bytes, float] = {}
    tiers: dict[bytes, int] = {}
    for instance, tier, address in zip(choice.instances, choice.tiers, packed, strict=True):
        if len(address) == size:
            texts.setdefault(address, instance.address)
            weights[address] = weights.get(address, 0.0) + instance.weight
            tiers[address] = min(tier, tiers.get(address, tier))
    return list(texts.values()), list(texts), list(weights.values()), tuple(tiers.values())


def services(choice: Choice, zone: bytes, ttl_s: int) -> Material:
    """SRV: one record an instance, with glue for targets that are addresses.

    Instances of equal address, port and tier (they differ in their cluster) are one record of their weights together.
    """
    return at_once(services_in_slices(choice, zone, ttl_s))


def services_in_slices(choice: Choice, zone: bytes, ttl_s: int) -> Slices[Material]:
    """As ``services``."""
    if len({(one.address, one.port) for one in choice.instances}) < len(choice.instances):
        choice = _merged(choice)
    instances = choice.instances
    weights = [instance.weight for instance in instances]
    yield
    records = list(zip(instances, choice.tiers, scale_weights(weights), strict=True))
    wires: list[bytes] = []
    glue_wires: list[bytes] = []
    for at in range(0, len(records), INSTANCES_A_SLICE):
        yield
        for instance, tier, weight in records[at : at + INSTANCES_A_SLICE]:
            target, glue = _target(instance.address, zone, ttl_s)
            wires.append(dnsrecord.srv_wire(ttl_s, tier, weight, instance.port, target))
            glue_wires.append(glue)
    yield
    identities = [f"{i.address}:{i.port}:{i.cluster}" for i in instances]
    members = tuple(map(Member, identities, weights))
    return Material(tuple(wires), tuple(glue_wires), members, choice.tiers)


def _merged(choice: Choice) -> Choice:
    first: dict[tuple[str, int, int], Instance] = {}
    weights: dict[tuple[str, int, int], float] = {}
    for one, tier in zip(choice.instances, choice.tiers, strict=True):
        place = (one.address, one.port, tier)
        first.setdefault(place, one)
        weights[place] = weights.get(place, 0.0) + one.weight
    merged = tuple(msgspec.structs.replace(one, weight=weights[place]) for place, one in first.items())
    return Choice(merged, tuple(tier for _, _, tier in first), choice.why)


@lru_cache(maxsize=TARGETS_MAX)
def _target(address: str, zone: bytes, ttl_s: int) -> tuple[bytes, bytes]:
    """The target of an instance, and the bytes of the record that resolves it; b"" when that is not ours."""
    packed = _packed(address)
    if not packed:
        return dnsname.text_name(address), b""
    name = address_name(address, zone)
    kind = RecordType.A if len(packed) == 4 else RecordType.AAAA
    return name, name + dnsrecord.record_head(kind, ttl_s, len(packed))[2:] + packed


def scale_weights(weights: Sequence[float]) -> list[int]:
    """Weights as 16-bit integers of the same proportions; never 0 for a positive weight (RFC 2782)."""
    for factor in (1, 10, 100, 1000):
        scaled = [weight * factor for weight in weights]
        rounded = list(map(round, scaled))
        if max(rounded, default=0) > WEIGHT_MAX:
            break
        if max(map(abs, map(sub, scaled, rounded)), default=0.0) < 1e-9:
            return [whole or 1 for whole in rounded]
    factor_to_fit = WEIGHT_MAX / max(weights, default=1.0)
    return [max(1, min(WEIGHT_MAX, round(weight * factor_to_fit))) for weight in weights]


def texts(choice: Choice, owner: bytes, policy: Policy) -> tuple[Record, ...]:
    """TXT: the metadata values of the policy's keys, each pair once."""
    metadata = (pair for instance in choice.instances for pair in instance.metadata)
    pairs = dict.fromkeys(dnsrecord.key_value(key, value) for key, value in metadata if key in policy.txt_keys)
    return tuple(dnsrecord.txt(owner, policy.ttl_s, [pair]) for pair in pairs)


def grpc_config(owner: bytes, policy: Policy) -> tuple[Record, ...]:
    """TXT of ``_grpc_config.NAME``: the policy's JSON as gRPC's service config choices (gRFC A2)."""
    if not policy.grpc_config:
        return ()
    text = policy.grpc_config.strip()
    if text.startswith("{"):
        text = f'[{{"serviceConfig": {text}}}]'
    return (dnsrecord.txt(owner, policy.ttl_s, [f"grpc_config={text}".encode()]),)


def only(choice: Choice, word: str, service: str) -> Choice:
    """The instances that ``_WORD._tcp`` means: a port number, the service's own name, or a port name in metadata."""
    if word == fold_text(service):
        return choice
    if word.isascii() and word.isdigit():  # "²" is a digit too, and no number
        kept = [(i, t) for i, t in zip(choice.instances, choice.tiers, strict=True) if i.port == int(word)]
    else:
        kept = [(i, t) for i, t in zip(choice.instances, choice.tiers, strict=True) if _names_port(i, word)]
    return _choice(kept, choice.why)


def _names_port(instance: Instance, word: str) -> bool:
    return any(value.lower() == word for key, value in instance.metadata if key in PORT_NAME_KEYS)
