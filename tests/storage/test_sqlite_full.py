"""A disk that is full from any write on: nothing acknowledged is lost, and writing goes on with room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.model.ops import Committed
from perdure.storage.sqlite import driver as sqlite
from perdure.storage.sqlite.driver import SqliteDriver
from tests.storage.outside import fat, state, write_until_refused
from tests.storage.steps import Disk, Step


class FullDisk(Disk):
    """A disk that takes ``room`` more writes of the log; ``None``: any number. Of the file it takes all: what
    fails in a checkpoint SQLite keeps to itself, and ``apsw`` raises."""

    def __init__(self) -> None:
        super().__init__()
        self.room: int | None = None
        self.before = self._take_room

    def _take_room(self, step: Step) -> None:
        if self.room is not None and step[:2] == ("log", "write"):
            if self.room == 0:
                raise apsw.FullError("no room")
            self.room -= 1


@pytest.fixture
def disk() -> Iterator[FullDisk]:
    disk = FullDisk()
    yield disk
    disk.unregister()


def test_whichever_write_finds_no_room_nothing_acknowledged_is_lost(disk: FullDisk, tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    failures = 0
    version = 0
    with closing(SqliteDriver(path)) as driver:
        driver._writer.execute("PRAGMA wal_autocheckpoint = 20")
        for room in range(0, 60, 3):
            disk.room = room
            failed, error = write_until_refused(driver, version + 1)
            assert type(error) is perdure.Unavailable
            assert "the disk is full" in str(error)
            failures += 1
            version = failed - 1
            disk.room = None
            assert driver.perform(fat(version + 1, chunks=1)) == Committed()
            version += 1
            assert state(driver)[0] == [version]
    with closing(SqliteDriver(path)) as driver:
        assert state(driver)[0] == [version]
        assert driver.examine(None) == []
    assert failures == 20
