"""What an operator asks of the keeper: the services, its state, a flush, numbers for the gauges.

Must not know: the control socket. Rules: what changes a belief is a method of the keeper; what may be long is told a page
at a time, for pushes and fronts wait meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nacosdns.core.dnsname import fold, labels_of, name_text, text_name
from nacosdns.core.model import Protection
from nacosdns.core.naming import AddressName, Outside, ServiceName
from nacosdns.core.spelling import folded_of
from nacosdns.errors import ControlError, WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nacosdns.core.model import ServiceKey, Snapshot
    from nacosdns.core.naming import Candidate, FoldedKey, Names
    from nacosdns.keeper import Keeper

PROTECTED_SHOWN_MAX = 50
SICK_SHOWN_MAX = 5
PAGE_ROWS = 200
"""Some ten milliseconds of work."""
LISTINGS_MAX = 8
"""So many may be read at a time; the oldest goes first."""

_ONLY_LISTED: dict[str, object] = {
    "instances": None,
    "healthy": None,
    "protection": Protection.NONE.value,
    "protected_s": None,
    "unconfirmed": 0,
    "demoted": 0,
    "source": "catalogue",
    "subscribed": False,
    "age_s": None,
}


class Counts(msgspec.Struct, frozen=True):
    """What the keeper's gauges show."""

    services: int
    subscribed: int
    connected: int
    namespaces: int
    protected: dict[Protection, int]
    oldest_confirmation_s: float


class PageWanted(msgspec.Struct, frozen=True):
    """A part of the list of services.

    ``listed``: with those that only the registry's catalogue knows. ``after``: the ``next`` of the page before it.
    """

    listed: bool = False
    after: tuple[int, int, int] | None = None


class KeeperControl:
    """The keeper's half of `services` and `status`."""

    def __init__(self, keeper: Keeper, names: Names) -> None:
        self._keeper = keeper
        self._names = names
        self._listings: dict[int, list[ServiceKey]] = {}
        self._listed = 0

    def __repr__(self) -> str:
        return f"<KeeperControl of {self._keeper!r}>"

    def page(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """For `nacosdns services`: ``rows`` in no order, ``next`` for the page after it, ``total`` of all pages.

        What goes while the pages are read is left out, what comes is not told of.
        """
        wanted = msgspec.convert(arguments, PageWanted)
        number, at = self._begin(listed=wanted.listed) if wanted.after is None else self._continue(wanted.after)
        keys = self._listings[number]
        end = at + PAGE_ROWS
        is_last = end >= len(keys)
        rows = [row for key in keys[at:end] if (row := self._row(key))]
        if is_last:
            del self._listings[number]
        return {"rows": rows, "next": None if is_last else (self._keeper.epoch, number, end), "total": len(keys)}

    def _begin(self, *, listed: bool) -> tuple[int, int]:
        services = self._keeper.services
        keys = services.keys()
        if listed:
            keys += [key for key in self._keeper.catalogue if key not in services]
        while len(self._listings) >= LISTINGS_MAX:
            del self._listings[next(iter(self._listings))]
        self._listed += 1
        self._listings[self._listed] = keys
        return self._listed, 0

    def _continue(self, after: tuple[int, int, int]) -> tuple[int, int]:
        epoch, number, at = after
        if epoch != self._keeper.epoch or number not in self._listings:
            raise ControlError("the keeper is another one by now, or too many ask at once; ask again")
        return number, at

    def _row(self, key: ServiceKey) -> dict[str, object] | None:
        """None for what is gone. A service that only the catalogue lists has no instances that we know of."""
        catalogue = self._keeper.catalogue
        row: dict[str, object] = {
            "name": self._name(key),
            "namespace": key.namespace,
            "group": key.group,
            "service": key.service,
            "registry": key.registry,
            "spellings": [other for other in catalogue.spellings(key) if other != key.service],
        }
        if key in self._keeper.services:
            return row | self._state(self._keeper.services.snapshot(key), self._keeper.clock.wall())
        return row | _ONLY_LISTED if catalogue.lists(key) else None

    def _state(self, snapshot: Snapshot, wall: float) -> dict[str, object]:
        since = snapshot.protected_since
        return {
            "instances": len(snapshot.instances),
            "healthy": sum(1 for i in snapshot.instances if i.healthy and i.enabled),
            "protection": snapshot.protection.value,
            "protected_s": round(wall - since, 1) if since else None,
            "unconfirmed": snapshot.unconfirmed,
            "demoted": snapshot.demoted,
            "source": snapshot.source.value,
            "subscribed": self._keeper.schedule.is_live(snapshot.key),
            "age_s": round(wall - snapshot.confirmed_at, 1) if snapshot.confirmed_at else None,
        }

    def _name(self, key: ServiceKey) -> str:
        """The shortest DNS name that means this service; why there is none, in brackets."""
        wire = self._names.short_name(key)
        return name_text(wire) if wire is not None else f"({self._names.unnameable(key)})"

    def status(self) -> dict[str, object]:
        """For `nacosdns status`."""
        keeper = self._keeper
        services = keeper.services
        protected = services.doubted()
        braked_since = services.braked_since
        return {
            "epoch": keeper.epoch,
            "revision": services.revision,
            "services": services.count(),
            "subscribed": len(keeper.schedule.subscribed()),
            "fronts": len(keeper.fronts),
            "protected": [
                {"service": str(key), "why": services.protection(key).value} for key in protected[:PROTECTED_SHOWN_MAX]
            ],
            "protected_count": len(protected),
            "brake_s": round(keeper.clock.now() - braked_since, 1) if braked_since else None,
            "brake": self._brake() if braked_since else None,
            **self._unhealthy(),
            "catalogues": self._catalogues(),
            "registry": keeper.registry.status() if keeper.registry is not None else None,
            "store": keeper.store.status() | {"waiting": keeper.saver.waiting},
        }

    def _brake(self) -> dict[str, object]:
        """What it holds back: ``services`` of ``known`` lost most, ``kept`` instances are served all the same."""
        services = self._keeper.services
        brake = services.brake
        return {
            "services": max(brake.lost, sum(bool(belief.demoted) for belief in services.awake())),
            "known": brake.known,
            "kept": sum(belief.kept for belief in services.awake()),
            "ends_s": round(brake.ends - self._keeper.clock.now(), 1),
        }

    def _unhealthy(self) -> dict[str, object]:
        """Services without any healthy instance: how many, and of a few what is answered."""
        services = self._keeper.services
        sick = [belief.key for belief in services.awake() if belief.is_sick and not services.is_static(belief.key)]
        shown = [services.snapshot(key) for key in sick[:SICK_SHOWN_MAX]]
        rows = [
            {
                "service": str(snapshot.key),
                "instances": len(snapshot.instances),
                "answered": self._keeper.answered(snapshot),
            }
            for snapshot in shown
        ]
        return {"unhealthy": rows, "unhealthy_count": len(sick)}

    def _catalogues(self) -> list[dict[str, object]]:
        """Of each group that is read: how many services are listed, and how many we know while none of them is."""
        catalogue = self._keeper.catalogue
        return [
            {"namespace": space, "group": group, "listed": len(names), "strangers": catalogue.strangers(space, group)}
            for (space, group), names in catalogue.items()
        ]

    def counts(self) -> Counts:
        """For the gauges."""
        keeper = self._keeper
        protected: dict[Protection, int] = {}
        for key in keeper.services.doubted():
            kind = keeper.services.protection(key)
            protected[kind] = protected.get(kind, 0) + 1
        live = keeper.schedule.subscribed()
        oldest = min((keeper.services.confirmed_at(key) for key in live), default=0.0)
        return Counts(
            services=keeper.services.count(),
            subscribed=len(live),
            connected=len(keeper.up),
            namespaces=len(keeper.namespaces),
            protected=protected,
            oldest_confirmation_s=max(0.0, keeper.clock.wall() - oldest) if oldest else 0.0,
        )

    def flush(self, name: str) -> dict[str, object]:
        """For `cache flush`: the known services that the name may mean, the protection that each had, those forgotten.

        A name outside every zone leaves the disk as well; it may be a service by its bare name.
        """
        try:
            wire = text_name(name)
        except WireError as error:
            raise ControlError(f"{name!r} is not a DNS name: {error}") from error
        target = self._names.resolve(labels_of(wire))
        if isinstance(target, AddressName):
            raise ControlError(f"{name!r} is an address, not a service")
        if isinstance(target, ServiceName):
            return {"name": name, **self._flush(target.candidates)}
        self._keeper.flush_externals([fold(wire)])
        return {"name": name, **self._flush(target.bare if isinstance(target, Outside) else ())}

    def _flush(self, candidates: Iterable[Candidate]) -> dict[str, object]:
        keys = [key for candidate in candidates for key in self.spellings(candidate.folded)]
        before = {key: self._keeper.services.protection(key).value for key in keys}
        flushed = [key for key in keys if self._keeper.flush(key)]
        return {
            "services": [str(key) for key in flushed],
            "ended": {str(key): before[key] for key in flushed},
            "forgotten": [str(key) for key in flushed if key not in self._keeper.services],
        }

    def spellings(self, folded: FoldedKey) -> list[ServiceKey]:
        """The known services that share a folded key."""
        keys = iter(self._keeper.services)
        return [key for key in keys if folded_of(key) == folded]
