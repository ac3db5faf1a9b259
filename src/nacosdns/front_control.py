"""What an operator asks of a front: a question with its why, the cache of outside names, its state.

Must not know: the control socket. Rule: a question goes the way of a client's question, doors excepted.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

import dnslib
import msgspec

from nacosdns.core import dnsname
from nacosdns.core.model import Edns, Query, Rcode, RecordType
from nacosdns.errors import ControlError, WireError
from nacosdns.waiters import CommandWaiter

if TYPE_CHECKING:
    from nacosdns.core.book import Book
    from nacosdns.core.forwarding import Forwarding
    from nacosdns.core.model import Snapshot
    from nacosdns.core.pipeline import Pipeline
    from nacosdns.front import Front
    from nacosdns.ports import Clock

LISTED_MAX = 10_000


def parse_question(name: str, qtype: str) -> Query:
    """A question as a person writes it. ControlError says what is wrong with it."""
    try:
        wire = dnsname.text_name(name)
    except WireError as error:
        raise ControlError(f"{name!r} is not a DNS name: {error}") from error
    word = qtype.upper()
    number = word.removeprefix("TYPE")
    if word in RecordType.__members__:
        kind = int(RecordType[word])
    elif number.isdigit() and int(number) < 65536:
        kind = int(number)
    else:
        raise ControlError(f"{qtype!r} is not a record type: use {', '.join(RecordType.__members__)} or TYPE123")
    question = wire + kind.to_bytes(2, "big") + b"\x00\x01"
    return Query(
        1,
        0x0100,
        question,
        dnsname.fold(wire),
        dnsname.labels_of(wire),
        kind,
        edns=Edns(65535),
        over_tcp=True,
    )


class FrontControl:
    """The front's half of `ask`, `cache` and `status`."""

    def __init__(self, front: Front, pipeline: Pipeline, book: Book, forwarding: Forwarding, clock: Clock) -> None:
        self._front = front
        self._pipeline = pipeline
        self._book = book
        self._forwarding = forwarding
        self._clock = clock

    def __repr__(self) -> str:
        return f"<FrontControl of {self._front!r}>"

    async def ask(self, name: str, qtype: str) -> dict[str, object]:
        """The answer and why: rcode, records, source; the service with its instances when there is one."""
        query = parse_question(name, qtype)
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        began = self._clock.now()
        packet = self._front.ask(query, CommandWaiter(future))
        waited = packet is None
        if packet is None:
            packet = await future
        if packet is None:
            raise ControlError("the question was dropped")
        self._pipeline.explain(query, self._clock.now(), self._clock.wall())
        why = list(self._pipeline.why)
        service = self._pipeline.service
        answer: dict[str, object] = _spelled(packet)
        answer["name"] = dnsname.name_text(query.name)
        answer["type"] = qtype.upper()
        answer["source"] = self._source(service, query)
        answer["took_ms"] = round((self._clock.now() - began) * 1000, 3)
        answer["waited"] = waited
        answer["service"] = self._described(service) if service is not None else None
        answer["why"] = why
        return answer

    def _source(self, service: Snapshot | None, query: Query) -> str:
        if service is not None:
            return service.source.value
        return "forwarded" if self._pipeline.is_outside(query) else "zone"

    def _described(self, snapshot: Snapshot) -> dict[str, object]:
        wall = self._clock.wall()
        key = snapshot.key
        return {
            "namespace": key.namespace,
            "group": key.group,
            "service": key.service,
            "registry": key.registry,
            "source": snapshot.source.value,
            "live": snapshot.live,
            "revision": snapshot.revision,
            "protection": snapshot.protection.value,
            "unconfirmed": snapshot.unconfirmed,
            "demoted": snapshot.demoted,
            "protected_s": round(wall - snapshot.protected_since, 1) if snapshot.protected_since else None,
            "confirmed_s": round(wall - snapshot.confirmed_at, 1) if snapshot.confirmed_at else None,
            "threshold_reached": snapshot.threshold_reached,
            "instances": [
                {
                    "address": i.address,
                    "port": i.port,
                    "weight": i.weight,
                    "healthy": i.healthy,
                    "enabled": i.enabled,
                    "cluster": i.cluster,
                    "demoted": at >= len(snapshot.instances) - snapshot.demoted,
                }
                for at, i in enumerate(snapshot.instances)
            ],
        }

    def cached(self) -> list[dict[str, object]]:
        """`cache list`: what is kept of outside names."""
        items = islice(self._forwarding.outside.listing(self._clock.now()), LISTED_MAX)
        return [
            {**msgspec.structs.asdict(item), "type": _type_text(item.type), "rcode": _rcode_text(item.rcode)}
            for item in items
        ]

    def flush(self, name: str) -> dict[str, object]:
        """`cache flush` of an outside name, or of ``*.SUFFIX``."""
        try:
            wire = dnsname.fold(dnsname.text_name(name.removeprefix("*.")))
        except WireError as error:
            raise ControlError(f"{name!r} is not a DNS name: {error}") from error
        gone = self._forwarding.forget_under(wire) if name.startswith("*.") else self._forwarding.forget(wire)
        return {"name": name, "externals": len(gone)}

    def status(self) -> dict[str, object]:
        """What `status` shows of a front."""
        forward = self._forwarding.status(self._clock.now())
        return {
            "services": len(self._book),
            "pages": self._book.page_count,
            "prepared": len(self._book.replies),
            "linked": self._front.linked,
            "synced": self._front.synced,
            "upstreams": [
                {
                    "address": one.address,
                    "health": one.health,
                    "latency_ms": one.latency_ms,
                    "last_error": one.last_error,
                }
                for one in forward.upstreams
            ],
            "upstreams_left_out": [{"address": address, "why": why} for address, why in forward.left_out],
            "forward_problem": forward.problem,
            "externals": forward.entries,
            "waiting": forward.waiters,
        }


def _type_text(kind: int) -> str:
    return RecordType(kind).name if kind in set(RecordType) else f"TYPE{kind}"


def _rcode_text(rcode: int) -> str:
    return Rcode(rcode).name if rcode in set(Rcode) else f"RCODE{rcode}"


def _spelled(packet: bytes) -> dict[str, object]:
    """A reply as people read it."""
    reply = dnslib.DNSRecord.parse(packet)
    return {
        "rcode": _rcode_text(reply.header.rcode),
        "authoritative": bool(reply.header.aa),
        "answers": [_spelled_record(record) for record in reply.rr],
        "authority": [_spelled_record(record) for record in reply.auth],
        "additional": [_spelled_record(record) for record in reply.ar if record.rtype != RecordType.OPT],
    }


def _spelled_record(record: dnslib.RR) -> dict[str, object]:
    owner = dnsname.name_to_wire(tuple(record.rname.label))
    return {
        "name": dnsname.name_text(owner),
        "type": _type_text(record.rtype),
        "ttl_s": record.ttl,
        "data": str(record.rdata),
    }
