"""What log and status tell of protection, of the brake and of services that Nacos calls unhealthy: with numbers."""

from __future__ import annotations

import random
from typing import Any

import structlog
from structlog.testing import CapturingLogger

from fakes.clock import VirtualClock, VirtualLoop
from fakes.world import FakeDisk, FakeRegistry, FakeStore
from nacosdns.core.frames import known
from nacosdns.core.metrics import Counters
from nacosdns.core.model import Instance, NoneHealthy, Policy, ServiceKey, ServiceView, Snapshot
from nacosdns.core.naming import Names
from nacosdns.core.policy import Policies
from nacosdns.core.schedule import Settings as ScheduleSettings
from nacosdns.core.services import Settings as ServicesSettings
from nacosdns.keeper import Keeper
from nacosdns.keeper_control import KeeperControl

THREE = tuple(Instance(f"10.0.0.{n}", 80) for n in (1, 2, 3))
SICK = tuple(Instance(f"10.0.0.{n}", 80, healthy=False) for n in (1, 2))


def key(name: str, group: str = "DEFAULT_GROUP") -> ServiceKey:
    return ServiceKey("public", group, name)


class World:
    """A keeper that never runs: lists are pushed by hand, requests are answered by hand."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.loop = VirtualLoop()
        self.sink = CapturingLogger()
        self.registry = FakeRegistry(["public"])
        self.keeper = Keeper(
            policies=Policies(policy or Policy()),
            services=ServicesSettings(),
            schedule=ScheduleSettings(),
            registry=self.registry,
            store=FakeStore(FakeDisk()),
            clock=VirtualClock(self.loop),
            rng=random.Random(1),
            log=structlog.wrap_logger(self.sink, processors=[], wrapper_class=structlog.make_filtering_bound_logger(0)),
            counters=Counters(),
            epoch=1,
        )
        self.keeper.connected("public")

    def status(self) -> dict[str, Any]:
        return KeeperControl(self.keeper, Names(())).status()

    def said(self, event: str) -> list[dict[str, Any]]:
        return [call.kwargs for call in self.sink.calls if call.kwargs["event"] == event]

    def push(self, name: str, instances: tuple[Instance, ...]) -> None:
        self.keeper.pushed(key(name), ServiceView(instances))

    def close(self) -> None:
        self.loop.close()


def test_the_brake_says_how_many_services_of_how_many_and_what_it_keeps() -> None:
    world = World()
    names = [f"s{n}" for n in range(10)]
    for name in names:
        world.push(name, THREE)
    for name in names[:5]:
        world.push(name, THREE[:1])
    engaged = world.said("brake.engaged")
    status = world.status()
    world.close()

    assert [(line["services"], line["of"], line["kept"]) for line in engaged] == [(5, 10, 10)]
    assert {line["kept"] for line in world.said("push.disbelieved")} == {2}
    assert {part: status["brake"][part] for part in ("services", "known", "kept")} == {
        "services": 5, "known": 10, "kept": 10,
    }  # fmt: skip
    assert 0 < status["brake"]["ends_s"] <= 900


def test_a_list_that_is_not_believed_says_how_many_instances_are_served_all_the_same() -> None:
    world = World()
    world.push("orders", THREE)
    world.push("orders", ())
    world.close()

    assert [(line["reason"], line["kept"]) for line in world.said("push.disbelieved")] == [("empty", 3)]


def test_services_that_nacos_calls_unhealthy_are_told_with_what_is_answered() -> None:
    said = []
    for policy in (NoneHealthy.ALL, NoneHealthy.NODATA):
        world = World(Policy(none_healthy=policy))
        world.push("sick", SICK)
        world.push("well", (*SICK, THREE[2]))
        said.append(world.status())
        world.close()

    assert [status["unhealthy_count"] for status in said] == [1, 1]
    assert [status["unhealthy"][0]["answered"] for status in said] == [
        "none healthy: all of them by policy",
        "none healthy: no answer by policy",
    ]
    assert said[0]["unhealthy"][0] | {"answered": ""} == {
        "service": str(key("sick")), "instances": 2, "answered": "",
    }  # fmt: skip


def test_what_only_the_disk_remembers_is_not_called_unhealthy() -> None:
    world = World()
    world.keeper.services.rest([known(Snapshot(key("old"), SICK))])
    world.push("sick", SICK)
    world.keeper.disconnected("public")
    status = world.status()
    world.close()

    assert status["unhealthy_count"] == 0


def test_what_nacos_lists_of_a_group_is_told_beside_how_many_we_know_of_which_it_lists_none() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.push(name, THREE)
    told = []
    for truth in ((), ("x",), ("x", "B")):
        world.registry.truth = {key(name): ServiceView(THREE) for name in truth}
        world.loop.run_until_complete(world.keeper._read_catalogue("public", "DEFAULT_GROUP"))
        told += [(row["listed"], row["strangers"]) for row in world.status()["catalogues"]]
    world.close()

    assert told == [(0, 3), (1, 3), (2, 0)]
