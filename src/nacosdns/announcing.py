"""What the log says of protection and the brake: each beginning and each end, once.

Must not know: why a list is doubted (core/services.py). Rule: an operator who reads only the log knows what is served
otherwise than Nacos says, since when, and when that is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.core.model import Protection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nacosdns.core.model import ServiceKey, Snapshot
    from nacosdns.core.services import Services
    from nacosdns.ports import Log


class Announcer:
    """Compares what is published with what was announced."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._protected: dict[ServiceKey, Protection] = {}
        self._braked = False

    def __repr__(self) -> str:
        return f"<Announcer protected={len(self._protected)} braked={self._braked}>"

    def published(self, snapshots: Iterable[Snapshot], removed: Iterable[ServiceKey]) -> None:
        """These services are told to the fronts now."""
        for key in removed:
            self._protected.pop(key, None)
        for snapshot in snapshots:
            self._one(snapshot)

    def _one(self, snapshot: Snapshot) -> None:
        key, kind = snapshot.key, snapshot.protection
        before = self._protected.get(key, Protection.NONE)
        if kind is before:
            return
        if kind is Protection.NONE:
            del self._protected[key]
            self._log.info("protection.ended", service=str(key), was=before.value, instances=len(snapshot.instances))
            return
        self._protected[key] = kind
        kept = snapshot.unconfirmed + snapshot.demoted
        self._log.warning("push.disbelieved", service=str(key), reason=kind.value, kept=kept)

    def brake(self, services: Services) -> None:
        """Whether the brake is on now, and what it holds back."""
        brake = services.brake
        if brake.engaged != self._braked:
            self._braked = brake.engaged
            if brake.engaged:
                self._log.error(
                    "brake.engaged",
                    services=brake.lost,
                    of=brake.known,
                    kept=sum(belief.kept for belief in services.awake()),
                    remedy="if Nacos is right: nacosdns cache accept",
                )
            else:
                self._log.warning("brake.released")
