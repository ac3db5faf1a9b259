from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import VirtualClock, VirtualLoop
from fakes.deciding import pipeline_of
from fakes.outside import World, make_query
from fakes.running import packet
from nacosdns.config import Config
from nacosdns.core.book import Book
from nacosdns.core.errands import Failed, ForwardSettings, Pending
from nacosdns.core.forwarding import Forwarding
from nacosdns.core.held import Held
from nacosdns.core.metrics import Counters
from nacosdns.core.model import ServiceKey
from nacosdns.core.resolvers import Ours
from nacosdns.core.shares import Shares
from nacosdns.edge import logs
from nacosdns.edge.udp import Client
from nacosdns.front import Front

U1 = "192.0.2.1:53"
HOG, OTHER, NOBODY = b"\x0a\0\0\1", b"\x0a\0\0\2", b""


def test_one_client_gets_half_two_get_a_third_each_and_a_newcomer_always_finds_a_place() -> None:
    shares = Shares(90)
    alone = sum(shares.take(HOG) for _ in range(200))
    shares = Shares(90)
    both = [(shares.take(HOG), shares.take(OTHER)) for _ in range(200)]

    assert alone == 45
    assert [sum(column) for column in zip(*both, strict=True)] == [30, 30]
    assert shares.take(b"\x0a\0\0\3")


def test_who_is_nobody_in_particular_is_bounded_by_all_places_only() -> None:
    shares = Shares(10)

    assert [shares.take(NOBODY) for _ in range(12)] == [True] * 10 + [False] * 2


@given(st.lists(st.tuples(st.sampled_from([HOG, OTHER, NOBODY]), st.booleans())))
def test_places_are_never_lost_and_never_too_many(steps: list[tuple[bytes, bool]]) -> None:
    shares, held = Shares(12), Counter[bytes]()
    for client, takes in steps:
        if takes:
            held[client] += shares.take(client)
        elif held[client]:
            shares.give_back(client)
            held[client] -= 1

        assert shares.taken == held.total() <= 12
    for client, count in held.items():
        for _ in range(count):
            shares.give_back(client)

    assert repr(shares) == "<Shares 0 of 12 by 0>"


def ask(world: World, name: str, client: bytes) -> object:
    query = msgspec.structs.replace(make_query(name), client=client)
    outcome = world.forwarding.ask(query, object(), world.now)
    world.forwarding.take_work()
    return outcome


def test_a_client_that_floods_a_mute_upstream_leaves_the_others_their_places() -> None:
    """Its names are all different, so that each takes a place among the questions on their way."""
    world = World(U1, settings=ForwardSettings(errands_max=40, waiters_max=100))
    flood = [ask(world, f"r{number}.test", HOG) for number in range(100)]
    others = [ask(world, f"good{number}.test", OTHER) for number in range(5)]

    assert sum(isinstance(outcome, Pending) for outcome in flood) == 20
    assert isinstance(flood[-1], Failed)
    assert all(isinstance(outcome, Pending) for outcome in others)


def test_a_client_that_asks_one_name_without_end_leaves_the_others_their_places() -> None:
    world = World(U1, settings=ForwardSettings(errands_max=40, waiters_max=100))
    flood = [ask(world, "slow.test", HOG) for _ in range(300)]

    assert sum(isinstance(outcome, Pending) for outcome in flood) == 50
    assert isinstance(ask(world, "slow.test", OTHER), Pending)


def test_places_come_back_when_questions_end() -> None:
    world = World(U1, settings=ForwardSettings(errands_max=40, waiters_max=100))
    for number in range(30):
        ask(world, f"r{number % 15}.test", HOG)
    before = world.forwarding.status(0.0)
    world.forwarding.tick(10.0)
    after = world.forwarding.status(10.0)

    assert (before.waiters, before.errands) == (30, 15)
    assert (after.waiters, after.errands) == (0, 0)
    assert "by 0>" in repr(world.forwarding._waiting)
    assert "by 0>" in repr(world.forwarding._begun)


def test_look_ups_of_one_client_leave_room_for_the_others() -> None:
    held: Held[int] = Held(held_max=10)
    for number in range(5):
        held.add((ServiceKey("public", "G", f"s{number}"),), number, now=0.0, patience_s=1.0, client=HOG)

    assert not held.has_room(HOG)
    assert held.has_room(OTHER)
    held.expired(2.0)
    assert held.has_room(HOG)


class NoDoor:
    """Of a client whose answer does not matter."""

    def reply(self, client: Client, packet: bytes) -> None:
        """Drops it."""


def make_front(loop: VirtualLoop) -> Front:
    """With places for twenty questions to upstreams and ten look-ups, an upstream, and no keeper."""
    clock, book = VirtualClock(loop), Book()
    forwarding = Forwarding(ForwardSettings(errands_max=20), Random(7))
    forwarding.set_upstreams([U1], Ours(), clock.now())
    pipeline = pipeline_of(Config(), book, allow="all")
    front = Front(pipeline=pipeline, book=book, forwarding=forwarding, clock=clock, counters=Counters(), log=logs.log())
    front._held = Held(10)
    return front


@pytest.mark.parametrize(("zone", "share"), [("test", 10), ("nacos", 5)], ids=["upstreams", "look-ups"])
def test_a_front_tells_clients_apart_by_their_addresses(zone: str, share: int) -> None:
    loop = VirtualLoop()

    async def told(front: Front, client: bytes, count: int) -> list[int | None]:
        """The rcodes that come at once; None for those who wait."""
        front._book.prepared.begin(loop.now)
        names = [f"{client[-1]}-{number}.{zone}" for number in range(count)]
        sender = Client(b"\x02\0\0\x35" + client + bytes(8))  # a sockaddr_in
        replies = [front.slow(packet(name), sender, NoDoor()) for name in names]  # type: ignore[arg-type]
        return [None if reply is None else reply[3] & 15 for reply in replies]

    async def scenario() -> tuple[list[int | None], list[int | None]]:
        front = make_front(loop)
        try:
            return await told(front, HOG, 30), await told(front, OTHER, 2)
        finally:
            front.close()

    flood, others = loop.run_until_complete(scenario())
    loop.close()

    assert flood == [None] * share + [2] * (30 - share)
    assert others == [None, None]
