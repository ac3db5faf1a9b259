"""The keeper and one front's link that reads slowly, many look-ups at once, a disk that lost writes."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
import structlog

from fakes.clock import VirtualClock, VirtualLoop
from fakes.world import FakeDisk, FakeRegistry, FakeStore, SlowLink
from nacosdns.core.frames import Hello, LookedUp, Lookup, Names, Updates
from nacosdns.core.metrics import Counters
from nacosdns.core.model import Instance, Policy, ServiceKey, ServiceView
from nacosdns.core.policy import Policies
from nacosdns.core.schedule import Settings as ScheduleSettings
from nacosdns.core.services import Settings as ServicesSettings
from nacosdns.keeper import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


BARE = ("public", "DEFAULT_GROUP")


class World:
    def __init__(self, loop: VirtualLoop, *, bare: bool = False) -> None:
        self.disk = FakeDisk()
        self.registry = FakeRegistry(["public"])
        self.schedule = ScheduleSettings(bare=frozenset([BARE] if bare else []))
        self.keeper = Keeper(
            policies=Policies(Policy()),
            services=ServicesSettings(),
            schedule=self.schedule,
            registry=self.registry,
            store=FakeStore(self.disk),
            clock=VirtualClock(loop),
            rng=random.Random(1),
            log=structlog.wrap_logger(None, processors=[_swallow]),
            counters=Counters(),
            epoch=1,
        )
        self.link = SlowLink()

    def join(self) -> None:
        self.keeper.joined(self.link, Hello(1, "front"))
        self.link.sent.clear()


def _swallow(_logger: object, _name: str, _event: object) -> str:
    raise structlog.DropEvent


def play(script: Callable[[World], Coroutine[None, None, None]], *, bare: bool = False) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        world = World(loop, bare=bare)
        running = loop.create_task(world.keeper.run())
        await script(world)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def key(name: str) -> ServiceKey:
    return ServiceKey("public", "DEFAULT_GROUP", name)


@pytest.mark.parametrize("alone", [True, False], ids=["no Nacos", "an idle Nacos"])
def test_a_keeper_with_nothing_to_do_sleeps(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    async def script(world: World) -> None:
        if alone:
            world.keeper.registry = None
        await asyncio.sleep(100)
        turns = []
        turn = world.keeper._turn
        monkeypatch.setattr(world.keeper, "_turn", lambda now: (turns.append(now), turn(now)))
        await asyncio.sleep(600)

        assert len(turns) < 200, "more than one turn in three seconds"

    play(script)


ONE = ServiceView((Instance("10.0.0.1", 80),))


def test_what_a_look_up_found_reaches_a_front_that_reads_slowly_before_the_word_that_it_was_found() -> None:
    async def script(world: World) -> None:
        world.registry.truth[key("orders")] = ONE
        await asyncio.sleep(1)
        world.join()
        world.link.congested = True
        world.keeper.received(world.link, Lookup((key("orders"),)))
        await asyncio.sleep(1)

        assert [type(frame) for frame in world.link.sent] == [Updates, LookedUp]
        assert world.link.outcomes() == ["found"]

    play(script)


def test_first_questions_for_names_that_the_catalogue_lists_have_no_rate() -> None:
    async def script(world: World) -> None:
        keys = [key(f"s{number}") for number in range(200)]
        world.registry.truth.update(dict.fromkeys(keys, ONE))
        await asyncio.sleep(1)
        world.join()
        for one in keys:
            world.keeper.received(world.link, Lookup((one,)))
        await asyncio.sleep(1)

        assert world.link.outcomes() == ["found"] * 200

    play(script)


def test_fronts_hear_the_catalogue_only_of_groups_with_bare_names() -> None:
    async def script(world: World) -> None:
        world.registry.truth[key("orders")] = ONE
        world.join()
        await asyncio.sleep(1)
        names = [frame for frame in world.link.sent if isinstance(frame, Names)]

        assert [frame.names for frame in names] == ([("orders",)] if world.schedule.bare else [])

    play(script)
    play(script, bare=True)


def test_what_was_removed_while_the_disk_was_full_leaves_the_disk_later() -> None:
    async def script(world: World) -> None:
        world.registry.truth[key("orders")] = ONE
        await asyncio.sleep(1)
        world.keeper.pushed(key("orders"), ONE)
        world.keeper.flush(key("orders"))
        world.disk.full = True
        world.keeper.services.remove(key("orders"), "deleted")
        world.keeper.pushed(key("other"), ONE)
        await asyncio.sleep(10)

        assert key("orders") in world.disk.services

        world.disk.full = False
        await asyncio.sleep(60)

        assert list(world.disk.services) == [key("other")]

    play(script)


def test_each_other_spelling_of_a_known_service_is_asked_for_once_a_catalogue_read_and_strangers_are_not() -> None:
    async def script(world: World) -> None:
        world.registry.truth.update(dict.fromkeys(map(key, ("orders", "sole", "OTHER", "Other")), ONE))
        world.registry.catalogue_only |= {key("ORDERS"), key("Orders")}
        await asyncio.sleep(1)
        world.join()
        world.keeper.received(world.link, Lookup((key("orders"), key("OrDeRs"))))
        await asyncio.sleep(1)
        world.registry.calls.clear()
        await asyncio.sleep(600)
        reads = sum(call.startswith("list") for call in world.registry.calls)
        asked = [call for call in world.registry.calls if call.startswith("query") and call != "query orders"]

        assert reads > 5
        assert set(asked) == {"query ORDERS", "query Orders"}
        assert len(asked) == 2 * reads

    play(script, bare=True)


def test_a_spelling_that_the_catalogue_lists_without_instances_asks_for_no_further_read() -> None:
    async def script(world: World) -> None:
        world.registry.truth[key("orders")] = ONE
        world.registry.catalogue_only.add(key("Orders"))
        await asyncio.sleep(1)
        world.join()
        world.keeper.received(world.link, Lookup((key("orders"),)))
        await asyncio.sleep(400)

        assert sum(call.startswith("list") for call in world.registry.calls) == 1

    play(script)


def test_a_static_service_is_not_hidden_behind_another_spelling() -> None:
    async def script(world: World) -> None:
        world.registry.truth[key("Orders")] = ONE
        world.keeper.set_static({key("orders"): (Instance("10.0.0.9", 80),)})
        await asyncio.sleep(200)

        assert "query Orders" not in world.registry.calls

    play(script, bare=True)


def test_a_question_for_a_name_that_the_catalogue_still_lists_and_that_is_gone_has_it_read_again() -> None:
    async def script(world: World) -> None:
        world.registry.truth[key("orders")] = ONE
        await asyncio.sleep(1)
        world.registry.truth.clear()
        world.join()
        world.keeper.received(world.link, Lookup((key("orders"),)))
        await asyncio.sleep(100)

        assert world.link.outcomes() == ["missing"]
        assert sum(call.startswith("list") for call in world.registry.calls) == 2

    play(script)
