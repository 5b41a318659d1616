"""The SQLite driver keeps the contract of the storage port, through both of its doors."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
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


@pytest.mark.parametrize(("before", "size"), [(None, 1024), (4096, 4096)])
def test_new_files_have_small_pages_and_existing_ones_keep_theirs(
    before: int | None, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "threads.db"
    if before is not None:
        with closing(apsw.Connection(str(path))) as application:
            application.execute(f"PRAGMA page_size = {before}; CREATE TABLE theirs (x)")
    sqlite.migrate(f"sqlite:///{path}")
    with closing(sqlite.connect(path)) as connection:
        assert connection.execute("PRAGMA page_size").fetchone() == (size,)
        # The log is copied into the file after four megabytes, however large its pages are.
        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (4 * 2**20 // size,)
