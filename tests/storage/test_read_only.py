"""Databases that are only read: writes are refused, and a file stays as it is, byte for byte."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure.errors import BadUrl, MigrationRequired, NotAllowed
from perdure.model.ops import Commit, Drop, Expect, Fetch, FindThreads, Now, Put, Range, Stage
from perdure.model.records import TAG, Partition
from perdure.storage.read_only import open_read_only
from perdure.storage.sqlite.reader import SqliteReader
from perdure.storage.url import open_driver

AT = Partition("", "thread")
PUT = Put(TAG, ("name",), {"namespace": "", "checkpoint_id": "one"}, expect=Expect.ABSENT, version=1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path / 'threads.db'}"
    driver = open_driver(found, migrate=True)
    driver.perform(Commit(AT, (PUT,)))
    driver.close()
    return found


@pytest.mark.parametrize("backend", ["sqlite", "memory"])
def test_reads_are_answered_and_writes_refused(url: str, backend: str) -> None:
    driver = open_read_only(url if backend == "sqlite" else "memory://")
    expected = 1 if backend == "sqlite" else 0
    (tags,) = driver.perform(Fetch(AT, (Range(TAG),)))
    assert len(tags) == expected
    assert len(asyncio.run(driver.aperform(FindThreads(None)))) == expected
    assert driver.perform(Now()) > 1_700_000_000_000_000
    for write in (Commit(AT, (PUT,)), Stage(AT, ()), Drop(AT)):
        with pytest.raises(NotAllowed, match="reading only"):
            driver.perform(write)
        with pytest.raises(NotAllowed, match="reading only"):
            asyncio.run(driver.aperform(write))
    driver.close()


def test_a_file_in_a_folder_that_cannot_be_written_is_opened(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "threads.db"
    before = path.read_bytes()
    # Permissions do not bind root, under which the tests may run.
    monkeypatch.setattr(os, "access", lambda place, mode: mode != os.W_OK)
    driver = SqliteReader(path)
    assert len(driver.perform(Fetch(AT, (Range(TAG),)))[0]) == 1
    driver.close()
    assert path.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["threads.db"]


def test_what_another_process_writes_is_seen(url: str, tmp_path: Path) -> None:
    reading = open_read_only(url)
    writing = open_driver(url)
    more = PUT._replace(key=("later",))
    writing.perform(Commit(AT, (more,)))
    assert len(reading.perform(Fetch(AT, (Range(TAG),)))[0]) == 2
    writing.close()
    reading.close()


def test_no_file_is_created(tmp_path: Path) -> None:
    with pytest.raises(BadUrl, match="there is no file"):
        open_read_only(f"sqlite:///{tmp_path / 'none.db'}")
    (tmp_path / "empty.db").touch()
    with pytest.raises(MigrationRequired):
        open_read_only(f"sqlite:///{tmp_path / 'empty.db'}")
    assert [each.name for each in tmp_path.iterdir()] == ["empty.db"]
