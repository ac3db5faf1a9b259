"""One service as we believe it: members, what the last list held, what is doubted, and how that looks from outside.

Must not know: other services, time. Rule: it only holds and shows; core/services.py decides what changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.core.model import Protection, Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nacosdns.core.model import Instance, ServiceKey

Identity = tuple[str, int, str]


class Belief:
    """What we believe of one service. ``members`` in the order they came to be known."""

    __slots__ = (
        "agreements",
        "changed_at",
        "confirmed",
        "confirmed_at",
        "demoted",
        "empty_since",
        "expected",
        "held",
        "key",
        "last_healthy",
        "listed",
        "live",
        "members",
        "revision",
        "since",
        "source",
        "threshold_reached",
    )

    def __init__(self, key: ServiceKey) -> None:
        self.key = key
        self.members: dict[Identity, Instance] = {}
        self.confirmed: set[Identity] = set()
        self.demoted: set[Identity] = set()
        self.held: dict[Identity, float] = {}
        self.listed: set[Identity] | None = None
        self.expected = 0
        self.changed_at = 0.0
        self.empty_since = 0.0
        self.agreements = 0
        self.since = 0.0
        self.confirmed_at = 0.0
        self.source = Source.PULL
        self.threshold_reached = False
        self.last_healthy: tuple[Instance, ...] = ()
        self.live = False
        self.revision = 0

    def __repr__(self) -> str:
        return f"<Belief {self.key} members={len(self.members)} doubted={len(self.doubted())} live={self.live}>"

    def doubted(self) -> list[Identity]:
        """Members that the last list does not hold and that are not yet given up."""
        if self.listed is None:
            return []
        return [identity for identity in self.members if identity not in self.listed and identity not in self.demoted]

    @property
    def kept(self) -> int:
        """How many members are served that the last list does not name."""
        return len(self.demoted) + len(self.doubted())

    @property
    def is_sick(self) -> bool:
        """Whether Nacos named instances on this connection, and no member can be answered as a healthy one."""
        return bool(self.members) and self.listed is not None and not any(map(_is_able, self.members.values()))

    def face(self) -> tuple[dict[Identity, Instance], frozenset[Identity], bool, bool, Protection]:
        """What others see of a belief: when it stays the same there is nothing to tell."""
        return (
            dict(self.members),
            frozenset(self.demoted),
            self.threshold_reached,
            self.source is Source.DISK,
            self.protection(),
        )

    def forget_list(self) -> None:
        """The connection is gone: no list counts, nothing is confirmed, no doubt goes on. Members stay."""
        if self.listed is not None:
            self.expected = len(self.members) - len(self.demoted)
        self.confirmed.clear()
        self.held.clear()
        self.listed = None
        self.agreements = 0
        self.empty_since = 0.0

    def as_many_as_before(self) -> bool:
        """Whether the last list has as many instances to answer as we knew before this connection: it is not half full."""
        return sum(_is_able(self.members[k]) for k in self.listed or ()) >= self.expected

    def differs(self, listed: Mapping[Identity, Instance]) -> bool:
        """Whether a list says something else than the last one did."""
        if self.listed is None:
            return False
        return self.listed != listed.keys() or any(self.members.get(k) != v for k, v in listed.items())

    def remember_healthy(self, before: Mapping[Identity, Instance]) -> None:
        """Keeps the last healthy set while no member is healthy."""
        if any(instance.healthy for instance in self.members.values()):
            self.last_healthy = ()
        elif healthy := tuple(instance for instance in before.values() if instance.healthy):
            self.last_healthy = healthy

    def protection(self) -> Protection:
        """Why what we serve differs from the last list."""
        if self.demoted:
            return Protection.BRAKE
        if self.listed is None:
            return Protection.NONE
        missing = self.doubted()
        if not missing:
            return Protection.NONE
        if not self.listed:
            return Protection.EMPTY
        return Protection.HELD if all(identity in self.held for identity in missing) else Protection.SHRINK

    def snapshot(self, revision: int) -> Snapshot:
        """What is served now: members in order, the demoted ones last."""
        front = [v for k, v in self.members.items() if k not in self.demoted]
        behind = [v for k, v in self.members.items() if k in self.demoted]
        protection = self.protection()
        return Snapshot(
            self.key,
            (*front, *behind),
            revision=revision,
            source=self.source,
            confirmed_at=self.confirmed_at,
            protection=protection,
            protected_since=self.since if protection is not Protection.NONE else 0.0,
            threshold_reached=self.threshold_reached,
            unconfirmed=len(self.doubted()),
            demoted=len(behind),
            last_healthy=self.last_healthy,
            live=self.live,
        )


def _is_able(instance: Instance) -> bool:
    return instance.healthy and instance.enabled and instance.weight > 0


def on_disk(snapshot: Snapshot) -> Snapshot:
    """What is kept of a snapshot: without what only the present connection knows. Revision 0 says that it is so."""
    return Snapshot(
        snapshot.key,
        snapshot.instances,
        source=Source.DISK,
        confirmed_at=snapshot.confirmed_at,
        threshold_reached=snapshot.threshold_reached,
        last_healthy=snapshot.last_healthy,
    )


def restored(snapshot: Snapshot) -> Belief:
    """What a disk or a front remembers, as an unconfirmed belief."""
    belief = Belief(snapshot.key)
    belief.members = {instance.identity: instance for instance in snapshot.instances}
    belief.expected = len(belief.members)
    belief.threshold_reached = snapshot.threshold_reached
    belief.confirmed_at = snapshot.confirmed_at
    belief.last_healthy = snapshot.last_healthy
    belief.source = Source.DISK
    return belief
