"""Spellings: when two spellings of a service, a group or a cluster are the same, and what a label spells.

Must not know: names as a whole, zones, what is registered. Rule: every spelling is text that can be sent and stored;
comparing is done in one form only, the folded one.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nacosdns.core.model import ServiceKey

FoldedKey = tuple[str, str, str]
"""Namespace id, folded group, folded service: what two spellings of one service share."""


def fold_text(text: str) -> str:
    """A service, group or cluster name, or a part of it, in the form in which names are compared.

    Without regard to case and to how an accent is composed (canonical caseless matching, Unicode 3.13); a part between
    dots that begins with ``xn--`` counts as what it stands for. Folding twice is folding once.
    """
    lower = text.lower()
    if lower.isascii() and "xn--" not in lower:
        return lower
    return ".".join(_caseless(_from_punycode(_caseless(part))) for part in text.split("."))


def _caseless(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def folded_key(namespace: str, group: str, service: str) -> FoldedKey:
    """What all spellings of a service share. The namespace id stays as it is: only configured ids exist."""
    return namespace, fold_text(group), fold_text(service)


def folded_of(key: ServiceKey) -> FoldedKey:
    """The folded key of a service."""
    return folded_key(key.namespace, key.group, key.service)


def places(keys: Iterable[ServiceKey]) -> str:
    """Where these services are looked for: ``in namespace public, group DEFAULT_GROUP``."""
    found = dict.fromkeys(f"namespace {key.namespace}, group {key.group}" for key in keys)
    return f"in {' and in '.join(found)}"


def label_text(label: bytes) -> str:
    """What a label of a name spells: UTF-8, or Latin-1 when it is not UTF-8, so that any byte is text.

    ``xn--`` labels (RFC 3492) are decoded; those that decode to nothing sensible stay as they are.
    """
    try:
        text = label.decode("utf-8")
    except UnicodeDecodeError:
        text = label.decode("latin-1")
    return _from_punycode(text)


def _from_punycode(part: str) -> str:
    if part[:4].lower() != "xn--" or not part.isascii():
        return part
    try:
        text = part[4:].lower().encode("ascii").decode("punycode")
        text.encode("utf-8")
    except UnicodeError:
        return part
    return part if text.isascii() else text
