"""The verbs of the command line; thin.

Must not know: what a verb does. Rule: exit 0 is good, 1 is "the answer is no", 2 is a fault of use or configuration,
and every fault is one line that says what to do.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from typing import TYPE_CHECKING


def broken(fault: ImportError | SyntaxError) -> str:
    """An installation that cannot be imported, in one line that names the place."""
    place = traceback.extract_tb(fault.__traceback__)[-1]
    file, line = (fault.filename, fault.lineno) if isinstance(fault, SyntaxError) else (place.filename, place.lineno)
    what = f"{type(fault).__name__}: {fault.msg}"
    return f"nacosdns: the installation is broken: {what} ({file}, line {line}); install it again"


try:
    from nacosdns import commands, host_commands
    from nacosdns.config_load import DEFAULT_PATH
    from nacosdns.errors import ConfigError, ControlError, NacosdnsError, StartError, UsageError
except (ImportError, SyntaxError) as fault:
    sys.exit(broken(fault))

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Command = Callable[[argparse.Namespace], int]

EXIT_NO = 1
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code."""
    arguments = argparse.Namespace(json=False)
    try:
        arguments = parser().parse_args(argv)
        command: Command = arguments.command
        return command(arguments)
    except (ConfigError, StartError, UsageError) as error:
        commands.complain(error, as_json=arguments.json)
        return EXIT_USAGE
    except (ControlError, NacosdnsError) as error:
        commands.complain(error, as_json=arguments.json)
        return EXIT_NO
    except KeyboardInterrupt:
        return EXIT_NO


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-c", dest="config", metavar="FILE", help=f"configuration (default {DEFAULT_PATH})")
    common.add_argument("--json", action="store_true", help="answer as JSON")
    root = _Parser(prog="nacosdns", description="A bridge from Nacos to DNS.")
    root.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    verbs = root.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def verb(name: str, command: Command, text: str, parent: object = verbs) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = parent.add_parser(name, help=text, description=text, parents=[common])  # type: ignore[attr-defined]  # argparse names no public type for it
        added.set_defaults(command=command)
        return added

    verb("run", commands.run, "run the bridge until it is told to stop")
    asking = verb("ask", commands.ask, "ask the running bridge a name; shows the answer and why")
    asking.add_argument("name", metavar="NAME", help="as in orders.nacos")
    asking.add_argument("type", metavar="TYPE", nargs="?", default="A", help="record type (default A)")
    listing = verb("services", commands.services, "list the services that the running bridge knows")
    listing.add_argument("--all", action="store_true", help="also those that Nacos lists and nobody asked for")
    verb("status", commands.status, "show every part of the running bridge")
    verb("upgrade", commands.upgrade, "put the installed code in the place of the running one, without a lost query")
    _register(verb("register", commands.register, "keep instances registered until told to stop"))
    kept = _group(verbs, "cache", "what the running bridge keeps")
    verb("list", commands.cache_list, "list the outside names that are kept", kept)
    flush = verb("flush", commands.cache_flush, "end protection of a service, or forget an outside name, at once", kept)
    flush.add_argument("name", metavar="NAME", help="as in orders.nacos")
    verb("accept", commands.cache_accept, "believe what Nacos says now: ends the brake", kept)
    doctor = verb("doctor", host_commands.doctor, "say what is wrong with this host, and what to do")
    doctor.add_argument("--fix", action="store_true", help="put right what can be put right safely")
    doctor.add_argument("--root", metavar="DIR", default="/", help="look at the files below DIR (default /)")
    kept = _group(verbs, "resolvconf", "this host's resolv.conf")
    verb("show", host_commands.resolvconf_show, "show resolv.conf as it is and as the guard wants it", kept)
    guard = verb(
        "guard", host_commands.resolvconf_guard, "keep our address first in resolv.conf until told to stop", kept
    )
    guard.add_argument("--restore", action="store_true", help="give resolv.conf back when told to stop")
    verb("restore", host_commands.resolvconf_restore, "give resolv.conf back as it was before the guard", kept)
    verb("check", commands.check, "say whether a configuration can be used, and if not, where and why")
    verb("plugins", commands.plugins, "list the balancers that a policy may name")
    return root


def _group(verbs: argparse._SubParsersAction[_Parser], name: str, text: str) -> object:
    """A verb that has verbs below it."""
    group = verbs.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.")
    return group.add_subparsers(title="commands", metavar="COMMAND", required=True)


class _Parser(argparse.ArgumentParser):
    """Says its help as every answer is said."""

    def print_help(self, file: object = None) -> None:  # argparse never names another
        commands.say(self.format_help().removesuffix("\n"))


class _Version(argparse.Action):
    """Says the version; only then the installed packages are searched for it."""

    def __call__(self, parser: argparse.ArgumentParser, *_others: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415  # every start would pay for it

        commands.say(f"nacosdns {version('nacosdns')}")
        parser.exit()


def _register(register: argparse.ArgumentParser) -> None:
    add = register.add_argument
    add("name", metavar="NAME", help="service name")
    add("--ip", action="append", default=[], help="address of an instance; with --port, may be repeated")
    add("--port", action="append", default=[], type=int, help="port of the instance of the same place")
    add("--instance", action="append", default=[], metavar="IP:PORT[@WEIGHT]", help="an instance; may be repeated")
    add("--weight", type=float, default=1.0, help="weight of instances that do not say their own (default 1)")
    add("--cluster", default="DEFAULT", help="Nacos cluster (default DEFAULT)")
    add("--group", default="DEFAULT_GROUP", help="Nacos group (default DEFAULT_GROUP)")
    add("--namespace", default="public", help="Nacos namespace: id or alias (default public)")
    add("--meta", action="append", default=[], metavar="KEY=VALUE", help="metadata; may be repeated")
    add("--probe", metavar="tcp|http[:PATH]", help="register an instance only while it answers")


if __name__ == "__main__":
    sys.exit(main())
