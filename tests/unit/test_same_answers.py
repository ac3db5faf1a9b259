"""One question, one meaning: by UDP and TCP, from the stages and from what is prepared, on random services and queries.

What may differ is the order of records, and by UDP how many of them there is room for.
"""

from __future__ import annotations

import asyncio
import random
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import dnslib
import msgspec
import pytest
import structlog
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fakes.clock import VirtualClock, VirtualLoop
from fakes.deciding import pipeline_of
from fakes.wire import AA, AD, CD, RA, RD, TC, Z, opt, option, query, read
from nacosdns import config
from nacosdns.core.book import Book
from nacosdns.core.errands import ForwardSettings
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.frames import Known, encode
from nacosdns.core.metrics import Counters
from nacosdns.core.model import Instance, ServiceKey, Snapshot
from nacosdns.front import Front

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from fakes.wire import Read
    from nacosdns.core.pipeline import Pipeline

KEY = ServiceKey("public", "DEFAULT_GROUP", "orders")
MISSING = ServiceKey("public", "DEFAULT_GROUP", "nosuch")
CLIENT, STRANGER = b"\x7f\0\0\1", b"\xcb\0\x71\1"
AGAIN = 12
NAMES = [
    *("orders.nacos", "oRDERs.nacos", "_80._tcp.orders.nacos", "orders.bj.cluster.nacos", "orders.none.cluster.nacos"),
    *("nosuch.nacos", "_tcp.orders.nacos", "group.nacos", "nacos", "10-0-0-1.addr.nacos", "canary.nacosdns.invalid"),
    *("orders.nowhere.ns.nacos", "_grpc_config.orders.nacos"),
]
KINDS = [1, 28, 33, 16, 255, 5, 65, 6, 2, 41, 252, 65280]


class Client(NamedTuple):
    """What a UDP door says of a client."""

    address: bytes
    name: bytes
    control: bytes = b""
    port: int = 5353


class UdpDoor:
    """Keeps what it is to send later."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []

    def reply(self, client: Client, packet: bytes) -> None:
        self.replies.append(packet)


class Connection:
    """A TCP connection that keeps what it is to send."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []

    def reply(self, packet: bytes) -> None:
        self.replies.append(packet)


class Doors:
    """A front as its doors see it."""

    def __init__(self, loop: VirtualLoop, instances: tuple[Instance, ...], policy: config.PolicySection) -> None:
        self.book = Book()
        self.clock = VirtualClock(loop)
        self.loop = loop
        configuration = config.Config(zones=(config.ZoneSection(name="nacos."),), policy=policy)
        self.pipeline: Pipeline = pipeline_of(configuration, self.book)
        self.front = Front(
            pipeline=self.pipeline,
            book=self.book,
            forwarding=Forwarding(ForwardSettings(), random.Random(7)),
            clock=self.clock,
            counters=Counters(),
            log=structlog.wrap_logger(None, processors=[_swallow]),
        )
        self.book.update(Known(KEY, 1, msgspec.Raw(encode(Snapshot(KEY, instances, 1, live=True)))))
        self.pipeline.missed((MISSING,), self.clock.now())
        self.ways: set[str] = set()

    async def udp(self, packet: bytes, client: bytes = CLIENT) -> bytes:
        """As a door of UDP asks: whole packets, pages, the stages."""
        self.loop.now += 0.05
        prepared = self.book.prepared
        prepared.begin(self.clock.now())
        entry = prepared.packets.get(packet[2:])
        found = prepared.next_reply(entry) if entry is not None else prepared.similar(packet[2:])
        self.ways.add("packet" if entry is not None else "page" if found is not None else "stages")
        if found is not None:
            return packet[:2] + found
        door = UdpDoor()
        reply = self.front.slow(packet, Client(client, b""), door)  # type: ignore[arg-type]  # all that is called
        return await only(door.replies) if reply is None else reply

    async def tcp(self, packet: bytes, client: bytes = CLIENT) -> bytes:
        connection = Connection()
        self.front.asked(packet, client, connection)  # type: ignore[arg-type]  # all that is called
        return await only(connection.replies)


async def only(replies: list[bytes]) -> bytes:
    """The one reply, at once or when it was found out."""
    for _ in range(300):
        if replies:
            break
        await asyncio.sleep(0.01)
    (reply,) = replies
    return reply


def _swallow(_: object, __: str, event: dict[str, Any]) -> str:
    assert event["event"] != "query.surprise", event
    return ""


instances = st.builds(
    Instance,
    st.sampled_from([f"10.0.{n // 9}.{n}" for n in range(60)] + [f"2001:db8::{n:x}" for n in range(1, 9)]),
    st.sampled_from([80, 81, 8080]),
    st.sampled_from([1.0, 1.0, 1.0, 2.5, 0.1, 100.0, 0.0]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["DEFAULT", "bj"]),
    st.sampled_from([(), (("zone", "bj"),), (("zone", "x" * 300),)]),
)
services = st.lists(instances, max_size=70, unique_by=lambda one: one.identity).map(tuple)
policies = st.builds(
    config.PolicySection,
    answers=st.sampled_from(["all", "all", "one", 3]),
    balancer=st.sampled_from(["weighted", "round_robin", "random", "hash"]),
    ttl_s=st.sampled_from([0, 1, 60]),
    negative_ttl_s=st.just(50),
    txt_keys=st.sampled_from([(), ("zone",)]),
)
opts = st.one_of(
    st.none(),
    st.builds(
        opt,
        st.one_of(st.integers(500, 1300), st.sampled_from([0, 4096])),
        version=st.sampled_from([0, 0, 0, 1]),
        flags=st.sampled_from([0, 0x8000, 0x4001]),
        options=st.sampled_from([b"", option(10, b"abcdefgh"), option(3, b"")]),
    ),
)


class Meaning(NamedTuple):
    """What all replies to one query share."""

    rcode: str
    flags: int
    question: bytes
    soa: tuple[tuple[str, int, int], ...]
    ttls: frozenset[int]
    edns: tuple[int, int]


def meaning(reply: Read) -> Meaning:
    dnslib.DNSRecord.parse(reply.packet)
    message = reply.message
    soa = tuple((rrset.name.to_text(), rrset.ttl, rrset[0].minimum) for rrset in message.authority)
    ttls = frozenset(rrset.ttl for rrset in message.answer)
    return Meaning(reply.rcode, reply.flags & ~TC, reply.question, soa, ttls, (message.edns, message.ednsflags))


def check(udp: Read, tcp: Read, *, size_max: int, is_whole: bool) -> None:
    """One reply by UDP against one by TCP. ``is_whole``: an answer holds all records that there are."""
    assert meaning(udp) == meaning(tcp)
    assert len(udp.packet) <= size_max
    assert not tcp.flags & TC
    assert bool(udp.flags & TC) == (udp.counts[0] < tcp.counts[0])
    if is_whole:
        assert set(udp.data) <= set(tcp.data)
    assert len(set(udp.data)) == udp.counts[0]


MANY = tuple(Instance(f"10.0.0.{n}", 80 + n % 2, 1.0 + n % 3) for n in range(60))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    services,
    policies,
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(KINDS)), min_size=1, max_size=3),
    st.lists(st.tuples(opts, st.sampled_from([RD, 0, RD | CD, RD | AD, RD | Z])), min_size=1, max_size=4),
    st.booleans(),
)
@example(
    MANY, config.PolicySection(negative_ttl_s=50), [("orders.nacos", 1)], [(opt(700 + n), RD) for n in range(16)], False
)
@example(MANY, config.PolicySection(negative_ttl_s=50, balancer="hash"), [("orders.nacos", 33)], [(None, RD)], True)
def test_a_question_means_the_same_by_every_door_and_way(
    service: tuple[Instance, ...],
    policy: config.PolicySection,
    asked: list[tuple[str, int]],
    how: list[tuple[bytes | None, int]],
    tcp_first: bool,
) -> None:
    """docs/answers.md 8.1."""
    loop = VirtualLoop()

    async def work() -> None:
        doors = Doors(loop, service, policy)
        for (name, kind), (record, flags) in product(asked, how):
            packet = query(name, kind, flags=flags, counts=(1, 0, 0, int(record is not None)), rest=record or b"")
            size_max = 512 if record is None else min(max(int.from_bytes(record[3:5], "big"), 512), 1232)
            early = [read(await doors.tcp(packet))] if tcp_first else []
            by_udp = [read(await doors.udp(packet)) for _ in range(AGAIN)]
            by_tcp = [*early, *[read(await doors.tcp(packet)) for _ in range(3)]]
            for reply in (*by_udp, *by_tcp):
                assert reply.question == packet[12 : 12 + len(reply.question)]
                assert reply.flags & ~(AA | TC) == RA | flags & (RD | CD)
                assert (reply.message.edns >= 0) == (record is not None)
            is_whole = policy.answers == "all"
            for udp in by_udp:
                for tcp in by_tcp:
                    check(udp, tcp, size_max=size_max, is_whole=is_whole)
            if is_whole:
                assert len({frozenset(tcp.data) for tcp in by_tcp}) == 1

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work())


def run(work: Callable[[Doors], Coroutine[Any, Any, None]]) -> None:
    """Does this with a front that knows one service, on virtual time."""
    loop = VirtualLoop()

    async def main() -> None:
        await work(Doors(loop, MANY[:3], config.PolicySection(negative_ttl_s=50)))

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def test_the_ways_that_are_compared_are_all_gone() -> None:
    """docs/answers.md 8.1: the first time by the stages, then from the page, then the packet's own replies."""

    async def work(doors: Doors) -> None:
        for name in ("orders.nacos", "nosuch.nacos"):
            doors.ways.clear()
            for _ in range(AGAIN):
                await doors.udp(query(name))

            assert doors.ways == {"stages", "page", "packet"}

    run(work)


@pytest.mark.parametrize("name", ["orders.nacos", "nosuch.nacos", "www.example.org", "canary.nacosdns.invalid"])
@pytest.mark.parametrize("kind", [1, 41, 252])
def test_who_may_not_ask_is_refused_whatever_the_name_also_when_its_answer_is_prepared(name: str, kind: int) -> None:
    """docs/answers.md 1.11."""

    async def work(doors: Doors) -> None:
        for _ in range(AGAIN if name.endswith("nacos") else 0):
            await doors.udp(query(name, kind))
        for packet in (query(name, kind), query(name, kind, counts=(1, 0, 0, 1), rest=opt())):
            reply = read(await doors.tcp(packet, STRANGER))

            assert (reply.rcode, reply.counts, reply.flags & AA) == ("REFUSED", (0, 0, 0), 0)
            assert doors.front.slow(packet, Client(STRANGER, b""), UdpDoor()) == reply.packet  # type: ignore[arg-type]

    run(work)


@pytest.mark.parametrize(
    ("packet", "rcode"),
    [
        (query(opcode=4), "NOTIMP"),
        (query(counts=(0, 0, 0, 0)), "FORMERR"),
        (query(rest=b"x"), "FORMERR"),
        (query(counts=(1, 0, 0, 1), rest=opt(version=1)), "BADVERS"),
        (query(kind=41), "REFUSED"),
    ],
)
def test_what_is_said_of_any_packet_is_said_to_who_may_not_ask(packet: bytes, rcode: str) -> None:
    """docs/answers.md 1.11."""

    async def work(doors: Doors) -> None:
        assert read(await doors.tcp(packet, STRANGER)).rcode == rcode
        assert read(await doors.udp(packet, STRANGER)).rcode == rcode

    run(work)


def test_a_service_that_nobody_can_look_up_is_servfail_and_never_missing() -> None:
    """docs/answers.md 5.12."""

    async def work(doors: Doors) -> None:
        for ask in (doors.udp, doors.tcp):
            began = doors.clock.now()
            reply = read(await ask(query("unheard.nacos")))

            assert (reply.rcode, reply.counts) == ("SERVFAIL", (0, 0, 0))
            assert 1.4 < doors.clock.now() - began < 2.5

    run(work)
