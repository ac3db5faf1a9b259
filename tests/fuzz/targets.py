"""What is fuzzed: for each room that reads bytes from outside, seeds and one function that must raise nothing of its own.

A target returns nothing; what it may raise (WireError, LinkError, ConfigError) it takes for an answer. Anything else,
an assertion too, is a find.
"""

from __future__ import annotations

import sqlite3
import struct
import tempfile
import zlib
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from nacosdns import config as configuration
from nacosdns.config_load import find_lines, load
from nacosdns.core import dnsreply, dnswire, frames
from nacosdns.core.dnsname import labels_of, name_to_wire, text_name
from nacosdns.core.errands import Deliver, Failed, ForwardSettings, Hit, Send
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.model import Instance, Query, Rcode, ServiceKey, Snapshot, Zone
from nacosdns.core.naming import Names, ServiceName
from nacosdns.core.outside import Outside
from nacosdns.core.resolvers import Ours
from nacosdns.edge import store
from nacosdns.edge.link import FrameReader
from nacosdns.errors import ConfigError, LinkError, WireError

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED = text_name("ext.test") + b"\0\1\0\1"
HEADER = struct.Struct("!6H")
KEY = ServiceKey("public", "DEFAULT_GROUP", "orders")
NAMES = Names(
    [Zone(name=b"\5nacos\0", bare_names=True, bare_allow=("single-label", "*.db.test"))],
    namespaces={"prod": "33ea21bc"},
    groups={"pay": "com.example.PAY"},
)


class Target(NamedTuple):
    """One room: what it is given, and what a good input looks like."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def query(data: bytes) -> None:
    """A packet at the door."""
    try:
        read = dnswire.parse_query(data)
    except WireError as error:
        if error.reason in {"short", "response"}:
            return
    else:
        assert name_to_wire(labels_of(read.name)) == read.name
        assert dnswire.size_limit(read) >= 512
    reply = dnswire.error_reply(data, Rcode.FORMERR)
    assert reply[:2] == data[:2]
    assert reply[2] & 0x80
    assert len(reply) <= 512


def reply(data: bytes) -> None:
    """A packet of an upstream, for a question on its way: at most one answer comes of it, under the client's own id."""
    forwarding = Forwarding(ForwardSettings(), Random(1))
    forwarding.set_upstreams(["192.0.2.1:53"], Ours(), 0.0)
    asked = Query(4711, 0x0100, ASKED, ASKED[:-4], 1)
    forwarding.ask(asked, None, 0.0)
    (sent,) = (work for work in forwarding.take_work() if isinstance(work, Send))
    packet = data.ljust(12, b"\0")
    forwarding.received(sent.token, packet, 0.1, 1e9)
    told = [work.outcome for work in forwarding.take_work() if isinstance(work, Deliver)]
    assert len(told) <= 1
    for outcome in told:
        assert isinstance(outcome, Hit | Failed)
        if isinstance(outcome, Hit):
            assert outcome.packet.startswith((4711).to_bytes(2, "big"))
            assert outcome.packet.startswith(ASKED, 12)
            assert len(outcome.packet) <= 512
            _read_on(packet)


def _read_on(packet: bytes) -> None:
    """What the chase behind an alias reads of a reply that was taken."""
    try:
        dnsreply.answer_records(packet)
        dnsreply.negative_soa(packet)
    except WireError:
        return


def name(data: bytes) -> None:
    """A name in wire form; what it means, and what that service is called."""
    try:
        labels = labels_of(data)
    except WireError:
        return
    target = NAMES.resolve(labels)
    NAMES.is_plainly_outside(data.lower())
    if isinstance(target, ServiceName):
        for candidate in target.candidates:
            for key in candidate.spellings:
                frames.encode(key)
                assert NAMES.full_name(key) or NAMES.unnameable(key)


def frame(data: bytes) -> None:
    """Bytes on the link, in two pieces."""
    reader = FrameReader()
    try:
        heard = [*reader.feed(data[: len(data) // 2]), *reader.feed(data[len(data) // 2 :])]
    except LinkError:
        return
    for one in heard:
        assert frames.encode(one)


def rows(data: bytes) -> None:
    """Columns of rows on disk: what they hold is the input, cut into pieces, with and without a right checksum."""
    connection = sqlite3.connect(":memory:")
    connection.text_factory = store._text
    connection.executescript(store._TABLES)
    pieces = data.split(b"|")
    pieces += [b""] * (8 - len(pieces))
    body = pieces[4]
    values = (*pieces[:4], 1, body, zlib.crc32(body), float(len(data)))
    casts = ", ".join(["CAST(? AS TEXT)"] * 4 + ["?"] * 4)
    connection.execute(f"INSERT OR REPLACE INTO services VALUES ({casts})", values)  # noqa: S608  # places only
    connection.execute("INSERT INTO externals VALUES (?, 0, ?, ?, 1.0)", (pieces[5], pieces[6], zlib.crc32(pieces[6])))
    reader = store.Reader(connection)
    contents = reader.recent(10)
    assert not contents.broken
    assert sum(map(len, reader.parts(2))) == len(contents.services)
    outside = Outside(Random(1), entries_max=4)
    outside.restore(contents.externals, now=0.0, wall=1e9)
    list(outside.listing(0.0))
    connection.close()


def settings(data: bytes) -> None:
    """A configuration file."""
    find_lines(data.decode("utf-8", "replace"))
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        try:
            config = load(file.name, {})
        except ConfigError:
            return
    assert configuration.decode(configuration.encode(config)) == config
    configuration.names(config)
    configuration.policies(config)


def _packet(flags: int, *counts: int, rest: bytes) -> bytes:
    return HEADER.pack(0, flags, *counts) + rest


_ADDRESS = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\1"
_SOA = b"\xc0\x10\0\6\0\1\0\0\0\x3c\0\x1a\2ns\xc0\x10\xc0\x10" + bytes(20)
_OPT = b"\0\0\x29\x04\xd0\0\0\x80\0\0\x0c\0\x0a\0\x08cookie00"
_PLAIN_OPT = b"\0\0\x29\x04\xd0\0\0\0\0\0\0"
_ORDERS = b"\6orders\5nacos\0\0\1\0\1"
_SNAPSHOT = frames.known(Snapshot(KEY, (Instance("10.0.0.1", 80),), 3))
_EXTERNAL = frames.External(ASKED, 0, _packet(0x8180, 1, 1, 0, 0, rest=ASKED + _ADDRESS)[2:], 1.0, 60)
_FRAMES = (
    frames.Hello(1, "front"),
    frames.Updates((_SNAPSHOT,)),
    frames.Removed(KEY, "gone"),
    frames.Names("public", "G", ("a", "b"), 1.5),
    frames.Externals((_EXTERNAL,)),
    frames.LookedUp((KEY,), "found"),
)


def _framed(one: frames.Frame) -> bytes:
    body = frames.encode(one)
    return len(body).to_bytes(4, "big") + body


TARGETS = {
    "query": Target(
        query,
        (
            _packet(0x0100, 1, 0, 0, 0, rest=_ORDERS),
            _packet(0x0120, 1, 0, 0, 1, rest=_ORDERS + _OPT),
            _packet(0x0100, 1, 0, 1, 0, rest=_ORDERS[:-4] + b"\0\xfb\0\1" + _SOA),
        ),
    ),
    "reply": Target(
        reply,
        (
            _packet(0x8180, 1, 1, 0, 0, rest=ASKED + _ADDRESS),
            _packet(0x8180, 1, 2, 0, 1, rest=ASKED + b"\xc0\x0c\0\5\0\1\0\0\0\x3c\0\2\xc0\x10" + _ADDRESS + _PLAIN_OPT),
            _packet(0x8183, 1, 0, 1, 1, rest=ASKED + _SOA + _PLAIN_OPT),
            _packet(0x8380, 1, 0, 0, 0, rest=ASKED),
        ),
    ),
    "name": Target(
        name,
        tuple(
            text_name(text)
            for text in (
                "orders.nacos",
                "_80._tcp.o.c.cluster.pay.group.prod.ns.nacos",
                "xn--a.nacos",
                "G@@S.nacos",
                "db",
            )
        ),
    ),
    "frame": Target(frame, tuple(map(_framed, _FRAMES))),
    "rows": Target(
        rows,
        (
            b"|".join(
                (
                    b"main",
                    b"public",
                    b"DEFAULT_GROUP",
                    b"orders",
                    bytes(_SNAPSHOT.body),
                    ASKED,
                    frames.encode(_EXTERNAL),
                )
            ),
        ),
    ),
    "settings": Target(
        settings,
        (
            b'[server]\nlisten = ["127.0.0.1:53", "[::1]:53"]\n[[zone]]\nname = "nacos."\nbare_names = true\n',
            b'[policy]\nanswers = "one"\n[policy."mysql-*"]\nttl_s = 5\n[namespaces]\nprod = "33ea"\n',
            b'[[static]]\nname = "a"\ninstances = [{ ip = "10.0.0.1", port = 1, weight = 2.5 }]\n[log]\nqueries = "1/10"\n',
        ),
    ),
}
