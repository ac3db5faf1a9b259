"""What is not as it should be, in sentences, of an answer to `status`: what stands at its head.

Must not know: how an answer is printed, what the host is like (core/doctor.py). Rule: where nothing is wrong, nothing is said.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nacosdns.core.errands import FAILING_WITHIN_S
from nacosdns.core.watch import Phase
from nacosdns.core.words import DASH, ago, counted, duration, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FAILED_NAMES_MIN = 10
"""Fewer names that fail within half a minute are their own fault: everybody asks for some that are broken."""
FLAPS_MIN = 6
"""So many changes of health in ten minutes are no single failure and return."""
FLAPS_OVER_S = 120.0
"""An upstream that has not changed for so long is what it is."""
CANARY_OLD_S = 10.0
FRESH_S = 10.0
"""A bridge of this age is not blamed for what starts last: the standby, web, the first test query."""
_NOT_THERE = frozenset({Phase.DOWN.value, Phase.STARTING.value})


def found(answer: Mapping[str, Any]) -> list[str]:
    """What stands at the head of `nacosdns status`, also with ``--json``: what is not as it should be, in sentences."""
    own, keeper = answer.get("supervisor") or {}, answer.get("keeper") or {}
    lines = []
    if own.get("missing"):
        lines.append(f"waiting for {text(own['missing'])}")
    if own.get("covered"):
        lines.append(f"NO FRONT on sockets {text(own['covered'])}: clients get SERVFAIL")
    elif nobody := _unanswered(own):
        lines.append(nobody)
    if disk := own.get("disk") or _unwritten(keeper.get("store") or {}):
        lines.append(f"NO DISK: {disk}")
    children = own.get("children") or ()
    fresh = own.get("up_s", FRESH_S) < FRESH_S and any(child.get("sockets") for child in children)
    lines += filter(None, (_ailing(child, fresh=fresh) for child in children))
    lines += [*_away(answer), *_empty(keeper), *_kept(keeper), *_outside(answer.get("fronts") or {})]
    if own.get("password"):
        lines.append(f"NO PASSWORD: {own['password']}")
    if own.get("web"):
        lines.append(f"NO WEB: {own['web']}")
    if own.get("reload"):
        since = ago(time.time() - own["reload"]["at"])
        lines.append(f"RELOAD REFUSED {since}, the configuration before holds: {own['reload']['refused']}")
    return lines


def _unanswered(own: Mapping[str, Any]) -> str:
    """That nothing comes back from where we listen; "" for all is well, or too early to say."""
    places = [one for one in own.get("listen") or () if one not in (own.get("missing") or ())]
    age_s = own.get("canary_age_s")
    if not places or own.get("up_s", 0.0) < FRESH_S or (age_s is not None and age_s < CANARY_OLD_S):
        return ""
    answered = "was never answered" if age_s is None else f"was answered last {ago(age_s)}"
    return f"NOBODY ANSWERS: our own test query on {text(places)} {answered}"


def _unwritten(store: Mapping[str, Any]) -> str:
    if store.get("error"):
        return f"writes fail ({store['error']}), {store['owed']} are owed and tried again"
    return str(store.get("not_used") or "")


def _ailing(child: Mapping[str, Any], *, fresh: bool) -> str:
    """What is wrong with a process; "" for nothing. ``fresh``: a bridge answers for the first time, the rest follows."""
    name = f"{child['role']} {child['slot']}" if child["role"] == "front" else child["role"]
    if child["phase"] == "hangs":
        does = f"is stopped: kill -CONT {child['pid']}" if child.get("stopped") else "does not come to it"
        return f"{name} HANGS for {duration(child.get('beat_age_s'))}, pid {child['pid']} {does}; it is replaced after 10 s"
    if child.get("failures", 0) > 1 and child.get("reason"):
        return f"{name} FAILS, {child['failures']} times in a row: {child['reason']}"
    if is_away(child) and not (fresh and can_wait(child)):
        return f"{name} is {child['phase']}{f', it ended before: {why}' if (why := child.get('reason')) else ''}"
    return ""


def is_away(child: Mapping[str, Any]) -> bool:
    """Whether a process is not there, or not yet."""
    return child["phase"] in _NOT_THERE


def can_wait(child: Mapping[str, Any]) -> bool:
    """Whether a bridge that starts answers without this one: the standby, web, unless they failed before."""
    return child["role"] != "keeper" and not child.get("sockets") and not child.get("failures")


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
    yield from (f"UPSTREAM FLAPS: {words}" for words in flapping(fronts.values()))


def flapping(fronts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Upstreams that come and go, each by the front that saw the most of it."""
    worst: dict[str, Mapping[str, Any]] = {}
    for upstream in (one for facts in fronts for one in facts.get("upstreams") or ()):
        known = worst.get(upstream["address"])
        if known is None or upstream.get("changes_10min", 0) > known.get("changes_10min", 0):
            worst[upstream["address"]] = upstream
    for address, upstream in worst.items():
        changed_s = upstream.get("changed_s")
        if (changes := upstream.get("changes_10min", 0)) >= FLAPS_MIN and (changed_s or 0.0) < FLAPS_OVER_S:
            since = f"went down or came back {changes} times in 10 min, last {ago(changed_s)}"
            yield f"{address} {since}; it is {upstream['health']} now, last error {upstream.get('last_error') or DASH}"


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


def _empty(keeper: Mapping[str, Any]) -> Iterator[str]:
    """Namespaces in which Nacos lists nothing at all: most likely another one was meant."""
    spaces = (keeper.get("registry") or {}).get("namespaces") or {}
    bare = []
    for name in (name for name, space in spaces.items() if space.get("connected") and not space.get("refused")):
        groups = [row for row in keeper.get("catalogues") or () if row["namespace"] == name]
        if groups and not any(row["listed"] for row in groups):
            bare.append(f"{name} (group {text([row['group'] for row in groups])})")
    if bare:
        yield f"NACOS EMPTY: it lists no service at all in namespace {text(bare)}"


def _kept(keeper: Mapping[str, Any]) -> Iterator[str]:
    """What is answered otherwise than Nacos says, and what Nacos calls unhealthy."""
    if why := keeper.get("static_file_refused"):
        yield f"STATIC FILE REFUSED: {why}; what was read of it before holds"
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


def clashing(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Of an answer to `services`: namespace, group and spellings of the services that share a name of DNS."""
    sets = {
        (row["namespace"], row["group"], *sorted((row["service"], *row["spellings"])))
        for row in rows
        if row.get("spellings")
    }
    return sorted(sets)


def _unwell(upstream: Mapping[str, Any]) -> str:
    return f"{upstream['address']} is {upstream['health']}"
