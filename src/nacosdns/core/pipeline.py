"""The ordered stages from a query to what is to be done: Reply, Lookup, Forward or Chase.

Must not know: sockets, links, who waits. Rules: a name of ours never leaves for an upstream; an unknown service is
looked up, never guessed (NXDOMAIN is said only of what the registry was asked for or cannot exist); every negative
answer has the zone's SOA. Stages: EDNS version, access, class and type, canary, zone, then the kind of name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nacosdns.core import answers, dnsname, dnsrecord
from nacosdns.core.book import service_id, service_of
from nacosdns.core.composing import CANARY, Composer, Reply
from nacosdns.core.metrics import query_cell
from nacosdns.core.model import DEFAULT_NAMESPACE, Answer, Query, Rcode, Record, RecordType, ServiceKey, Source, Zone
from nacosdns.core.naming import (
    WHY_NOTHING,
    ZONE_BYTES_MAX,
    AddressName,
    Apex,
    Marker,
    Nothing,
    Outside,
    Prefix,
    ServiceName,
)
from nacosdns.core.page import shape_of
from nacosdns.core.rendering import Rendering
from nacosdns.core.spelling import fold_text, folded_of, places
from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from nacosdns.core.access import Access
    from nacosdns.core.balance import Balancer
    from nacosdns.core.book import Book
    from nacosdns.core.frames import Names as CatalogueNames
    from nacosdns.core.model import Policy, Snapshot
    from nacosdns.core.naming import Candidate, Names, Target
    from nacosdns.core.page import Page
    from nacosdns.core.policy import Policies

MISSES_MAX = 20_000
ALIAS_CHECK_S = 60.0
STALE_PAUSE_S = 5.0
LASTING_S = 5.0  # so long an unchanging answer is repeated before it is decided anew
UNSURE_S = 1.0  # the same while what it rests on may change without a word about its services
_CANARY_ZONE = Zone(name=CANARY)
_TRANSFERS = frozenset({RecordType.AXFR, RecordType.IXFR})
_META_TYPES = frozenset({RecordType.OPT, *range(128, RecordType.ANY)})  # no data has them (RFC 6895 3.1)
NEVER_ANSWERED = _META_TYPES | _TRANSFERS


class Forward(msgspec.Struct, frozen=True, gc=False):
    """Not ours: for the upstreams. ``about`` is the service that would take the name from them."""

    about: tuple[str, ...] = ()


class Chase(msgspec.Struct, frozen=True, gc=False):
    """A service whose instances are host names: one alias, and the question for what it points at."""

    alias: Record
    question: Query


class Lookup(msgspec.Struct, frozen=True, gc=False):
    """The registry must be asked for the first of ``keys`` that exists; ``otherwise`` after ``patience_s`` without it.

    ``otherwise`` None means SERVFAIL: an unknown service is never called missing without the registry's word.
    """

    keys: tuple[ServiceKey, ...]
    patience_s: float
    otherwise: Reply | Chase | None = None


class Search(msgspec.Struct, frozen=True, gc=False):
    """Whether an instance has this address must be looked for in the whole book."""

    address: str


Outcome = Reply | Lookup | Forward | Chase | Search


class Settings(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Times in seconds; ``nameserver`` is our own address as NS records show it."""

    lookup_s: float = 1.5
    stale_wait_s: float = 0.2
    disk_fresh_s: float = 600.0
    nameserver: str = "127.0.0.1"
    identity: bytes = b""


class Pipeline:
    """Decides. Holds what a decision needs besides the book: misses, reachability, the catalogue of bare names."""

    def __init__(
        self,
        *,
        names: Names,
        policies: Policies,
        balancers: Mapping[str, type[Balancer]],
        book: Book,
        allowed: Access,
        judges: bool,
        rng: Random,
        settings: Settings,
    ) -> None:
        self._names = names
        self._policies = policies
        self._rendering = Rendering(policies, balancers, rng, settings.identity)
        self._book = book
        self._prepared = book.prepared
        self._say = Composer(policies, settings.nameserver)
        self._allowed = allowed
        self._judges = judges
        self._settings = settings
        self._misses: dict[tuple[str, str, str], tuple[float, float]] = {}
        self._paused: dict[ServiceKey, float] = {}
        self._down: set[str] = set()
        self._listed: dict[tuple[str, str], set[str]] = {}
        self._listing: dict[tuple[str, str], set[str]] = {}
        self.none_healthy = 0
        self.asked: dict[str, None] = {}
        self.urgent = False
        self.why: list[str] = []
        self.service: Snapshot | None = None

    def __repr__(self) -> str:
        return f"<Pipeline {self._book!r} misses={len(self._misses)} down={sorted(self._down)}>"

    # --- what the front is told

    def reachable(self, namespace: str, *, up: bool) -> None:
        """Whether the registry answers for this namespace."""
        if up:
            self._down.discard(namespace)
        else:
            self._down.add(namespace)

    def listed(self, frame: CatalogueNames) -> None:
        """A part of a catalogue read, for bare names; it counts when all parts are there."""
        group = (frame.namespace, frame.group)
        names = set() if frame.part == 0 else self._listing.pop(group, set())
        names.update(map(fold_text, frame.names))
        (self._listed if frame.last else self._listing)[group] = names

    def missed(self, keys: tuple[ServiceKey, ...], now: float) -> None:
        """The registry has none of these spellings: remembered for the negative TTL."""
        if len(self._misses) >= MISSES_MAX:
            self._misses.clear()
        for key in keys:
            until = now + self._policies.resolve(key.service).negative_ttl_s
            self._misses[folded_of(key)] = (until, now)

    def appeared(self, key: ServiceKey) -> None:
        """A service became known: no miss of it counts any more, and its group is spelled so."""
        self._names.learn_group(key.group)
        self._misses.pop(folded_of(key), None)
        self._paused.pop(key, None)

    def take_over(self, former: Pipeline) -> None:
        """What the pipeline of the former configuration was told, once: the keeper does not say it again."""
        self._down |= former._down
        self._listed.update(former._listed)
        self._listing.update(former._listing)
        self.asked.update(former.asked)
        self.urgent |= former.urgent
        self.none_healthy = former.none_healthy

    # --- stages

    def is_plainly_foreign(self, query: Query) -> bool:
        """Whether ``decide`` would say ``Forward()``, told at once of most such queries: False says nothing."""
        edns = query.edns
        return (
            self._names.is_plainly_outside(query.name)
            and query.klass == 1
            and query.type not in _META_TYPES
            and (edns is None or edns.version == 0)
            and query.name != CANARY
            and self.admits(query.client)
        )

    def decide(self, query: Query, now: float, wall: float) -> Outcome:
        """What to do with a query. ``why`` then says how it was decided, for `ask`."""
        self.why, self.service = [], None
        self._prepared.now = now
        if query.edns is not None and query.edns.version != 0:
            return self._say.plain(query, Answer(rcode=Rcode.BADVERS, authoritative=False))
        if not self.admits(query.client):
            if query.name != CANARY:
                self._allowed.refused(query.client)
            self.why.append("the client is not in server.allow")
            return self._say.refusal(query)
        page = self._prepared.page(query.name, query.type)
        if page is not None and query.klass == 1:
            self.asked[page.service] = None
            return self._from_page(query, page)
        if query.klass != 1 or query.type in _TRANSFERS:
            return self._say.refusal(query)
        if query.type in _META_TYPES:
            return self._say.plain(query, Answer(rcode=Rcode.FORMERR, authoritative=False))
        if query.name == CANARY:
            is_there = query.type == RecordType.A
            return self._say.canary(query) if is_there else self._say.negative(query, _CANARY_ZONE, Rcode.NOERROR)
        target = self._resolve(query)
        outcome = self._by_name(query, target, now, wall)
        return self._lasting(outcome, target, now) if isinstance(outcome, Reply) and not outcome.turns else outcome

    def _lasting(self, reply: Reply, target: Target, now: float) -> Reply:
        """How long the reply may be repeated as it is, and the change of which services ends that."""
        if reply.packet[3] & 0x0F not in {Rcode.NOERROR, Rcode.NXDOMAIN}:
            return reply
        if isinstance(target, Apex | Marker | Nothing):
            return msgspec.structs.replace(reply, until=now + LASTING_S)
        candidates = target.candidates if isinstance(target, ServiceName) else getattr(target, "bare", ())
        if any(self._book.is_ambiguous(candidate.folded) for candidate in candidates):
            return reply
        known = any(self._book.knows(candidate.folded) for candidate in candidates)
        ends = [self._misses.get(candidate.folded, (0.0, 0.0))[0] for candidate in candidates]
        until = min([now + (LASTING_S if known else UNSURE_S), *(end for end in ends if end > now)])
        return msgspec.structs.replace(reply, until=until, about=tuple(service_id(c.folded) for c in candidates))

    def admits(self, client: bytes) -> bool:
        """Whether this client may ask; everybody may where only this host can reach us."""
        return not self._judges or self._allowed.allows(client)

    def explain(self, query: Query, now: float, wall: float) -> None:
        """Decides from the name on, past the pages, so that ``why`` and ``service`` say how the answer comes about."""
        self.why, self.service = [], None
        if query.klass == 1 and query.name != CANARY:
            self._by_name(query, self._resolve(query), now, wall)

    def _resolve(self, query: Query) -> Target:
        """What the name means; its zone is spelled as the question spells it, for xn-- and UTF-8 are two names in DNS."""
        target = self._names.resolve(query.labels)
        if isinstance(target, Outside) or query.name.endswith(target.zone.name):
            return target
        name = dnsname.ending(query.name, target.zone.name)
        if len(name) > ZONE_BYTES_MAX:
            return target  # no room for the names that we make below it
        return msgspec.structs.replace(target, zone=msgspec.structs.replace(target.zone, name=name))

    def _by_name(self, query: Query, target: Target, now: float, wall: float) -> Outcome:
        match target:
            case Outside():
                return self._outside(query, target, now, wall)
            case Apex(zone=zone):
                return self._say.apex(query, zone)
            case Marker(zone=zone):
                self.why.append("an empty name between the zone and its services")
                return self._say.negative(query, _soa_zone(query, zone), Rcode.NOERROR)
            case AddressName(zone=zone, address=address):
                return self._address(query, zone, address)
            case Nothing(zone=zone, why=why):
                self.why.append(WHY_NOTHING[why])
                return self._say.negative(query, _soa_zone(query, zone), Rcode.NXDOMAIN)
            case ServiceName():
                return self._service(query, target, now, wall)

    def _outside(self, query: Query, target: Outside, now: float, wall: float) -> Outcome:
        zone = target.bare_zone
        if zone is None:
            return Forward()
        candidate = target.bare[0]
        known = self._book.knows(candidate.folded)
        listed = self._listed.get((zone.namespace, zone.group))
        if known or (listed is not None and candidate.folded[2] in listed):
            self.why.append("a bare name that is a service")
            return self._service(query, ServiceName(zone, zone.namespace, target.bare), now, wall)
        if listed is None and len(query.labels) == 1:
            self.why.append("a single label, and no catalogue to know whether it is a service")
            return self._say.failure(query)
        return Forward((service_id(candidate.folded),))

    # --- names without a service

    def _address(self, query: Query, zone: Zone, address: str) -> Outcome:
        family = answers.address_family(address)
        raw = dnsrecord.pack_address(address)
        known = (self._allowed.contains(raw) or self._book.has_address(address)) if raw else False
        if known is None:
            return Search(address)
        if not known:
            self.why.append("neither the address of a known instance nor in an allowed network")
            return self._say.negative(query, _soa_zone(query, zone), Rcode.NXDOMAIN)
        if query.type == RecordType.ANY:
            return self._say.minimal_any(query, self._policies.base)
        if query.type != (RecordType.A if family == 4 else RecordType.AAAA):
            return self._say.negative(query, _soa_zone(query, zone), Rcode.NOERROR)
        record = dnsrecord.address_record(query.name, self._policies.base.ttl_s, address)
        return self._say.plain(query, Answer(answers=(record,)))

    # --- services

    def _service(self, query: Query, target: ServiceName, now: float, wall: float) -> Outcome:
        zone = _soa_zone(query, target.zone)
        if target.prefix is Prefix.GRPC_CONFIG and not self._policies.resolve(target.candidates[0].asked).grpc_config:
            self.why.append("no gRPC service config is configured for this service")
            return self._say.negative(query, zone, Rcode.NXDOMAIN, target.candidates[0].asked)
        wanted: list[ServiceKey] = []
        for candidate in target.candidates:
            snapshot = self._book.find(candidate.folded, candidate.asked)
            if snapshot is not None:
                return self._known(query, target, snapshot, tuple(wanted), now, wall)
            until, at = self._misses.get(candidate.folded, (0.0, 0.0))
            if now >= until and not (len(target.candidates) > 1 and self._rechecks_later(target, candidate, at, now)):
                wanted += candidate.spellings
        if self._book.suffixes.covers(target):
            self.why.append("an empty name above known services")
            return self._say.negative(query, zone, Rcode.NOERROR)
        if wanted:
            return Lookup(tuple(dict.fromkeys(wanted))[:3], self._settings.lookup_s)
        of = places(key for candidate in target.candidates for key in candidate.spellings)
        self.why.append(f"the registry names no instance of this service {of}: none is registered, or none is enabled")
        return self._say.negative(query, zone, Rcode.NXDOMAIN, target.candidates[0].asked)

    def _rechecks_later(self, target: ServiceName, candidate: Candidate, missed_at: float, now: float) -> bool:
        """A dotted name that was missed lately, when the alias after it is a known service: looked up again in a minute."""
        others = [c for c in target.candidates if c is not candidate]
        known = any(self._book.knows(c.folded) for c in others)
        return known and missed_at > 0 and now - missed_at < ALIAS_CHECK_S

    def _known(
        self,
        query: Query,
        target: ServiceName,
        snapshot: Snapshot,
        before: tuple[ServiceKey, ...],
        now: float,
        wall: float,
    ) -> Outcome:
        answer = self._answer(query, target, snapshot)
        if before:
            return Lookup((*dict.fromkeys(before), snapshot.key)[:3], self._settings.lookup_s, answer)
        if self._waits(snapshot, now, wall):
            self._paused[snapshot.key] = now + STALE_PAUSE_S
            self._prepared.drop(service_of(snapshot.key))
            return Lookup((snapshot.key,), self._settings.stale_wait_s, answer)
        return answer

    def _waits(self, snapshot: Snapshot, now: float, wall: float) -> bool:
        """Whether an old entry without a subscription first gives the registry a moment."""
        if snapshot.live or snapshot.source is Source.STATIC or snapshot.key.namespace in self._down:
            return False
        if len(self._paused) > MISSES_MAX:
            self._paused.clear()
        return wall - snapshot.confirmed_at > self._settings.disk_fresh_s and now >= self._paused.get(snapshot.key, 0.0)

    def _answer(self, query: Query, target: ServiceName, snapshot: Snapshot) -> Reply | Chase:
        self.asked[service_of(snapshot.key)] = None
        self.urgent |= not snapshot.live
        self.service = snapshot
        policy = self._policies.resolve(snapshot.key.service)
        zone = _soa_zone(query, target.zone)
        if target.prefix is Prefix.GRPC_CONFIG:
            records = answers.grpc_config(query.name, policy)
            return self._say.records(query, zone, policy, records, exists=bool(records), wanted=RecordType.TXT)
        if not self._exists(snapshot, target):
            return self._say.negative(query, zone, Rcode.NXDOMAIN, policy=policy)
        if target.prefix is Prefix.PROTOCOL:
            self.why.append("an empty name above the SRV names of a service")
            return self._say.negative(query, zone, Rcode.NOERROR, policy=policy)
        choice = answers.choose(snapshot, policy, target.cluster)
        if choice.why:
            self.none_healthy += 1
            self.why.append(choice.why)
        if target.prefix is Prefix.SRV:
            choice = answers.only(choice, target.port, snapshot.key.service)
        return self._typed(query, target, snapshot, policy, choice)

    def _exists(self, snapshot: Snapshot, target: ServiceName) -> bool:
        """Whether the name has any type at all: a cluster or port that no instance has is no name."""
        members = answers.of_cluster(snapshot.instances, target.cluster)
        if target.cluster and not members:
            self.why.append("no instance of the service is in this cluster")
            return False
        if target.prefix is Prefix.SRV:
            everything = answers.Choice(members, (0,) * len(members))
            found = bool(answers.only(everything, target.port, snapshot.key.service).instances)
            if not found:
                self.why.append("no instance of the service has this port")
            return found
        return True

    def _typed(
        self, query: Query, target: ServiceName, snapshot: Snapshot, policy: Policy, choice: answers.Choice
    ) -> Reply | Chase:
        kind = query.type
        zone = _soa_zone(query, target.zone)
        if kind == RecordType.ANY:
            return self._say.minimal_any(query, policy)
        if target.prefix is Prefix.SRV and kind != RecordType.SRV:
            return self._say.negative(query, zone, Rcode.NOERROR, policy=policy)
        if kind == RecordType.TXT:
            return self._say.records(
                query, zone, policy, answers.texts(choice, query.name, policy), exists=True, wanted=kind
            )
        if kind in {RecordType.A, RecordType.AAAA, RecordType.SRV}:
            return self._paged(query, target, snapshot, policy, choice)
        if kind == RecordType.CNAME:
            alias = answers.addresses(choice, RecordType.A, policy.ttl_s).alias
            return self._say.cname(query, zone, policy, alias)
        if kind == RecordType.SOA and zone.name == query.name:
            return self._say.apex(query, zone)
        return self._say.negative(query, zone, Rcode.NOERROR, policy=policy)

    def _paged(
        self, query: Query, target: ServiceName, snapshot: Snapshot, policy: Policy, choice: answers.Choice
    ) -> Reply | Chase:
        """From a page, which is made now and kept with its recipe."""
        service = service_of(snapshot.key)
        port = target.port if target.prefix is Prefix.SRV else ""
        kind = RecordType(query.type)
        recipe = self._rendering.recipe(kind, zone=target.zone.name, cluster=target.cluster, port=port)
        material = recipe.material(choice, policy)
        if kind is RecordType.SRV:
            for instance in choice.instances:
                self._book.tell_address(instance.address, service)
        if material.alias:
            return self._chase(query, material.alias, policy)
        if not material.wires:
            return self._say.negative(query, _soa_zone(query, target.zone), Rcode.NOERROR, policy=policy)
        page = recipe.page(service, material, policy)
        if self._owns_name(snapshot.key, target):
            self._prepared.keep(query.name, query.type, page)
        return self._from_page(query, page)

    def _owns_name(self, key: ServiceKey, target: ServiceName) -> bool:
        """Whether the name can mean no other service: no other spelling of it is known, and it is not only an alias."""
        folded = folded_of(key)
        return target.candidates[0].folded == folded and not self._book.is_ambiguous(folded)

    def _from_page(self, query: Query, page: Page) -> Reply:
        shape = shape_of(query)
        if page.balancer is not None and page.balancer.per_client:
            reply = page.render(query.question, shape, page.balancer.window(1, page.members, query.client)[0])
        else:
            reply = page.reply(query.question, shape, page.step(self._prepared.now))
        return Reply(
            query.id.to_bytes(2, "big") + reply,
            query_cell("zone", query.type, Rcode.NOERROR, 1, over_tcp=query.over_tcp),
            turns=True,
            cut=query.over_tcp and page.is_cut(reply),
        )

    # --- composing

    def _chase(self, query: Query, alias: str, policy: Policy) -> Reply | Chase:
        try:
            target = dnsname.text_name(alias)
        except WireError:
            self.why.append(f"the instance address {alias!r} is neither an address nor a host name")
            return self._say.failure(query)
        record = dnsrecord.cname(query.name, policy.ttl_s, target)
        question = target + query.type.to_bytes(2, "big") + b"\x00\x01"
        inner = Query(query.id, query.flags, question, dnsname.fold(target), query.type, edns=query.edns, over_tcp=True)
        return Chase(record, inner)

    def is_down(self, namespace: str) -> bool:
        """Whether the registry is known to be away."""
        return namespace in self._down

    def namespace_of(self, query: Query) -> str:
        """The namespace of the service that the name may mean; the default one when it means none."""
        target = self._names.resolve(query.labels)
        zone = target.bare_zone if isinstance(target, Outside) else None
        return target.namespace if isinstance(target, ServiceName) else zone.namespace if zone else DEFAULT_NAMESPACE

    def is_outside(self, query: Query) -> bool:
        """Whether the name lies outside every zone."""
        return isinstance(self._names.resolve(query.labels), Outside)

    def failure(self, query: Query) -> Reply:
        """SERVFAIL: neither the registry nor an upstream could say in time."""
        return self._say.failure(query)

    def compose(
        self, query: Query, alias: Record, chased: tuple[Record, ...], rcode: Rcode, soa: tuple[Record, ...]
    ) -> Reply:
        """The alias and what it led to; the rcode is that of its end (RFC 6604), and so is the SOA of a denial."""
        return self._say.plain(query, Answer(rcode=rcode, answers=(alias, *chased), authority=soa))


def _soa_zone(query: Query, zone: Zone) -> Zone:
    """The zone whose SOA goes with a denial: resolvers keep none of a SOA that is not above the name (RFC 2308 5).

    A bare name lies in no zone of ours. It is its own, so that nothing is said of the zones above it.
    """
    is_inside = dnsname.is_under(query.name, zone.name)
    return zone if is_inside else msgspec.structs.replace(zone, name=query.name)
