"""What each verb of the command line does.

Must not know: how arguments are parsed. Rules: every command but run, check, plugins and register only asks the
running bridge over its control socket; the answer of a command is its exit code: 0 good, 1 the answer is no; errors of
use and configuration are raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from nacosdns import config as configuration
from nacosdns import problems, report
from nacosdns.config import Cache
from nacosdns.config_load import (
    DEFAULT_PATH,
    Source,
    cache_dir_alone,
    is_there,
    load,
    load_static,
    located,
    read_password,
)
from nacosdns.core.printable import printable
from nacosdns.edge import admin, logs, rights, standing
from nacosdns.errors import ConfigError, ControlError, OutputError, StartError
from nacosdns.premises import CONTROL_SOCKET, LINK_SOCKET, whose_children

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping

    from nacosdns.config import Config

_Answer = TypeVar("_Answer")
UPGRADE_DEADLINE_S = 300.0
UPGRADE_POLL_S = 0.2


def configured(arguments: Namespace) -> Config:
    """The configuration meant by ``-c``, or that at the usual place, or the defaults."""
    return load(_path(arguments), os.environ)


def _path(arguments: Namespace) -> str | None:
    path: str | None = arguments.config
    return path or (DEFAULT_PATH if is_there(DEFAULT_PATH) else None)


def run(arguments: Namespace) -> int:
    """`nacosdns run`: the bridge, until it is told to stop."""
    if os.name != "posix":
        raise StartError("nacosdns runs on Linux and other Unix systems only")
    from nacosdns import supervisor, upgrading  # noqa: PLC0415  # no other command needs them

    source = Source(arguments.config, os.environ)
    errand = upgrading.errand(os.environ)
    if errand is None:
        return supervisor.main(source)
    if errand.result_fd < 0:
        return supervisor.main(source, state_fd=errand.state_fd)
    from nacosdns import self_check  # noqa: PLC0415  # only new code does it, before it takes the place of the old

    return self_check.main(errand, source, supervisor.MODULES)


def ask(arguments: Namespace) -> int:
    """`nacosdns ask NAME [TYPE]`: the answer and why."""
    from nacosdns.front_control import parse_question  # noqa: PLC0415  # no other command reads DNS
    from nacosdns.spelled import reply  # noqa: PLC0415  # likewise

    parse_question(arguments.name, arguments.type)  # a question that is none is a fault of use, whoever runs
    answer = _call(arguments, "ask", name=arguments.name, type=arguments.type)
    answer = {**reply(answer.pop("packet")), **answer}
    _show(arguments, answer, report.ask)
    return 0 if answer.get("rcode") == "NOERROR" and answer.get("answers") else 1


def services(arguments: Namespace) -> int:
    """`nacosdns services`: what is known; with ``--all`` what Nacos lists beside it."""
    path = running(arguments)
    pages = _asked(arguments, path, lambda: list(admin.pages(path, "services", {"listed": arguments.all})))
    rows = [row for page in pages for row in page["rows"]]
    rows.sort(key=lambda row: (row["registry"], row["namespace"], row["group"], row["service"]))
    _show(arguments, rows, report.services)
    return 0


def status(arguments: Namespace) -> int:
    """`nacosdns status`: how every part is; 1 unless all of them are there and answer."""
    answer = _call(arguments, "status")
    answer["problems"] = problems.found(answer)
    _show(arguments, answer, report.status)
    return 0 if is_whole(answer) else 1


def is_whole(answer: Mapping[str, Any]) -> bool:
    """Whether every part is there and answers, every socket has a front and, where we listen, our test query was answered.

    A bridge that starts is whole before its standby and web are there, without whom it answers.
    """
    own = answer["supervisor"]
    parts = [answer.get("keeper"), *(answer.get("fronts") or {}).values()]
    if own["covered"] or own.get("web") or any(not isinstance(part, dict) or "error" in part for part in parts):
        return False
    fresh = own["up_s"] < problems.FRESH_S
    children = own["children"]
    if any(
        child["phase"] == "hangs" or (problems.is_away(child) and not (fresh and problems.can_wait(child)))
        for child in children
    ):
        return False
    if not set(own["listen"]) - set(own["missing"]):
        return True
    reads = any(child["sockets"] and not problems.is_away(child) for child in children)
    return reads and (fresh or own["canary_age_s"] is not None)


def upgrade(arguments: Namespace) -> int:
    """`nacosdns upgrade`: the installed code takes the place of the running one; 1 when it did not, and why."""
    path = running(arguments)
    began: Any = _asked(arguments, path, lambda: admin.call(path, "upgrade", {}))
    ends = time.monotonic() + UPGRADE_DEADLINE_S
    last = began
    while last["state"] not in {"done", "failed"}:
        if time.monotonic() > ends:
            raise ControlError(
                f"the upgrade did not end within {UPGRADE_DEADLINE_S:g} s ({last['state']}); see the log"
            )
        time.sleep(UPGRADE_POLL_S)
        last = _upgrade_state(path, last)
        if last["number"] != began["number"]:
            raise ControlError("nacosdns was started anew during the upgrade; see the log")
    _show(arguments, last, lambda facts: f"upgrade {report.upgraded(facts)}")
    return 0 if last["state"] == "done" else 1


def _upgrade_state(path: Path, before: dict[str, Any]) -> Any:  # noqa: ANN401  # as the bridge has it
    """How it stands now; as before, when nobody answers: just then the new code takes the place of the old."""
    try:
        return admin.call(path, "upgrade.state", {}) or {"number": 0, "state": ""}
    except ControlError:
        return before


def cache_list(arguments: Namespace) -> int:
    """`nacosdns cache list`: outside names kept."""
    _show(arguments, _call(arguments, "cache.list"), report.cached)
    return 0


def cache_flush(arguments: Namespace) -> int:
    """`nacosdns cache flush NAME`: protection of a service ends; an outside name is forgotten; 1 when neither is known."""
    answer = _call(arguments, "cache.flush", name=arguments.name)
    _show(arguments, answer, report.flushed)
    return 0 if report.let_go(answer) else 1


def cache_accept(arguments: Namespace) -> int:
    """`nacosdns cache accept`: what the registry says now is believed, and the brake ends."""
    _show(arguments, _call(arguments, "cache.accept"), report.accepted)
    return 0


def check(arguments: Namespace) -> int:
    """`nacosdns check`: whether the configuration can be used, with everything that it names."""
    config = configured(arguments)
    watched = _found_on_this_host(config, _path(arguments))
    from nacosdns.doctoring import loops  # noqa: PLC0415  # no other command here needs it
    from nacosdns.plugins import load_balancers  # noqa: PLC0415  # it runs code of other packages

    load_balancers()
    if looping := loops(config):  # the bridge starts all the same, and asks the others
        remedy = "write the resolvers of this site there in its place"
        what = f"{', '.join(looping)} is ourselves: a loop"
        raise ConfigError(what, file=_path(arguments) or "", key="forward.upstreams", remedy=remedy)
    answer = {
        "file": _path(arguments) or "",
        "config": configuration.digest(config),
        "listen": list(config.server.listen),
        "zones": [zone.name for zone in config.zones],
        "namespaces": list(configuration.namespaces(config)),
        "static_services": len(config.static) + len(watched),
    }
    _show(arguments, answer, lambda facts: "good\n" + report.facts(facts))
    return 0


def _found_on_this_host(config: Config, path: str | None) -> tuple[configuration.Static, ...]:
    """The static services of ``static_file``. ConfigError for what the configuration names and this host lacks.

    The user is looked for as `run` does: only root changes it.
    """
    key = "server.user"
    try:
        read_password(config)
        whose_children(config)
        key = "server.control_group"
        rights.group_id(config.server.control_group)
    except StartError as error:
        raise located(ConfigError(str(error), key=key), path) from error
    except ConfigError as error:
        raise located(error, path) from error
    return load_static(config.static_file) if config.static_file else ()


def plugins(arguments: Namespace) -> int:
    """`nacosdns plugins`: the balancers that policy may name; each is tried."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # every start would pay for it

    from nacosdns.plugins import GROUP, load_balancers  # noqa: PLC0415  # it runs code of other packages

    owners = {point.name: point.dist for point in entry_points(group=GROUP)}
    rows = []
    for name, kind in sorted(load_balancers().items()):
        owner = owners.get(name)
        package = owner.name if owner else "nacosdns"
        rows.append({"balancer": name, "package": package, "class": f"{kind.__module__}:{kind.__qualname__}"})
    columns = ("balancer", "package", "class")
    _show(arguments, rows, lambda lines: "\n".join(report.table(lines, [(key, key) for key in columns])))
    return 0


def register(arguments: Namespace) -> int:
    """`nacosdns register NAME`: holds instances in the registry until told to stop, then takes them away."""
    from nacosdns import registering  # noqa: PLC0415  # it brings the SDK along

    standing.ignore_strays(signal.SIGUSR2)
    config = configured(arguments)
    logs.configure(config.log.level, role="register")
    wish = registering.wish(arguments, config)
    return asyncio.run(registering.hold(wish, config, lambda: read_password(config)))


def control_socket(config: Config) -> Path:
    """Where the bridge of this configuration is asked: in its state directory, or where it is without a disk."""
    paths = _control_sockets(config.cache.dir)
    return next(filter(admin.is_alive, paths), paths[0])


def _control_sockets(directory: str) -> list[Path]:
    return [path / CONTROL_SOCKET for path in (Path(directory), *rights.refuges(Path(directory)))]


def running(arguments: Namespace) -> Path:
    """Where the bridge meant by ``-c`` is asked, also while the file is bad: it runs on what was read before.

    ConfigError for a bad file when no bridge is found.
    """
    try:
        path = control_socket(configured(arguments))
    except ConfigError as error:
        found = _running_all_the_same(arguments)
        if found is None:
            raise
        remedy = "" if isinstance(error.__cause__, OSError) else error.remedy  # no other file is wanted
        _say_asked(found, str(ConfigError(error.what, file=error.file, line=error.line, key=error.key, remedy=remedy)))
        return found
    if other := _without_its_file(arguments, path):
        _say_asked(other, f"{DEFAULT_PATH} is not there")
    return other or path


def _running_all_the_same(arguments: Namespace) -> Path | None:
    """Where a bridge listens whose configuration we cannot use; None when none is found.

    At the usual place one of another file may listen, which is not meant.
    """
    named = cache_dir_alone(_path(arguments), os.environ)
    if named != Cache().dir and (found := _alive(named)):
        return found
    file, usual = _file(arguments), _alive(Cache().dir)
    return _started_with(file) or (usual if usual and _file_of(admin.listener(usual)) in {"", file} else None)


def _without_its_file(arguments: Namespace, path: Path) -> Path | None:
    """Where the bridge listens that was started with the usual file, when that is gone and none listens at ``path``."""
    return None if _path(arguments) or admin.is_alive(path) else _started_with(_file(arguments))


def _alive(directory: str) -> Path | None:
    return next(filter(admin.is_alive, _control_sockets(directory)), None)


def _say_asked(found: Path, why: str) -> None:
    _warn(f"{why}; the bridge at {found.parent}, which runs on what was read before, is asked")


def _file(arguments: Namespace) -> str:
    """The file that is meant, whether it is there or not."""
    return str(Path(arguments.config or DEFAULT_PATH).resolve())


def _started_with(file: str) -> Path | None:
    """Where the one bridge of this host listens that was started with this file; None for none, or more than one."""
    everywhere = admin.elsewhere(Path(CONTROL_SOCKET), LINK_SOCKET)
    found = [path for path in everywhere if _file_of(admin.listener(path)) == file]
    return found[0] if len(found) == 1 else None


def _file_of(pid: int) -> str:
    """The configuration that a bridge was started with, by its command line; "" when that does not tell."""
    words, directory = standing.command_line(pid) if pid else ([], "")
    if "run" not in words:
        return ""
    given = words[words.index("run") + 1 :]
    named = [after if word == "-c" else word[2:] for word, after in pairwise([*given, ""]) if word.startswith("-c")]
    file = Path(directory, named[-1] if named else DEFAULT_PATH)
    return str(file.resolve()) if file.is_absolute() else ""


def meant(arguments: Namespace) -> Config:
    """The configuration meant by ``-c``; while the file is bad or gone, the one that the running bridge has."""
    with contextlib.suppress(ConfigError):
        config = configured(arguments)
        if not _without_its_file(arguments, control_socket(config)):
            return config
    encoded: Any = admin.call(running(arguments), "config", {})
    return configuration.decode(encoded)


def _call(arguments: Namespace, verb: str, **values: object) -> Any:  # noqa: ANN401  # each verb answers in its own shape
    path = running(arguments)
    return _asked(arguments, path, lambda: admin.call(path, verb, values))


def _asked(arguments: Namespace, path: Path, ask: Callable[[], _Answer]) -> _Answer:
    """What it answers; an error says where else a bridge runs."""
    try:
        return ask()
    except ControlError as error:
        others = admin.elsewhere(path, LINK_SOCKET) if not admin.is_alive(path) else []
        if not others:
            raise
        if moved := _started_with(_file(arguments)):
            where = f"it runs on {moved.parent}, and keeps its cache.dir until it is restarted"
        else:
            places = ", ".join(str(other.parent) for other in others)
            where = f"another nacosdns runs on {places}" if len(others) == 1 else f"others run on {places}"
        raise ControlError(f"{error}; {where}") from error


def _show(arguments: Namespace, answer: Any, spell: Callable[[Any], str]) -> None:  # noqa: ANN401  # likewise
    say(msgspec.json.encode(answer).decode() if arguments.json else spell(printable(answer)))


def say(text: str) -> None:
    """An answer on standard output. OutputError when it does not take it."""
    try:
        if sys.stdout is None:  # it was closed when we were started
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # noqa: TRY301  # what a write to it says
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = None  # so that nobody tries again at the end
        raise OutputError(f"standard output does not take the answer ({error.strerror or error})") from error


def _warn(line: str) -> None:
    with contextlib.suppress(OSError, AttributeError):  # full, or closed when we were started
        sys.stderr.write(f"nacosdns: {printable(line)}\n")


def complain(error: Exception, *, as_json: bool) -> None:
    """An error on stderr in one line; with ``--json`` on stdout too, with its parts."""
    _warn(str(error))
    if as_json and not isinstance(error, OutputError):
        parts: dict[str, object] = {"error": str(error)}
        if isinstance(error, ConfigError):
            parts |= {key: getattr(error, key) for key in ("file", "line", "key", "what", "remedy")}
        with contextlib.suppress(OutputError):
            say(msgspec.json.encode(parts).decode())
