"""Writes config/reference.toml from the types of the configuration: ``python tests/meta/reference.py``."""

from __future__ import annotations

import json
import textwrap
import typing
from enum import Enum
from pathlib import Path

import msgspec

from nacosdns.config import (
    Cache,
    Config,
    Forward,
    Host,
    Log,
    Nacos,
    PolicySection,
    Server,
    Static,
    StaticInstance,
    Web,
    ZoneSection,
)

FILE = Path(__file__).parents[2] / "config" / "reference.toml"
HEAD = """\
# Every key of nacosdns, its meaning and its default. `make reference` writes this file; a test keeps it true.
#
# A file needs only the keys that differ. The environment beats the file: NACOSDNS_SECTION_KEY, lists with commas,
# as in NACOSDNS_SERVER_LISTEN="127.0.0.1:5353,[::1]:5353" or, with a single [[zone]], NACOSDNS_ZONE_NAME="corp.".
"""
POLICY_TAIL = """
# A sub-table is the policy of the services that it names; each * stands for any text. The exact name wins, then the
# longest pattern; what a sub-table does not say it takes from [policy].
# [policy."mysql-*"]
# kind = "primary"
"""


def literal(value: object) -> str:
    """A value as TOML."""
    match value:
        case bool():
            return str(value).lower()
        case Enum():
            return literal(value.value)
        case int() | float():
            return repr(value)
        case tuple():
            return f"[{', '.join(map(literal, value))}]"
        case dict():
            return "{}"
        case _:
            return json.dumps(value, ensure_ascii=False)


def meaning(section: type, key: str) -> str:
    hint = typing.get_type_hints(section, include_extras=True)[key]
    return next(note.description for note in hint.__metadata__ if note.description)


def comment(text: str, indent: str = "# ") -> str:
    return textwrap.fill(text, 118, initial_indent=indent, subsequent_indent=indent) + "\n"


def keys(section: type, mark: str = "") -> str:
    """Every key of a section below its meaning; with ``mark`` as comments."""
    out = ""
    for field in msgspec.structs.fields(section):
        value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        default = '"…"' if field.required else literal(value)
        out += comment(meaning(section, field.name)) + f"{mark}{field.name} = {default}\n"
    return out


def render() -> str:
    """The whole file."""
    out = HEAD + "\n" + comment(meaning(Config, "static_file")) + f"static_file = {literal(Config().static_file)}\n"
    for head, section in (("[server]", Server), ("[nacos]", Nacos), ("[[zone]]", ZoneSection)):
        out += f"\n{head}\n" + keys(section)
    for table, example in (("namespaces", 'prod = "33ea21bc-0000"'), ("groups", 'pay = "com.example.PAY"')):
        out += "\n" + comment(meaning(Config, table)) + f"[{table}]\n# {example}\n"
    out += "\n[policy]\n" + keys(PolicySection) + POLICY_TAIL
    for head, section in (("[cache]", Cache), ("[forward]", Forward), ("[web]", Web), ("[log]", Log), ("[host]", Host)):
        out += f"\n{head}\n" + keys(section)
    out += "\n# [[static]]\n" + keys(Static, "# ").replace(
        "# instances = []", '# instances = [{ ip = "10.0.0.1", port = 80 }]'
    )
    return out + "\n# What an instance may say:\n" + keys(StaticInstance, "# ")


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
