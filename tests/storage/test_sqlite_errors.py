"""SQLite when the disk is full, the file read-only, locked, foreign or closed: the caller is told, nothing is
half-written, and the next call works once the cause is gone."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import apsw
import pytest

import perdure
from perdure.model.ops import Commit, Committed, Fetch, Get, Put, Range
from perdure.model.records import CHUNK, GC, Partition
from perdure.storage.batching import PendingRequest
from perdure.storage.sql import compile as sql
from perdure.storage.sqlite import driver as sqlite
from perdure.storage.sqlite.driver import SqliteDriver
from perdure.storage.sqlite.errors import translate
from perdure.storage.url import open_driver
from tests.storage.outside import THREAD, fat, state, write_until_refused

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def driver(path: Path) -> Iterator[SqliteDriver]:
    driver = SqliteDriver(path)
    yield driver
    driver.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def outside(scenario: str, path: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.outside", scenario, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# A full disk


def test_a_file_that_may_not_grow_refuses_whole_commits_and_works_on_when_it_may(path: Path) -> None:
    found = outside("file_size_limit", path)
    assert found["error"] == "Unavailable"
    assert str(path) in found["message"]
    assert found["cause"] != "NoneType"
    assert found["awaited"] == "Unavailable"
    assert found["versions"] == [found["failed"]]
    assert found["integrity"] == "ok"


def test_a_database_at_its_page_limit_says_that_the_disk_is_full(driver: SqliteDriver) -> None:
    assert driver.perform(fat(1)) == Committed()
    (pages,) = driver._writer.execute("PRAGMA page_count").fetchone()  # type: ignore[misc]
    driver._writer.execute(f"PRAGMA max_page_count = {pages + 20}")
    failed, error = write_until_refused(driver, 2)
    assert type(error) is perdure.Unavailable
    assert "the disk is full" in str(error)
    assert isinstance(error.__cause__, apsw.FullError)
    driver._writer.execute(f"PRAGMA max_page_count = {pages + 10_000}")
    assert driver.perform(fat(failed)) == Committed()
    assert state(driver)[0] == [failed]


def test_a_commit_that_does_not_fit_fails_alone(driver: SqliteDriver) -> None:
    """Commits that share a transaction with it are stored all the same."""
    other = Partition("", "other")
    driver.perform(fat(1))
    (pages,) = driver._writer.execute("PRAGMA page_count").fetchone()  # type: ignore[misc]
    driver._writer.execute(f"PRAGMA max_page_count = {pages + 20}")
    big = PendingRequest(fat(2, chunks=40), future=Future())
    small = PendingRequest(Commit(other, (Put(GC, (), version=1),)), future=Future())
    with driver._commits._lock:  # the writer cannot take one before both are there
        driver._commits._submit(big)
        driver._commits._submit(small)
    assert big.future is not None
    assert small.future is not None
    assert isinstance(big.future.exception(timeout=30), perdure.Unavailable)
    assert small.future.result(timeout=30) == Committed()
    assert state(driver)[0] == [1]
    assert [r.version for (r,) in driver.perform(Fetch(other, (Get(GC, ()),)))] == [1]


def test_a_real_full_disk_loses_nothing_and_works_on_after_space_is_freed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.getuid() != 0 or mount is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root and the right to mount")
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(b"\0" * 500_000)
        url = f"sqlite:///{disk / 'threads.db'}"
        full = open_driver(url, migrate=True)
        try:
            failed, error = write_until_refused(full)
            assert type(error) is perdure.Unavailable
            assert "full" in str(error)
            ballast.unlink()
            assert full.perform(fat(failed)) == Committed()
            before = state(full)
        finally:
            full.close()
        again = open_driver(url)
        try:
            assert state(again) == before
        finally:
            again.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# Rights


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_what_may_not_be_written_is_refused_and_stays_as_it_is(open_folder: Path, closed: str) -> None:
    path = open_folder / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    driver = SqliteDriver(path)
    driver.perform(fat(1))
    before = state(driver)
    driver.close()
    path.chmod(0o444 if closed == "file" else 0o666)
    open_folder.chmod(0o777 if closed == "file" else 0o555)
    found = outside("without_rights", path)
    reached = [found[step] for step in ("open", "read", "write") if found.get(step, "ok") != "ok"]
    assert reached, f"nothing was refused: {found}"
    for error, message in reached:
        assert error == "Unavailable"
        assert str(path) in message
        assert "writ" in message
    path.chmod(0o644)
    open_folder.chmod(0o755)
    driver = SqliteDriver(path)
    assert state(driver) == before
    assert driver.perform(fat(2)) == Committed()
    driver.close()


def test_a_file_that_may_not_be_read_is_unavailable(open_folder: Path) -> None:
    path = open_folder / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    path.chmod(0o600 if os.getuid() == 0 else 0o000)
    if os.getuid() != 0:
        pytest.skip("as this user the scenario cannot warm up on a file that it may not read")
    error, message = outside("without_rights", path)["open"]
    assert error == "Unavailable"
    assert "may be read and written" in message


# Other users of the file


def test_a_writer_behind_a_long_transaction_is_told_to_end_it_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_MS", 300)
    driver = SqliteDriver(path)
    driver.perform(fat(1))
    before = state(driver)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.storage.outside", "hold", str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(perdure.Unavailable, match="locked by another process"):
            driver.perform(fat(2))
        with pytest.raises(perdure.Unavailable, match="locked by another process"):
            asyncio.run(driver.aperform(fat(2)))
        assert state(driver) == before, "reading goes on, and sees nothing of what was refused"
        holder.communicate(timeout=60)
    assert driver.perform(fat(2)) == Committed()
    driver.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"these are my notes, not a database\n" * 200)
    before = path.read_bytes()
    for migrate in (False, True):
        with pytest.raises(perdure.Corrupt, match="not a SQLite database"):
            open_driver(f"sqlite:///{path}", migrate=migrate)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


# Closing


def test_closing_finishes_what_was_accepted_and_refuses_the_rest(path: Path) -> None:
    """Whatever a caller was told is true in the file: stored, or not stored."""
    driver = SqliteDriver(path)
    started = Event()

    def write(at: int) -> bool:
        key = at.to_bytes(16, "big")
        try:
            driver.perform(Commit(THREAD, (Put(CHUNK, (key,), {"generation": 0}, b"x"),)))
        except perdure.Unavailable as error:
            assert "is closed" in str(error)  # noqa: PT017 - inside a thread
            return False
        finally:
            if at == 200:
                started.set()
        return True

    with ThreadPoolExecutor(16) as pool:
        written = [pool.submit(write, at) for at in range(3000)]
        started.wait()
        driver.close()
    told = {at for at, future in enumerate(written) if future.result()}
    assert 0 < len(told) < 3000
    with_file = SqliteDriver(path)
    (records,) = with_file.perform(Fetch(THREAD, (Range(CHUNK),)))
    with_file.close()
    assert {int.from_bytes(r.key[0], "big") for r in records} == told


def test_closing_answers_every_awaited_commit(path: Path) -> None:
    async def main() -> list[Any]:
        driver = SqliteDriver(path)
        pending = [
            asyncio.create_task(driver.aperform(Commit(Partition("", f"t{at}"), (Put(GC, (), version=1),))))
            for at in range(200)
        ]
        await asyncio.sleep(0)
        await asyncio.to_thread(driver.close)
        return await asyncio.wait_for(asyncio.gather(*pending), 60)

    assert asyncio.run(main()) == [Committed()] * 200


def test_a_driver_used_after_close_says_so(path: Path) -> None:
    driver = SqliteDriver(path)
    driver.perform(fat(1))
    driver.close()
    driver.close()
    read = Fetch(THREAD, (Get(GC, ()),))
    long_read = Fetch(THREAD, (Range(CHUNK),))
    for effect in (fat(2), read, long_read):
        with pytest.raises(perdure.Unavailable, match="is closed"):
            driver.perform(effect)
        with pytest.raises(perdure.Unavailable, match="is closed"):
            asyncio.run(driver.aperform(effect))
    again = SqliteDriver(path)
    assert state(again)[0] == [1]
    again.close()


def test_a_read_that_is_interrupted_does_not_keep_the_database_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = SqliteDriver(path)
    driver.perform(fat(1, 64))
    (chunks,) = driver.perform(Fetch(THREAD, (Range(CHUNK, bodies=False),)))

    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sql, "record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            driver.perform(Fetch(THREAD, tuple(Get(CHUNK, chunk.key) for chunk in chunks)))
    assert driver.perform(Fetch(THREAD, (Get(GC, ()),)))[0]
    driver.close()


def test_a_failure_of_the_disk_names_what_to_check(path: Path) -> None:
    error = translate(apsw.IOError("disk I/O error"), path)
    assert type(error) is perdure.Unavailable
    assert str(error) == (
        f"{path}: disk I/O error; check the space, the limits and the health of its disk, and try again"
    )
