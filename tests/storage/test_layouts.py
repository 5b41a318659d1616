"""A database of another layout is refused by one error on every backend, and left as it is; one step leads
from a layout to the next, once for all who ask, and keeps everything.

Covers perdure.storage.layout_version.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import boto3
import psycopg
import pytest

import perdure
from perdure.storage.d1.url import D1Url
from perdure.storage.dynamodb.client import target_of
from perdure.storage.postgres import schema as postgres_schema
from perdure.storage.postgres.url import parse_url
from perdure.storage.redis.driver import BUCKETS
from perdure.storage.sql import migrations
from perdure.storage.sqlite import driver as sqlite
from perdure.storage.url import backend_of, open_driver
from perdure.testing.conformance import rows
from perdure.testing.conformance.concurrency import at_once
from tests.backends import EMPTY
from tests.servers import dynamodb, postgres, valkey
from tests.storage.next_layout import FILE_STEP, SQL_STEP, next_layout

LAID_OUT = ("sqlite", "postgresql", "redis", "d1", "dynamodb")
MIGRATING = ("sqlite", "postgresql", "redis", "d1")
"""Backends with steps between layouts: no step changes a table of DynamoDB."""

NO_EXPORT = "If that version has no such command, see docs/deployment.md, Earlier layouts"
EXPORT = "Nothing was changed. Run `perdure export --all --as history`, for sessions `--as sessions`"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with EMPTY[request.param]() as url:
        yield url


def note(url: str, version: int) -> None:
    """Note another version in a database as that of its layout."""
    update = f"UPDATE perdure_schema SET version = {version}"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite.file_of(url))) as connection:
            connection.execute(update)
            connection.commit()
    elif url.startswith("postgresql"):
        with psycopg.connect(postgres.shared().url(), autocommit=True) as admin:
            name = postgres_schema.quote(parse_url(url).schema)
            admin.execute(f"UPDATE {name}.schema SET version = {version}".encode())
    elif url.startswith("redis"):
        (prefix,) = parse_qs(urlsplit(url).query)["prefix"]
        with valkey.shared().client() as client:
            client.set(f"{prefix}:layout", f"{version} {BUCKETS}")
    elif url.startswith("d1"):
        with D1Url.of(url).session() as transport:
            transport.batch([(update, ())])
    else:
        boto = boto3.client("dynamodb", region_name=dynamodb.REGION, endpoint_url=dynamodb.endpoint())
        key = {"pk": {"B": b"\0layout"}, "sk": {"B": b"\0"}}
        boto.put_item(TableName=target_of(url).table, Item={**key, "version": {"N": str(version)}})


@pytest.mark.parametrize("url", LAID_OUT, indirect=True)
@pytest.mark.parametrize(("off", "told"), [(-1, EXPORT), (1, "upgrade perdure")], ids=["earlier", "later"])
def test_another_layout_is_refused_and_nothing_of_it_is_changed(url: str, off: int, told: str) -> None:
    backend = backend_of(url)
    with closing(open_driver(url, migrate=True)) as driver:
        rows.store_ops(driver, *rows.every_kind())
        before = rows.everything(driver)
    present = backend.SCHEMA_VERSION
    note(url, present + off)
    for ask in (backend.open_driver, backend.migrate, backend.plan_migration):
        with pytest.raises(perdure.MigrationRequired) as raised:
            ask(url)
        assert f"has layout version {present + off}, this release" in str(raised.value)
        assert f" {present}" in str(raised.value)
        assert f"(perdure {version('perdure')})" in str(raised.value)
        assert told in str(raised.value)
    assert backend.schema_version(url) == present + off
    note(url, present)
    with closing(open_driver(url)) as driver:
        assert rows.everything(driver) == before


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_remedy_names_a_section_that_is_there(url: str) -> None:
    sqlite.migrate(url)
    note(url, 7)
    with pytest.raises(perdure.MigrationRequired) as raised:
        open_driver(url)
    assert NO_EXPORT in str(raised.value)
    assert "\n### Earlier layouts\n" in Path("docs/deployment.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("url", MIGRATING, indirect=True)
def test_a_step_is_carried_out_once_for_all_who_ask_and_keeps_everything(url: str) -> None:
    backend = backend_of(url)
    present = backend.SCHEMA_VERSION
    with closing(open_driver(url, migrate=True)) as driver:
        rows.store_ops(driver, *rows.every_kind())
        before = rows.everything(driver)
    with next_layout():
        with pytest.raises(perdure.MigrationRequired, match=f"version {present}, not {present + 1}; run `"):
            open_driver(url)
        assert backend.schema_version(url) == present
        assert backend.plan_migration(url)
        found = at_once(8, lambda _: backend.migrate(url))
        assert set(found) <= {present, present + 1}
        assert present in found
        if not url.startswith("redis"):
            assert found.count(present) == 1
        assert backend.plan_migration(url) == []
        assert backend.migrate(url) == backend.schema_version(url) == present + 1
        if url.startswith(("sqlite", "postgresql")):
            # The others' requests name the layout in texts that are made once in a process.
            with closing(open_driver(url)) as driver:
                assert rows.everything(driver) == before
    with pytest.raises(perdure.MigrationRequired, match="upgrade perdure"):
        open_driver(url)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_step_that_fails_leaves_the_file_as_it_was(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite.migrate(url)
    with next_layout():
        monkeypatch.setitem(migrations.STEPS, sqlite.SCHEMA_VERSION, (*SQL_STEP, "no statement"))
        with pytest.raises(perdure.PerdureError):
            sqlite.migrate(url)
    with closing(open_driver(url)) as driver:
        rows.store_ops(driver, *rows.every_kind())
    with closing(sqlite3.connect(sqlite.file_of(url))) as connection:
        known = "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%extra%'"
        assert connection.execute(known).fetchone() == (0,)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_file_gets_the_shared_steps_and_its_own(url: str) -> None:
    sqlite.migrate(url)
    with next_layout():
        assert sqlite.plan_migration(url) == [*SQL_STEP, *FILE_STEP]
        assert sqlite.migrate(url) == sqlite.SCHEMA_VERSION - 1
        with closing(open_driver(url)) as driver:
            rows.store_ops(driver, *rows.every_kind())


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_processes_of_both_releases_side_by_side_on_a_file(url: str) -> None:
    """The old one writes nothing more, and goes on to read."""
    with closing(open_driver(url, migrate=True)) as old:
        rows.store_ops(old, rows.head())
        before = rows.everything(old)
        with next_layout():
            assert sqlite.migrate(url) == sqlite.SCHEMA_VERSION - 1
            with closing(open_driver(url)) as new:
                assert rows.everything(new) == before
                rows.store_ops(new, rows.tag("new"))
        with pytest.raises(perdure.MigrationRequired, match="upgrade perdure"):
            rows.store_ops(old, rows.tag("old"))
        assert {record.kind.name for record in rows.everything(old)} == {"head", "tag"}
