"""What an operator asks of the keeper: the services, its state, a flush, numbers for the gauges.

Must not know: the control socket. Rule: what changes a belief is a method of the keeper.
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
    from collections.abc import Iterable

    from nacosdns.core.model import ServiceKey, Snapshot
    from nacosdns.core.naming import Candidate, FoldedKey, Names
    from nacosdns.keeper import Keeper

PROTECTED_SHOWN_MAX = 50


class Counts(msgspec.Struct, frozen=True):
    """What the keeper's gauges show."""

    services: int
    subscribed: int
    connected: int
    namespaces: int
    protected: dict[Protection, int]
    oldest_confirmation_s: float


class KeeperControl:
    """The keeper's half of `services` and `status`."""

    def __init__(self, keeper: Keeper, names: Names) -> None:
        self._keeper = keeper
        self._names = names

    def __repr__(self) -> str:
        return f"<KeeperControl of {self._keeper!r}>"

    def listing(self) -> list[dict[str, object]]:
        """For `nacosdns services`."""
        wall = self._keeper.clock.wall()
        services = self._keeper.services
        return [self._row(services.snapshot(key), wall) for key in sorted(services)]

    def _row(self, snapshot: Snapshot, wall: float) -> dict[str, object]:
        key = snapshot.key
        since = snapshot.protected_since
        return {
            "name": self._name(key),
            "namespace": key.namespace,
            "group": key.group,
            "service": key.service,
            "registry": key.registry,
            "instances": len(snapshot.instances),
            "healthy": sum(1 for i in snapshot.instances if i.healthy and i.enabled),
            "protection": snapshot.protection.value,
            "protected_s": round(wall - since, 1) if since else None,
            "unconfirmed": snapshot.unconfirmed,
            "demoted": snapshot.demoted,
            "source": snapshot.source.value,
            "subscribed": self._keeper.schedule.is_live(key),
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
            "registry": keeper.registry.status() if keeper.registry is not None else None,
            "store": keeper.store.status() | {"waiting": keeper.saver.waiting},
        }

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
