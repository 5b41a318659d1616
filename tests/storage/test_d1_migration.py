"""A process that has a D1 database open while a later release migrates it does nothing more to it."""

from __future__ import annotations

from contextlib import closing

import pytest

from perdure.errors import MigrationRequired
from perdure.model.ops import Commit, Drop, Fetch, FindDue, FindExpired, FindRuns, FindThreads, Get, Stage
from perdure.model.records import HEAD
from perdure.storage.d1 import driver as backend
from perdure.storage.d1.columns import catalogue
from perdure.storage.d1.url import D1Url
from perdure.storage.url import open_driver
from perdure.testing.conformance import rows
from tests.servers import d1
from tests.storage.next_layout import next_layout

NEXT = backend.SCHEMA_VERSION + 1


def test_a_process_that_had_it_open_does_nothing_after_a_migration() -> None:
    with d1.empty() as url, closing(open_driver(url, migrate=True)) as driver:
        rows.store_ops(driver, rows.head())
        with next_layout():
            assert backend.migrate(url) == NEXT - 1
        for effect in (
            Fetch(rows.HERE, (Get(HEAD, ("",)),)),
            Commit(rows.HERE, (rows.head("c2"),)),
            Stage(rows.HERE, (rows.chunk(b"late"),)),
            Drop(rows.HERE),
            *(FindThreads(""), FindDue("", 1 << 50), FindRuns("", "r"), FindExpired("", 1 << 50)),
        ):
            with pytest.raises(MigrationRequired, match="a newer release has migrated it"):
                driver.perform(effect)
        with D1Url.of(url).session() as transport:
            count = f"SELECT count(*) AS c0 FROM {catalogue(NEXT)} JOIN perdure_head ON t = pk"
            assert transport.batch([(count, ())]) == [[[1]]]
