"""Which policy a service gets: the most specific of those in the configuration.

Must not know: where policies are written. Rule: an exact name beats every pattern, a longer pattern a shorter one, and
the base takes the rest; letters A-Z count as a-z, as in DNS.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nacosdns.core.model import Policy

_FOLD = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def fold(name: str) -> str:
    """The name with A-Z as a-z and every other character as it is (RFC 4343)."""
    return name.translate(_FOLD)


class Policies:
    """The policies of a configuration. A key of ``special`` is a service name; each ``*`` in it stands for any text."""

    def __init__(self, base: Policy, special: Mapping[str, Policy] | None = None) -> None:
        special = special or {}
        self.base = base
        self._exact = {fold(name): policy for name, policy in special.items() if "*" not in name}
        patterns = sorted((name for name in special if "*" in name), key=_plain_length, reverse=True)
        self._patterns = tuple((_compiled(name), special[name]) for name in patterns)

    def __repr__(self) -> str:
        return f"<Policies {len(self._exact)} exact, {len(self._patterns)} patterns>"

    def resolve(self, service: str) -> Policy:
        """The policy of this service, named as the registry spells it (without group and namespace)."""
        name = fold(service)
        exact = self._exact.get(name)
        if exact is not None:
            return exact
        return next((policy for pattern, policy in self._patterns if pattern.fullmatch(name)), self.base)


def _plain_length(pattern: str) -> int:
    return len(pattern) - pattern.count("*")


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in fold(pattern).split("*")), re.DOTALL)
