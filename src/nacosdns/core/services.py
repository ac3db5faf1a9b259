"""What we believe of every service: learn, doubt, confirm, lose, brake, dump and restore.

Must not know: how lists arrive, who asks, when to query (it says what it waits for; core/schedule.py plans it).
Rule: the registry's word becomes our belief only here. A member that vanishes from a list is believed gone at once,
unless one of four doubts keeps it: an empty list, a list on a new connection that may still be filling, one list that
takes too much, or the brake. A doubt ends by time *and* a fresh query, by the member's return, or by the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nacosdns.core.belief import Belief, restored
from nacosdns.core.brake import Brake
from nacosdns.core.frames import decode_snapshot, is_empty, known
from nacosdns.core.model import Protection, Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nacosdns.core.belief import Identity
    from nacosdns.core.frames import Known
    from nacosdns.core.model import Instance, Policy, ServiceKey, ServiceView

HOLD_S = 10.0
"""How long one list that takes more than ``shrink_max``, or all that it lacks replaced, waits for the query that confirms it."""
HOLD_MEMBERS_MIN = 4
QUERY_SPACING_S = 5.0
"""A doubt whose time has come asks again this often until a query is answered."""


class Settings(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Times of protection in seconds (config [nacos])."""

    settle_s: float = 180.0
    stable_s: float = 30.0
    brake_max_s: float = 900.0
    accept_before: float = 0.0


class Connection(msgspec.Struct, gc=False):
    """The present connection of one namespace. ``settling``: members not yet confirmed on it may still come back."""

    up: bool = False
    since: float = 0.0
    settling: bool = False


class Services:
    """All beliefs. Methods change them and note what must be told; ``take_changes`` hands that over."""

    def __init__(self, settings: Settings, policy: Callable[[ServiceKey], Policy]) -> None:
        self._settings = settings
        self._policy = policy
        self._beliefs: dict[ServiceKey, Belief] = {}
        self._resting: dict[ServiceKey, Known] = {}
        self._static: dict[ServiceKey, tuple[Instance, ...]] = {}
        self._connections: dict[str, Connection] = {}
        self._changed: dict[ServiceKey, None] = {}
        self._removed: dict[ServiceKey, str] = {}
        self._checks: dict[ServiceKey, float] = {}
        self._brake = Brake(settings.brake_max_s, settings.accept_before)
        self._populated: set[ServiceKey] = set()
        self._revision = 0
        self.groups: set[tuple[str, str]] = set()
        """Namespaces and groups in which a service was ever known."""
        self.disbelieved = 0

    def __repr__(self) -> str:
        words = f"{len(self._beliefs)} resting={len(self._resting)} doubts={len(self._checks)}"
        return f"<Services {words} brake={self._brake.engaged}>"

    def __len__(self) -> int:
        return len(self._beliefs) + len(self._resting)

    def __contains__(self, key: ServiceKey) -> bool:
        return self._is_registered(key) or key in self._static

    def _is_registered(self, key: ServiceKey) -> bool:
        return key in self._beliefs or key in self._resting

    def __iter__(self) -> Iterator[ServiceKey]:
        yield from self._static
        for part in (self._beliefs, self._resting):
            yield from [key for key in part if key not in self._static] if self._static else part

    def keys(self) -> list[ServiceKey]:
        """All at this moment; made in one go, for there may be many."""
        return list(self) if self._static else [*self._beliefs, *self._resting]

    def registered(self) -> list[ServiceKey]:
        """Those that the registry told of and no static entry hides."""
        return [key for part in (self._beliefs, self._resting) for key in part if key not in self._static]

    def count(self) -> int:
        """How many services are known, static ones among them."""
        return len(self) + sum(1 for key in self._static if not self._is_registered(key))

    def doubted(self) -> list[ServiceKey]:
        """Services that are served otherwise than the registry said last."""
        keys = [key for key, belief in self._beliefs.items() if belief.since or belief.demoted]
        return [key for key in keys if self.protection(key) is not Protection.NONE]

    def confirmed_at(self, key: ServiceKey) -> float:
        """Wall time of the last list; 0 when there was none."""
        belief = self._beliefs.get(key)
        return belief.confirmed_at if belief is not None else 0.0

    @property
    def revision(self) -> int:
        return self._revision

    def awake(self) -> Iterable[Belief]:
        """What we believe of every service that does not rest; to be read only."""
        return self._beliefs.values()

    @property
    def brake(self) -> Brake:
        """To be read only."""
        return self._brake

    @property
    def braked_since(self) -> float:
        """When the brake was engaged (``now`` seconds), 0 when it is not."""
        return self._brake.since

    def reconfigure(self, settings: Settings) -> None:
        """New times; doubts already running are measured by them from now on."""
        self._settings = settings
        self._brake.configure(settings.brake_max_s, settings.accept_before)

    # --- connections

    def connected(self, namespace: str, now: float) -> None:
        """A new connection. It settles unless it is the first of our life and Nacos was never seen down."""
        before = self._connections.get(namespace)
        self._connections[namespace] = Connection(up=True, since=now, settling=before is not None)
        self._forget_lists(namespace)

    def disconnected(self, namespace: str) -> None:
        """The connection is gone, or the first one could not be made: what was confirmed is so no longer."""
        self._connections[namespace] = Connection(up=False, settling=True)
        self._forget_lists(namespace)

    def _forget_lists(self, namespace: str) -> None:
        for belief in self._beliefs.values():
            if belief.key.namespace == namespace:
                before = belief.protection()
                belief.forget_list()
                self._clear_doubt(belief.key)
                self._set_live(belief, live=False)
                if belief.protection() is not before:
                    self._note(belief)

    def settled(self, namespace: str, now: float) -> bool:
        """Whether the registry's lists of this namespace can be taken as complete."""
        connection = self._connections.get(namespace)
        if connection is None or not connection.up:
            return False
        return not connection.settling or now - connection.since >= self._settings.settle_s

    # --- lists

    def learn(self, key: ServiceKey, view: ServiceView, *, source: Source, now: float, wall: float) -> bool:
        """The registry's list of a service. Returns whether it differs from the last list (of a known service)."""
        belief = self._awake(key)
        if belief is None:
            if not view.instances:
                return False
            belief = self._beliefs[key] = Belief(key)
            self.groups.add((key.namespace, key.group))
        listed = {instance.identity: instance for instance in view.instances}
        differs = belief.differs(listed)
        before = belief.face()
        if belief.listed != listed.keys():
            belief.changed_at = now
        belief.listed = set(listed)
        belief.confirmed |= listed.keys()
        belief.demoted -= listed.keys()
        belief.members.update(listed)
        belief.threshold_reached = view.threshold_reached
        belief.source = source
        belief.confirmed_at = wall
        self._judge(belief, now, pulled=source is Source.PULL)
        belief.remember_healthy(before[0])
        if belief.face() != before:
            self._note(belief)
        return differs

    def set_live(self, key: ServiceKey, *, live: bool) -> None:
        """Whether pushes arrive for this service now."""
        if belief := self._beliefs.get(key):
            self._set_live(belief, live=live)

    def _set_live(self, belief: Belief, *, live: bool) -> None:
        if belief.live != live:
            belief.live = live
            self._note(belief)

    # --- doubt

    def _judge(self, belief: Belief, now: float, *, pulled: bool) -> None:
        missing = belief.doubted()
        belief.held = {identity: at for identity, at in belief.held.items() if identity in missing}
        if not missing:
            self._believe_all(belief)
            return
        self.disbelieved += not belief.since
        belief.since = belief.since or belief.confirmed_at
        lost = (
            self._lost_of_empty(belief, missing, now, pulled=pulled)
            if not belief.listed
            else self._lost_of_partial(belief, missing, now, pulled=pulled)
        )
        if lost:
            self._lose(belief, lost, now)
        if not belief.doubted():
            self._believe_all(belief)

    def _believe_all(self, belief: Belief) -> None:
        if not belief.demoted:
            belief.since = 0.0
        belief.empty_since = 0.0
        belief.agreements = 0
        self._clear_doubt(belief.key)

    def _clear_doubt(self, key: ServiceKey) -> None:
        self._checks.pop(key, None)
        self._brake.stands_no_more(key)

    def _unconfirmed(self, belief: Belief, identity: Identity, now: float) -> bool:
        if self._policy(belief.key).primary and belief.listed:
            return False
        return identity not in belief.confirmed and self._settling(belief.key.namespace, now)

    def _settling(self, namespace: str, now: float) -> bool:
        connection = self._connections.get(namespace)
        return connection is not None and connection.settling and now - connection.since < self._settings.settle_s

    def _lost_of_empty(self, belief: Belief, missing: list[Identity], now: float, *, pulled: bool) -> list[Identity]:
        """An empty list: needs ``empty_confirmations`` fresh queries spread over the window."""
        policy = self._policy(belief.key)
        if not belief.empty_since:
            belief.empty_since = now
            belief.agreements = 0
        elif pulled:
            belief.agreements += 1
        until = belief.empty_since + policy.empty_window_s
        connection = self._connections.get(belief.key.namespace)
        if connection is not None and not policy.primary and not belief.confirmed.issuperset(missing):
            until = max(until, connection.since + self._settings.settle_s)
        if now >= until and belief.agreements >= policy.empty_confirmations:
            return missing
        step = max((until - belief.empty_since) / policy.empty_confirmations, 0.1)
        planned = min(belief.empty_since + step * (belief.agreements + 1), until)
        self._checks[belief.key] = max(planned, now + min(step, QUERY_SPACING_S))
        self._brake.stands(belief.key, until)
        return []

    def _lost_of_partial(self, belief: Belief, missing: list[Identity], now: float, *, pulled: bool) -> list[Identity]:
        """A list that lacks some: those confirmed on this connection are believed gone, unless it takes too much."""
        belief.empty_since = 0.0
        gone = [i for i in missing if i not in belief.held and not self._unconfirmed(belief, i, now)]
        if self._takes_too_much(belief, len(gone)):
            belief.held.update(dict.fromkeys(gone, now))
            gone = []
        stable_s = self._settings.stable_s
        if belief.as_many_as_before():
            stable_s = min(stable_s, HOLD_S)
        ends = {identity: self._ends(belief, identity, stable_s) for identity in missing if identity not in gone}
        gone += [identity for identity, end in ends.items() if pulled and now >= end]
        waiting = [max(end, now + QUERY_SPACING_S if now >= end else end) for i, end in ends.items() if i not in gone]
        self._brake.stands_no_more(belief.key)
        if waiting:
            self._checks[belief.key] = min(waiting)
            if 2 * len(missing) > len(belief.members) - len(belief.demoted):
                self._brake.stands(belief.key, min(ends.values()))
        return gone

    def _takes_too_much(self, belief: Belief, gone: int) -> bool:
        size = len(belief.members) - len(belief.demoted)
        return size >= HOLD_MEMBERS_MIN and gone > size * self._policy(belief.key).shrink_max

    def _ends(self, belief: Belief, identity: Identity, stable_s: float) -> float:
        if (at := belief.held.get(identity)) is not None:
            return at + HOLD_S
        since = self._connections[belief.key.namespace].since
        return min(since + self._settings.settle_s, max(since, belief.changed_at) + stable_s)

    # --- loss and brake

    def _lose(self, belief: Belief, lost: list[Identity], now: float) -> None:
        size = len(belief.members) - len(belief.demoted)
        vanished = {identity: belief.members[identity] for identity in lost}
        self._brake.count(
            belief.key,
            vanished,
            size=size,
            known=len(self._populated) + len(self._resting),
            now=now,
            wall=belief.confirmed_at,
        )
        if self._brake.engaged:
            belief.demoted |= vanished.keys()
            self._restore_vanished(belief.confirmed_at)
            return
        for identity in lost:
            del belief.members[identity]

    def _restore_vanished(self, wall: float) -> None:
        """What was lost in the minute before the brake comes back, behind the confirmed ones."""
        for key, vanished in self._brake.take_recent():
            if (belief := self._beliefs.get(key)) is not None:
                back = {k: v for k, v in vanished.items() if k not in (belief.listed or ())}
                belief.members = {**belief.members, **back}
                belief.demoted |= back.keys()
                belief.since = belief.since or wall
                self._note(belief)

    def accept(self) -> int:
        """The operator says that the losses are real: ends the brake. Returns how many instances go with it."""
        self._brake.release()
        demoted = [belief for belief in self._beliefs.values() if belief.demoted]
        gone = sum(len(belief.demoted) for belief in demoted)
        for belief in demoted:
            for identity in belief.demoted:
                belief.members.pop(identity, None)
            belief.demoted.clear()
            if not belief.doubted():
                belief.since = 0.0
            self._note(belief)
        return gone

    # --- time

    def due(self, now: float) -> list[ServiceKey]:
        """Services whose doubt needs a fresh query now. Each is asked again after QUERY_SPACING_S unless learned."""
        if self._brake.engaged and (self._brake.expired(now) or not any(b.demoted for b in self._beliefs.values())):
            self.accept()
        keys = [key for key, at in self._checks.items() if at <= now]
        for key in keys:
            self._checks[key] = now + QUERY_SPACING_S
        return keys

    def next_due(self) -> float | None:
        """When ``due`` has something to say, in ``now`` seconds."""
        times = list(self._checks.values())
        if self._brake.engaged:
            times.append(self._brake.ends)
        return min(times, default=None)

    # --- ends

    def flush(self, key: ServiceKey) -> bool:
        """The operator's word: the last list counts as it is. Without a list the service is forgotten."""
        belief = self._awake(key)
        if belief is None:
            return False
        if belief.listed is None:
            self.remove(key, "flushed")
            return True
        for identity in [i for i in belief.members if i not in belief.listed]:
            del belief.members[identity]
        belief.demoted.clear()
        belief.held.clear()
        self._believe_all(belief)
        self._brake.forget(key)
        self._note(belief)
        return True

    def catalogue(self, namespace: str, group: str, names: frozenset[str], now: float) -> list[ServiceKey]:
        """A complete catalogue read: services believed empty that it lacks are deleted. Returns them."""
        if not self.settled(namespace, now):
            return []
        gone = [
            key
            for key, belief in self._beliefs.items()
            if not belief.members and key.namespace == namespace and key.group == group and key.service not in names
        ]
        for key in gone:
            self.remove(key, "deleted")
        return gone

    def empties(self, namespace: str, group: str) -> bool:
        """Whether a service of this group is believed empty, so that a catalogue read would tell us something."""
        return any(
            not belief.members and belief.key.namespace == namespace and belief.key.group == group
            for belief in self._beliefs.values()
        )

    def remove(self, key: ServiceKey, reason: str) -> None:
        """Forgets a service; static ones stay."""
        if self._beliefs.pop(key, None) is None and self._resting.pop(key, None) is None:
            return
        self._clear_doubt(key)
        self._populated.discard(key)
        if key not in self._static:
            self._changed.pop(key, None)
            self._removed[key] = reason

    # --- static

    def set_static(self, services: Mapping[ServiceKey, tuple[Instance, ...]]) -> None:
        """The whole set of static services; they win over the registry."""
        gone = self._static.keys() - services.keys()
        changed = [key for key, instances in services.items() if self._static.get(key) != instances]
        self._static = dict(services)
        self.groups.update((key.namespace, key.group) for key in services)
        for key in changed:
            self._changed[key] = None
            self._removed.pop(key, None)
        for key in gone:
            if self._is_registered(key):
                self._changed[key] = None
            else:
                self._changed.pop(key, None)
                self._removed[key] = "static entry removed"

    def is_static(self, key: ServiceKey) -> bool:
        return key in self._static

    # --- telling

    def _note(self, belief: Belief) -> None:
        self._removed.pop(belief.key, None)
        if belief.members:
            self._populated.add(belief.key)
        else:
            self._populated.discard(belief.key)
        if belief.key not in self._static:
            self._changed[belief.key] = None

    def take_changes(self) -> tuple[list[Snapshot], list[tuple[ServiceKey, str]]]:
        """Snapshots to send and store, and services to remove, since the last call."""
        removed = list(self._removed.items())
        changed = list(self._changed)
        self._removed.clear()
        self._changed.clear()
        snapshots = []
        for key in changed:
            self._revision += 1
            if (belief := self._beliefs.get(key)) is not None:
                belief.revision = self._revision
            snapshots.append(self.snapshot(key, revision=self._revision))
        return snapshots, removed

    def snapshot(self, key: ServiceKey, *, revision: int = 0) -> Snapshot:
        """What we serve of a service now. KeyError when it is not known."""
        if (instances := self._static.get(key)) is not None:
            return Snapshot(key, instances, revision=revision or self._revision, source=Source.STATIC, live=True)
        if (resting := self._resting.get(key)) is not None:
            return decode_snapshot(resting.body)
        belief = self._beliefs[key]
        return belief.snapshot(revision or belief.revision)

    def known(self, key: ServiceKey) -> Known:
        """The same, encoded; what was never touched since it was read from disk is as it was there."""
        resting = self._resting.get(key)
        return known(self.snapshot(key)) if resting is None or key in self._static else resting

    def protection(self, key: ServiceKey) -> Protection:
        """Why what we serve of this service differs from its last list."""
        belief = self._beliefs.get(key)
        return belief.protection() if belief is not None else Protection.NONE

    def rest(self, items: Iterable[Known]) -> int:
        """Takes what our own disk holds, unconfirmed and still encoded until something happens to it. Returns how many."""
        count = 0
        for item in items:
            if item.revision or is_empty(item):
                count += self.restore([decode_snapshot(item.body)])
            elif item.key not in self._beliefs:
                self._resting[item.key] = item
                self.groups.add((item.key.namespace, item.key.group))
                count += 1
        return count

    def _awake(self, key: ServiceKey) -> Belief | None:
        """The belief of a service, decoded if it rested."""
        if (resting := self._resting.pop(key, None)) is not None:
            self._beliefs[key] = restored(decode_snapshot(resting.body))
            self._populated.add(key)
        return self._beliefs.get(key)

    def restore(self, snapshots: Iterable[Snapshot]) -> int:
        """Takes what a disk or a front remembers, unconfirmed. What is known already wins. Returns how many."""
        count = 0
        for snapshot in snapshots:
            if self._is_registered(snapshot.key) or snapshot.source is Source.STATIC:
                continue
            belief = self._beliefs[snapshot.key] = restored(snapshot)
            self.groups.add((snapshot.key.namespace, snapshot.key.group))
            self._note(belief)
            count += 1
        return count
