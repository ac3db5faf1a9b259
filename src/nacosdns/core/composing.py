"""From what is to be said to a whole packet: plain, negative, minimal and apex answers of our zones.

Must not know: services, pages, what was decided and why. Rule: every negative answer has the zone's SOA, and its
minimum is the negative TTL of the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nacosdns.core import dnsname, dnsrecord, dnswire
from nacosdns.core.metrics import query_cell
from nacosdns.core.model import Answer, Rcode, Record, RecordType
from nacosdns.core.naming import address_name

if TYPE_CHECKING:
    from nacosdns.core.model import Policy, Query, Zone
    from nacosdns.core.policy import Policies

CANARY = dnsname.text_name("canary.nacosdns.invalid")
CANARY_ADDRESS = "127.0.0.1"
_HINFO = 13


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A whole packet to send; ``cell`` counts it. ``turns``: the next one would be another, from the page of its question.

    ``cut``: by TCP, and still not all of it. Any other than one that turns may be repeated ``until`` then, in seconds of the clock, unless one of the services ``about`` which it is
    (the book's names) changes before.
    """

    packet: bytes
    cell: int
    turns: bool = False
    until: float = 0.0
    about: tuple[str, ...] = ()
    cut: bool = False


class Composer:
    """Makes replies. ``nameserver`` is our own address as NS records show it."""

    def __init__(self, policies: Policies, nameserver: str) -> None:
        self._policies = policies
        self._nameserver = nameserver

    def __repr__(self) -> str:
        return f"<Composer for {self._nameserver}>"

    def plain(self, query: Query, answer: Answer) -> Reply:
        """This answer, cut to what the client takes."""
        packet = dnswire.render(query, answer, size_max=dnswire.size_limit(query))
        cell = query_cell("zone", query.type, answer.rcode, len(answer.answers), over_tcp=query.over_tcp)
        told = int.from_bytes(packet[6:8], "big")
        return Reply(packet, cell, cut=query.over_tcp and told < len(answer.answers))

    def failure(self, query: Query) -> Reply:
        """SERVFAIL: neither the registry nor an upstream could say in time."""
        return self.plain(query, Answer(rcode=Rcode.SERVFAIL, authoritative=False))

    def refusal(self, query: Query) -> Reply:
        """REFUSED: not for this client, or not this kind of question."""
        return self.plain(query, Answer(rcode=Rcode.REFUSED, authoritative=False))

    def negative(
        self, query: Query, zone: Zone, rcode: Rcode, service: str = "", *, policy: Policy | None = None
    ) -> Reply:
        """NXDOMAIN, or NOERROR without an answer, by the policy of this service."""
        policy = policy or self._policies.resolve(service)
        return self.plain(query, Answer(rcode=rcode, authority=(self._soa(zone, policy),)))

    def records(
        self, query: Query, zone: Zone, policy: Policy, records: tuple[Record, ...], *, exists: bool, wanted: int
    ) -> Reply:
        """These records to who asks for their type."""
        if not exists:
            return self.negative(query, zone, Rcode.NXDOMAIN, policy=policy)
        if not records or query.type != wanted:
            return self.negative(query, zone, Rcode.NOERROR, policy=policy)
        return self.plain(query, Answer(answers=records))

    def cname(self, query: Query, zone: Zone, policy: Policy, alias: str) -> Reply:
        """The host name of a service that has only host names."""
        if not alias:
            return self.negative(query, zone, Rcode.NOERROR, policy=policy)
        record = dnsrecord.cname(query.name, policy.ttl_s, dnsname.text_name(alias))
        return self.plain(query, Answer(answers=(record,)))

    def minimal_any(self, query: Query, policy: Policy) -> Reply:
        """RFC 8482 4.2: one HINFO instead of everything."""
        rdata = b"\x07RFC8482\x00"
        return self.plain(query, Answer(answers=(Record(query.name, _HINFO, policy.ttl_s, rdata),)))

    def canary(self, query: Query) -> Reply:
        """The address of the name that proves that a front answers."""
        record = dnsrecord.address_record(query.name, 0, CANARY_ADDRESS)
        return self.plain(query, Answer(answers=(record,)))

    def apex(self, query: Query, zone: Zone) -> Reply:
        """The zone itself: SOA, NS, a minimal ANY, and nothing else."""
        policy = self._policies.base
        if query.type == RecordType.SOA:
            return self.plain(query, Answer(answers=(self._soa(zone, policy),)))
        if query.type == RecordType.NS:
            target = address_name(self._nameserver, zone.name)
            glue = dnsrecord.address_record(target, policy.ttl_s, self._nameserver)
            answers = (dnsrecord.ns(zone.name, policy.ttl_s, target),)
            return self.plain(query, Answer(answers=answers, glue=(glue,)))
        if query.type == RecordType.ANY:
            return self.minimal_any(query, policy)
        return self.negative(query, zone, Rcode.NOERROR)

    def _soa(self, zone: Zone, policy: Policy) -> Record:
        return dnsrecord.soa(zone.name, policy.negative_ttl_s, 1, policy.negative_ttl_s)
