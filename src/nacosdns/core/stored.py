"""The rows of the cache on disk: what stands in their columns, and whether one is still what was written.

Must not know: SQLite, files. Rule: every row carries a checksum; a row that is damaged, or is not of what it is listed under,
is None and nothing else.
"""

from __future__ import annotations

import zlib
from math import isfinite

import msgspec

from nacosdns.core.frames import External, Known, encode, holds
from nacosdns.core.model import ServiceKey

Fields = tuple[str, str, str, str, int, bytes, int, float]
"""Of a service, as they should be: SQLite keeps any type in any column."""
_external_decoder = msgspec.msgpack.Decoder(External)


class StoredService(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row: the snapshot as it was sent, and the wall time at which it was last asked for."""

    known: Known
    asked_at: float


def columns(key: ServiceKey) -> tuple[str, str, str, str]:
    """Which row a service has."""
    return key.registry, key.namespace, key.group, key.service


def fields_of(known: Known, asked_at: float) -> Fields:
    """The row of a service."""
    return (*columns(known.key), known.revision, bytes(known.body), zlib.crc32(known.body), asked_at)


def external_fields_of(item: External) -> tuple[bytes, int, bytes, int, float]:
    """The row of an outside answer."""
    body = encode(item)
    return item.question, item.flags, body, zlib.crc32(body), item.stored_at


def service_of(row: Fields) -> StoredService | None:
    """A row, its body still encoded; None when it is damaged, or is not of the service that it is listed under."""
    registry, namespace, group, service, revision, body, crc, asked_at = row
    if type(body) is not bytes or zlib.crc32(body) != crc or type(revision) is not int:
        return None
    if type(asked_at) is not float or not isfinite(asked_at):
        return None
    key = ServiceKey(namespace, group, service, registry)
    try:
        return StoredService(Known(key, revision, msgspec.Raw(body)), asked_at) if holds(body, key) else None
    except UnicodeEncodeError:
        return None


def external_of(body: object, crc: object) -> External | None:
    """An outside answer by these two columns of its row; None when it is damaged."""
    if not isinstance(body, bytes) or zlib.crc32(body) != crc:
        return None
    try:
        return _external_decoder.decode(body)
    except msgspec.MsgspecError:
        return None
