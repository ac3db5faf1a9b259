"""What lies on disk after any damage: a bad row costs itself, never its neighbours, the reader or the process."""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import contextmanager
from math import isfinite
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.outside import make_query
from nacosdns.core.dnsname import text_name
from nacosdns.core.frames import External, encode, known
from nacosdns.core.model import Instance, ServiceKey, Snapshot
from nacosdns.core.outside import Outside, question_key
from nacosdns.edge import store
from nacosdns.errors import StoreDamaged, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 12
SERVICE_COLUMNS = ("registry", "namespace", "grp", "service", "revision", "body", "crc", "asked_at")
EXTERNAL_COLUMNS = ("question", "flags", "body", "crc", "stored_at")


@contextmanager
def rows(directory: Path) -> Iterator[sqlite3.Connection]:
    """A store of COUNT services and as many outside answers, made anew, to be damaged."""
    path = directory / store.FILE
    for old in directory.glob(f"{store.FILE}*"):
        old.unlink()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")  # the disk of the test machine is not what is tested
    connection.executescript(store._TABLES)
    connection.execute(f"PRAGMA user_version = {store.SCHEMA}")
    for number in range(COUNT):
        key = ServiceKey("public", "DEFAULT_GROUP", f"s{number:02}")
        body = bytes(known(Snapshot(key, (Instance("10.0.0.1", 80),))).body)
        values = (key.registry, key.namespace, key.group, key.service, 1, body, zlib.crc32(body), float(number))
        connection.execute(store._PUT_SERVICE, values)
        item = External(text_name(f"x{number:02}.test") + b"\0\1\0\1", 0, b"\x81\x80\0\1" + bytes(6), float(number), 60)
        outside = encode(item)
        connection.execute(store._PUT_EXTERNAL, (item.question, 0, outside, zlib.crc32(outside), float(number)))
    yield connection
    connection.commit()
    connection.close()


def read_in_every_way(directory: Path) -> tuple[set[str], set[str], set[str], int]:
    """The services that the keeper reads, that a front reads at once and in parts, and the damaged rows that were counted."""
    contents = store.read(str(directory))
    assert not contents.broken
    with store.reading(str(directory)) as reader:
        recent = reader.recent(COUNT)
        parts = [service for part in reader.parts(5) for service in part]
        for service in (*contents.services, *parts):
            assert reader.find(service.known.key) == service
    assert len(contents.services) + len(contents.externals) + contents.damaged == 2 * COUNT
    assert all(type(row.asked_at) is float and isfinite(row.asked_at) for row in contents.services)
    names = (frozenset(row.known.key.service for row in found) for found in (contents.services, recent.services, parts))
    return (*map(set, names), contents.damaged)


def all_but(*numbers: int) -> set[str]:
    return {f"s{number:02}" for number in range(COUNT) if number not in numbers}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("service", "CAST(x'733033ff' AS TEXT)"),
        ("service", "CAST(x'ff' AS TEXT)"),
        ("service", "x'733033'"),
        ("grp", "CAST(x'44c5' AS TEXT)"),
        ("registry", "''"),
        ("revision", "'many'"),
        ("revision", "NULL"),
        ("revision", "1.5"),
        ("body", "NULL"),
        ("body", "'text'"),
        ("crc", "NULL"),
        ("crc", "'text'"),
        ("asked_at", "NULL"),
        ("asked_at", "'never'"),
        ("asked_at", "9e999"),
        ("asked_at", "x'00'"),
    ],
)
def test_a_value_that_has_no_business_in_its_column_costs_one_row(tmp_path, column, value):
    """A flipped bit leaves a name that is no UTF-8; SQLite keeps any type in any column."""
    with rows(tmp_path) as connection:
        connection.execute(f"UPDATE services SET {column} = {value} WHERE service = 's03'")  # noqa: S608  # of this table
    kept, recent, parts, damaged = read_in_every_way(tmp_path)

    assert kept == recent == parts == all_but(3)
    assert damaged == 1


VALUES = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=40)
)
DAMAGE = st.lists(
    st.tuples(
        st.booleans(), st.integers(0, COUNT - 1), st.integers(0, 7), VALUES, st.booleans(), st.integers(0, 2**20)
    ),
    min_size=1,
    max_size=6,
)


@given(DAMAGE)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_random_values_in_random_columns_never_stop_the_reading(tmp_path_factory, damage):
    directory = tmp_path_factory.getbasetemp()
    with rows(directory) as connection:
        for is_service, number, column, value, as_text, bit in damage:
            _hurt(connection, is_service, number, column, (value, as_text, bit))
    kept, recent, parts, _ = read_in_every_way(directory)

    assert kept == parts
    assert recent <= kept
    assert kept <= all_but()
    assert len(kept) >= COUNT - len(damage)


def _hurt(connection, is_service, number, column, how) -> None:
    """Puts a value into a column, or flips one bit of what is there, as text where it was text."""
    value, as_text, bit = how
    table, columns = ("services", SERVICE_COLUMNS) if is_service else ("externals", EXTERNAL_COLUMNS)
    name = columns[column % len(columns)]
    where = ("service", f"s{number:02}") if is_service else ("stored_at", float(number))
    if as_text:
        query = f"SELECT CAST({name} AS BLOB) FROM {table} WHERE {where[0]} = ?"  # noqa: S608  # names of this file
        found = connection.execute(query, where[1:]).fetchone()
        if found is None or not found[0]:
            return
        flipped = bytearray(found[0])
        flipped[bit // 8 % len(flipped)] ^= 1 << bit % 8
        value = bytes(flipped)
    cast = "CAST(? AS TEXT)" if as_text and name in {"registry", "namespace", "grp", "service"} else "?"
    try:
        connection.execute(f"UPDATE {table} SET {name} = {cast} WHERE {where[0]} = ?", (value, where[1]))  # noqa: S608
    except sqlite3.IntegrityError:
        return  # no key twice, none without a part


@given(st.lists(st.tuples(st.integers(0, 2**20), st.binary(min_size=1, max_size=8)), min_size=1, max_size=5))
@settings(max_examples=40)
def test_random_bytes_in_the_file_are_damage_or_fewer_rows_and_nothing_else(tmp_path_factory, wounds):
    directory = tmp_path_factory.getbasetemp()
    with rows(directory):
        pass
    path = directory / store.FILE
    content = bytearray(path.read_bytes())
    for at, junk in wounds:
        place = at % (len(content) - 8)
        content[place : place + len(junk)] = junk
    path.write_bytes(content)
    try:
        contents = store.read(str(directory))
        with store.reading(str(directory)) as reader:
            recent = reader.recent(COUNT)
            for part in reader.parts(5):
                assert {row.known.key.service for row in part} <= all_but()
    except (StoreDamaged, StoreError):
        return
    assert {row.known.key.service for row in (*contents.services, *recent.services)} <= all_but()


EXTERNALS = st.lists(
    st.builds(
        External,
        question=st.one_of(st.binary(max_size=30), st.just(text_name("x.test") + b"\0\1\0\1")),
        flags=st.integers(-(2**63), 2**64 - 1),
        reply=st.one_of(
            st.binary(max_size=60), st.just(b"\x81\x80\0\1\0\0\0\0\0\0" + text_name("x.test") + b"\0\1\0\1")
        ),
        stored_at=st.floats(),
        ttl_s=st.integers(-(2**63), 2**64 - 1),
    ),
    max_size=8,
)


@given(EXTERNALS)
@settings(max_examples=300)
def test_outside_answers_of_any_content_are_taken_or_counted_and_never_raise(items):
    """A row may be whole by its checksum and still say nonsense: who wrote it is not known."""
    outside = Outside(Random(1), entries_max=5)
    outside.restore(items, now=100.0, wall=1e9)
    query = make_query("x.test")
    entry = outside.get(question_key(query))
    if entry is not None:
        reply, until = outside.render(question_key(query), entry, query, 100.0)
        assert reply[:2] == query.id.to_bytes(2, "big")
        assert until <= 100.0 + 86_400
    lines = list(outside.listing(100.0))
    for item in items:
        for _ in outside.forget_under(item.question[:-4]):
            assert outside.size_bytes >= 0
    for _ in outside.forget_under(b"\0"):
        pass

    assert len(lines) <= len(items)
    assert outside.next_due() > 0
