"""What systemd-resolved asks a resolver, played to the bridge: recorded from version 252 with each setting of DNSSEC=.

It takes our word for what we are: a reply that breaks a rule makes it ask in a poorer way from then on, for every name
(without EDNS, without DO, by TCP). So each reply must leave it where it is.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, NamedTuple

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import pytest

from fakes.asking import ask
from fakes.client_host import table
from fakes.running import Bridge, exchange, until
from fakes.upstream import StubUpstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOM = 65508
"""What it says that it takes, on loopback."""
MANY = tuple(f"10.1.0.{number}" for number in range(1, 61))
SERVICES = table("orders", ("10.0.0.1", "10.0.0.2", "10.0.0.3")) + table("many", MANY)


class Asked(NamedTuple):
    """One query of the record. ``room``: what EDNS says, 0 without EDNS; ``secure``: DO and CD are set."""

    kind: str
    name: str
    room: int = ROOM
    secure: bool = False
    rcode: str = "NOERROR"
    count: int = 0


RECORDS = {
    "a service": (Asked("A", "orders.nacos", count=3), Asked("AAAA", "orders.nacos")),
    "a service in capitals": (Asked("A", "ORDERS.nacos", count=3), Asked("AAAA", "ORDERS.nacos")),
    "a service of sixty": (Asked("A", "many.nacos", count=60), Asked("AAAA", "many.nacos")),
    "a name that nobody has, asked again without EDNS": (
        Asked("A", "absent.nacos", rcode="NXDOMAIN"),
        Asked("AAAA", "absent.nacos", rcode="NXDOMAIN"),
        Asked("A", "absent.nacos", room=0, rcode="NXDOMAIN"),
        Asked("AAAA", "absent.nacos", room=0, rcode="NXDOMAIN"),
    ),
    "a name whose resolver fails, asked twice and then without EDNS": (
        Asked("A", "broken.example.com", rcode="SERVFAIL"),
        Asked("A", "broken.example.com", rcode="SERVFAIL"),
        Asked("A", "broken.example.com", room=0, rcode="SERVFAIL"),
    ),
    "DNSSEC, from the service up to the zone": (
        Asked("A", "orders.nacos", secure=True, count=3),
        Asked("DS", "orders.nacos", secure=True),
        Asked("DS", "nacos", secure=True),
    ),
    "DNSSEC of a service in capitals": (
        Asked("A", "ORDERS.nacos", secure=True, count=3),
        Asked("DS", "ORDERS.nacos", secure=True),
    ),
    "DNSSEC of a name that nobody has": (
        Asked("A", "absent.nacos", secure=True, rcode="NXDOMAIN"),
        Asked("DS", "nacos", secure=True),
    ),
    "a name of the world": (
        Asked("A", "www.example.com", count=1),
        Asked("A", "www.example.com", secure=True, count=1),
        Asked("A", "www.example.com", room=0, count=1),
    ),
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A bridge with an upstream; its port."""
    directory: Path = tmp_path_factory.mktemp("bridge")
    with StubUpstream() as upstream:
        upstream.answer("www.example.com", "A", "198.51.100.7")
        upstream.rcode("broken.example.com", "A", "SERVFAIL")
        text = f'[nacos]\nservers = []\n[forward]\nupstreams = ["{upstream.address}"]\n{SERVICES}'
        running = Bridge(directory, text=text, modules={})
        try:
            port = running.up().port
            until(lambda: ask(port, "orders.nacos").answer, 20, "the services")
            yield port
        finally:
            running.close()


def query(asked: Asked) -> dns.message.Message:
    message = dns.message.make_query(asked.name, asked.kind, use_edns=0 if asked.room else False, payload=asked.room)
    if asked.secure:
        message.want_dnssec()
        message.flags |= dns.flags.CD
    return message


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
def test_each_query_has_a_reply_that_keeps_to_what_was_asked(record: tuple[Asked, ...], port: int) -> None:
    """S64: one after the other from one socket, as they were recorded."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.connect(("127.0.0.1", port))
        for asked in record:
            sent = query(asked)
            sock.send(sent.to_wire())
            packet = sock.recv(65535)
            reply = dns.message.from_wire(packet, ignore_trailing=False)

            assert (reply.id, reply.question) == (sent.id, sent.question)
            assert reply.question[0].name.labels == sent.question[0].name.labels
            assert dns.rcode.to_text(reply.rcode()) == asked.rcode, asked
            assert sum(map(len, reply.answer)) == asked.count, asked
            assert reply.edns == sent.edns, f"EDNS comes back if and only if it was asked with: {asked}"
            assert bool(reply.ednsflags & dns.flags.DO) is asked.secure
            assert bool(reply.flags & dns.flags.CD) is asked.secure
            assert not reply.flags & dns.flags.TC
            assert not (reply.flags & dns.flags.AA and reply.flags & dns.flags.AD)
            assert len(packet) <= 1232


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("kind", "name"), [("AAAA", "orders.nacos"), ("DS", "nacos"), ("A", "absent.nacos")])
def test_a_negative_answer_has_the_soa_that_it_keeps_it_by(kind: str, name: str, secure: bool, port: int) -> None:
    """S23."""
    reply = dns.message.from_wire(exchange(query(Asked(kind, name, secure=secure)).to_wire(), port))

    assert [(str(one.name), one.rdtype, one.ttl) for one in reply.authority] == [("nacos.", dns.rdatatype.SOA, 1)]


def test_sixty_by_srv_do_not_fit_and_are_asked_again_by_tcp(port: int) -> None:
    """S53."""
    sent = query(Asked("SRV", "many.nacos"))
    cut = dns.message.from_wire(exchange(sent.to_wire(), port), raise_on_truncation=False)
    whole = ask(port, "many.nacos", "SRV", tcp=True, payload=ROOM)

    assert cut.flags & dns.flags.TC
    assert sum(map(len, whole.answer)) == 60
