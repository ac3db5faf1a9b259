"""What commands print for people: answers of the bridge as aligned text.

Must not know: where an answer came from. Rule: everything that ``--json`` shows is in an answer already; here it is
only laid out, and a part that is missing from it is a dash.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nacosdns.bridge_facts import failing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_DASH = "-"


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[tuple[str, str]], indent: str = "") -> list[str]:
    """Lines with a heading; ``columns`` are key and heading. Numbers stand right, all else left."""
    rows = list(rows)
    cells = [[heading.upper() for _, heading in columns]]
    cells += [[text(row.get(key)) for key, _ in columns] for row in rows]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    right = [all(_is_number(row.get(key)) for row in rows) for key, _ in columns]
    return [indent + _aligned(line, widths, right) for line in cells]


def _aligned(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    places = zip(line, widths, right, strict=True)
    return "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in places).rstrip()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def text(value: object) -> str:
    """One value as a person reads it."""
    match value:
        case None | "":
            return _DASH
        case True:
            return "yes"
        case False:
            return "no"
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ", ".join(map(text, value)) or _DASH
        case _:
            return str(value)


LISTED_MAX = 10_000
FLAPS_MIN = 6
"""So many changes of health in ten minutes are no single failure and return."""
"""`cache list` gets no more rows than this from a front."""


def duration(seconds: float | None) -> str:
    """``3 s``, ``4 min``, ``2 h``, ``5 d``; a dash for never; ``clock?`` for what lies in the future: a clock was set back."""
    if seconds is None:
        return _DASH
    if seconds <= -1:
        return "clock?"
    seconds = max(seconds, 0)
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def ask(answer: Mapping[str, Any]) -> str:
    """What `nacosdns ask` says: the records, the service behind them, and why."""
    lines = [f"{answer.get('name')} {answer.get('type')}: {answer.get('rcode')}, from {text(answer.get('source'))}"]
    for section in ("answers", "authority", "additional"):
        records = answer.get(section) or ()
        columns = (("name", section), ("ttl_s", "ttl"), ("type", "type"), ("data", "data"))
        lines += ["", *table(records, columns, "  ")] if records else []
    if answer.get("service"):
        lines += ["", *_service(answer["service"])]
    why = [*(answer.get("why") or ()), *_protected(answer)]
    if why:
        lines += ["", "why", *(f"  {sentence}" for sentence in why)]
    return "\n".join(lines)


def _protected(answer: Mapping[str, Any]) -> Iterator[str]:
    """Why a service is answered otherwise than Nacos said last, and what ends that."""
    service = answer.get("service") or {}
    since_s = service.get("protected_s")
    since = "" if since_s is None or since_s <= -1 else f" since {duration(since_s)}"
    kept = service.get("unconfirmed") or 0
    flush = f"nacosdns cache flush {str(answer.get('name')).rstrip('.')} ends it"
    match service.get("protection"):
        case "empty":
            until = "until it has said so often enough (unless set otherwise, three times over 45 s; after a lost connection up to 180 s)"
            yield f"Nacos names none of its instances{since}: they are kept {until}; {flush}"
        case "shrink":
            lost = f"does not name {kept} of its instances since it came back"
            yield f"Nacos {lost}: kept until its list was stable; {flush}"
        case "held":
            yield f"one list took more of its instances than shrink_max: {kept} kept 10 s until a fresh query agrees; {flush}"
        case "brake":
            behind = _counted(service.get("demoted") or 0, "instance")
            yield f"the brake is on: {behind} kept behind those that Nacos names; nacosdns cache accept ends it"
        case _:
            pass


def _service(service: Mapping[str, Any]) -> Iterator[str]:
    yield f"service {service.get('namespace')}/{service.get('group')}/{service.get('service')}"
    is_static = service.get("source") == "static"
    confirmed = "from the configuration" if is_static else f"confirmed {_ago(service.get('confirmed_s'))}"
    facts = [f"source {text(service.get('source'))}", confirmed]
    if service.get("protection") not in {None, "none"}:
        facts.append(f"protected ({service['protection']}) since {_ago(service.get('protected_s'))}")
    facts += [f"{service[key]} {key}" for key in ("unconfirmed", "demoted") if service.get(key)]
    yield "  " + ", ".join(facts)
    columns = ("address", "port", "weight", "healthy", "enabled", "cluster")
    yield from table(service.get("instances") or (), [(key, key) for key in columns], "  ")


def _ago(seconds: float | None) -> str:
    if seconds is not None and seconds <= -1:
        return f"in the future ({duration(seconds)})"
    return "never" if seconds is None else f"{duration(seconds)} ago"


def services(rows: Sequence[Mapping[str, Any]]) -> str:
    """What `nacosdns services` says."""
    if not rows:
        return "no service is known"
    columns = (
        "name",
        "service",
        "group",
        "namespace",
        "instances",
        "healthy",
        "protection",
        "source",
        "age",
        "subscribed",
    )
    shown = [{**row, "age": duration(row.get("age_s"))} for row in rows]
    return "\n".join(table(shown, [(key, key) for key in columns]))


def status(answer: Mapping[str, Any]) -> str:
    """What `nacosdns status` says."""
    own = answer.get("supervisor") or {}
    canary = own.get("canary_age_s")
    lines = [
        f"up {duration(own.get('up_s'))}, pid {own.get('pid')}, configuration {own.get('config')}",
        f"listening on {text([entry for entry in own.get('listen') or () if entry not in (own.get('missing') or ())])}",
        f"canary answered {_ago(canary)}",
    ]
    lines += problems(answer)
    if own.get("upgrade"):
        lines.append(f"last upgrade {upgraded(own['upgrade'])}")
    children = [{**child, "beat": _beat(child)} for child in own.get("children") or ()]
    columns = (("role", "child"), ("slot", "slot"), ("pid", "pid"), ("phase", "phase"), ("sockets", "sockets"))
    lines += ["", *table(children, [*columns, ("beat", "heartbeat"), ("failures", "failures"), ("reason", "last end")])]
    lines += ["", "keeper", *_facts(answer.get("keeper"))]
    for slot, facts in (answer.get("fronts") or {}).items():
        lines += ["", f"front {slot}", *_facts(facts)]
    return "\n".join(lines)


def _beat(child: Mapping[str, Any]) -> str | None:
    """The age of its heartbeat; None while there is no process."""
    return f"{child.get('beat_age_s', 0):.1f} s" if child.get("pid") else None


def problems(answer: Mapping[str, Any]) -> list[str]:
    """What stands at the head of `nacosdns status`, also with ``--json``: what is not as it should be, in sentences."""
    own = answer.get("supervisor") or {}
    found = []
    if own.get("missing"):
        found.append(f"waiting for {text(own['missing'])}")
    if own.get("covered"):
        found.append(f"NO FRONT on sockets {text(own['covered'])}: clients get SERVFAIL")
    if disk := own.get("disk") or _unwritten((answer.get("keeper") or {}).get("store") or {}):
        found.append(f"NO DISK: {disk}")
    found += filter(None, map(_ailing, own.get("children") or ()))
    found += [*_away(answer), *_kept(answer.get("keeper") or {}), *_outside(answer.get("fronts") or {})]
    if own.get("web"):
        found.append(f"NO WEB: {own['web']}")
    if own.get("reload"):
        since = _ago(time.time() - own["reload"]["at"])
        found.append(f"RELOAD REFUSED {since}, the configuration before holds: {own['reload']['refused']}")
    return found


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
            yield f"UPSTREAM FLAPS: {address} changed {changes} times in 10 min, last error {upstream.get('last_error') or _DASH}"


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
        yield f"BRAKE: {most}; {_counted(brake['kept'], 'instance')} served all the same; {ends}"
    elif count := keeper.get("protected_count"):
        yield f"{_counted(count, 'service')} answered otherwise than Nacos said last: see nacosdns services"
    if count := keeper.get("unhealthy_count"):
        yield f"{_counted(count, 'service')} without a healthy instance: see nacosdns doctor"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def accepted(answer: Mapping[str, Any]) -> str:
    """What `nacosdns cache accept` says."""
    return f"{_counted(answer['accepted'], 'instance')} let go: the brake is off"


def _unwell(upstream: Mapping[str, Any]) -> str:
    return f"{upstream['address']} is {upstream['health']}"


def upgraded(upgrade: Mapping[str, Any]) -> str:
    """How an upgrade went."""
    words = {"failed": f"failed: {upgrade['reason']}", "done": f"done: release {upgrade['after']}"}
    return words.get(upgrade["state"], f"{upgrade['state']}…")


def _facts(value: object, indent: str = "  ") -> Iterator[str]:
    """Any nested answer, key by key."""
    if not isinstance(value, dict):
        yield f"{indent}{text(value)}"
        return
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield f"{indent}{key}"
            yield from _facts(inner, indent + "  ")
        elif isinstance(inner, list) and inner and all(isinstance(item, dict) for item in inner):
            yield f"{indent}{key}"
            yield from table(inner, [(name, name) for name in inner[0]], indent + "  ")
        elif key == "since" and isinstance(inner, float):
            yield f"{indent}{key} {_ago(time.time() - inner)}"
        else:
            yield f"{indent}{key} {text(inner)}"


_CACHED_FLAGS = (("DO", "dnssec_ok"), ("CD", "checking_disabled"))


def cached(rows: Sequence[Mapping[str, Any]]) -> str:
    """What `nacosdns cache list` says."""
    if not rows:
        return "no outside name is kept"
    shown = [
        {
            **row,
            "left": duration(row["left_s"]) if row["left_s"] > 0 else "stale",
            "age": duration(row["age_s"]),
            "flags": " ".join(word for word, key in _CACHED_FLAGS if row[key]),
        }
        for row in rows
    ]
    lines = table(shown, [(key, key) for key in ("name", "type", "flags", "rcode", "left", "age")])
    more = [f"(the first {len(rows)}; there may be more)"] if len(rows) >= LISTED_MAX else []
    return "\n".join([*lines, *more])


def let_go(answer: Mapping[str, Any]) -> bool:
    """Whether a flush found anything of the name."""
    fronts = (answer.get("fronts") or {}).values()
    return bool(answer["keeper"]["services"]) or any(front.get("externals") for front in fronts)


def flushed(answer: Mapping[str, Any]) -> str:
    """What `nacosdns cache flush` says."""
    keeper = answer["keeper"]
    if not let_go(answer):
        return f"nothing to flush: {keeper['name']} is no service known from Nacos and no outside name that is kept"
    lines = [_flushed(service, keeper) for service in keeper["services"]]
    for slot, front in (answer.get("fronts") or {}).items():
        if count := front.get("externals"):
            lines.append(f"front {slot} forgot {count} kept {'answer' if count == 1 else 'answers'} of outside names")
    return "\n".join(lines)


def _flushed(service: str, keeper: Mapping[str, Any]) -> str:
    if service in keeper.get("forgotten", ()):
        return f"{service}: forgotten, for Nacos has not said anything of it since we connected"
    protection = keeper.get("ended", {}).get(service, "none")
    what = "it was not protected" if protection == "none" else f"its protection ({protection}) ended"
    return f"{service}: {what}; what Nacos said last counts, and Nacos is asked anew"


def findings(rows: Sequence[Mapping[str, Any]], fixed: Sequence[str]) -> str:
    """What `nacosdns doctor` says: the worst first, what to do below each."""
    lines: list[str] = []
    worst = ("error", "warning", "ok")
    for row in sorted(rows, key=lambda row: worst.index(row["severity"])):
        lines.append(f"{row['severity'].upper():7}  {row['id']:18}  {row['seen']}")
        lines += [f"{'':29}{word} {row[key]}" for word, key in (("->", "todo"), (" $", "command")) if row[key]]
    counts = {word: sum(1 for row in rows if row["severity"] == word) for word in worst}
    lines += [f"FIXED    {line}" for line in fixed]
    return "\n".join([*lines, "", f"{counts['error']} errors, {counts['warning']} warnings, {counts['ok']} good"])


def facts(value: object) -> str:
    """Any other answer."""
    return "\n".join(_facts(value, ""))
