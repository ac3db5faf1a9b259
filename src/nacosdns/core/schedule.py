"""When the registry is asked what: look-ups, subscriptions, pulls, signs of life, catalogue reads, idle ends.

Must not know: lists and beliefs (core/services.py), sockets. Rule: every request to the registry is an ``Action``
handed out by ``take`` within its budget and reported back by ``done``; nothing else asks. Budgets (DESIGN 4): first
look-ups of names known to disk or catalogue 32 in flight; unknown names 20 a second; re-reads after a connect 200 a
second, most recently asked first; an idle client at most half a request a second.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

import msgspec

from nacosdns.core.model import ServiceKey

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

KNOWN_IN_FLIGHT_MAX = 32
UNKNOWN_PER_S = 20.0
REREADS_PER_S = 200.0
IN_FLIGHT_MAX = 64
KNOWN_WAITING_MAX = 2000
UNKNOWN_WAITING_MAX = 40
LIFE_S = 10.0
CATALOGUE_S = 60.0
CATALOGUE_IDLE_S = 540.0
"""So much longer a read may wait that nothing calls for, while services are wanted: they may be spelled anew."""
PULL_FACTOR_S = 4.0
PULLS_APART_S = 10.0
"""Pulls that are due are made together: a thread of gRPC that was woken wakes some 20 times more until it rests."""
START_SPREAD_S = 1.0
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class Kind(Enum):
    """What a request is for."""

    LOOKUP = "lookup"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    PULL = "pull"
    LIFE = "life"
    CATALOGUE = "catalogue"


class Action(msgspec.Struct, frozen=True, gc=False):
    """One request to make. For CATALOGUE only namespace and group of the key count."""

    kind: Kind
    key: ServiceKey
    keys: tuple[ServiceKey, ...] = ()


class Settings(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """``pull_s``, ``idle_s`` as in config [nacos]; ``bare`` are namespace and group pairs of zones with bare names."""

    pull_s: float = 60.0
    idle_s: float = 3600.0
    namespaces: tuple[str, ...] = ("public",)
    groups: tuple[tuple[str, str], ...] = (("public", "DEFAULT_GROUP"),)
    bare: frozenset[tuple[str, str]] = frozenset()
    preload: frozenset[ServiceKey] = frozenset()


class Bucket:
    """A token bucket: ``rate`` a second, at most ``size`` at once."""

    __slots__ = ("_at", "_rate", "_size", "_tokens")

    def __init__(self, rate: float, size: float) -> None:
        self._rate = rate
        self._size = size
        self._tokens = size
        self._at = 0.0

    def take(self, now: float) -> bool:
        """Whether there is one; takes it."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _fill(self, now: float) -> None:
        self._tokens = min(self._size, self._tokens + (now - self._at) * self._rate)
        self._at = now

    def wait_s(self, now: float) -> float:
        """Until there is one."""
        self._fill(now)
        return max(0.0, (1.0 - self._tokens) / self._rate)


class Wanted:
    """A service that somebody asks for: when last, and how its subscription stands."""

    __slots__ = ("asked_at", "failures", "pull_at", "state")

    def __init__(self, asked_at: float) -> None:
        self.asked_at = asked_at
        self.state = "none"  # none, waiting, busy, live
        self.failures = 0
        self.pull_at = 0.0

    def __repr__(self) -> str:
        return f"<Wanted {self.state} asked={self.asked_at:.1f} failures={self.failures}>"


class Client:
    """One namespace's connection as the schedule sees it."""

    __slots__ = ("heard_at", "rereads_from", "up")

    def __init__(self) -> None:
        self.up = False
        self.heard_at = 0.0
        self.rereads_from = 0.0

    def __repr__(self) -> str:
        return f"<Client up={self.up}>"


class Schedule:
    """Plans every request. All times are ``now`` seconds."""

    def __init__(self, settings: Settings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self._clients = {namespace: Client() for namespace in settings.namespaces}
        self._wanted: dict[ServiceKey, Wanted] = {}
        self._to_subscribe: dict[ServiceKey, None] = {}
        self._to_reread: OrderedDict[ServiceKey, None] = OrderedDict()
        self._to_unsubscribe: deque[ServiceKey] = deque()
        self._retries: list[tuple[float, ServiceKey]] = []
        self._pulls: list[tuple[float, ServiceKey]] = []
        self._checks: dict[ServiceKey, None] = {}
        self._lookups: dict[tuple[ServiceKey, ...], bool] = {}
        self._known_waiting: deque[tuple[ServiceKey, ...]] = deque()
        self._unknown_waiting: deque[tuple[ServiceKey, ...]] = deque()
        self._known_in_flight = 0
        self._in_flight = 0
        self._unknown = Bucket(UNKNOWN_PER_S, UNKNOWN_PER_S)
        self._rereads = Bucket(REREADS_PER_S, 20.0)
        self._catalogue_at: dict[tuple[str, str], float] = dict.fromkeys(settings.groups, 0.0)
        self._catalogue_wanted: dict[tuple[str, str], None] = dict.fromkeys(settings.groups)
        self._next_sweep = 0.0
        self._pulls_from = 0.0
        for key in settings.preload:
            self._want(key, 0.0)

    def __repr__(self) -> str:
        return f"<Schedule wanted={len(self._wanted)} in_flight={self._in_flight} lookups={len(self._lookups)}>"

    # --- what others tell

    def connected(self, namespace: str, now: float) -> None:
        """A new connection: every wanted service is subscribed again, most recently asked first."""
        client = self._clients[namespace]
        client.up = True
        client.heard_at = now
        client.rereads_from = now + self._rng.random() * START_SPREAD_S
        wanted = [(w.asked_at, key) for key, w in self._wanted.items() if key.namespace == namespace]
        for _, key in sorted(wanted, reverse=True):
            self._wanted[key].state = "waiting"
            self._to_reread[key] = None
        self._catalogue_wanted.update(dict.fromkeys(g for g in self._settings.groups if g[0] == namespace))

    def disconnected(self, namespace: str) -> None:
        """Nothing is live any more on this namespace."""
        self._clients[namespace].up = False
        for key, wanted in self._wanted.items():
            if key.namespace == namespace:
                wanted.state = "none"
                self._unline(key)

    def heard(self, namespace: str, now: float) -> None:
        """The registry said something: that is a sign of life."""
        self._clients[namespace].heard_at = now

    def lookup(self, keys: tuple[ServiceKey, ...], *, known: bool) -> bool:
        """Plans a look-up of these spellings, one flight for equal ones. False: no room, the asker must give up."""
        if keys in self._lookups:
            return True
        waiting = self._known_waiting if known else self._unknown_waiting
        room = KNOWN_WAITING_MAX if known else UNKNOWN_WAITING_MAX
        if len(waiting) >= room or keys[0].namespace not in self._clients:
            return False
        self._lookups[keys] = known
        waiting.append(keys)
        return True

    def unknown_crowded(self, now: float) -> bool:
        """Whether a look-up of an unknown name would have to wait for its budget."""
        return bool(self._unknown_waiting) or self._unknown.wait_s(now) > 0.0

    def drop_waiting(self, keys: tuple[ServiceKey, ...]) -> None:
        """A look-up that nobody waits for any more; one in flight goes on."""
        for waiting in (self._known_waiting, self._unknown_waiting):
            if keys in waiting:
                waiting.remove(keys)
                del self._lookups[keys]

    def asked(self, key: ServiceKey, now: float) -> None:
        """Somebody asked for a service that exists: it is subscribed, or its idle time starts anew."""
        self._want(key, now)

    def _want(self, key: ServiceKey, now: float) -> None:
        if key.namespace not in self._clients:
            return
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = Wanted(now)
        wanted.asked_at = max(wanted.asked_at, now)
        if key in self._to_reread:
            self._to_reread.move_to_end(key, last=False)  # many may stand before it, asked for long ago
        if wanted.state == "none" and not wanted.failures and self._clients[key.namespace].up:
            self._line_up(key)

    def _line_up(self, key: ServiceKey) -> None:
        self._wanted[key].state = "waiting"
        self._to_subscribe[key] = None

    def _unline(self, key: ServiceKey) -> None:
        self._to_subscribe.pop(key, None)
        self._to_reread.pop(key, None)

    def check(self, keys: Iterable[ServiceKey]) -> None:
        """Beliefs in doubt need a fresh query."""
        self._checks.update(dict.fromkeys(keys))

    def forget(self, key: ServiceKey) -> None:
        """The service is gone: its subscription ends."""
        wanted = self._wanted.get(key)
        if wanted is None or key in self._settings.preload:
            return
        del self._wanted[key]
        self._unline(key)
        self._checks.pop(key, None)
        if wanted.state in {"live", "busy"}:
            self._to_unsubscribe.append(key)

    def want_catalogue(self, namespace: str, group: str) -> None:
        """A miss, a name with capitals, a service believed empty: read it, at most every CATALOGUE_S."""
        if (namespace, group) in self._catalogue_at:
            self._catalogue_wanted[namespace, group] = None

    # --- what is to be done

    def take(self, now: float) -> list[Action]:
        """The requests to make now. Each must be reported by ``done``."""
        self._sweep(now)
        actions: list[Action] = []
        self._take_lookups(actions, now)
        self._take_checks(actions, now)
        self._take_subscribes(actions, now)
        self._take_pulls(actions, now)
        self._take_life(actions, now)
        self._take_catalogue(actions, now)
        self._in_flight += len(actions)
        return actions

    def _room(self, actions: list[Action]) -> bool:
        return self._in_flight + len(actions) < IN_FLIGHT_MAX

    def _up(self, namespace: str) -> bool:
        client = self._clients.get(namespace)
        return client is not None and client.up

    def _take_lookups(self, actions: list[Action], now: float) -> None:
        while self._known_waiting and self._known_in_flight < KNOWN_IN_FLIGHT_MAX:
            keys = self._known_waiting.popleft()
            self._known_in_flight += 1
            actions.append(Action(Kind.LOOKUP, keys[0], keys))
        while self._unknown_waiting and self._room(actions) and self._unknown.take(now):
            keys = self._unknown_waiting.popleft()
            actions.append(Action(Kind.LOOKUP, keys[0], keys))

    def _take_checks(self, actions: list[Action], now: float) -> None:
        for key in [key for key in self._checks if self._up(key.namespace)]:
            if not self._room(actions) or not self._rereads.take(now):
                return
            del self._checks[key]
            actions.append(Action(Kind.PULL, key))

    def _take_subscribes(self, actions: list[Action], now: float) -> None:
        while self._retries and self._retries[0][0] <= now:
            _, key = heappop(self._retries)
            if key in self._wanted and self._wanted[key].state == "none" and self._up(key.namespace):
                self._line_up(key)
        while self._to_unsubscribe and self._room(actions):
            key = self._to_unsubscribe.popleft()
            if self._up(key.namespace) and key not in self._wanted:
                actions.append(Action(Kind.UNSUBSCRIBE, key))
        first = islice(self._to_reread, IN_FLIGHT_MAX)
        rereads = [key for key in first if now >= self._clients[key.namespace].rereads_from]
        for key in (*islice(self._to_subscribe, IN_FLIGHT_MAX), *rereads):
            if not self._room(actions) or not self._rereads.take(now):
                return
            self._unline(key)
            self._wanted[key].state = "busy"
            actions.append(Action(Kind.SUBSCRIBE, key))

    def _take_pulls(self, actions: list[Action], now: float) -> None:
        if now < self._pulls_from:
            return
        while self._pulls and self._pulls[0][0] <= now and self._room(actions):
            at, key = heappop(self._pulls)
            wanted = self._wanted.get(key)
            if wanted is None or wanted.pull_at != at or wanted.state != "live":
                continue
            self._plan_pull(key, wanted, now)
            self.heard(key.namespace, now)  # it will be a sign of life, or the lack of one
            self._pulls_from = now + PULLS_APART_S
            actions.append(Action(Kind.PULL, key))

    def _plan_pull(self, key: ServiceKey, wanted: Wanted, now: float) -> None:
        period = max(self._settings.pull_s, PULL_FACTOR_S * len(self._wanted))
        wanted.pull_at = now + period * (0.8 + 0.4 * self._rng.random())
        heappush(self._pulls, (wanted.pull_at, key))

    def _take_life(self, actions: list[Action], now: float) -> None:
        for namespace, client in self._clients.items():
            if client.up and now - client.heard_at >= LIFE_S:
                client.heard_at = now
                known = next((key for key in self._wanted if key.namespace == namespace), None)
                key = known or ServiceKey(namespace, "DEFAULT_GROUP", "nacosdns-sign-of-life")
                actions.append(Action(Kind.LIFE, key))

    def _take_catalogue(self, actions: list[Action], now: float) -> None:
        for group in list(self._catalogue_at):
            if self._up(group[0]) and now >= self._catalogue_due(group):
                self._catalogue_wanted.pop(group, None)
                self._catalogue_at[group] = now + CATALOGUE_S * (0.7 + 0.6 * self._rng.random())
                actions.append(Action(Kind.CATALOGUE, ServiceKey(group[0], group[1], "")))

    def _catalogue_due(self, group: tuple[str, str]) -> float:
        at = self._catalogue_at[group]
        if group in self._catalogue_wanted or group in self._settings.bare:
            return at
        return at + CATALOGUE_IDLE_S if self._wanted else inf

    def _sweep(self, now: float) -> None:
        """Ends idle subscriptions; looks once in a tenth of the idle time."""
        if now < self._next_sweep:
            return
        self._next_sweep = now + self._settings.idle_s / 10
        for key in [k for k, w in self._wanted.items() if now - w.asked_at > self._settings.idle_s]:
            self.forget(key)

    # --- what became of it

    def done(self, action: Action, now: float, *, good: bool) -> None:
        """A request ended. ``good`` False: the registry did not answer."""
        self._in_flight -= 1
        if good:
            self.heard(action.key.namespace, now)
        if action.kind is Kind.LOOKUP:
            self._known_in_flight -= self._lookups.pop(action.keys, False)
        elif action.kind is Kind.SUBSCRIBE:
            self._subscribed(action.key, now, good=good)
        elif action.kind is Kind.CATALOGUE and not good:
            self._catalogue_wanted[action.key.namespace, action.key.group] = None

    def _subscribed(self, key: ServiceKey, now: float, *, good: bool) -> None:
        wanted = self._wanted.get(key)
        if wanted is None:
            self._to_unsubscribe.append(key)
            return
        if wanted.state != "busy":
            return
        if good:
            wanted.state = "live"
            wanted.failures = 0
            self._plan_pull(key, wanted, now)
            return
        wanted.state = "none"
        delay = RETRY_S[min(wanted.failures, len(RETRY_S) - 1)] * (0.7 + 0.6 * self._rng.random())
        wanted.failures += 1
        heappush(self._retries, (now + delay, key))

    # --- time and state

    def next_due(self, now: float) -> float:
        """When ``take`` has something to say, in ``now`` seconds; at least once in LIFE_S."""
        if self._in_flight >= IN_FLIGHT_MAX:
            return now + LIFE_S
        times = [now + LIFE_S, self._next_sweep]
        times += [client.heard_at + LIFE_S for client in self._clients.values() if client.up]
        if self._pulls:
            times.append(max(self._pulls[0][0], self._pulls_from))
        if self._retries:
            times.append(self._retries[0][0])
        if self._unknown_waiting:
            times.append(now + self._unknown.wait_s(now))
        if self._to_subscribe or self._checks:
            times.append(now + self._rereads.wait_s(now))
        for key in list(self._to_reread)[:1]:
            times.append(max(self._clients[key.namespace].rereads_from, now + self._rereads.wait_s(now)))
        times += [self._catalogue_due(group) for group in self._catalogue_at if self._up(group[0])]
        return min(times)

    def subscribed(self) -> list[ServiceKey]:
        """Services with a live subscription."""
        return [key for key, wanted in self._wanted.items() if wanted.state == "live"]

    def is_live(self, key: ServiceKey) -> bool:
        """Whether the registry pushes changes of this service to us now."""
        wanted = self._wanted.get(key)
        return wanted is not None and wanted.state == "live"

    def asked_at(self, key: ServiceKey) -> float:
        """When it was last asked for; 0 when it is not wanted."""
        wanted = self._wanted.get(key)
        return wanted.asked_at if wanted is not None else 0.0

    def reconfigure(self, settings: Settings) -> None:
        """New settings; what is subscribed stays."""
        self._settings = settings
        for namespace in settings.namespaces:
            self._clients.setdefault(namespace, Client())
        self._catalogue_at = {group: self._catalogue_at.get(group, 0.0) for group in settings.groups}
        for key in settings.preload:
            self._want(key, 0.0)
