"""What the catalogue reads listed: which names exist, and how they are really spelled.

Must not know: when it is read (core/schedule.py). Rules: absence here never ends a service (core/services.py decides
that); it only says that a name which nobody ever saw need not be looked up while look-ups are scarce. Which spellings of
a service are known follows from here, never from the letters of a question: resolvers choose those at random (0x20).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.core.model import ServiceKey
from nacosdns.core.naming import fold_text

if TYPE_CHECKING:
    from collections.abc import Collection, ItemsView, Iterator, Sequence

FRESH_S = 90.0
SPELLINGS_MAX = 3


class Catalogue:
    """The last list of each namespace and group."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], tuple[str, ...]] = {}
        self._spellings: dict[tuple[str, str], dict[str, list[str]]] = {}
        self._read_at: dict[tuple[str, str], float] = {}
        self._strangers: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"<Catalogue groups={len(self._names)} names={sum(map(len, self._names.values()))}>"

    def __iter__(self) -> Iterator[ServiceKey]:
        for (namespace, group), names in self._names.items():
            yield from (ServiceKey(namespace, group, name) for name in names)

    def items(self) -> ItemsView[tuple[str, str], tuple[str, ...]]:
        """Namespace and group, names."""
        return self._names.items()

    def learn(self, namespace: str, group: str, names: tuple[str, ...], now: float) -> None:
        """A complete read."""
        spellings: dict[str, list[str]] = {}
        for name in sorted(names):
            spellings.setdefault(fold_text(name), []).append(name)
        self._names[namespace, group] = names
        self._spellings[namespace, group] = spellings
        self._read_at[namespace, group] = now

    def spell(self, keys: tuple[ServiceKey, ...]) -> tuple[ServiceKey, ...]:
        """The spellings that the catalogue lists for these names, those asked for first; else the keys as they are."""
        listed: dict[ServiceKey, None] = dict.fromkeys(key for key in keys if self.lists(key))
        for key in keys:
            names = self.spellings(key)
            listed.update(dict.fromkeys(ServiceKey(key.namespace, key.group, name, key.registry) for name in names))
        return tuple(listed)[:SPELLINGS_MAX] or keys

    def spellings(self, key: ServiceKey) -> Sequence[str]:
        """How the last read spells what this key means, in code-point order."""
        return self._spellings.get((key.namespace, key.group), {}).get(fold_text(key.service), ())

    def lists(self, key: ServiceKey) -> bool:
        """Whether the last read lists exactly this spelling."""
        return key.service in self.spellings(key)

    def unheard(self, namespace: str, group: str, known: Collection[ServiceKey]) -> list[ServiceKey]:
        """What the last read lists of services that are known, but not in these spellings."""
        spellings = self._spellings.get((namespace, group), {})
        held = {key.service for key in known if key.namespace == namespace and key.group == group}
        folded = dict.fromkeys(map(fold_text, held))
        self._strangers[namespace, group] = len(held) if spellings.keys().isdisjoint(folded) else 0
        names = [name for text in folded for name in spellings.get(text, ()) if name not in held]
        return [ServiceKey(namespace, group, name) for name in names]

    def strangers(self, namespace: str, group: str) -> int:
        """How many services we knew at the last read while it listed none of them; 0 when it listed one."""
        return self._strangers.get((namespace, group), 0)

    def covers(self, namespace: str, group: str) -> bool:
        """Whether this group was ever read."""
        return (namespace, group) in self._read_at

    def lacks(self, key: ServiceKey, now: float) -> bool:
        """Whether a read not older than FRESH_S does not list the name in any spelling."""
        group = (key.namespace, key.group)
        read_at = self._read_at.get(group)
        if read_at is None or now - read_at > FRESH_S:
            return False
        return fold_text(key.service) not in self._spellings[group]

    def lacks_all(self, keys: tuple[ServiceKey, ...], groups: Collection[tuple[str, str]], now: float) -> bool:
        """Whether recent reads say that none of the spellings exists.

        A group that no service was ever seen in (``groups``), and that nobody reads the catalogue of, is what a dotted
        name makes of itself (SERVICE.GROUP): it says nothing.
        """
        told = [key for key in keys if self.covers(key.namespace, key.group) or (key.namespace, key.group) in groups]
        return bool(told) and all(self.lacks(key, now) for key in told)
