"""What comes from outside as a terminal may show it: no control character, no line break, nothing that reorders a line.

Must not know: where a value comes from, how it is laid out. Rule: whatever is printed for people goes through here
once, before it is laid out; so a name, an error or a greeting of a foreign server cannot steer a terminal or forge a line.
"""

from __future__ import annotations

from typing import TypeVar, overload

_Item = TypeVar("_Item")


@overload
def printable(value: str) -> str: ...
@overload
def printable(value: list[_Item]) -> list[_Item]: ...
@overload
def printable(value: dict[str, _Item]) -> dict[str, _Item]: ...
@overload
def printable(value: object) -> object: ...
def printable(value: object) -> object:
    r"""The same value of lists, dicts and plain values, with every character that is not printable as ``\x1b`` or ``\n``."""
    match value:
        case str():
            return value if value.isprintable() else "".join(map(_shown, value))
        case dict():
            return {printable(key): printable(inner) for key, inner in value.items()}
        case list() | tuple():
            return [printable(inner) for inner in value]
        case _:
            return value


def _shown(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()
