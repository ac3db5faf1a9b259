"""Balancers from installed packages: found by their entry points, tried once, handed on by name.

Must not know: what a balancer is used for. Rule: a plugin that cannot be used stops the start with one clear line; it
never fails in the middle of an answer. docs/plugins.md shows how to write one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

from nacosdns.core.balance import BUILT_IN, Member
from nacosdns.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.metadata import EntryPoint

    from nacosdns.core.balance import Balancer

GROUP = "nacosdns.balancers"

_TRIAL = (Member("10.0.0.1:80", 1.0), Member("10.0.0.2:80", 2.5), Member("10.0.0.3:80", 1.0))


def needed_balancers(names: Iterable[str]) -> Mapping[str, type[Balancer]]:
    """Balancers by name, all of these among them. Packages are searched only when a name is not of a built-in one."""
    return BUILT_IN if BUILT_IN.keys() >= set(names) else load_balancers()


def load_balancers() -> dict[str, type[Balancer]]:
    """Every balancer by name: the built-in ones and those of installed packages (entry points ``nacosdns.balancers``).

    ConfigError names the plugin, its package and what is wrong with it.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415  # 30 ms that a start without plugins saves

    found = dict(BUILT_IN)
    owners: dict[str, str] = {}
    for point in entry_points(group=GROUP):
        owner = point.dist.name if point.dist is not None else point.value
        kind = _load(point, owner)
        if point.name in found and found[point.name] is not kind:
            raise _bad(point, owner, f"its name is taken by {owners.get(point.name, 'a built-in one')}")
        found[point.name] = kind
        owners[point.name] = owner
    return found


def _load(point: EntryPoint, owner: str) -> type[Balancer]:
    try:
        kind: object = point.load()
    except Exception as error:  # a stranger's module may raise anything
        raise _bad(point, owner, f"{point.value} cannot be imported: {error}") from error
    if any(kind is built_in for built_in in BUILT_IN.values()):
        return cast("type[Balancer]", kind)
    if not isinstance(kind, type):
        raise _bad(point, owner, f"{point.value} is not a class")
    try:
        fault = _fault(cast("type[Balancer]", kind))
    except Exception as error:  # likewise
        raise _bad(point, owner, f"it failed when it was tried: {type(error).__name__}: {error}") from error
    if fault:
        raise _bad(point, owner, fault)
    return cast("type[Balancer]", kind)


def _fault(kind: type[Balancer]) -> str:
    """What is wrong with a balancer, found by using it; ``""`` when nothing is."""
    if not isinstance(getattr(kind, "per_client", None), bool):
        return "its class has no per_client = True or False"
    for members in (_TRIAL, _TRIAL[:1]):
        balancer = kind(members, random.Random(1), b"host")  # noqa: S311 - picks are no secrets
        cycle: object = balancer.cycle
        if not isinstance(cycle, int) or cycle < 0:
            return "its cycle is not a whole number from 0"
        for places in (1, 2, 8):
            orders = balancer.window(4, places, b"\x7f\x00\x00\x01")
            fault = _order_fault(orders, count=4, places=min(places, len(members)), members=len(members))
            if fault:
                return f"window(4, {places}) of {len(members)} members {fault}"
    return ""


def _order_fault(orders: object, *, count: int, places: int, members: int) -> str:
    if not isinstance(orders, tuple) or len(orders) != count:
        return f"is not a tuple of {count} orders"
    for order in orders:
        if not isinstance(order, tuple) or len(order) != places:
            return f"has an order that is not a tuple of {places}: {order!r}"
        if len(set(order)) != places or not all(isinstance(index, int) and 0 <= index < members for index in order):
            return f"has an order that is not of different members: {order!r}"
    return ""


def _bad(point: EntryPoint, owner: str, what: str) -> ConfigError:
    return ConfigError(
        f'balancer "{point.name}" of package {owner} cannot be used: {what}',
        remedy=f"correct the package or remove it: pip uninstall {owner}",
    )
