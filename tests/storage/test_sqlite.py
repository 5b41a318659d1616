"""The SQLite driver keeps the contract of the storage port, through both of its doors."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.errors import MigrationRequired
from perdure.storage.port import Driver
from perdure.storage.sql.schema import PREFIX
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


def test_nothing_is_written_to_a_file_that_a_later_release_has_migrated(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with perdure.connect_sync(f"sqlite:///{path}", migrate=True) as db:
        db.store().put(("a",), "before", {})
        with closing(apsw.Connection(str(path))) as later:
            later.execute(f"UPDATE {PREFIX}schema SET version = {sqlite.SCHEMA_VERSION + 1}")
        for _ in range(2):
            with pytest.raises(MigrationRequired, match="upgrade perdure"):
                db.store().put(("a",), "after", {})
        assert [item.key for item in db.store().search(("a",))] == ["before"]
