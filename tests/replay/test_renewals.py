"""Pushes of big services between two turns of a front's loop: what is told meanwhile, by keeper and front as they are."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import dnslib
import pytest

from fakes.clock import VirtualLoop
from nacosdns.core.model import Instance, ServiceKey, ServiceView
from replay.engine import SETTLE_S, Scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

QUIET = {"list", "query", "subscribe", "unsubscribe", "upstream"}
SIZE = 400
KEY = ServiceKey("public", "DEFAULT_GROUP", "big")
NAMES = ("big.nacos A", "big.nacos SRV", "big.DEFAULT_GROUP.group.nacos A", "big.DEFAULT.cluster.nacos A")


class Renewals(Scenario):
    """The n-th value of the service has ``SIZE - n`` instances, so that an answer says which it is from."""

    def value(self, number: int) -> ServiceView:
        members = (Instance(f"10.0.{n // 250}.{n % 250 + 1}", 80, 1.0 + n) for n in range(SIZE - number))
        return ServiceView(tuple(members))

    async def begin(self, asked: tuple[str, ...]) -> None:
        await self.start()
        await asyncio.sleep(SETTLE_S)
        self.registry.truth[KEY] = self.value(0)
        self.do_ask(f"{NAMES[0]} tcp")
        await asyncio.sleep(1.0)
        self.next_reply()
        for words in asked:
            assert self.told(words) == 0

    def push(self, number: int) -> None:
        self.registry.truth[KEY] = self.value(number)
        self.registry.push(KEY)

    def told(self, words: str) -> int:
        """From which value the answer is, by the doors' way or the slow one."""
        name, qtype = words.split()
        packet = bytes(dnslib.DNSRecord.question(name, qtype).pack())
        connection = _Connection()
        self.front.asked(packet, b"\x7f\0\0\1", connection)  # type: ignore[arg-type]
        reply = dnslib.DNSRecord.parse(connection.given[0])
        for record in reply.rr:
            assert str(record.rname).lower() == f"{name.lower()}."
        return SIZE - len(reply.rr)

    async def turns_until(self, number: int, words: str) -> int:
        """Turns of the loop until this value is told."""
        for turn in range(200):
            if self.told(words) == number:
                return turn
            await asyncio.sleep(0 if turn < 100 else 0.01)
        raise AssertionError(f"value {number} is not told of {words}")

    async def end(self) -> None:
        self.end_strictly()
        await self.stop_keeper()
        self.front.close()


class _Connection:
    def __init__(self) -> None:
        self.given: list[bytes] = []

    def reply(self, packet: bytes | None) -> None:
        assert packet is not None
        self.given.append(packet)


def play(
    directory: Path, script: Callable[[Renewals], Awaitable[None]], asked: tuple[str, ...] = NAMES[:1]
) -> Renewals:
    path = directory / "scenario.toml"
    path.write_text('forward.upstreams = ["192.0.2.53"]\n', encoding="utf-8")
    loop = VirtualLoop()

    async def whole(scenario: Renewals) -> None:
        await scenario.begin(asked)
        await script(scenario)
        await scenario.end()

    try:
        scenario = Renewals(path, QUIET, loop)
        loop.run_until_complete(whole(scenario))
    finally:
        loop.close()
    return scenario


def test_a_big_service_is_told_anew_some_turns_after_a_push_and_never_decided_anew(tmp_path: Path) -> None:
    """The page is there when the value is: no question waits for its rendering."""
    decided = []

    async def script(scenario: Renewals) -> None:
        scenario.push(1)
        decide = scenario.pipeline.decide
        scenario.pipeline.decide = lambda *words: decided.append(1) or decide(*words)  # type: ignore[method-assign,func-returns-value]
        assert await scenario.turns_until(1, NAMES[0]) >= 5

    play(tmp_path, script)

    assert decided == []


@pytest.mark.parametrize("seed", range(12))
def test_no_answer_is_older_than_one_given_before_whatever_is_asked_between_the_slices(
    tmp_path: Path, seed: int
) -> None:
    """Of all names and types of the service, also of those that have no page yet; pushes come meanwhile."""
    rng = random.Random(seed)
    seen: list[int] = []

    async def script(scenario: Renewals) -> None:
        pushed = 0
        for _ in range(60):
            if rng.random() < 0.1:
                pushed += 1
                scenario.push(pushed)
            seen.extend(map(scenario.told, rng.sample(NAMES, rng.randrange(3))))
            await asyncio.sleep(0)
        await asyncio.sleep(1.0)
        seen.extend(scenario.told(words) for words in NAMES)
        assert set(seen[-len(NAMES) :]) == {pushed}

    play(tmp_path, script, asked=tuple(rng.sample(NAMES, 2)))

    assert seen == sorted(seen)


@pytest.mark.parametrize("later", range(0, 16, 3))
def test_the_newest_of_two_pushes_wins(tmp_path: Path, later: int) -> None:
    async def script(scenario: Renewals) -> None:
        scenario.push(1)
        for _ in range(later):
            await asyncio.sleep(0)
        scenario.push(2)
        await scenario.turns_until(2, NAMES[0])
        await asyncio.sleep(1.0)
        assert scenario.told(NAMES[0]) == 2

    play(tmp_path, script)


@pytest.mark.parametrize("turns", range(0, 12, 2))
def test_a_new_configuration_between_two_slices_counts_for_every_answer_from_then_on(
    tmp_path: Path, turns: int
) -> None:
    async def script(scenario: Renewals) -> None:
        scenario.push(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        scenario.do_configure("policy.ttl_s = 77")
        ttls = set()
        for _ in range(30):
            scenario.do_ask(f"{NAMES[0]} tcp")
            ttls |= {record.ttl for record in scenario.next_reply().rr}
            await asyncio.sleep(0)
        assert ttls == {77}
        assert scenario.told(NAMES[0]) == 1

    play(tmp_path, script)


def test_a_front_that_loses_its_keeper_between_two_slices_takes_the_value_in_all_the_same(tmp_path: Path) -> None:
    async def script(scenario: Renewals) -> None:
        scenario.push(1)
        for _ in range(100):
            if "<Renewing 1" in repr(scenario.front._renewing):
                break
            await asyncio.sleep(0)
        await scenario.stop_keeper()
        assert scenario.told(NAMES[0]) == 0
        assert await scenario.turns_until(1, NAMES[0]) >= 1

    play(tmp_path, script)


def test_who_waits_for_the_registry_is_told_what_it_said_and_not_what_is_being_replaced(tmp_path: Path) -> None:
    """An old entry: the first question waits for the registry, the next ones are answered from the old page meanwhile."""

    async def script(scenario: Renewals) -> None:
        await scenario.stop_keeper()
        scenario.registry.subscribed.clear()
        scenario.registry.truth[KEY] = scenario.value(1)
        scenario.registry.delay_s = 0.05
        scenario.clock.wall_jump_s += 3600.0
        await scenario.start_keeper()
        await asyncio.sleep(SETTLE_S)
        scenario.do_ask(f"{NAMES[0]} tcp")
        assert [scenario.told(NAMES[0]) for _ in range(3)] == [0, 0, 0]
        assert scenario.asked[0][1].packet is None
        await asyncio.sleep(1.0)
        assert SIZE - len(scenario.next_reply().rr) == 1

    play(tmp_path, script)
