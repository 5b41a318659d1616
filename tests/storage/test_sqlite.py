"""The SQLite driver keeps the contract of the storage port, through both of its doors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.storage.port import Driver
from perdure.storage.sqlite import driver as sqlite
from perdure.testing.conformance import Awaited, Blocking, DriverContract


class TestSqlite(DriverContract):
    @pytest.fixture(params=[Blocking, Awaited])
    def driver(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
        path = tmp_path / "threads.db"
        sqlite.migrate(f"sqlite:///{path}")
        driver = sqlite.SqliteDriver(path)
        yield request.param(driver)
        driver.close()
