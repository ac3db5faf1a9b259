"""Bytes from strangers: queries, names, replies and link frames are read, or refused by the one error of their room."""

from __future__ import annotations

import struct
import sys
from random import Random
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.outside import World, make_query
from fakes.upstream import Script
from nacosdns.core import dnswire, frames
from nacosdns.core.dnsname import labels_of
from nacosdns.core.errands import Deliver, Failed, ForwardSettings, Hit, Send
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.frames import (
    Externals,
    Frame,
    Hello,
    Known,
    LookedUp,
    Names,
    Removed,
    Synced,
    Updates,
    encode,
    known,
)
from nacosdns.core.model import Instance, Rcode, ServiceKey, Snapshot, Zone
from nacosdns.core.naming import Names as NamingRules
from nacosdns.core.naming import ServiceName
from nacosdns.core.resolvers import Ours
from nacosdns.edge.link import FrameReader
from nacosdns.errors import LinkError, WireError

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = ServiceKey("public", "G", "orders")
HEADER = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
QUESTION = b"\6orders\5nacos\0\0\1\0\1"
OPT = b"\0\0\x29\x04\xd0\0\0\x80\0\0\x0c\0\x0a\0\x08cookie00"
SEEDS = (HEADER + QUESTION, HEADER[:11] + b"\1" + QUESTION + OPT)
U1 = "192.0.2.1:53"

mutations = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "insert", "double"]), st.integers(0, 2**16), st.binary(min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=6,
)


def mutated(seed: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    packet = bytearray(seed)
    for how, where, junk in changes:
        at = where % (len(packet) + 1)
        match how:
            case "set":
                packet[at : at + len(junk)] = junk
            case "cut":
                del packet[at:]
            case "insert":
                packet[at:at] = junk
            case _:
                packet[at:] *= 2
        packet = packet[:4096]
    return bytes(packet)


def steps_of(work: Callable[[], object]) -> int:
    """How many lines of Python were run: a cost that no other process changes."""
    count = 0

    def trace(_frame: object, event: str, _arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


# Queries


@given(st.sampled_from(SEEDS), mutations, st.booleans())
@settings(max_examples=400)
def test_any_change_to_a_query_is_a_query_or_a_wire_error_and_its_reply_is_fit_to_send(seed, changes, over_tcp):
    packet = mutated(seed, changes)
    try:
        query = dnswire.parse_query(packet, over_tcp=over_tcp)
    except WireError as error:
        if error.reason in {"short", "response"}:
            return
    else:
        assert query.question == packet[12 : 12 + len(query.question)]
        assert query.labels == labels_of(query.question[:-4])
    reply = dnswire.error_reply(packet, Rcode.FORMERR)

    assert reply[:2] == packet[:2]
    assert reply[2] & 0x80
    assert len(reply) <= 512
    assert len(reply) <= len(packet) + 11


def chained(records: int, pointers: int) -> bytes:
    """A query with a chain of pointers in the data of one record, at whose end so many other records begin."""
    first = b"\0" + struct.pack("!HHIH", 10, 1, 0, 2 * pointers)
    at = len(HEADER) + len(QUESTION) + len(first)
    chain = b"".join(struct.pack("!H", 0xC000 | (at + 2 * n - 2 if n else 12)) for n in range(pointers))
    last = struct.pack("!HHHIH", 0xC000 | (at + 2 * pointers - 2), 10, 1, 0, 0)
    return HEADER[:10] + struct.pack("!H", records + 1) + QUESTION + first + chain + last * records


def cost_of(packet: bytes, read: Callable[[bytes], object]) -> int:
    def work() -> None:
        try:
            read(packet)
        except WireError:
            return

    return steps_of(work)


@pytest.mark.parametrize("read", [dnswire.parse_query, lambda packet: dnswire.scan_reply(as_reply(packet))])
def test_records_that_begin_with_a_long_chain_of_pointers_are_refused_at_once(read):
    """RFC 9267 2: 64 KiB of them cost seconds of a process that answers everybody, were each chain followed to its end."""
    assert cost_of(chained(4000, 8000), read) < 5000


@given(st.integers(1, 100), st.integers(1, 300))
@settings(max_examples=20)
def test_the_cost_of_a_query_is_bounded_by_its_records_whatever_they_point_to(records, pointers):
    assert cost_of(chained(records, pointers), dnswire.parse_query) <= 300 + (records + 1) * (40 + 12 * 128)


@pytest.mark.parametrize("records", [17, 5400])
def test_a_query_with_more_records_than_any_has_is_refused_unread(records):
    """A name of 127 labels at which 5,400 records point cost 80 ms, and a client may send many such messages."""
    start = len(HEADER) + len(QUESTION)
    name = b"\1a" * 127 + b"\0" + struct.pack("!HHIH", 10, 1, 0, 0)
    packet = HEADER[:10] + struct.pack("!H", records) + QUESTION + name
    packet += struct.pack("!HHHIH", 0xC000 | start, 10, 1, 0, 0) * (records - 1)

    assert cost_of(packet, dnswire.parse_query) < 100


def as_reply(packet: bytes) -> bytes:
    return packet[:2] + bytes((packet[2] | 0x80,)) + packet[3:]


# Names

labels = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=63),
        st.sampled_from(
            [b"_tcp", b"_udp", b"_grpc_config", b"group", b"cluster", b"ns", b"addr", b"@@", b"xn--", b"_any"]
        ),
        st.text(max_size=15).map(str.encode).filter(bool),
        st.sampled_from(["²", "٣", "İ", "ß", "ﬃ", "\u0345", "\U00010400"]).map(str.encode),
        st.binary(max_size=20).map(lambda tail: b"xn--" + tail),
    ),
    max_size=7,
)
RULES = NamingRules(
    [
        Zone(name=b"\5nacos\0", bare_names=True, bare_allow=("single-label", "*.db.test")),
        Zone(name=b"\2de\5nacos\0", namespace="Ns-1", group="Gruppe"),
    ],
    namespaces={"prod": "33ea21bc"},
    groups={"pay": "com.example.PAY"},
    nacos_hosts=["registry.nacos"],
)


@given(labels, st.sampled_from([(b"nacos",), (b"de", b"nacos"), (b"prod", b"ns", b"nacos"), (b"db", b"test"), ()]))
@settings(max_examples=500)
def test_any_labels_mean_something_that_can_be_asked_of_the_registry(some, tail):
    target = RULES.resolve((*some, *tail))

    if isinstance(target, ServiceName):
        for candidate in target.candidates:
            for key in candidate.spellings:
                assert frames.encode(key)
                assert all((key.namespace, key.group, key.service))
            assert RULES.full_name(candidate.spellings[0]) or RULES.unnameable(candidate.spellings[0])


# Frames of the link

FRAMES: tuple[Frame, ...] = (
    Hello(1, "front"),
    Updates((known(Snapshot(KEY, (Instance("10.0.0.1", 80),), 3)),)),
    Removed(KEY, "gone"),
    Synced(1, 2),
    LookedUp((KEY,), "found"),
    Names("public", "G", ("a", "b"), 1.5),
    Externals((frames.External(b"\1a\0\0\1\0\1", 1, b"reply", 2.0, 60),)),
)


@given(st.sampled_from(FRAMES), mutations)
@settings(max_examples=400)
def test_any_change_to_a_frame_is_a_frame_or_a_link_error(frame, changes):
    body = mutated(encode(frame), changes)
    try:
        heard = FrameReader().feed(len(body).to_bytes(4, "big") + body)
    except LinkError:
        return

    assert all(isinstance(one, Frame) for one in heard)
    for one in heard:
        assert encode(one)


@pytest.mark.parametrize("frame", [Updates, frames.Have])
def test_a_body_of_arrays_in_arrays_is_a_link_error_although_nobody_looks_into_it(frame):
    deep = msgspec.Raw(b"\x91" * 100_000 + b"\xc0")
    body = encode(frame((Known(KEY, 1, deep),)))

    with pytest.raises(LinkError):
        FrameReader().feed(len(body).to_bytes(4, "big") + body)


def request(argument: bytes) -> bytes:
    return encode(frames.Ask(1, "ask", {"name": msgspec.Raw(argument)}))


@given(st.binary(max_size=12), mutations)
@settings(max_examples=200)
def test_what_is_taken_for_a_request_has_arguments_that_can_be_read(argument, changes):
    for body in (request(argument), mutated(request(b"\xa6orders"), changes)):
        try:
            frame = frames.decode_channel(body)
        except msgspec.MsgspecError:
            continue

        if isinstance(frame, frames.Ask):
            assert len([msgspec.msgpack.decode(value) for value in frame.arguments.values()]) == len(frame.arguments)


@pytest.mark.parametrize("argument", [b"\xa1\xff", b"\xc1", b"", b"\x91", b"\x91" * 50_000 + b"\xc0"])
def test_an_argument_that_cannot_be_read_is_refused_at_the_door(argument):
    with pytest.raises(msgspec.MsgspecError):
        frames.decode_channel(request(argument))


# Replies of upstreams


def asked_once() -> tuple[Forwarding, Send]:
    """A forwarding room that waits for one answer, and what it sent."""
    forwarding = Forwarding(ForwardSettings(), Random(1))
    forwarding.set_upstreams([U1], Ours(), 5000.0)
    forwarding.tick(5000.0)
    forwarding.take_work()
    forwarding.ask(make_query("ext.test"), "waiter", 5000.0)
    (sent,) = (work for work in forwarding.take_work() if isinstance(work, Send))
    return forwarding, sent


def truthful(sent: Send) -> bytes:
    script = Script()
    script.answer_chain("ext.test", "A", "ext.test. 60 CNAME www.test.", "www.test. 60 A 192.0.2.1")
    query = script.note("udp", sent.packet, 1)
    assert query is not None
    return script.reply(query, over_tcp=False)


@given(mutations, st.integers(0, 3))
@settings(max_examples=400)
def test_any_change_to_a_reply_is_an_answer_a_failure_or_ignored_and_never_raises(changes, keep):
    """Whatever comes, the client gets one reply that can be read, under its own id and question, and nothing is left over."""
    forwarding, sent = asked_once()
    packet = mutated(truthful(sent), changes)
    packet = (sent.packet[:12] + packet[12:], sent.packet[:2] + packet[2:], packet, packet)[keep]
    if len(packet) < 12:
        return  # the edge hands none of these on
    forwarding.received(sent.token, packet, 5000.1, 1e9)
    now = 5000.1
    told = [work for work in forwarding.take_work() if isinstance(work, Deliver)]
    while (due := forwarding.next_due()) is not None and now < 5010 and not told:
        now = max(due, now)
        forwarding.tick(now)
        told += [work for work in forwarding.take_work() if isinstance(work, Deliver)]

    (one,) = told
    if isinstance(one.outcome, Hit):
        query = make_query("ext.test")
        assert one.outcome.packet[:2] == query.id.to_bytes(2, "big")
        assert one.outcome.packet[12:].startswith(query.question)
        assert len(one.outcome.packet) <= 512
    else:
        assert one.outcome.rcode == Rcode.SERVFAIL
    again = forwarding.ask(make_query("other.test"), "next", now + 5)
    assert not isinstance(again, Hit)
    assert not (isinstance(again, Failed) and again.rcode != Rcode.SERVFAIL)


@given(st.lists(st.tuples(mutations, st.booleans()), min_size=1, max_size=5))
@settings(max_examples=60)
def test_after_any_false_replies_the_true_one_is_still_taken(lies):
    forwarding, sent = asked_once()
    truth = truthful(sent)
    handed = 0
    for changes, wrong_name in lies:
        false = mutated(truth, changes)
        false = (
            false[:12] + b"\4evil" + false[17:] if wrong_name else bytes((false + bytes(12))[:2]) + b"\0" + false[3:]
        )
        if len(false) < 12:
            continue
        handed += 1
        if forwarding.received(sent.token, false, 5000.1, 1e9):
            return  # so like the truth that it ends the waiting: a failure, or an answer
    assert forwarding.received(sent.token, truth, 5000.2, 1e9)

    (told,) = (work for work in forwarding.take_work() if isinstance(work, Deliver))
    assert isinstance(told.outcome, Hit)
    assert forwarding.counts.upstream_spoofed == handed


def test_what_is_kept_is_kept_under_the_question_alone():
    """Bailiwick: records of other names beside the answer are handed to who asked, and answer nobody else."""
    world = World(U1)
    world[U1].answer_chain(
        "ext.test", "A", "ext.test. 60 A 192.0.2.1", "bank.test. 86400 A 203.0.113.66", "test. 86400 NS evil.test."
    )
    world.ask("ext.test")

    assert world.ask("bank.test").rcode == "NXDOMAIN"
    assert world.ask("test", "NS").values == []
    assert world[U1].count("bank.test") == 1
