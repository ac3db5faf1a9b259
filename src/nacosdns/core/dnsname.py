"""Domain names: labels, their bytes on the wire, and the text that people read and write.

Must not know: messages, zones, services. Rules: any byte may stand in a label (RFC 2181 11); a name goes to text and
back without loss; bytes that are not a name raise WireError and nothing else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nacosdns.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable

LABEL_BYTES_MAX = 63
POINTERS_MAX = 127  # a name has no more labels than this, and a pointer for each is more than anybody writes
NAME_BYTES_MAX = 255
HEADER_BYTES = 12
ROOT = b"\x00"

_TOKEN = re.compile(r"\\([0-9]{3})|\\([^0-9])|([^\\.]+)|(\.)", re.DOTALL)


def name_to_wire(labels: Iterable[bytes]) -> bytes:
    """The uncompressed wire form of these labels, with the root (RFC 1035 3.1).

    WireError: a label is empty or over 63 bytes, or the name is over 255 bytes.
    """
    pieces = [b""]
    for label in labels:
        if not 0 < len(label) <= LABEL_BYTES_MAX:
            raise WireError("label over 63 bytes" if label else "empty label")
        pieces += (bytes((len(label),)), label)
    wire = b"".join(pieces) + ROOT
    if len(wire) > NAME_BYTES_MAX:
        raise WireError("name over 255 bytes")
    return wire


def labels_of(wire: bytes) -> tuple[bytes, ...]:
    """The labels of an uncompressed wire name, without the root. WireError when ``wire`` is anything else."""
    labels: list[bytes] = []
    at = 0
    try:
        while length := wire[at]:
            if length > LABEL_BYTES_MAX:
                raise WireError("malformed")
            labels.append(wire[at + 1 : at + 1 + length])
            at += 1 + length
    except IndexError:
        raise WireError("malformed") from None
    if at + 1 != len(wire) or len(wire) > NAME_BYTES_MAX:
        raise WireError("malformed")
    return tuple(labels)


def fold(name: bytes) -> bytes:
    """The wire name with A-Z as a-z, the form in which names are compared (RFC 4343).

    Only for a name: length bytes are at most 63 and so never in 0x41-0x5A, where A-Z lie, and ``bytes.lower`` leaves
    all other bytes alone. The type and class after a name do lie there (HTTPS is 65, "A").
    """
    return name.lower()


def is_under(name: bytes, above: bytes) -> bool:
    """Whether a wire name is ``above`` or lies below it; both folded. A label that only ends alike does not count."""
    at, start = 0, len(name) - len(above)
    while at < start:
        at += 1 + name[at]
    return at == start and name.endswith(above)


def ending(name: bytes, like: bytes) -> bytes:
    """The end of a wire name that has as many labels as ``like``; the whole name when it has no more."""
    labels = labels_of(name)
    return name_to_wire(labels[max(0, len(labels) - len(labels_of(like))) :])


def read_name(packet: bytes, at: int) -> tuple[bytes, int]:
    """The name that begins at ``at``, uncompressed and in its own case, and the offset behind it.

    Pointers must lead strictly backwards, behind the header: a chain of them ends (RFC 1035 4.1.4), and after
    POINTERS_MAX it is none that a name needs: many records that begin a long one would cost seconds (RFC 9267 2).
    Label types 0x40 and 0x80 are refused (RFC 6891 5). WireError on anything else.
    """
    pieces: list[bytes] = []
    size, end, lowest, pointers = 1, 0, at, 0
    try:
        while length := packet[at]:
            if length >= 0xC0:
                end = end or at + 2
                at = (length & 0x3F) << 8 | packet[at + 1]
                pointers += 1
                if not HEADER_BYTES <= at < lowest or pointers > POINTERS_MAX:
                    raise WireError("malformed")
                lowest = at
                continue
            size += 1 + length
            if length > LABEL_BYTES_MAX or size > NAME_BYTES_MAX:
                raise WireError("malformed")
            pieces.append(packet[at : at + 1 + length])
            at += 1 + length
    except IndexError:
        raise WireError("malformed") from None
    return b"".join(pieces) + ROOT, end or at + 1


def name_text(wire: bytes) -> str:
    r"""A wire name for people: ``orders.nacos.``, the root ``.``; ``text_name`` reads it back to the same bytes.

    UTF-8 is shown as it is. A dot or backslash inside a label gets a backslash; blanks, control and other invisible
    characters and bytes that are not UTF-8 are written ``\DDD``, byte by byte (RFC 4343 2.1), so that a name cannot
    forge a log line.
    """
    return "".join(_label_text(label) + "." for label in labels_of(wire)) or "."


def _label_text(label: bytes) -> str:
    text = label.decode("utf-8", "surrogateescape")
    if text.isalnum():
        return text
    return "".join(_character_text(character) for character in text)


def _character_text(character: str) -> str:
    if character in ".\\":
        return "\\" + character
    if character.isprintable() and not character.isspace():
        return character
    return "".join(f"\\{byte:03d}" for byte in character.encode("utf-8", "surrogateescape"))


def text_name(text: str) -> bytes:
    r"""The wire form of a name as people write it, with or without the last dot, in its own case.

    ``\.`` and ``\\`` stand for themselves, ``\DDD`` for a byte in decimal; all other characters go in as UTF-8.
    WireError says what is wrong.
    """
    if text == ".":
        return ROOT
    labels = [bytearray()]
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise WireError("a lone backslash")
        if token[4]:
            labels.append(bytearray())
        else:
            labels[-1] += _token_bytes(token)
        at = token.end()
    if len(labels) > 1 and not labels[-1]:
        labels.pop()
    return name_to_wire(map(bytes, labels))


def _token_bytes(token: re.Match[str]) -> bytes:
    if token[1]:
        if int(token[1]) > 255:
            raise WireError("a byte over 255")
        return bytes((int(token[1]),))
    try:
        return (token[2] or token[3]).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise WireError("not text") from None
