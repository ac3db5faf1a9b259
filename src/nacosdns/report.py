"""What commands print for people: answers of the bridge as aligned text.

Must not know: where an answer came from. Rule: everything that ``--json`` shows is in an answer already; here it is
only laid out, and a part that is missing from it is a dash.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

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
"""`cache list` gets no more rows than this from a front."""


def duration(seconds: float | None) -> str:
    """``3 s``, ``4 min``, ``2 h``, ``5 d``; a dash for never."""
    if seconds is None:
        return _DASH
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
    if answer.get("why"):
        lines += ["", "why", *(f"  {sentence}" for sentence in answer["why"])]
    return "\n".join(lines)


def _service(service: Mapping[str, Any]) -> Iterator[str]:
    yield f"service {service.get('namespace')}/{service.get('group')}/{service.get('service')}"
    facts = [f"source {text(service.get('source'))}", f"confirmed {_ago(service.get('confirmed_s'))}"]
    if service.get("protection") not in {None, "none"}:
        facts.append(f"protected ({service['protection']}) since {_ago(service.get('protected_s'))}")
    facts += [f"{service[key]} {key}" for key in ("unconfirmed", "demoted") if service.get(key)]
    yield "  " + ", ".join(facts)
    columns = ("address", "port", "weight", "healthy", "enabled", "cluster")
    yield from table(service.get("instances") or (), [(key, key) for key in columns], "  ")


def _ago(seconds: float | None) -> str:
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
        f"listening on {text(own.get('listen'))}",
        f"canary answered {_ago(canary)}",
    ]
    if own.get("missing"):
        lines.append(f"waiting for {text(own['missing'])}")
    if own.get("covered"):
        lines.append(f"NO FRONT on sockets {text(own['covered'])}: clients get SERVFAIL")
    if own.get("disk"):
        lines.append(f"NO DISK: {own['disk']}")
    if own.get("upgrade"):
        lines.append(f"last upgrade {upgraded(own['upgrade'])}")
    children = [{**child, "beat": f"{child.get('beat_age_s', 0):.1f} s"} for child in own.get("children") or ()]
    columns = (("role", "child"), ("slot", "slot"), ("pid", "pid"), ("phase", "phase"), ("sockets", "sockets"))
    lines += ["", *table(children, [*columns, ("beat", "heartbeat"), ("failures", "failures")])]
    lines += ["", "keeper", *_facts(answer.get("keeper"))]
    for slot, facts in (answer.get("fronts") or {}).items():
        lines += ["", f"front {slot}", *_facts(facts)]
    return "\n".join(lines)


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
            yield f"{indent}{key} {duration(time.time() - inner)} ago"
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
    if not let_go(answer):
        return f"nothing to flush: {answer['keeper']['name']} is no service of Nacos and no outside name that is kept"
    lines = [*_facts({"keeper": answer.get("keeper")}, "")]
    for slot, facts in (answer.get("fronts") or {}).items():
        lines += _facts({f"front {slot}": facts}, "")
    return "\n".join(lines)


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
