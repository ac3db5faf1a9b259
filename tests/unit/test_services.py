"""What we believe of a service when the registry says something else: every doubt, its ends, and the brake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nacosdns.core.belief import on_disk
from nacosdns.core.frames import known
from nacosdns.core.model import Instance, Policy, Protection, ServiceKey, ServiceView, Snapshot, Source
from nacosdns.core.services import Services, Settings

if TYPE_CHECKING:
    from nacosdns.core.frames import Known

KEY = ServiceKey("public", "DEFAULT_GROUP", "orders")
WALL = 1_700_000_000.0


def view(*numbers: int, **changes: object) -> ServiceView:
    return ServiceView(tuple(Instance(f"10.0.0.{n}", 80, **changes) for n in numbers))  # type: ignore[arg-type]


BOOT = 1000.0
"""A host's clock is never 0; ``World.now`` counts from here."""


class World:
    """Services with a clock, in which lists are pushed and pulled."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.now = 0.0
        self.services = Services(Settings(), lambda _: policy or Policy())

    def connect(self) -> None:
        self.services.connected("public", BOOT + self.now)

    def cut(self) -> None:
        self.services.disconnected("public")

    def push(self, listed: ServiceView, key: ServiceKey = KEY) -> None:
        self.services.learn(key, listed, source=Source.PUSH, now=BOOT + self.now, wall=WALL + self.now)

    def pull(self, listed: ServiceView, key: ServiceKey = KEY) -> None:
        self.services.learn(key, listed, source=Source.PULL, now=BOOT + self.now, wall=WALL + self.now)

    def pass_time(self, until: float, listed: ServiceView, key: ServiceKey = KEY) -> None:
        """Time goes on, and every query that a doubt asks for is answered with this list."""
        while self.now < until:
            due = self.services.next_due()
            self.now = until if due is None or due - BOOT > until else max(due - BOOT, self.now)
            for due_key in self.services.due(BOOT + self.now):
                if due_key == key:
                    self.pull(listed, key)

    def served(self, key: ServiceKey = KEY) -> list[str]:
        return [instance.address.rpartition(".")[2] for instance in self.services.snapshot(key).instances]

    def why(self, key: ServiceKey = KEY) -> Protection:
        return self.services.snapshot(key).protection


def test_a_confirmed_instance_that_vanishes_is_believed_gone_at_the_push() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2, 3))

    world.push(view(1, 3))

    assert world.served() == ["1", "3"]
    assert world.why() is Protection.NONE


def test_health_weight_and_metadata_are_believed_at_once() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2))

    world.push(view(1, 2, weight=5.0, healthy=False, metadata=(("a", "b"),)))

    assert [(i.weight, i.healthy) for i in world.services.snapshot(KEY).instances] == [(5.0, False)] * 2


def test_an_empty_list_is_not_believed_before_its_window_and_three_queries() -> None:
    """S30, S31."""
    world = World()
    world.connect()
    world.push(view(1, 2))
    world.push(view())
    started = world.now

    world.pass_time(started + 44.0, view())

    assert world.served() == ["1", "2"]
    assert world.why() is Protection.EMPTY
    assert world.services.snapshot(KEY).protected_since == WALL + started

    world.pass_time(started + 52.0, view())

    assert world.served() == []
    assert world.why() is Protection.NONE


def test_queries_of_other_reasons_do_not_lengthen_the_window() -> None:
    """A sign of life or a pull in turn agrees with an empty list before its own query does."""
    world = World()
    world.connect()
    world.push(view(1))
    world.push(view())
    for at in (10.0, 20.0, 30.0):
        world.now = at
        world.pull(view())

    world.pass_time(50.0, view())

    assert world.served() == []


def test_an_empty_list_that_no_query_confirms_is_never_believed() -> None:
    world = World()
    world.connect()
    world.push(view(1))
    world.push(view())

    world.now = 4000.0
    world.push(view())

    assert world.served() == ["1"]


def test_an_empty_list_is_forgotten_when_the_instances_come_back() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2))
    world.push(view())
    world.now = 20.0

    world.push(view(1, 2))

    assert world.why() is Protection.NONE
    assert world.services.next_due() is None


def test_after_a_reconnect_members_not_yet_confirmed_stay_until_the_list_is_stable() -> None:
    world = World()
    world.connect()
    world.push(view(*range(1, 21)))
    world.cut()
    world.now = 10.0
    world.connect()
    listed: list[int] = []
    for step in range(1, 11):
        world.now = 10.0 + step * 2.5
        listed = list(range(1, step * 2 + 1))
        world.push(view(*listed))

        assert len(world.served()) == 20

    assert world.why() is Protection.NONE


def test_after_a_reconnect_a_member_that_stays_away_goes_when_the_list_was_stable_for_thirty_seconds() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2, 3))
    world.cut()
    world.now = 10.0
    world.connect()
    world.now = 15.0
    world.push(view(1, 2))

    world.pass_time(44.0, view(1, 2))

    assert world.served() == ["1", "2", "3"]
    assert world.why() is Protection.SHRINK

    world.pass_time(51.0, view(1, 2))

    assert world.served() == ["1", "2"]


def test_after_a_reconnect_members_that_as_many_others_replaced_go_after_ten_seconds() -> None:
    """A deploy while Nacos was away: the list is as long as before, so it is not one that is still filling."""
    world = World()
    world.connect()
    world.push(view(1, 2, 3))
    world.cut()
    world.now = 10.0
    world.connect()
    world.now = 15.0
    world.push(view(1, 4))

    world.pass_time(26.0, view(1, 4))

    assert world.served() == ["1", "2", "3", "4"]

    world.push(view(1, 4, 5))
    world.pass_time(35.0, view(1, 4, 5))

    assert world.served() == ["1", "2", "3", "4", "5"]

    world.pass_time(42.0, view(1, 4, 5))

    assert world.served() == ["1", "4", "5"]
    assert world.why() is Protection.NONE


@pytest.mark.parametrize("change", [{"healthy": False}, {"enabled": False}, {"weight": 0.0}])
def test_after_a_reconnect_only_what_can_be_answered_replaces_a_member(change: dict[str, object]) -> None:
    world = World()
    world.connect()
    world.push(view(1))
    world.cut()
    world.now = 10.0
    world.connect()
    world.push(view(2, **change))

    world.pass_time(39.0, view(2, **change))

    assert world.served() == ["1", "2"]

    world.pass_time(46.0, view(2, **change))

    assert world.served() == ["2"]


def test_members_from_disk_that_as_many_others_replaced_go_after_ten_seconds_when_our_start_saw_nacos_down() -> None:
    before = World()
    before.connect()
    before.push(view(1, 2))
    world = World()
    world.services.restore([on_disk(before.services.snapshot(KEY))])
    world.cut()
    world.now = 10.0
    world.connect()
    world.push(view())
    world.now = 15.0
    world.push(view(3))

    world.pass_time(20.0, view(3))
    world.push(view(3, 4))
    world.pass_time(29.0, view(3, 4))

    assert world.served() == ["1", "2", "3", "4"]

    world.pass_time(36.0, view(3, 4))

    assert world.served() == ["3", "4"]


def test_after_a_reconnect_an_empty_list_holds_until_settling_ends() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2))
    world.cut()
    world.now = 10.0
    world.connect()
    world.now = 28.0
    world.push(view())

    world.pass_time(185.0, view())

    assert world.served() == ["1", "2"]

    world.pass_time(200.0, view())

    assert world.served() == []


def test_a_member_confirmed_on_the_new_connection_is_believed_gone_at_once_while_others_settle() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2, 3, 4, 5))
    world.cut()
    world.connect()
    world.push(view(1, 2))

    world.push(view(1))

    assert world.served() == ["1", "3", "4", "5"]


def test_our_own_start_believes_the_first_list() -> None:
    world = World()
    world.services.restore([Snapshot(KEY, view(1, 2, 3).instances)])
    world.connect()

    world.push(view(2, 3))

    assert world.served() == ["2", "3"]


def test_a_start_that_saw_nacos_down_settles_like_a_reconnect() -> None:
    world = World()
    world.services.restore([Snapshot(KEY, view(1, 2, 3).instances)])
    world.cut()
    world.now = 100.0
    world.connect()

    world.push(view(2))

    assert sorted(world.served()) == ["1", "2", "3"]


def test_one_list_that_takes_more_than_half_of_four_waits_for_a_query() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2, 3, 4))
    world.push(view(1))

    assert world.why() is Protection.HELD
    assert len(world.served()) == 4

    world.pass_time(9.0, view(1))

    assert len(world.served()) == 4

    world.pass_time(16.0, view(1))

    assert world.served() == ["1"]


def test_a_held_list_that_grows_back_is_as_if_nothing_was() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2, 3, 4))
    world.push(view(1))
    world.now = 5.0

    world.push(view(1, 2, 3, 4))

    assert world.why() is Protection.NONE


@pytest.mark.parametrize(("before", "after"), [((1, 2, 3), (1,)), ((1, 2, 3, 4), (1, 2)), ((1, 2), (1,))])
def test_small_losses_are_not_held(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    world = World()
    world.connect()
    world.push(view(*before))

    world.push(view(*after))

    assert len(world.served()) == len(after)


def services_of(world: World, count: int) -> list[ServiceKey]:
    keys = [ServiceKey("public", "DEFAULT_GROUP", f"s{n}") for n in range(count)]
    for key in keys:
        world.push(view(1, 2, 3), key)
    return keys


def test_the_brake_demotes_instead_of_losing_when_a_fifth_of_the_services_lose_most() -> None:
    world = World()
    world.connect()
    keys = services_of(world, 10)
    for key in keys[:5]:
        world.push(view(1), key)

    snapshot = world.services.snapshot(keys[0])

    assert world.services.braked_since == BOOT
    assert snapshot.protection is Protection.BRAKE
    assert snapshot.demoted == 2
    assert snapshot.instances[0].address == "10.0.0.1"
    assert world.services.snapshot(keys[9]).demoted == 0


def restarted(world: World, keys: list[ServiceKey], listed: ServiceView) -> None:
    """A new connection on which every service has this list."""
    world.cut()
    world.connect()
    for key in keys:
        world.push(listed, key)


@pytest.mark.parametrize("listed", [view(), view(1)], ids=["nothing", "a third"])
def test_when_all_stand_to_be_lost_the_first_one_engages_the_brake(listed: ServiceView) -> None:
    """Nacos was wiped, or restored from an old backup: no answer loses anything until the fifth service is asked again."""
    world = World()
    world.connect()
    keys = services_of(world, 20)
    restarted(world, keys, listed)
    fewest = 3
    while world.now < 400.0 and not all(world.why(key) is Protection.BRAKE for key in keys):
        world.now += 0.25
        for key in world.services.due(BOOT + world.now)[:1]:  # the answers come one after the other
            world.pull(listed, key)
        fewest = min(fewest, *(len(world.served(key)) for key in keys))

    assert world.services.braked_since
    assert fewest == 3


def test_doubts_that_end_much_later_do_not_engage_the_brake() -> None:
    """One service is empty for good after a restart, while the providers of the others are still coming back."""
    world = World(Policy(empty_window_s=45.0))
    world.connect()
    keys = services_of(world, 20)
    world.push(view(), keys[0])
    world.now = 30.0
    for key in keys[1:10]:
        world.push(view(), key)
    for at in (15.0, 30.0, 45.0, 46.0):
        world.now = at
        world.pull(view(), keys[0])

    assert world.served(keys[0]) == []
    assert not world.services.braked_since


def test_doubts_that_were_cleared_up_do_not_engage_the_brake() -> None:
    world = World()
    world.connect()
    keys = services_of(world, 20)
    restarted(world, keys, view())
    for key in keys[1:]:
        world.push(view(1, 2, 3), key)
    world.pass_time(400.0, view(), keys[0])

    assert world.served(keys[0]) == []
    assert not world.services.braked_since


def test_four_services_of_ten_do_not_brake() -> None:
    world = World()
    world.connect()
    world.now = 1.0
    keys = services_of(world, 10)

    for key in keys[:4]:
        world.push(view(1), key)

    assert world.services.braked_since == 0.0


def test_losses_spread_over_more_than_a_minute_do_not_brake() -> None:
    world = World()
    world.connect()
    keys = services_of(world, 10)

    for step, key in enumerate(keys):
        world.now = 10.0 + step * 16.0
        world.push(view(1), key)

    assert world.services.braked_since == 0.0


@pytest.mark.parametrize("end", ["accept", "time", "return"])
def test_the_brake_ends_by_the_operator_by_time_or_when_all_came_back(end: str) -> None:
    world = World()
    world.connect()
    world.now = 1.0
    keys = services_of(world, 6)
    for key in keys:
        world.push(view(1), key)
    if end == "accept":
        world.services.accept()
    elif end == "time":
        world.now = 903.0
        world.services.due(BOOT + world.now)
    else:
        for key in keys:
            world.push(view(1, 2, 3), key)
        world.services.due(BOOT + world.now)

    assert world.services.braked_since == 0.0
    assert len(world.served(keys[0])) == (3 if end == "return" else 1)


def test_flush_believes_the_last_list_at_once() -> None:
    """S31."""
    world = World()
    world.connect()
    world.push(view(1, 2))
    world.push(view())

    world.services.flush(KEY)

    assert world.served() == []


def test_a_primary_believes_an_empty_list_after_five_seconds() -> None:
    world = World(Policy(primary=True, empty_window_s=5.0))
    world.connect()
    world.push(view(1))
    world.push(view())

    world.pass_time(11.0, view())

    assert world.served() == []


def test_a_service_believed_empty_goes_when_a_catalogue_lacks_it() -> None:
    """S52."""
    world = World()
    world.connect()
    world.push(view(1))
    world.push(view())
    world.services.flush(KEY)

    still_listed = world.services.catalogue("public", "DEFAULT_GROUP", frozenset({"orders"}), BOOT + world.now)
    gone = world.services.catalogue("public", "DEFAULT_GROUP", frozenset({"other"}), BOOT + world.now)

    assert still_listed == []
    assert gone == [KEY]
    assert world.services.take_changes()[1] == [(KEY, "deleted")]


def test_absence_from_a_catalogue_alone_never_ends_a_service_with_instances() -> None:
    world = World()
    world.connect()
    world.push(view(1))

    gone = world.services.catalogue("public", "DEFAULT_GROUP", frozenset(), BOOT + world.now)

    assert gone == []
    assert world.served() == ["1"]


def test_static_services_win_and_give_way_when_removed() -> None:
    world = World()
    world.connect()
    world.push(view(1))
    world.services.set_static({KEY: view(9).instances})

    assert world.served() == ["9"]

    world.services.set_static({})

    assert world.served() == ["1"]


def test_the_last_healthy_set_is_remembered_while_none_is_healthy() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2))
    world.push(view(1, 2, healthy=False))

    last = world.services.snapshot(KEY).last_healthy

    assert [instance.address for instance in last] == ["10.0.0.1", "10.0.0.2"]


def test_an_unchanged_list_is_not_told_again() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2))
    world.services.take_changes()

    world.pull(view(1, 2))

    assert world.services.take_changes() == ([], [])


def test_a_doubt_is_told_when_it_begins_and_when_it_ends() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2))
    world.services.take_changes()

    world.push(view())
    begun = [snapshot.protection for snapshot in world.services.take_changes()[0]]
    world.push(view(1, 2))
    ended = [snapshot.protection for snapshot in world.services.take_changes()[0]]

    assert begun == [Protection.EMPTY]
    assert ended == [Protection.NONE]


def test_a_demoted_instance_that_comes_back_is_told_as_a_full_member() -> None:
    world = World()
    world.connect()
    world.now = 1.0
    keys = services_of(world, 6)
    for key in keys:
        world.push(view(1), key)
    world.services.take_changes()

    world.push(view(1, 2, 3), keys[0])

    assert [(s.key, s.demoted) for s in world.services.take_changes()[0]] == [(keys[0], 0)]


def test_a_lost_connection_ends_what_a_doubt_shows_and_that_is_told() -> None:
    world = World()
    world.connect()
    world.push(view(1, 2))
    world.push(view())
    world.services.take_changes()

    world.cut()

    assert [s.protection for s in world.services.take_changes()[0]] == [Protection.NONE]


def test_the_brake_says_since_when() -> None:
    world = World()
    world.connect()
    world.now = 7.0
    keys = services_of(world, 6)
    for key in keys:
        world.push(view(1), key)
    snapshots = [world.services.snapshot(key) for key in keys]

    assert {(s.protection, s.protected_since) for s in snapshots} == {(Protection.BRAKE, WALL + 7.0)}

    world.services.accept()

    assert world.services.doubted() == []


def test_on_our_own_start_an_empty_list_does_not_end_what_was_never_confirmed_before_settling_ends() -> None:
    """Host and Nacos start together: providers may take longer than the plain window to come back."""
    world = World()
    world.services.restore([Snapshot(KEY, view(1, 2).instances)])
    world.connect()
    world.now = 1.0
    world.push(view())

    world.pass_time(175.0, view())

    assert world.served() == ["1", "2"]

    world.pass_time(190.0, view())

    assert world.served() == []


def test_what_the_operator_flushed_does_not_come_back_with_the_brake() -> None:
    world = World()
    world.connect()
    world.now = 1.0
    keys = services_of(world, 6)
    world.push(view(1), keys[0])
    world.services.flush(keys[0])

    for key in keys[1:]:
        world.push(view(1), key)

    assert world.services.braked_since
    assert world.served(keys[0]) == ["1"]


def at_rest(*numbers: int, key: ServiceKey = KEY) -> Known:
    return known(on_disk(Snapshot(key, view(*numbers).instances, revision=7, source=Source.PUSH, live=True)))


def test_what_the_disk_holds_stays_encoded_as_it_is_until_something_happens_to_it() -> None:
    world = World()
    item = at_rest(1, 2)
    assert world.services.rest([item]) == 1

    assert (len(world.services), list(world.services), world.services.count()) == (1, [KEY], 1)
    assert world.services.known(KEY) is item
    assert (world.services.snapshot(KEY).source, world.services.snapshot(KEY).live) == (Source.DISK, False)
    assert world.services.take_changes() == ([], [])


def test_what_rested_is_doubted_like_everything_else_when_an_empty_list_comes() -> None:
    world = World()
    world.services.rest([at_rest(1, 2)])
    world.connect()
    world.push(view())

    assert (world.served(), world.why()) == (["1", "2"], Protection.EMPTY)


def test_what_rested_is_removed_flushed_and_covered_by_a_static_entry_like_everything_else() -> None:
    other = ServiceKey("public", "DEFAULT_GROUP", "other")
    world = World()
    world.services.rest([at_rest(1), at_rest(2, key=other)])
    world.services.set_static({KEY: view(9).instances})
    assert world.served() == ["9"]
    world.services.set_static({})
    assert world.served() == ["1"]

    assert world.services.flush(KEY)
    world.services.remove(other, "deleted")
    assert list(world.services) == []
    assert sorted(world.services.take_changes()[1]) == [(KEY, "flushed"), (other, "deleted")]


def test_a_row_without_instances_does_not_rest_so_that_a_catalogue_can_end_it() -> None:
    world = World()
    world.connect()
    world.services.rest([at_rest()])

    assert world.services.empties("public", "DEFAULT_GROUP")
    assert world.services.catalogue("public", "DEFAULT_GROUP", frozenset(), BOOT) == [KEY]


def test_what_rests_counts_as_known_for_the_brake() -> None:
    world = World()
    world.services.rest([at_rest(1, key=ServiceKey("public", "DEFAULT_GROUP", f"r{n}")) for n in range(100)])
    world.connect()
    world.now = 1.0
    for key in services_of(world, 6):
        world.push(view(1), key)

    assert not world.services.braked_since
