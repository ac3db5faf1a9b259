"""Empty non-terminals: the names above the names of known services.

Must not know: how a name is read, what is known of a service. Rule: counted, so that services may share a suffix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nacosdns.core.naming import ServiceName
    from nacosdns.core.spelling import FoldedKey

_Key = TypeVar("_Key", str, tuple[str, str])


class Suffixes:
    """Empty non-terminals that known services make: ``b.c`` while a service ``a.b.c`` is known (RFC 8020).

    Counted, so that services may share them. A key is added once for each service and removed once.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], dict[str, int]] = {}
        self._groups: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"<Suffixes {sum(map(len, self._counts.values()))} of {len(self._groups)} groups>"

    def __contains__(self, key: FoldedKey) -> bool:
        """Whether the key's service text is a proper suffix of a known service of the same namespace and group."""
        return key[2] in self._counts.get(key[:2], ())

    def covers(self, name: ServiceName) -> bool:
        """Whether the name, which means no known service, stands above names that do: NODATA, not NXDOMAIN.

        A group stands above the names of the ``SERVICE.GROUP`` alias.
        """
        if name.prefix.value:
            return False
        if any(candidate.folded in self for candidate in name.candidates):
            return True
        return not name.marked and (name.namespace, name.candidates[0].folded[2]) in self._groups

    def add(self, key: FoldedKey) -> None:
        """A service became known."""
        self._groups[key[0], key[1]] = self._groups.get((key[0], key[1]), 0) + 1
        if "." not in key[2]:
            return
        counts = self._counts.setdefault(key[:2], {})
        for suffix in _proper_suffixes(key[2]):
            counts[suffix] = counts.get(suffix, 0) + 1

    def remove(self, key: FoldedKey) -> None:
        """A service that was added is known no more."""
        _take_one(self._groups, key[:2])
        counts = self._counts.get(key[:2])
        if counts is None:
            return
        for suffix in _proper_suffixes(key[2]):
            _take_one(counts, suffix)
        if not counts:
            del self._counts[key[:2]]


def _proper_suffixes(service: str) -> Iterator[str]:
    at = service.find(".")
    while at >= 0:
        yield service[at + 1 :]
        at = service.find(".", at + 1)


def _take_one(counts: dict[_Key, int], key: _Key) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
