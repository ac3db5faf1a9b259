"""From what we believe of a service to what we say of it: which instances count, and their records.

Must not know: packets, queries' sizes, rotation state. Rules (DESIGN 3): instances that count are enabled, with a
weight, healthy; with none healthy the threshold flag and the policy decide; an address appears once, with the weights
of its instances added; SRV has one record an instance, its target never compressed and resolvable by ourselves.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core import dnsname, dnsrecord
from nacosdns.core.balance import Member
from nacosdns.core.model import Instance, NoneHealthy, Record, RecordType
from nacosdns.core.naming import address_name, fold_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nacosdns.core.model import Policy, Snapshot


PORT_NAME_KEYS = ("port_name", "protocol")
"""Metadata keys whose value names an instance's port in ``_NAME._tcp`` questions."""
WEIGHT_MAX = 65535


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The instances that count, better tier first; ``tier`` of each; why when it is not the plain rule."""

    instances: tuple[Instance, ...]
    tiers: tuple[int, ...]
    why: str = ""


class Material(msgspec.Struct, frozen=True, gc=False):
    """What a page is rendered from: records by member, the members' weights and tiers, glue by member.

    ``alias`` is the host name to chase when the service has only host names.
    """

    records: tuple[Record, ...] = ()
    glue: tuple[Record | None, ...] = ()
    members: tuple[Member, ...] = ()
    tiers: tuple[int, ...] = ()
    alias: str = ""


def of_cluster(instances: tuple[Instance, ...], cluster: str) -> tuple[Instance, ...]:
    """The instances of a cluster (folded); ``""`` is all of them."""
    return tuple(i for i in instances if fold_text(i.cluster) == cluster) if cluster else instances


def choose(snapshot: Snapshot, policy: Policy, cluster: str = "") -> Choice:
    """The instances that count for a question; ``cluster`` folded, ``""`` for all clusters."""
    first_demoted = len(snapshot.instances) - snapshot.demoted
    able = [
        (instance, int(at >= first_demoted))
        for at, instance in enumerate(snapshot.instances)
        if instance.enabled and instance.weight > 0 and (not cluster or fold_text(instance.cluster) == cluster)
    ]
    healthy = [(instance, tier) for instance, tier in able if instance.healthy]
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
    try:
        return ipaddress.ip_address(address.partition("%")[0]).version
    except ValueError:
        return 0


def addresses(choice: Choice, owner: bytes, kind: RecordType, ttl_s: int) -> Material:
    """A or AAAA: each address once, weights of equal addresses added; an alias when there are host names only."""
    family = 4 if kind is RecordType.A else 6
    weights: dict[str, float] = {}
    tiers: dict[str, int] = {}
    hosts: dict[str, None] = {}
    any_address = False
    for instance, tier in zip(choice.instances, choice.tiers, strict=True):
        version = address_family(instance.address)
        any_address |= version > 0
        if version == 0:
            hosts[instance.address] = None
        if version == family:
            weights[instance.address] = weights.get(instance.address, 0.0) + instance.weight
            tiers[instance.address] = min(tier, tiers.get(instance.address, tier))
    if hosts and not any_address:
        return Material(alias=next(iter(hosts)))
    return Material(
        records=tuple(dnsrecord.address_record(owner, ttl_s, address) for address in weights),
        glue=(None,) * len(weights),
        members=tuple(Member(address, weight) for address, weight in weights.items()),
        tiers=tuple(tiers.values()),
    )


def services(choice: Choice, owner: bytes, zone: bytes, ttl_s: int) -> Material:
    """SRV: one record an instance, with glue for targets that are addresses."""
    scaled = scale_weights([instance.weight for instance in choice.instances])
    records = []
    glue = []
    for instance, tier, weight in zip(choice.instances, choice.tiers, scaled, strict=True):
        target, extra = _target(instance.address, zone, ttl_s)
        records.append(dnsrecord.srv(owner, ttl_s, priority=tier, weight=weight, port=instance.port, target=target))
        glue.append(extra)
    members = tuple(Member(f"{i.address}:{i.port}:{i.cluster}", i.weight) for i in choice.instances)
    return Material(tuple(records), tuple(glue), members, choice.tiers)


def _target(address: str, zone: bytes, ttl_s: int) -> tuple[bytes, Record | None]:
    if address_family(address) == 0:
        return dnsname.text_name(address), None
    name = address_name(address, zone)
    return name, dnsrecord.address_record(name, ttl_s, address)


def scale_weights(weights: Sequence[float]) -> list[int]:
    """Weights as 16-bit integers of the same proportions; never 0 for a positive weight (RFC 2782)."""
    for factor in (1, 10, 100, 1000):
        scaled = [weight * factor for weight in weights]
        if all(abs(value - round(value)) < 1e-9 and value <= WEIGHT_MAX for value in scaled):
            return [max(1, round(value)) for value in scaled]
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
    if word.isdigit():
        kept = [(i, t) for i, t in zip(choice.instances, choice.tiers, strict=True) if i.port == int(word)]
    else:
        kept = [(i, t) for i, t in zip(choice.instances, choice.tiers, strict=True) if _names_port(i, word)]
    return _choice(kept, choice.why)


def _names_port(instance: Instance, word: str) -> bool:
    return any(value.lower() == word for key, value in instance.metadata if key in PORT_NAME_KEYS)
