"""What the verbs `doctor` and `resolvconf` do: those that look at this host, with or without a running bridge.

Must not know: how arguments are parsed, what makes a host right (core/doctor.py), how the guard works (guarding.py).
Rule: nothing on the host is changed but by `doctor --fix`, `resolvconf guard` and `resolvconf restore`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import msgspec

from nacosdns import doctoring, guarding, locating, report
from nacosdns.commands import configured, control_socket, meant, say
from nacosdns.config_load import Source, read_password
from nacosdns.core import doctor as core_doctor
from nacosdns.core import resolvtext
from nacosdns.core.printable import printable
from nacosdns.edge import hostfacts, logs, resolvconf, resolvfile, standing
from nacosdns.errors import ConfigError, StartError

if TYPE_CHECKING:
    from argparse import Namespace

    from nacosdns.config import Config
    from nacosdns.core.facts import Facts
    from nacosdns.edge.hostfacts import Tree


def doctor(arguments: Namespace) -> int:
    """`nacosdns doctor`: what is wrong with this host, and with ``--fix`` the safe things put right; 1 for anything."""
    if arguments.fix and arguments.root != "/":
        raise StartError("--fix puts this host right; leave --root out")
    config, refused = _meant(arguments)
    logs.configure("error", role="doctor")
    setting = doctoring.setting(config, arguments.config or "")
    tree = hostfacts.Tree(arguments.root)
    findings = core_doctor.judge(_examine(config, tree, refused), setting)
    done: list[str] = []
    if arguments.fix:
        done = asyncio.run(doctoring.mend(findings, config))
        findings = core_doctor.judge(_examine(config, tree, refused), setting)
    rows = [msgspec.to_builtins(finding) for finding in findings]
    answer = {"findings": rows, "done": done}
    shown = (
        msgspec.json.encode(answer).decode() if arguments.json else report.findings(printable(rows), printable(done))
    )
    say(shown)
    return 1 if core_doctor.is_wrong(findings) else 0


def _meant(arguments: Namespace) -> tuple[Config, str]:
    """What this host is judged by, and why the file is refused when that is what the running bridge has."""
    refused = ""
    try:
        configured(arguments)
    except ConfigError as error:
        refused = str(error)
    return meant(arguments), refused


def _examine(config: Config, tree: Tree, refused: str) -> Facts:
    """A password that cannot be read is a finding, no fault of the command."""
    try:
        password = read_password(config)
    except ConfigError:
        password = ""
    facts = asyncio.run(doctoring.examine(config, password, tree, control_socket(config)))
    return msgspec.structs.replace(facts, config_error=refused)


def resolvconf_show(arguments: Namespace) -> int:
    """`nacosdns resolvconf show`: the file as it is and as it should be; 1 when these differ."""
    config = meant(arguments)
    where = guarding.place(config)
    found = resolvfile.look(where.path)
    saved = resolvfile.read_saved(where.saved)
    wanted = resolvtext.plan(found, saved, where.wish)
    paths = resolvconf.candidates(config.cache.dir, config.forward.resolv_conf)
    mine = locating.ourselves(config)

    def is_ours(server: str) -> bool:
        return server in where.wish.servers or locating.leads_to(server, mine)

    upstreams = resolvconf.choose(paths, is_ours)
    answer = {
        "file": str(where.path),
        "kind": found.kind,
        "target": found.target,
        "right": wanted.write is None,
        "servers": list(resolvtext.servers_of(found.text)),
        "wanted": (wanted.write or found.text).decode("utf-8", "replace"),
        "saved": str(where.saved) if saved else "",
        "upstreams_from": upstreams.path,
        "upstreams": [server for server in upstreams.nameservers if not is_ours(server)],
    }
    _show(arguments, answer)
    return 0 if wanted.write is None else 1


def _show(arguments: Namespace, answer: dict[str, object]) -> None:
    if arguments.json:
        say(msgspec.json.encode(answer).decode())
        return
    wanted = str(answer.pop("wanted"))
    lines = [
        report.facts(printable(answer)),
        "wanted",
        *(f"  {printable(line)}".rstrip() for line in wanted.removesuffix("\n").split("\n")),
    ]
    say("\n".join(lines))


def resolvconf_guard(arguments: Namespace) -> int:
    """`nacosdns resolvconf guard`: keeps the file until told to stop."""
    standing.ignore_strays(signal.SIGUSR2)
    source = Source(arguments.config, os.environ)
    config = source.read()
    guarding.place(config)
    logs.configure(config.log.level, role="guard")
    return asyncio.run(guarding.guard(source.read, restore=arguments.restore))


def resolvconf_restore(arguments: Namespace) -> int:
    """`nacosdns resolvconf restore`: gives the file back."""
    config = meant(arguments)
    logs.configure("error", role="guard")
    guard = guarding.Guard(config, logs.log())
    try:
        done = guard.restore()
    finally:
        guard.close()
    say(msgspec.json.encode({"done": done}).decode() if arguments.json else printable(done))
    return 0
