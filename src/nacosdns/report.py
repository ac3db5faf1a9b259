"""What commands print for people: answers of the bridge as aligned text.

Must not know: where an answer came from. Rule: everything that ``--json`` shows is in an answer already; here it is
only laid out, and a part that is missing from it is a dash.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nacosdns import problems
from nacosdns.core.words import ago, counted, duration, shortened, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LISTED_MAX = 10_000
"""`cache list` gets no more rows than this from a front."""


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
            behind = counted(service.get("demoted") or 0, "instance")
            yield f"the brake is on: {behind} kept behind those that Nacos names; nacosdns cache accept ends it"
        case _:
            pass


def _service(service: Mapping[str, Any]) -> Iterator[str]:
    yield f"service {service.get('namespace')}/{service.get('group')}/{service.get('service')}"
    is_static = service.get("source") == "static"
    confirmed = "from the configuration" if is_static else f"confirmed {ago(service.get('confirmed_s'))}"
    facts = [f"source {text(service.get('source'))}", confirmed]
    if service.get("protection") not in {None, "none"}:
        facts.append(f"protected ({service['protection']}) since {ago(service.get('protected_s'))}")
    facts += [f"{service[key]} {key}" for key in ("unconfirmed", "demoted") if service.get(key)]
    yield "  " + ", ".join(facts)
    columns = ("address", "port", "weight", "healthy", "enabled", "cluster")
    yield from table(service.get("instances") or (), [(key, key) for key in columns], "  ")


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
    shown = [
        {**row, **{key: shortened(text(row.get(key))) for key in columns[:4]}, "age": duration(row.get("age_s"))}
        for row in rows
    ]
    return "\n".join([*table(shown, [(key, key) for key in columns]), *_clashing(rows)])


def _clashing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whom one name means together."""
    why = "names of DNS do not tell letter case; see nacosdns doctor"
    lines = [
        f"one name means {', '.join(names[:-1])} and {names[-1]} ({namespace}/{group}): {why}"
        for namespace, group, *names in problems.clashing(rows)
    ]
    return ["", *lines] if lines else []


def status(answer: Mapping[str, Any]) -> str:
    """What `nacosdns status` says."""
    own = answer.get("supervisor") or {}
    canary = own.get("canary_age_s")
    lines = [
        f"up {duration(own.get('up_s'))}, pid {own.get('pid')}, configuration {own.get('config')}",
        f"listening on {text([entry for entry in own.get('listen') or () if entry not in (own.get('missing') or ())])}",
        f"canary answered {ago(canary)}",
    ]
    lines += problems.found(answer)
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


def accepted(answer: Mapping[str, Any]) -> str:
    """What `nacosdns cache accept` says."""
    return f"{counted(answer['accepted'], 'instance')} let go: the brake is off"


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
            yield f"{indent}{key} {ago(time.time() - inner)}"
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
    faults = f"{counted(counts['error'], 'error')}, {counted(counts['warning'], 'warning')}"
    return "\n".join([*lines, "", f"{faults}, {counts['ok']} good"])


def facts(value: object) -> str:
    """Any other answer."""
    return "\n".join(_facts(value, ""))
