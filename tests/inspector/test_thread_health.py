"""What the page of care shows of a database's layout."""

from __future__ import annotations

from pathlib import Path

from perdure.inspector import thread_health
from perdure.storage.sqlite import driver as sqlite
from tests.storage.next_layout import next_layout


def test_a_process_that_goes_on_after_a_migration_shows_both_versions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    sqlite.migrate(url)
    present = sqlite.SCHEMA_VERSION
    assert thread_health._schema(url) == {"version": present, "release": present, "pending": []}
    with next_layout():
        sqlite.migrate(url)
    assert thread_health._schema(url) == {"version": present + 1, "release": present, "pending": []}
