"""Conductor 2: what is known. Carries the registry's word to core/services.py, and its beliefs to disk and fronts.

Must not know: DNS messages, client sockets. Rules: every request to the registry is planned by core/schedule.py; a
change is published in the turn in which it was learned; nothing that the registry, the disk or a front does ends it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nacosdns.announcing import Announcer
from nacosdns.core import metrics
from nacosdns.core.answers import choose
from nacosdns.core.catalogue import Catalogue
from nacosdns.core.frames import (
    Asked,
    Externals,
    Have,
    LookedUp,
    Lookup,
    Names,
    Reachable,
    decode_snapshot,
    known,
)
from nacosdns.core.model import Source
from nacosdns.core.schedule import Kind, Schedule
from nacosdns.core.services import Services
from nacosdns.core.spelling import folded_of
from nacosdns.errors import ControlError, RegistryError, RegistryNameRefused
from nacosdns.fronts import Fronts
from nacosdns.saving import Saver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from nacosdns.core.feed import Feed
    from nacosdns.core.frames import (
        External,
        Hello,
        Known,
        LinkFrame,
    )
    from nacosdns.core.metrics import Counters
    from nacosdns.core.model import Instance, ServiceKey, ServiceView, Snapshot
    from nacosdns.core.policy import Policies
    from nacosdns.core.schedule import Action
    from nacosdns.core.schedule import Settings as ScheduleSettings
    from nacosdns.core.services import Settings as ServicesSettings
    from nacosdns.core.spelling import FoldedKey
    from nacosdns.ports import Clock, Link, Log, Registry, Store

START_GRACE_S = 3.0
"""How long after start a look-up waits for the first connection before it is called unreachable."""
IDLE_S = 30.0


class Keeper:
    """Implements RegistryListener and LinkListener. ``epoch`` is new with every start."""

    def __init__(
        self,
        *,
        policies: Policies,
        services: ServicesSettings,
        schedule: ScheduleSettings,
        registry: Registry | None,
        store: Store,
        clock: Clock,
        rng: Random,
        log: Log,
        counters: Counters,
        epoch: int,
    ) -> None:
        self._policies = policies
        self.services = Services(services, lambda key: self._policies.resolve(key.service))
        self.schedule = Schedule(schedule, rng)
        self.namespaces = schedule.namespaces
        self._bare = schedule.bare
        self.catalogue = Catalogue()
        self.registry = registry
        self.store = store
        self.clock = clock
        self._log = log
        self._count = counters
        self._announcer = Announcer(log)
        self.epoch = epoch
        self.fronts = Fronts(self._known, lambda: self.services.revision)
        self._early: list[tuple[Link, Lookup]] = []
        self.saver = Saver(store, self.services, self.schedule, clock)
        self._pushes: dict[ServiceKey, int] = {}
        self.up: set[str] = set()
        self._down: set[str] = set()
        self._problems: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._started_at = clock.now()
        self._tasks: asyncio.TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<Keeper epoch={self.epoch} {self.services!r} {self.schedule!r} {self.fronts!r}>"

    # --- life

    async def load(self) -> int:
        """Takes what the disk remembers. Returns how many services; external answers are the fronts' business."""
        stored, _ = await self.store.load()
        count = self.services.rest(row.known for row in stored)
        self.services.take_changes()
        self._log.info("keeper.loaded", services=count)
        return count

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            if self.registry is not None:
                tasks.create_task(self.registry.run(self))
            tasks.create_task(self._pump())

    async def _pump(self) -> None:
        while True:
            now = self.clock.now()
            self._turn(now)
            asks_at = now + IDLE_S if self.registry is None else self.schedule.next_due(now)
            due = min(asks_at, self.services.next_due() or now + IDLE_S, self.saver.due_at)
            if self._early:
                due = min(due, self._started_at + START_GRACE_S)
            try:
                async with asyncio.timeout(max(due - now, 0.002)):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def _turn(self, now: float) -> None:
        self._end_grace(now)
        self.schedule.check(self.services.due(now))
        for action in self.schedule.take(now) if self.registry is not None else ():
            self._start(action)
        self._publish()
        self._tell_problems()
        self.saver.turn(now)

    def _start(self, action: Action) -> None:
        if self._tasks is not None:
            self._tasks.create_task(self._perform(action))

    async def stop(self) -> None:
        """Saves what is not on disk yet."""
        self.saver.save_all()
        await self.store.flush()
        await self.store.close()

    # --- requests to the registry

    async def _perform(self, action: Action) -> None:
        good = False
        try:
            await self._request(action)
            good = True
        except RegistryError as error:
            self._count[metrics.REGISTRY_FAILURES.first] += 1
            self._log.debug("registry.failed", kind=action.kind.value, key=str(action.key), reason=str(error))
            self._tell_problems()  # before whoever waits hears that there is no answer
            if action.kind is Kind.LOOKUP:
                self.fronts.looked_up(action.keys, "unreachable")
        finally:
            self.schedule.done(action, self.clock.now(), good=good)
            self._publish()
            self._wake.set()

    async def _request(self, action: Action) -> None:
        assert self.registry is not None
        key = action.key
        match action.kind:
            case Kind.LOOKUP:
                await self._look_up(action.keys)
            case Kind.SUBSCRIBE:
                await self._subscribe(key)
            case Kind.UNSUBSCRIBE:
                self.services.set_live(key, live=False)
                await self.registry.unsubscribe(key)
            case Kind.PULL | Kind.LIFE:
                await self._pull(key)
            case Kind.CATALOGUE:
                await self._read_catalogue(key.namespace, key.group)

    async def _look_up(self, keys: tuple[ServiceKey, ...]) -> None:
        assert self.registry is not None
        outcome = "missing"
        found: FoldedKey | None = None
        for key in keys:
            if found is not None and not (self.catalogue.lists(key) and folded_of(key) == found):
                continue
            pushes = self._pushes.get(key, 0)
            try:
                view = await self.registry.query(key)
            except RegistryNameRefused:
                continue  # a definite no: nothing of that name can be registered
            if key in self.services or view.instances:
                self._learn_pulled(key, view, pushes)
                self.schedule.asked(key, self.clock.now())
                outcome = "found"
                found = found or folded_of(key)
        if self._outdates_catalogue(keys, outcome):
            self.schedule.want_catalogue(keys[0].namespace, keys[0].group)
        self._publish()
        self.fronts.looked_up(keys, outcome)

    def _outdates_catalogue(self, keys: tuple[ServiceKey, ...], outcome: str) -> bool:
        """Whether a read would tell more: all of them are new to it, or one that it lists is missing and was asked for."""
        asked = keys in self.fronts.waited_for(keys[0].namespace)
        return not any(map(self.catalogue.lists, keys)) or (outcome == "missing" and asked)

    async def _subscribe(self, key: ServiceKey) -> None:
        assert self.registry is not None
        pushes = self._pushes.get(key, 0)
        view = await self.registry.subscribe(key)
        self._learn_pulled(key, view, pushes)
        self.services.set_live(key, live=True)
        if key not in self.services:
            self.schedule.forget(key)

    async def _pull(self, key: ServiceKey) -> None:
        assert self.registry is not None
        pushes = self._pushes.get(key, 0)
        view = await self.registry.query(key)
        if key in self.services and self._learn_pulled(key, view, pushes) and self.schedule.is_live(key):
            self._count[metrics.PUSHES_MISSED.first] += 1
            self._log.info("push.missed", service=str(key))

    def _learn_pulled(self, key: ServiceKey, view: ServiceView, pushes: int) -> bool:
        """A queried list; one that a push has overtaken is not believed."""
        if self._pushes.get(key, 0) != pushes or key.namespace not in self.up:
            return False
        self._count[metrics.PULLS.first] += 1
        return self._learn(key, view, Source.PULL)

    def _learn(self, key: ServiceKey, view: ServiceView, source: Source) -> bool:
        before = self.services.disbelieved
        differs = self.services.learn(key, view, source=source, now=self.clock.now(), wall=self.clock.wall())
        self.saver.touch(key)
        self._count[metrics.PUSHES_DISBELIEVED.first] += self.services.disbelieved - before
        return differs

    async def _read_catalogue(self, namespace: str, group: str) -> None:
        assert self.registry is not None
        names = await self.registry.list_services(namespace, group)
        now = self.clock.now()
        self.catalogue.learn(namespace, group, names, now)
        for key in self.services.catalogue(namespace, group, frozenset(names), now):
            self._log.info("service.deleted", service=str(key))
        for key in self.catalogue.unheard(namespace, group, self.services.registered()):
            self.schedule.lookup((key,), known=True)
        if self.services.empties(namespace, group):
            self.schedule.want_catalogue(namespace, group)
        for feed in self.fronts:
            self._feed_names(feed)
        self.fronts.send_all()

    # --- what the registry says by itself

    def pushed(self, key: ServiceKey, view: ServiceView) -> None:
        self._pushes[key] = self._pushes.get(key, 0) + 1
        self._count[metrics.PUSHES.first] += 1
        if not view.instances:
            self._count[metrics.PUSHES_EMPTY.first] += 1
        self.schedule.heard(key.namespace, self.clock.now())
        self._learn(key, view, Source.PUSH)
        self._publish()
        self._wake.set()

    def connected(self, namespace: str) -> None:
        now = self.clock.now()
        self.up.add(namespace)
        self._down.discard(namespace)
        self.services.connected(namespace, now)
        self.schedule.connected(namespace, now)
        self._reachable(namespace)
        self._look_up_early()
        self._wake.set()

    def disconnected(self, namespace: str) -> None:
        self.up.discard(namespace)
        self._down.add(namespace)
        self.services.disconnected(namespace)
        self.schedule.disconnected(namespace)
        self._reachable(namespace)
        for keys in self.fronts.waited_for(namespace):
            self.schedule.drop_waiting(keys)
            self.fronts.looked_up(keys, "unreachable")
        self._publish()
        self._wake.set()

    def _tell_problems(self) -> None:
        """Fronts say in `ask` why nothing is heard; that may change while nothing else does."""
        for namespace in self.up | self._down:
            if self._problems.get(namespace, "") != self._problem(namespace):
                self._reachable(namespace)

    def _problem(self, namespace: str) -> str:
        """Of a registry that is well also that it lists nothing: most likely another namespace was meant."""
        problem = self.registry.problem(namespace) if self.registry is not None else ""
        return problem or (self._lists_nothing(namespace) if namespace in self.up else "")

    def _lists_nothing(self, namespace: str) -> str:
        listed = {group: names for (space, group), names in self.catalogue.items() if space == namespace}
        if not listed or any(listed.values()):
            return ""
        return f"Nacos lists no service at all in namespace {namespace} (group {', '.join(listed)})"

    def _reachable_frame(self, namespace: str) -> Reachable:
        problem = self._problems[namespace] = self._problem(namespace)
        return Reachable(namespace, namespace in self.up, problem=problem)

    def _reachable(self, namespace: str) -> None:
        frame = self._reachable_frame(namespace)
        for feed in self.fronts:
            feed.reachable(frame)
        self.fronts.send_all()

    def _end_grace(self, now: float) -> None:
        if now - self._started_at < START_GRACE_S:
            return
        for namespace in self.namespaces:
            if namespace not in self.up and namespace not in self._down and self.registry is not None:
                self.disconnected(namespace)
        self._look_up_early()

    def _look_up_early(self) -> None:
        """What was asked before it was known whether the registry is there."""
        early, self._early = self._early, []
        for link, frame in early:
            self._lookup(link, frame)

    # --- fronts

    def joined(self, link: Link, peer: Hello) -> None:
        self._log.info("link.joined", role=peer.role)
        if peer.role != "front":
            return
        feed = self.fronts.add(link)
        for namespace in self.up | self._down:
            feed.reachable(self._reachable_frame(namespace))
        feed.full(self.services.keys(), self.epoch)
        self._feed_names(feed)
        self.fronts.send(link)

    def received(self, link: Link, frame: LinkFrame) -> None:
        match frame:
            case Lookup():
                self._lookup(link, frame)
            case Asked(keys=keys):
                self._asked(keys)
            case Externals(items=items):
                self._externals(link, items)
            case Have(items=items):
                self._have(link, items)
            case _:
                self._log.warning("link.unexpected_frame", frame=type(frame).__name__)

    def drained(self, link: Link) -> None:
        self.fronts.send(link)

    def left(self, link: Link) -> None:
        self.fronts.drop(link)
        self._early = [early for early in self._early if early[0] is not link]
        self._count[metrics.LINK_DROPS.first] += 1

    def _asked(self, keys: Iterable[ServiceKey]) -> None:
        now = self.clock.now()
        for key in keys:
            if key in self.services and not self.services.is_static(key):
                self.schedule.asked(key, now)
                self.saver.touch(key)
        self._wake.set()

    def _lookup(self, link: Link, frame: Lookup) -> None:
        keys = self.catalogue.spell(frame.keys)
        namespace = keys[0].namespace
        if self.registry is None or namespace not in self.namespaces:
            link.send(LookedUp(frame.keys, "missing"))
        elif namespace in self._down:
            link.send(LookedUp(frame.keys, "unreachable"))
        elif namespace not in self.up:
            self._early.append((link, frame))
        else:
            self._plan(link, frame.keys, keys)
        self._wake.set()

    def _plan(self, link: Link, asked: tuple[ServiceKey, ...], keys: tuple[ServiceKey, ...]) -> None:
        now = self.clock.now()
        is_known = any(key in self.services or self.catalogue.lists(key) for key in keys)
        if not is_known and self.schedule.unknown_crowded(now) and self._catalogue_lacks(keys, now):
            link.send(LookedUp(asked, "missing"))
        elif self.schedule.lookup(keys, known=is_known):
            self.fronts.wait(link, asked, keys)
        else:
            link.send(LookedUp(asked, "refused"))

    def _catalogue_lacks(self, keys: tuple[ServiceKey, ...], now: float) -> bool:
        """Whether a complete, recent catalogue says that none of the spellings exists."""
        is_settled = self.services.settled(keys[0].namespace, now)
        return is_settled and self.catalogue.lacks_all(keys, self.services.groups, now)

    def _externals(self, sender: Link, items: tuple[External, ...]) -> None:
        self.store.put_externals(items)
        for feed in self.fronts.others(sender):
            feed.externals(items)
        self.fronts.send_all()

    def _have(self, link: Link, items: tuple[Known, ...]) -> None:
        """A front remembers what we do not: unconfirmed, unless we removed it or it was static."""
        feed = self.fronts.feed(link)
        for item in items:
            if feed is None or item.key in self.services:
                continue
            snapshot = decode_snapshot(item.body)
            if item.key in self.saver.gone or not self.services.restore([snapshot]):
                feed.removed(item.key, self.saver.gone.get(item.key, "unknown to the keeper"))
        self._publish()
        self.fronts.send(link)

    # --- telling

    def _publish(self) -> None:
        snapshots, removed = self.services.take_changes()
        self._announcer.brake(self.services)
        if not snapshots and not removed:
            return
        self._announcer.published(snapshots, [key for key, _ in removed])
        for key, reason in removed:
            self._bury(key, reason)
        told = {snapshot.key: known(snapshot) for snapshot in snapshots}
        for snapshot in snapshots:
            if not snapshot.instances:
                self.schedule.want_catalogue(snapshot.key.namespace, snapshot.key.group)
        self.saver.changed(snapshots, [key for key, _ in removed])
        self.fronts.changed(told, removed)

    def _feed_names(self, feed: Feed) -> None:
        """Fronts need the catalogue for bare names only."""
        for (namespace, group), names in self.catalogue.items():
            if (namespace, group) in self._bare:
                feed.names(Names(namespace, group, names, self.clock.wall()))

    def _bury(self, key: ServiceKey, reason: str) -> None:
        self.schedule.forget(key)
        self._pushes.pop(key, None)
        self.saver.bury(key, reason)

    def _known(self, key: ServiceKey) -> Known | None:
        return self.services.known(key) if key in self.services else None

    # --- static, policy, operator

    def set_static(self, services: Mapping[ServiceKey, tuple[Instance, ...]]) -> None:
        """The whole set of static services, from configuration and file together."""
        self.services.set_static(services)
        self._publish()

    def reconfigure(self, *, policies: Policies, services: ServicesSettings, schedule: ScheduleSettings) -> None:
        """New settings, already validated. Connections and beliefs stay."""
        self._policies = policies
        self.services.reconfigure(services)
        self.schedule.reconfigure(schedule)
        if self._bare != schedule.bare:
            self._bare = schedule.bare
            for feed in self.fronts:
                self._feed_names(feed)
            self.fronts.send_all()
        self._wake.set()

    def answered(self, snapshot: Snapshot) -> str:
        """Why it is answered as it is when that is out of the ordinary."""
        return choose(snapshot, self._policies.resolve(snapshot.key.service)).why

    def flush(self, key: ServiceKey) -> bool:
        """`cache flush`: protection of this service ends now; it is queried anew."""
        flushed = self.services.flush(key)
        if key in self.services:
            self.schedule.check([key])
        self._publish()
        self._wake.set()
        return flushed

    def flush_externals(self, questions: Iterable[bytes]) -> None:
        """`cache flush` of outside names: they leave the disk; fronts forget by themselves."""
        self.store.remove_externals(questions)

    def accept(self) -> int:
        """`cache accept`: the brake ends. Returns how many instances go."""
        if not self.services.braked_since:
            raise ControlError("the brake is not on: nothing to accept")
        gone = self.services.accept()
        self._log.warning("brake.accepted", instances=gone)
        self._publish()
        return gone
