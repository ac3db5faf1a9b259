"""What is not as it should be, in sentences, of an answer to `status`: what stands at its head.

Must not know: how an answer is printed, what the host is like (core/doctor.py). Rule: where nothing is wrong, nothing is said.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nacosdns.core.errands import FAILING_WITHIN_S
from nacosdns.words import DASH, ago, counted, duration, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FAILED_NAMES_MIN = 10
"""Fewer names that fail within half a minute are their own fault: everybody asks for some that are broken."""
FLAPS_MIN = 6
"""So many changes of health in ten minutes are no single failure and return."""


def found(answer: Mapping[str, Any]) -> list[str]:
    """What stands at the head of `nacosdns status`, also with ``--json``: what is not as it should be, in sentences."""
    own = answer.get("supervisor") or {}
    lines = []
    if own.get("missing"):
        lines.append(f"waiting for {text(own['missing'])}")
    if own.get("covered"):
        lines.append(f"NO FRONT on sockets {text(own['covered'])}: clients get SERVFAIL")
    if disk := own.get("disk") or _unwritten((answer.get("keeper") or {}).get("store") or {}):
        lines.append(f"NO DISK: {disk}")
    lines += filter(None, map(_ailing, own.get("children") or ()))
    lines += [*_away(answer), *_kept(answer.get("keeper") or {}), *_outside(answer.get("fronts") or {})]
    if own.get("web"):
        lines.append(f"NO WEB: {own['web']}")
    if own.get("reload"):
        since = ago(time.time() - own["reload"]["at"])
        lines.append(f"RELOAD REFUSED {since}, the configuration before holds: {own['reload']['refused']}")
    return lines


def _unwritten(store: Mapping[str, Any]) -> str:
    if store.get("error"):
        return f"writes fail ({store['error']}), {store['owed']} are owed and tried again"
    return str(store.get("not_used") or "")


def _ailing(child: Mapping[str, Any]) -> str:
    """What is wrong with a process; "" for nothing."""
    name = f"{child['role']} {child['slot']}" if child["role"] == "front" else child["role"]
    if child["phase"] == "hangs":
        does = f"is stopped: kill -CONT {child['pid']}" if child.get("stopped") else "does not come to it"
        return f"{name} HANGS for {duration(child.get('beat_age_s'))}, pid {child['pid']} {does}; it is replaced after 10 s"
    if child.get("failures", 0) > 1 and child.get("reason"):
        return f"{name} FAILS, {child['failures']} times in a row: {child['reason']}"
    return ""


def _outside(fronts: Mapping[str, Any]) -> Iterator[str]:
    """How outside names go, and what this host does not let the fronts do."""
    for slot, facts in fronts.items():
        files = facts.get("files") or {}
        if files and files["used"] >= files["limit"]:
            yield f"NO FILES: front {slot} has used all {files['limit']} files"
        elif facts.get("hindered"):
            yield f"HINDERED: this host did not let front {slot} work within the last 10 s: {facts['hindered']}"
    nobody = (facts["forward_problem"] for facts in fronts.values() if _has_none(facts))
    if why := next(nobody, ""):
        yield f"NO UPSTREAM: {why.removeprefix('no upstream').strip(' ()') or 'no file names one'}"
    lists = (facts["upstreams"] for facts in fronts.values() if facts.get("upstreams"))
    lost = (upstreams for upstreams in lists if all(one["health"] in {"down", "loop"} for one in upstreams))
    if upstreams := next(lost, ()):  # a standby has asked nobody yet, and holds everybody for good
        yield f"NO UPSTREAM: {', '.join(map(_unwell, upstreams))}"
    elif said := failing(fronts.values()):
        yield f"UPSTREAMS FAIL: {', '.join(f'{address} {did}' for address, did in said.items())}"
    elif last := failed_last(fronts.values()):
        yield f"NAMES FAIL: {last}"
    yield from _flapping(fronts.values())


def _flapping(fronts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Upstreams that come and go, each by the front that saw the most of it."""
    worst: dict[str, Mapping[str, Any]] = {}
    for upstream in (one for facts in fronts for one in facts.get("upstreams") or ()):
        known = worst.get(upstream["address"])
        if known is None or upstream.get("changes_10min", 0) > known.get("changes_10min", 0):
            worst[upstream["address"]] = upstream
    for address, upstream in worst.items():
        if (changes := upstream.get("changes_10min", 0)) >= FLAPS_MIN:
            yield f"UPSTREAM FLAPS: {address} changed {changes} times in 10 min, last error {upstream.get('last_error') or DASH}"


def _has_none(facts: Mapping[str, Any]) -> bool:
    """Whether a front was given upstreams and none can be used."""
    return bool(
        facts.get("forward_problem")
        and not facts.get("upstreams")
        and (facts.get("upstreams_left_out") or facts.get("upstreams_wanted"))
    )


def _away(answer: Mapping[str, Any]) -> Iterator[str]:
    """Whom the bridge asks and nobody of whom is there."""
    keeper = answer.get("keeper") or {}
    spaces = list(((keeper.get("registry") or {}).get("namespaces") or {}).values())
    if spaces and not any(space.get("connected") for space in spaces):
        why = next((space["last_error"] for space in spaces if space.get("last_error")), "not connected yet")
        yield f"NO NACOS: {why}"
    refused: dict[str, list[str]] = {}
    for name, space in ((keeper.get("registry") or {}).get("namespaces") or {}).items():
        if space.get("connected") and (why := space.get("refused") or space.get("last_error")):
            refused.setdefault(f"{'REFUSES' if space.get('refused') else 'FAILS'}: {why}", []).append(name)
    for why, names in refused.items():
        yield f"NACOS {why}{f', namespace {text(names)}' if len(names) < len(spaces) else ''}"


def _kept(keeper: Mapping[str, Any]) -> Iterator[str]:
    """What is answered otherwise than Nacos says, and what Nacos calls unhealthy."""
    brake = keeper.get("brake")
    if brake:
        most = f"{brake['services']} of {brake['known']} services lost most of their instances"
        ends = f"nacosdns cache accept ends it, or time in {duration(brake['ends_s'])}"
        yield f"BRAKE: {most}; {counted(brake['kept'], 'instance')} served all the same; {ends}"
    elif count := keeper.get("protected_count"):
        yield f"{counted(count, 'service')} answered otherwise than Nacos said last: see nacosdns services"
    if count := keeper.get("unhealthy_count"):
        yield f"{counted(count, 'service')} without a healthy instance: see nacosdns doctor"


def failing(fronts: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """What the upstreams said, while no front has an answer to anything that it asked lately; else nothing."""
    fronts = list(fronts)
    told = [front["failing"] for front in fronts if front.get("failing")]
    answered_s = (front.get("answered_s") for front in fronts if not front.get("failing"))
    others = any(age_s is not None and age_s < FAILING_WITHIN_S for age_s in answered_s)
    return told[0] if told and not others else {}


def failed_last(fronts: Iterable[Mapping[str, Any]]) -> str:
    """How many outside names fail while others are answered, and the newest of them; "" when they are too few to count."""
    worst = max(fronts, key=lambda front: front.get("failed_names") or 0, default={})
    count = worst.get("failed_names") or 0
    within = f"{count} outside names got no answer within {FAILING_WITHIN_S:.0f} s"
    return f"{within}, the last one {worst['failed_last']}" if count >= FAILED_NAMES_MIN else ""


def _unwell(upstream: Mapping[str, Any]) -> str:
    return f"{upstream['address']} is {upstream['health']}"
