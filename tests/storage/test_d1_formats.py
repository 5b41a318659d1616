"""A D1 database of an earlier release is refused, is upgraded, keeps what it holds, and is like a new one.

``d1_2.sql`` is what the release before made of an empty database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from perdure.errors import MigrationRequired
from perdure.model.ops import Commit, Drop, Fetch, Find, Get, Put, Stage
from perdure.model.records import HEAD
from perdure.storage.d1 import driver as backend
from perdure.storage.d1 import schema
from perdure.storage.d1.columns import catalogue
from perdure.storage.d1.rest import Rejected
from perdure.storage.d1.url import D1Url
from perdure.storage.sql import migrations
from perdure.storage.url import open_driver
from perdure.testing.conformance import rows
from perdure.testing.conformance.concurrency import at_once
from tests.servers import d1

FORMAT_2 = Path(__file__).with_name("d1_2.sql")


@pytest.fixture
def url() -> Iterator[str]:
    """A database of schema version 2."""
    with d1.empty() as url:
        with D1Url.of(url).session() as transport:
            transport.batch([(line.rstrip(";"), ()) for line in FORMAT_2.read_text().splitlines()])
        yield url


def held() -> tuple[Put, ...]:
    """What a thread of that version may hold."""
    return rows.head(), rows.checkpoint("c"), rows.chunk(b"c"), rows.write("t", 0), rows.tag("mine")


def insert(put: Put) -> str:
    """The statement by which that version's release wrote a record."""
    values = [1, *put.key, *put.fields.values()]
    values += [put.version] if put.kind.versioned else []
    values += [put.body] if put.kind.body else []
    literals = ("NULL" if v is None else f"X'{v.hex()}'" if isinstance(v, bytes) else repr(v) for v in values)
    columns = ", ".join(("t", *put.kind.columns()))
    return f"INSERT INTO perdure_{put.kind.name} ({columns}) VALUES ({', '.join(literals)})"


def test_an_older_schema_is_refused_with_the_command_to_run(url: str) -> None:
    with pytest.raises(
        MigrationRequired, match=f"has schema version 2, not {backend.SCHEMA_VERSION}; run `perdure"
    ):
        open_driver(url)
    assert backend.schema_version(url) == 2
    assert backend.pending(url)
    found = at_once(8, lambda _: backend.migrate(url))
    assert sorted(found) == [2] + [backend.SCHEMA_VERSION] * 7
    assert backend.pending(url) == []


def test_threads_are_kept_and_queues_work(url: str) -> None:
    thread = "INSERT INTO perdure_thread (pk, tenant, thread, space) VALUES (1, '{}', '{}', '{}')"
    with D1Url.of(url).session() as transport:
        transport.batch([(thread.format(*rows.HERE), ()), *((insert(put), ()) for put in held())])
    with closing(open_driver(url, migrate=True)) as driver:
        for put in held():
            record = rows.get(driver, put.kind, *put.key)
            assert record is not None
            assert (dict(record.fields), record.version, record.body) == (
                dict(put.fields),
                put.version,
                put.body,
            )
        rows.stored(driver, *rows.every_kind())
        assert [f.partition for f in driver.perform(Find("due", None, until=1 << 50))] == [rows.HERE]


def test_what_an_upgrade_makes_is_what_a_new_database_has(url: str) -> None:
    backend.migrate(url)
    with d1.empty() as new:
        backend.migrate(new)
        assert shape(url) == shape(new)


def shape(url: str) -> set[tuple[str, ...]]:
    """The tables and indexes, as they were declared; a column that was added stands last in its table."""
    with D1Url.of(url).session() as transport:
        question = "SELECT type AS c0, name AS c1, sql AS c2 FROM sqlite_schema WHERE name LIKE 'perdure_%'"
        (found,) = transport.batch([(question, ())])
    out = {
        (kind, name, *sorted(re.sub(r"\s+", " ", sql).rstrip(")").split(", "))) for kind, name, sql in found
    }
    assert len(out) > 25
    return out


NEXT = backend.SCHEMA_VERSION + 1


@contextmanager
def next_release() -> Iterator[None]:
    """The migration of a later release, whose step changes no table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "SCHEMA_VERSION", NEXT)
        patch.setattr(migrations, "SCHEMA_VERSION", NEXT)
        patch.setitem(migrations.STEPS, NEXT, ())
        yield


def test_a_process_that_had_it_open_does_nothing_after_a_migration() -> None:
    with d1.empty() as url, closing(open_driver(url, migrate=True)) as driver:
        rows.stored(driver, rows.head())
        with next_release():
            assert backend.migrate(url) == backend.SCHEMA_VERSION
        for effect in (
            Fetch(rows.HERE, (Get(HEAD, ("",)),)),
            Commit(rows.HERE, (rows.head("c2"),)),
            Stage(rows.HERE, (rows.chunk(b"late"),)),
            Drop(rows.HERE),
            *(Find(index, "", until=1 << 50, value="r") for index in ("threads", "due", "runs", "expired")),
        ):
            with pytest.raises(MigrationRequired, match="a newer release has migrated it"):
                driver.perform(effect)
        with D1Url.of(url).session() as transport:
            count = f"SELECT count(*) AS c0 FROM {catalogue(NEXT)} JOIN perdure_head ON t = pk"
            assert transport.batch([(count, ())]) == [[[1]]]


def test_a_process_of_the_release_before_does_nothing_after_a_migration(url: str) -> None:
    backend.migrate(url)
    with D1Url.of(url).session() as transport, pytest.raises(Rejected, match="no such table"):
        transport.batch([("SELECT pk AS c0 FROM perdure_thread", ())])
