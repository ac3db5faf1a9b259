"""Upstreams that lie, stammer and flood, behind the real program: what the client gets in time, and who else is harmed.

Each lie is told of one name only. The client of that name gets the truth where it follows, else what an honest failure
would give, within the deadline; the next honest name is answered at once; nothing false is kept or served for another
name; no front is restarted and no traceback is written.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

from fakes.asking import addresses, ask, until_says, values
from fakes.running import TWO_ORDERS, Bridge, exchange, packet, until
from fakes.seen import total as metric
from fakes.upstream import StubUpstream

if TYPE_CHECKING:
    from collections.abc import Iterator

TRUTH, LIE = "192.0.2.99", "203.0.113.66"
DEADLINE_S = 2.5
_numbers = count()
Says = Callable[[str, bytes], Iterable[bytes]]


class World(NamedTuple):
    bridge: Bridge
    stub: StubUpstream

    @property
    def port(self) -> int:
        return self.bridge.port


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with StubUpstream() as stub:
        stub.answer_everything(TRUTH)
        text = TWO_ORDERS.replace("upstreams = []", f'upstreams = ["{stub.address}"]')
        running = Bridge(tmp_path_factory.mktemp("lying"), text=text, modules={})
        try:
            until_says(running.up().port, "orders.nacos", {"10.0.0.1", "10.0.0.2"}, seconds=30)
            until_says(running.port, "first.test", {TRUTH})
            yield World(running, stub)
        finally:
            running.close()


@pytest.fixture(autouse=True)
def nobody_else_is_harmed(world: World) -> Iterator[None]:
    """Behind every lie: an honest name at once, our own names as ever, the same processes, not a word of surprise."""
    children = world.bridge.children()
    yield
    world.stub.says.clear()
    world.stub.streams.clear()
    honest = f"honest{next(_numbers)}.test"

    assert addresses(world.port, honest, seconds=2) == [TRUTH]
    assert set(addresses(world.port, "orders.nacos")) == {"10.0.0.1", "10.0.0.2"}
    assert world.bridge.children() == children
    assert world.bridge.said("Traceback") == []
    assert world.bridge.said("surprise") == []


def name() -> str:
    return f"lie{next(_numbers)}.test"


class Got(NamedTuple):
    reply: dns.message.Message
    took_s: float

    @property
    def rcode(self) -> str:
        return dns.rcode.to_text(self.reply.rcode())


def got(world: World, says: Says | None = None, *, asked: str = "", **how: object) -> Got:
    """What a client gets for a name of which this is said."""
    asked = asked or name()
    if says is not None:
        world.stub.says[asked.lower()] = says
    began = time.monotonic()
    reply = ask(world.port, asked, seconds=5, **how)  # type: ignore[arg-type]
    return Got(reply, time.monotonic() - began)


def made(query: bytes, *lines: str, section: str = "answer", rcode: int = 0, **change: object) -> bytes:
    """A reply to the query with these zone file lines in a section."""
    asked = dns.message.from_wire(query)
    reply = dns.message.make_response(asked, recursion_available=True, our_payload=1232)
    if change.get("no_recursion"):
        reply.flags &= ~dns.flags.RA
    reply.set_rcode(dns.rcode.Rcode(rcode))
    for line in lines:
        owner, ttl, klass, kind, rdata = line.split(maxsplit=4)
        getattr(reply, section).append(dns.rrset.from_text(owner, int(ttl), klass, kind, rdata))
    return reply.to_wire(max_size=65535)


def owner_of(query: bytes) -> str:
    return dns.message.from_wire(query).question[0].name.to_text()


def false(query: bytes) -> bytes:
    return made(query, f"{owner_of(query)} 60 IN A {LIE}")


def true(query: bytes) -> bytes:
    return made(query, f"{owner_of(query)} 60 IN A {TRUTH}")


def asking(packet: bytes, *, name_wire: bytes = b"", tail: bytes = b"") -> bytes:
    """The same packet with another name of the same length, or another type and class, in its question."""
    end = packet.index(b"\0", 12) + 1
    return packet[:12] + (name_wire or packet[12:end]) + (tail or packet[end : end + 4]) + packet[end + 4 :]


def another_name(packet: bytes) -> bytes:
    end = packet.index(b"\0", 12) + 1
    return asking(packet, name_wire=packet[12:13] + b"x" * packet[12] + packet[13 + packet[12] : end])


def true_with_length(query: bytes, size: int) -> bytes:
    packet = made(query, f"{owner_of(query)} 60 IN A {LIE}")
    at = packet.rindex(bytes(map(int, LIE.split(".")))) - 2
    return packet[:at] + struct.pack("!H", size) + packet[at + 2 :]


def chain_reply(query: bytes) -> bytes:
    """64 KiB in which thousands of records begin with a chain of thousands of pointers."""
    head = true(query)[:2] + b"\x81\x80\0\1"
    question = query[12 : query.index(b"\0", 12) + 5]
    at = 12 + len(question) + 11
    chained = b"".join(struct.pack("!H", 0xC000 | (at + 2 * n - 2 if n else 12)) for n in range(8000))
    first = b"\0" + struct.pack("!HHIH", 10, 1, 0, len(chained)) + chained
    last = struct.pack("!HHHIH", 0xC000 | (at + len(chained) - 2), 10, 1, 0, 0)
    return head + struct.pack("!HHH", 4001, 0, 0) + question + first + last * 4000


IGNORED = {
    "wrong-id": lambda query: bytes((query[0] ^ 0x55, query[1] ^ 0x55)) + false(query)[2:],
    "wrong-name": lambda query: another_name(false(query)),
    "wrong-type": lambda query: asking(false(query), tail=b"\0\x1c\0\1"),
    "wrong-class": lambda query: asking(false(query), tail=b"\0\1\0\3"),
    "two-questions": lambda query: false(query)[:5] + b"\2" + false(query)[6:],
    "no-question": lambda query: false(query)[:5] + b"\0" + false(query)[6:],
    "another-opcode": lambda query: false(query)[:2] + bytes((false(query)[2] | 0x28,)) + false(query)[3:],
    "the-query-itself": lambda query: query,
    "qr-0": lambda query: false(query)[:2] + bytes((false(query)[2] & 0x7F,)) + false(query)[3:],
    "garbage": lambda query: query[:2] + b"\x84\x00" + bytes(range(100, 190)),
    "noise": lambda query: query[:2] + b"\xff" * 900,
    "half": lambda query: false(query)[: len(query) + 2],
    "a-header": lambda query: false(query)[:12],
    "eleven-bytes": lambda query: false(query)[:11],
    "nothing": lambda _: b"",
    "records-that-are-not-there": lambda query: false(query)[:7] + b"\xff" + false(query)[8:],
    "a-record-that-reaches-out": lambda query: true_with_length(query, 0xFFFF),
    "pointers-to-pointers": chain_reply,
}
UNCOUNTED = {"wrong-id", "eleven-bytes", "nothing"}  # nothing says to which question they belong


def all_at_once(world: World, says: dict[str, Says], names: dict[str, str] | None = None) -> dict[str, Got]:
    """What the clients get who ask together, one for each lie; an honest name is answered meanwhile."""
    names = names or {lie: name() for lie in says}
    with ThreadPoolExecutor(len(says) + 1) as pool:
        found = {lie: pool.submit(got, world, said, asked=names[lie]) for lie, said in says.items()}
        honest = pool.submit(got, world)
        assert values(honest.result().reply) == [TRUTH]
        assert honest.result().took_s < 2
        return {lie: future.result() for lie, future in found.items()}


def test_what_is_no_reply_to_the_question_is_passed_over_and_the_truth_behind_it_taken(world: World) -> None:
    """S69."""
    before = metric(world.bridge, "upstream_spoofed_total")
    found = all_at_once(
        world, {lie: lambda _, query, lie=lie: [IGNORED[lie](query)] * 3 + [true(query)] for lie in IGNORED}
    )
    counted = 3 * len(IGNORED.keys() - UNCOUNTED)

    assert {lie: " ".join(values(one.reply)) for lie, one in found.items()} == dict.fromkeys(IGNORED, TRUTH)
    assert [lie for lie, one in found.items() if one.took_s > 2] == []
    until(lambda: metric(world.bridge, "upstream_spoofed_total") == before + counted, 5, "the count of what is ignored")


def test_lies_without_a_truth_are_servfail_within_the_deadline(world: World) -> None:
    """S69."""
    before = metric(world.bridge, "upstream_failures_total")
    found = all_at_once(world, {lie: lambda _, query, lie=lie: [IGNORED[lie](query)] for lie in IGNORED})

    assert {lie: (one.rcode, len(one.reply.answer)) for lie, one in found.items()} == dict.fromkeys(
        IGNORED, ("SERVFAIL", 0)
    )
    assert [lie for lie, one in found.items() if one.took_s > DEADLINE_S + 1.5] == []
    until(lambda: metric(world.bridge, "upstream_failures_total") >= before + len(IGNORED), 5, "the count of failures")


def test_a_flood_of_guessed_ids_does_not_keep_the_truth_out(world: World) -> None:
    """S69: a hundred before the true reply. Of many hundreds at once the kernel would drop some, and perhaps the truth."""
    found = got(
        world, lambda _, query: [n.to_bytes(2, "big") + false(query)[2:] for n in range(0, 65536, 600)] + [true(query)]
    )

    assert set(values(found.reply)) <= {TRUTH, LIE}  # one time in six hundred a guess is right: then it is no lie to us
    assert found.took_s < 2


def test_replies_under_an_id_that_nobody_waits_for_are_counted_apart(world: World) -> None:
    """S69: a late reply is none of a forger, so they are no part of those that were ignored."""
    before = metric(world.bridge, "upstream_strays_total")
    got(world, lambda _, query: [IGNORED["wrong-id"](query)] * 5 + [true(query)])

    until(lambda: metric(world.bridge, "upstream_strays_total") >= before + 5, 5, "the count of strays")


def test_a_question_that_comes_back_in_other_letters_is_the_same_question(world: World) -> None:
    """S64: and the client sees its own letters."""
    asked = name().replace("lie", "LiE")
    found = got(world, lambda _, query: [true(query).replace(b"lie", b"lIE", 1)], asked=asked)

    assert values(found.reply) == [TRUTH]
    assert found.reply.question[0].name.to_text() == f"{asked}."


def test_records_of_other_names_answer_nobody_else(world: World) -> None:
    """Bailiwick: neither what stands beside the answer in any section, nor in a negative one."""
    victim = f"victim{next(_numbers)}.test"
    for section in ("answer", "authority", "additional"):
        poison = (f"{victim}. 86400 IN A {LIE}", f"orders.nacos. 86400 IN A {LIE}", "test. 86400 IN NS evil.test.")
        got(world, lambda _, query, s=section, p=poison: [made(query, *p, section=s)])
        got(world, lambda _, query, s=section, p=poison: [made(query, *p, section=s, rcode=3)])

    assert addresses(world.port, victim) == [TRUTH]
    assert set(addresses(world.port, "orders.nacos")) == {"10.0.0.1", "10.0.0.2"}
    assert addresses(world.port, "test", "NS") == []


def test_aliases_in_a_circle_are_handed_on_and_followed_by_nobody(world: World) -> None:
    asked = name()
    before = world.stub.count()
    found = got(
        world,
        lambda _, query: [made(query, f"{asked}. 60 IN CNAME b.test.", f"b.test. 60 IN CNAME {asked}.")],
        asked=asked,
    )

    assert found.rcode == "NOERROR"
    assert sorted(values(found.reply)) == sorted(["b.test.", f"{asked}."])
    assert world.stub.count() == before + 1


def test_an_alias_to_a_name_of_ours_changes_nothing_for_who_asks_that_name(world: World) -> None:
    """What it says of our name goes to who asked the alias, as anything that it says; our own zone never hears of it."""
    asked = name()
    got(
        world,
        lambda _, query: [made(query, f"{asked}. 60 IN CNAME orders.nacos.", f"orders.nacos. 600 IN A {LIE}")],
        asked=asked,
    )
    reply = ask(world.port, "orders.nacos")

    assert set(values(reply)) == {"10.0.0.1", "10.0.0.2"}
    assert reply.flags & dns.flags.AA


@pytest.mark.parametrize("over_tcp", [False, True])
def test_tc_without_anybody_listening_on_tcp(world: World, over_tcp: bool) -> None:
    """S55: a client on UDP is told that there is more, one on TCP that there was no answer."""
    before = metric(world.bridge, "upstream_tcp_retries_total")
    world.stub.tcp = "close"
    try:
        found = got(world, lambda _, query: [true(query)[:2] + b"\x83\x80" + true(query)[4:]], tcp=over_tcp)
    finally:
        world.stub.tcp = "answer"

    assert found.took_s < DEADLINE_S + 1.5
    assert found.reply.answer == []
    assert found.rcode == ("SERVFAIL" if over_tcp else "NOERROR")
    assert bool(found.reply.flags & dns.flags.TC) is not over_tcp
    until(lambda: metric(world.bridge, "upstream_tcp_retries_total") > before, 5, "the count of retries")


def only_head(query: bytes) -> bytes:
    return query[:2] + b"\x83\x80" + query[4:6] + bytes(6) + query[12 : query.index(b"\0", 12) + 5]


STREAMS = {
    "byte-by-byte": lambda query: [bytes((byte,)) for byte in framed(true(query))],
    "half-a-length": lambda _: [b"\0"],
    "a-length-and-no-more": lambda _: [b"\xff\xff"],
    "a-length-and-a-half": lambda query: [framed(true(query))[:30]],
    "length-0-for-ever": lambda _: [b"\0\0" * 3000] * 1000,
    "wrong-ids-for-ever": lambda query: [framed(b"\0\0" + false(query)[2:]) * 500] * 1000,
    "garbage": lambda _: [b"\xff" * 70_000],
}


def framed(packet: bytes) -> bytes:
    return len(packet).to_bytes(2, "big") + packet


def test_streams_that_never_become_an_answer_cost_their_clients_the_deadline_and_nobody_else_a_thing(
    world: World,
) -> None:
    names = {stream: name() for stream in STREAMS}
    world.stub.streams.update({names[stream]: pieces for stream, pieces in STREAMS.items()})
    before = metric(world.bridge, "upstream_failures_total")
    found = all_at_once(world, {stream: lambda _, query: [only_head(query)] for stream in STREAMS}, names)

    assert [stream for stream, one in found.items() if one.took_s > DEADLINE_S + 1.5] == []
    assert {stream: bool(one.reply.flags & dns.flags.TC) for stream, one in found.items()} == dict.fromkeys(
        STREAMS, True
    )
    assert [stream for stream, one in found.items() if one.reply.answer] == []
    until(lambda: metric(world.bridge, "upstream_failures_total") >= before + len(STREAMS), 5, "the count of failures")


def test_a_stream_in_small_pieces_that_comes_in_time_is_an_answer(world: World) -> None:
    asked = name()
    world.stub.streams[asked] = lambda query: [framed(true(query))[at : at + 12] for at in range(0, 120, 12)]
    found = got(world, lambda _, query: [only_head(query)], asked=asked)

    assert values(found.reply) == [TRUTH]


def test_behind_some_false_messages_on_one_connection_the_true_one_is_taken(world: World) -> None:
    asked = name()
    world.stub.streams[asked] = lambda query: [framed(b"\0\0" + false(query)[2:]) * 5 + framed(true(query))]
    found = got(world, lambda _, query: [only_head(query)], asked=asked)

    assert values(found.reply) == [TRUTH]


@pytest.mark.parametrize(("payload", "size_max"), [(0, 512), (1232, 1232), (4096, 1232)])
def test_a_reply_of_a_thousand_records_is_cut_to_what_the_client_takes(
    world: World, payload: int, size_max: int
) -> None:
    """Also when it came in one datagram, larger than we said we take."""
    asked = name()
    lines = [f"{asked}. 60 IN A 192.0.{n // 250}.{n % 250}" for n in range(1000)]
    found = got(world, lambda _, query: [made(query, *lines)], asked=asked, payload=payload)

    assert len(found.reply.to_wire()) <= size_max
    assert found.reply.flags & dns.flags.TC
    assert 25 < len(values(found.reply)) < 80
    assert len(values(ask(world.port, asked, tcp=True))) == 1000


def test_of_two_replies_the_first_counts(world: World) -> None:
    asked = name()
    found = got(world, lambda _, query: [true(query), false(query), false(query)], asked=asked)

    assert values(found.reply) == [TRUTH]
    assert addresses(world.port, asked) == [TRUTH]


@pytest.mark.parametrize("rcode", [1, 2, 4, 5, 6, 9, 11, 15, 16, 23, 4095])
def test_any_other_rcode_is_a_failure_at_once_and_is_not_kept(world: World, rcode: int) -> None:
    """BADVERS and above are told by the OPT record."""
    asked = name()
    before = metric(world.bridge, "upstream_failures_total")
    found = got(world, lambda _, query: [made(query, f"{asked}. 600 IN A {LIE}", rcode=rcode)], asked=asked)
    world.stub.says.clear()

    assert (found.rcode, found.reply.answer) == ("SERVFAIL", [])
    assert found.took_s < 2
    until(lambda: addresses(world.port, asked) == [TRUTH], 5, "the truth")
    until(lambda: metric(world.bridge, "upstream_failures_total") > before, 5, "the count of failures")


@pytest.mark.parametrize("ttl_s", [2**31, 2**32 - 1])
def test_a_ttl_of_2_to_the_31_and_more_counts_as_0(world: World, ttl_s: int) -> None:
    """RFC 2181 8: for us, and for clients that would take it for a century."""
    asked = name()

    def says(_: str, query: bytes) -> list[bytes]:
        whole = made(query, f"{asked}. 77 IN A {TRUTH}")
        return [whole.replace(struct.pack("!I", 77), struct.pack("!I", ttl_s), 1)]

    world.stub.says[asked] = says
    reply = exchange(packet(asked), world.port)
    before = world.stub.count(asked)
    ask(world.port, asked)

    assert reply.endswith(bytes(4) + b"\0\4" + bytes(map(int, TRUTH.split("."))))
    assert world.stub.count(asked) == before + 1


def test_no_answer_and_no_soa_is_no_record_and_is_not_kept(world: World) -> None:
    """RFC 2308 5: without a SOA nothing says how long; the next one asks again."""
    asked = name()
    found = got(world, lambda _, query: [made(query)], asked=asked)
    world.stub.says.clear()

    assert (found.rcode, found.reply.answer) == ("NOERROR", [])
    assert addresses(world.port, asked) == [TRUTH]


def test_no_answer_from_a_server_without_recursion_is_a_failure(world: World) -> None:
    found = got(world, lambda _, query: [made(query, no_recursion=True)])

    assert found.rcode == "SERVFAIL"
    assert found.took_s < 2
