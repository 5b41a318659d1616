"""The file removed, replaced, emptied or restored below an open driver: nothing more is acknowledged, and
nothing that will not be there after a restart is served."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.database.base import handle_of
from perdure.errors import DatabaseReplaced
from perdure.model.ops import Commit, Committed, Expect, Fetch, Get, Now, Put
from perdure.model.records import GC, Partition
from perdure.storage.sqlite import driver as sqlite
from perdure.storage.sqlite import file_identity
from perdure.storage.sqlite.driver import SqliteDriver

THREAD = Partition("", "thread")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def driver(path: Path) -> Iterator[SqliteDriver]:
    driver = SqliteDriver(path)
    yield driver
    driver.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conclude soon that what was found lasts: no other process is in the middle of a checkpoint."""
    monkeypatch.setattr(file_identity, "_PATIENCE_S", 0.05)


def commit(driver: Any, version: int) -> Any:
    put = Put(GC, (), expect=version - 1 or Expect.ABSENT, version=version)
    return driver.perform(Commit(THREAD, (put,)))


def version_in(driver: Any) -> int:
    (found,) = driver.perform(Fetch(THREAD, (Get(GC, ()),)))
    return found[0].version if found else 0


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def removed(path: Path) -> None:
    path.unlink()


def moved_away(path: Path) -> None:
    path.rename(beside(path, ".old"))


def replaced_by_a_new_one(path: Path) -> None:
    new = beside(path, ".new")
    sqlite.migrate(f"sqlite:///{new}")
    new.replace(path)


def replaced_by_a_copy(path: Path) -> None:
    copy = beside(path, ".copy")
    shutil.copy(path, copy)
    copy.replace(path)


def folder_moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def another_copied_over(path: Path) -> None:
    new = beside(path, ".new")
    sqlite.migrate(f"sqlite:///{new}")
    shutil.copyfile(new, path)


def log_removed(path: Path) -> None:
    beside(path, "-wal").unlink()


def log_emptied(path: Path) -> None:
    os.truncate(beside(path, "-wal"), 0)


def log_cut(path: Path) -> None:
    log = beside(path, "-wal")
    os.truncate(log, log.stat().st_size - 4096)


def log_replaced(path: Path) -> None:
    copy = beside(path, "-wal.copy")
    shutil.copy(beside(path, "-wal"), copy)
    copy.replace(beside(path, "-wal"))


def index_removed(path: Path) -> None:
    beside(path, "-shm").unlink()


DEEDS = [
    removed,
    moved_away,
    replaced_by_a_new_one,
    replaced_by_a_copy,
    folder_moved,
    emptied,
    cut_in_half,
    another_copied_over,
    log_removed,
    log_emptied,
    log_cut,
    log_replaced,
    index_removed,
]


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
@pytest.mark.usefixtures("impatient")
def test_after_it_nothing_is_acknowledged(
    driver: SqliteDriver, path: Path, deed: Callable[[Path], None]
) -> None:
    for version in (1, 2, 3):
        assert commit(driver, version) == Committed()
    deed(path)
    with pytest.raises(DatabaseReplaced, match=f"{path}.*open it again"):
        commit(driver, 4)
    with pytest.raises(DatabaseReplaced):
        commit(driver, 4)
    with pytest.raises(DatabaseReplaced):
        version_in(driver)


@pytest.mark.parametrize("deed", DEEDS[:6], ids=lambda deed: deed.__name__)
@pytest.mark.usefixtures("impatient")
def test_after_it_nothing_is_read(driver: SqliteDriver, path: Path, deed: Callable[[Path], None]) -> None:
    commit(driver, 1)
    assert version_in(driver) == 1
    deed(path)
    with pytest.raises(DatabaseReplaced, match="open it again"):
        version_in(driver)
    with pytest.raises(DatabaseReplaced):
        driver.perform(Now())


@pytest.mark.usefixtures("impatient")
def test_an_older_copy_of_the_same_file_written_over_it_is_noticed(path: Path) -> None:
    with closing(SqliteDriver(path)) as driver:
        commit(driver, 1)
    backup = beside(path, ".backup")
    shutil.copyfile(path, backup)
    with closing(SqliteDriver(path)) as driver:
        for version in range(2, 50):
            commit(driver, version)
    with closing(SqliteDriver(path)) as driver:
        assert version_in(driver) == 49
        shutil.copyfile(backup, path)
        with pytest.raises(DatabaseReplaced, match="older state"):
            commit(driver, 50)


@pytest.mark.usefixtures("impatient")
def test_a_restore_through_sqlite_itself_is_noticed(driver: SqliteDriver, path: Path) -> None:
    commit(driver, 1)
    backup = beside(path, ".backup")
    copied(path, backup)
    for version in range(2, 20):
        commit(driver, version)
    copied(backup, path)
    with pytest.raises(DatabaseReplaced, match="older state"):
        commit(driver, 20)
    with closing(SqliteDriver(path)) as opened_again:
        assert version_in(opened_again) == 1
        assert commit(opened_again, 2) == Committed()


def copied(path: Path, to: Path) -> None:
    with (
        closing(apsw.Connection(str(path))) as source,
        closing(apsw.Connection(str(to))) as target,
        target.backup("main", source, "main") as backup,
    ):
        backup.step()


def test_another_copy_of_sqlite_in_the_process_that_takes_its_locks_is_noticed(
    driver: SqliteDriver, path: Path
) -> None:
    """Closing a file gives up all locks of the process: Python's own module takes itself for the last one
    that has the database open, and removes the log."""
    commit(driver, 1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM perdure_gc").fetchone()
    with pytest.raises(DatabaseReplaced, match="its log was removed"):
        commit(driver, 2)


def test_replaced_between_a_commit_and_its_answer_it_is_not_acknowledged(
    driver: SqliteDriver, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(driver, 1)
    moment = driver._watch.before_commit

    def look_then_lose() -> None:
        moment()
        path.unlink()

    monkeypatch.setattr(driver._watch, "before_commit", look_then_lose)
    with pytest.raises(DatabaseReplaced):
        commit(driver, 2)


def test_each_of_several_drivers_on_one_file_notices(driver: SqliteDriver, path: Path) -> None:
    with closing(SqliteDriver(path)) as other:
        commit(driver, 1)
        commit(other, 2)
        replaced_by_a_copy(path)
        for each in (driver, other):
            with pytest.raises(DatabaseReplaced):
                commit(each, 3)
    with closing(SqliteDriver(path)) as later:
        assert commit(later, version_in(later) + 1) == Committed()


def test_a_relative_path_goes_on_after_a_change_of_directory(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with closing(SqliteDriver(Path(path.name))) as driver:
        commit(driver, 1)
        monkeypatch.chdir(tmp_path)
        assert commit(driver, 2) == Committed()
        assert version_in(driver) == 2
        path.unlink()
        with pytest.raises(DatabaseReplaced):
            commit(driver, 3)


def test_a_link_to_the_file_works_until_it_leads_elsewhere(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    other = tmp_path / "other.db"
    sqlite.migrate(f"sqlite:///{other}")
    with closing(SqliteDriver(link)) as driver:
        commit(driver, 1)
        assert commit(driver, 2) == Committed()
        link.unlink()
        link.symlink_to(other)
        with pytest.raises(DatabaseReplaced):
            commit(driver, 3)


def test_what_sqlite_does_to_its_files_is_no_replacement(driver: SqliteDriver, path: Path) -> None:
    """Checkpoints by this process and by another, a log cut to nothing, VACUUM, rights that change."""
    with closing(apsw.Connection(str(path))) as other:
        for version in range(1, 200):
            assert commit(driver, version) == Committed()
            if version % 50 == 0:
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                assert version_in(driver) == version
            if version % 130 == 0:
                other.execute("VACUUM")
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if version % 90 == 0:
                path.chmod(0o640)
                assert version_in(driver) == version
    with closing(SqliteDriver(path)) as second:
        for version in range(200, 700, 2):
            assert commit(driver, version) == Committed()
            assert commit(second, version + 1) == Committed()


def truncate(path: Path) -> None:
    """Take the log over into the file and cut it to nothing, as another process may at any time."""
    with closing(apsw.Connection(str(path))) as other:
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall() == [(0, 0, 0)]
    assert beside(path, "-wal").stat().st_size == 0


MOMENTS = ["before_commit", "note_commits", "after_commit", "check", "_note_transaction", "_read_stored"]


@pytest.mark.parametrize("is_refused", [False, True], ids=["stored", "refused"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", MOMENTS)
def test_a_checkpoint_by_another_process_at_any_moment_is_no_replacement(
    driver: SqliteDriver, path: Path, monkeypatch: pytest.MonkeyPatch, name: str, when: str, is_refused: bool
) -> None:
    assert commit(driver, 1) == Committed()
    moment = getattr(driver._watch, name)

    def beside_it(*given: Any) -> Any:
        if when == "before":
            truncate(path)
        answer = moment(*given)
        if when == "after":
            truncate(path)
        return answer

    monkeypatch.setattr(driver._watch, name, beside_it)
    for version in (2, 3, 4):
        if is_refused:
            assert commit(driver, version + 7) != Committed()
            assert version_in(driver) == 1
        else:
            assert commit(driver, version) == Committed()
            assert version_in(driver) == version
    monkeypatch.undo()
    assert commit(driver, version_in(driver) + 1) == Committed()
    with closing(SqliteDriver(path)) as opened_again:
        assert version_in(opened_again) == version_in(driver)


def test_a_log_that_is_emptied_between_a_commit_and_its_answer_is_noticed(
    driver: SqliteDriver, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(driver, 1)
    moment = driver._watch.after_commit

    def emptied_first() -> None:
        log_emptied(path)
        moment()

    monkeypatch.setattr(driver._watch, "after_commit", emptied_first)
    with pytest.raises(DatabaseReplaced, match=r"its log was emptied.*went into the replaced file"):
        commit(driver, 2)


def test_checkpoints_by_another_process_all_the_time_lose_nothing(driver: SqliteDriver, path: Path) -> None:
    program = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], timeout=10)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    connection.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        for version in range(1, 400):
            assert commit(driver, version) == Committed()
            assert version_in(driver) == version
    finally:
        child.kill()
        child.communicate()


def in_parts(driver: SqliteDriver, path: Path, others: ExitStack) -> None:
    """Leave the file as a checkpoint does that goes on beside a reader: pages are new, and the schema, which
    was written since the reader began, is the old one. The log has the rest."""
    writer, reader = (others.enter_context(closing(apsw.Connection(str(path)))) for _ in range(2))
    writer.execute("VACUUM")
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    writer.execute("CREATE TABLE later (a)")
    writer.execute("PRAGMA wal_checkpoint(PASSIVE)")
    assert driver._watch._read_stored() is None, "the file alone is not a whole database"


def test_a_log_that_was_taken_over_in_part_is_no_replacement(driver: SqliteDriver, path: Path) -> None:
    assert commit(driver, 1) == Committed()
    with ExitStack() as others:
        in_parts(driver, path, others)
        assert commit(driver, 2) == Committed()
        assert version_in(driver) == 2
    with closing(apsw.Connection(str(path))) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert driver._watch._read_stored() is not None
    assert commit(driver, 3) == Committed()
    assert version_in(driver) == 3


@pytest.mark.parametrize("deed", [another_copied_over, replaced_by_a_copy, emptied, log_removed])
@pytest.mark.usefixtures("impatient")
def test_a_file_that_is_replaced_while_its_log_is_taken_over_in_part_is_noticed(
    driver: SqliteDriver, path: Path, deed: Callable[[Path], None]
) -> None:
    commit(driver, 1)
    with ExitStack() as others:
        in_parts(driver, path, others)
        commit(driver, 2)
        deed(path)
        with pytest.raises(DatabaseReplaced):
            commit(driver, 3)


def test_a_copy_of_the_same_size_and_times_is_noticed(driver: SqliteDriver, path: Path) -> None:
    commit(driver, 1)
    copy, before = beside(path, ".copy"), path.stat()
    shutil.copy2(path, copy)
    copy.replace(path)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(DatabaseReplaced, match="replaced by another file"):
        commit(driver, 2)


@pytest.mark.usefixtures("impatient")
def test_an_older_copy_written_over_it_within_one_tick_of_the_clock_is_noticed(
    driver: SqliteDriver, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of files move by some milliseconds at once, so a change may not show in them."""
    monkeypatch.setattr(file_identity, "_change", lambda found: (found.st_size, 0, 0))
    with closing(apsw.Connection(str(path))) as other:
        for version in (1, 2):
            commit(driver, version)
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copyfile(path, beside(path, f".{version}"))
        assert beside(path, ".1").stat().st_size == path.stat().st_size
        shutil.copyfile(beside(path, ".1"), path)
        with pytest.raises(DatabaseReplaced, match="older state"):
            commit(driver, 3)


def test_a_saver_whose_file_was_replaced_says_so(path: Path) -> None:
    with perdure.connect_sync(f"sqlite:///{path}") as db:
        handle_of(db).run(perdure_write(THREAD))
        replaced_by_a_new_one(path)
        with pytest.raises(perdure.Unavailable, match="was replaced"):
            handle_of(db).run(perdure_write(Partition("", "other")))


def perdure_write(partition: Partition) -> Any:
    def program() -> Any:
        return (yield Commit(partition, (Put(GC, (), expect=Expect.ABSENT, version=1),)))

    return program()
