"""What the running bridge says of itself by its control socket, as facts for `doctor`.

Must not know: what is right or wrong (core/doctor.py). Rule: an answer of another shape is an error of whoever calls.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nacosdns.core.facts import Brake, Bridge, Listed, Namespace, OpenFiles, Refused, Services, UpstreamState
from nacosdns.core.resolvers import Health
from nacosdns.core.watch import Phase
from nacosdns.edge import admin, hostfacts, sockets
from nacosdns.errors import ControlError, ControlForeign, ControlSilent
from nacosdns.problems import clashing, failed_last, failing, flapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from nacosdns.edge.hostfacts import Tree

STATUS_S = SERVICES_S = 2.0
FUTURE_S = 60.0
"""A time that lies so far ahead is none of this clock."""
_CHANGING = {Phase.STARTING.value, Phase.DRAINING.value}
_WORSE = {health.value: place for place, health in enumerate(Health)}
"""From good to bad, as core/resolvers.py has them."""


def look(tree: Tree, control: Path) -> Bridge:
    """What `status` says; why there is no answer."""
    try:
        status: Any = admin.call(control, "status", {}, STATUS_S)
    except ControlError as error:
        return Bridge(
            error=str(error),
            denied=isinstance(error.__cause__, PermissionError),
            silent=isinstance(error, ControlSilent),
            foreign=isinstance(error, ControlForeign),
        )
    return facts_of(status, tree)


def facts_of(status: Any, tree: Tree) -> Bridge:  # noqa: ANN401  # as the control socket gives it
    """What an answer of `status` means."""
    own, keeper, fronts = status.get("supervisor") or {}, status.get("keeper") or {}, status.get("fronts") or {}
    parts = {"the keeper": keeper, **{f"front {slot}": part for slot, part in fronts.items()}}
    silent = {name: f"{name}: {part['error']}" for name, part in parts.items() if "error" in part}
    children = own.get("children") or ()
    changing = {_name(child) for child in children if child.get("phase") in _CHANGING}
    stopped = {_name(child): child["pid"] for child in children if child.get("stopped")}
    silent = {name: words for name, words in silent.items() if name not in stopped}
    store = keeper.get("store") or {}
    pid = own.get("pid", 0)
    wanted = sockets.RECEIVE_BUFFER_BYTES
    return Bridge(
        pid=pid,
        children=tuple(child["pid"] for child in children),
        canary_age_s=own.get("canary_age_s"),
        covered=bool(own.get("covered")),
        ends=tuple(_ends(children, least=1 if own.get("covered") else 2)),
        stopped=tuple(stopped.items()),
        missing=tuple(own.get("missing") or ()),
        failed=tuple(words for name, words in silent.items() if name not in changing),
        passing=tuple(words for name, words in silent.items() if name in changing),
        namespaces=tuple(_namespaces(keeper.get("registry") or {})),
        upstreams=tuple(_upstream_states(fronts.values())),
        left_out=tuple(
            dict.fromkeys((one["address"], one["why"]) for one in _told(fronts.values(), "upstreams_left_out"))
        ),
        **_of_services(keeper),
        protected=keeper.get("protected_count") or 0,
        store_error=str(own.get("disk") or store.get("not_used") or ""),
        store_failing=str(store.get("error") or ""),
        buffer_bytes=own.get("receive_buffer_bytes") or hostfacts.buffer_bytes(tree, pid, wanted),
        failing=dict(failing(fronts.values())),
        failed_last=failed_last(fronts.values()),
        flaps=tuple(flapping(fronts.values())),
        hindered=tuple((f"front {slot}", part["hindered"]) for slot, part in fronts.items() if part.get("hindered")),
        refused=_refused_client(fronts.values()),
        files=tuple(_files(own, tree)),
        address_space=hostfacts.address_space_max(tree, pid),
        **_refused(own),
        web_phase=next((child["phase"] for child in children if child.get("role") == "web"), ""),
    )


def _ends(children: Iterable[Any], least: int) -> Iterator[str]:
    """Those that failed so often in a row, and why: one end alone is over by now, unless nobody is left."""
    for child in children:
        failures = child.get("failures") or 0
        if failures >= least and child.get("reason"):
            often = f", {failures} times in a row" if failures > 1 else ""
            yield f"{_name(child)}{often}: {child['reason']}"


def _files(own: Any, tree: Tree) -> Iterator[OpenFiles]:  # noqa: ANN401  # as the control socket gives it
    """Of the supervisor and each child, as the kernel says."""
    children = own.get("children") or ()
    processes = [("the supervisor", own.get("pid", 0), True)]
    processes += [(_name(child), child["pid"], child.get("role") == "front") for child in children]
    for name, pid, serves in processes:
        used, limit = hostfacts.files_used(tree, pid), hostfacts.files_max(tree, pid)
        yield OpenFiles(name=name, pid=pid, used=used, limit=limit, serves=serves)


def _name(child: Any) -> str:  # noqa: ANN401  # likewise
    return f"front {child.get('slot')}" if child.get("role") == "front" else f"the {child.get('role')}"


def _told(fronts: Iterable[dict[str, Any]], key: str) -> Iterator[dict[str, Any]]:
    return (one for front in fronts for one in front.get(key) or ())


def _upstream_states(fronts: Iterable[dict[str, Any]]) -> Iterable[UpstreamState]:
    """The worst that a front has seen of each: a standby has asked nobody yet, and holds everybody for good."""
    worst: dict[str, UpstreamState] = {}
    for one in _told(fronts, "upstreams"):
        state = UpstreamState(address=one["address"], health=one["health"], error=str(one.get("last_error") or ""))
        known = worst.get(state.address)
        if known is None or _WORSE.get(state.health, 0) > _WORSE.get(known.health, 0):
            worst[state.address] = state
    return worst.values()


def _refused_client(fronts: Iterable[dict[str, Any]]) -> Refused | None:
    told = [front for front in fronts if front.get("refused_last_s") is not None]
    latest = min(told, key=lambda front: front["refused_last_s"], default=None)
    if latest is None:
        return None
    clients = sum(front["refused_clients"] for front in told)
    return Refused(clients=clients, last=latest["refused_last"], ago_s=latest["refused_last_s"])


def _refused(own: Any) -> dict[str, Any]:  # noqa: ANN401  # likewise
    """The reload and the upgrade that failed last; a bridge of an older release tells of none."""
    reload, upgrade = own.get("reload") or {}, own.get("upgrade") or {}
    return {
        "reload_refused": str(reload.get("refused") or ""),
        "reload_s": max(0.0, time.time() - reload["at"]) if reload.get("at") else None,
        "upgrade_failed": str(upgrade.get("reason") or "see its log") if upgrade.get("state") == "failed" else "",
        "web_fault": str(own.get("web") or ""),
    }


def _of_services(keeper: Any) -> dict[str, Any]:  # noqa: ANN401  # likewise
    """The brake, what is unhealthy, what is listed; a keeper of an older release tells less."""
    brake = keeper.get("brake")
    sick = [(row["service"], row["answered"]) for row in keeper.get("unhealthy") or ()]
    return {
        "brake_s": keeper.get("brake_s"),
        "brake": Brake(services=brake["services"], known=brake["known"], kept=brake["kept"]) if brake else None,
        "unhealthy": keeper.get("unhealthy_count") or 0,
        "unhealthy_named": tuple(sick),
        "catalogues": tuple(
            Listed(
                namespace=row["namespace"],
                group=row["group"],
                listed=row["listed"],
                strangers=row.get("strangers") or 0,
            )
            for row in keeper.get("catalogues") or ()
        ),
    }


def _namespaces(registry: Any) -> Iterable[Namespace]:  # noqa: ANN401  # likewise
    for name, state in (registry.get("namespaces") or {}).items():
        yield Namespace(
            name=name,
            connected=bool(state.get("connected")),
            server=state.get("server") or "",
            version=state.get("version") or "",
            generation=state.get("generation") or "",
            error=state.get("last_error") or "",
            refused=state.get("refused") or "",
            since_s=max(0.0, time.time() - state["since"]) if state.get("since") else None,
            took_s=(state.get("took_ms") or 0.0) / 1000,
        )


def services(control: Path) -> Services:
    """Of a service that no name leads to the reason stands in brackets in place of the name."""
    rows: list[Any] = []
    seen = total = 0
    ends = time.monotonic() + SERVICES_S
    try:
        for page in admin.pages(control, "services", {"listed": True}):
            rows += page["rows"]
            total = page["total"]
            seen = len(rows) if page["next"] else total
            if time.monotonic() > ends:
                break
    except ControlError:
        return Services()  # `status` says why
    ahead = [-row["age_s"] for row in rows if (row.get("age_s") or 0.0) < -FUTURE_S]
    nameless = [row for row in rows if row["name"].startswith("(")]
    protected = [row for row in rows if row["protection"] != "none"]
    return Services(
        unnameable=tuple(
            (f"{row['namespace']}/{row['group']}/{row['service']}", row["name"][1:-1]) for row in nameless
        ),
        protected=tuple(f"{row['name']} ({row['protection']})" for row in protected),
        clashing=tuple(f"{' and '.join(names)} ({namespace}/{group})" for namespace, group, *names in clashing(rows)),
        seen=seen,
        total=total,
        future=len(ahead),
        future_s=max(ahead, default=0.0),
    )
