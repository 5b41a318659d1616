"""Several processes on one file: whatever one of them is in the middle of, another does not take the file for
replaced, and loses nothing that it acknowledged.

Covers perdure.storage.sqlite.file_identity.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw
import pytest

from perdure.errors import DatabaseReplaced
from perdure.model.ops import Commit, Committed, Expect, Fetch, Get, Put, Refused
from perdure.model.records import DOCUMENT, Partition
from perdure.storage.sqlite import driver as sqlite
from perdure.storage.sqlite import file_identity
from perdure.storage.sqlite.driver import SqliteDriver
from tests.storage.steps import Disk, Step, checkpoint, commit


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.unregister()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    return path


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def has(driver: SqliteDriver, thread: str, numbers: range) -> bool:
    gets = tuple(Get(DOCUMENT, ("d", str(number))) for number in numbers)
    return all(driver.perform(Fetch(Partition("", thread), gets)))


def begin_log_anew(driver: SqliteDriver, path: Path, disk: Disk) -> list[Step]:
    """Return the steps of a commit that begins a long log anew."""
    steps: list[Step] = []
    checkpoint(path)
    disk.before = steps.append
    assert commit(driver, "other", 0) == Committed()
    disk.before = lambda _step: None
    return steps


def test_another_process_cuts_the_log_that_it_begins_anew_at_the_end_of_its_commit(
    path: Path, disk: Disk
) -> None:
    with closing(SqliteDriver(path)) as driver:
        assert commit(driver, "mine", 1, size=50_000) == Committed()
        steps = [step for step in begin_log_anew(driver, path, disk) if step[0] == "log"]
    assert steps[0] == ("log", "write", 0)
    assert steps[-1][:2] == ("log", "cut")


@pytest.mark.parametrize("fails", [False, True], ids=["goes on", "fails"])
@pytest.mark.parametrize("at", range(12))
def test_a_commit_is_answered_during_any_step_of_another_process_that_begins_the_log_anew(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, at: int, fails: bool
) -> None:
    with closing(SqliteDriver(path)) as mine, closing(SqliteDriver(path)) as other:
        assert commit(mine, "mine", 1, size=50_000) == Committed()
        assert commit(other, "other", 1) == Committed()
        answer, done = mine._watch.after_commit, []

        def step_of_other(step: Step) -> None:
            if step[0] != "log":
                return
            done.append(step)
            if len(done) == at + 1:
                answer()
                if fails:
                    raise apsw.IOError("no disk")

        def answer_during_it() -> None:
            checkpoint(path)
            disk.before = step_of_other
            with suppress(Exception):
                commit(other, "other", 2)
            disk.before = lambda _step: None
            if len(done) <= at:
                answer()

        monkeypatch.setattr(mine._watch, "after_commit", answer_during_it)
        assert commit(mine, "mine", 2) == Committed()
        monkeypatch.undo()
        assert done[0] == ("log", "write", 0), "the log began anew"
        for number in (3, 4):
            assert commit(mine, "mine", number) == Committed()
            assert commit(other, "other", number) == Committed()
        assert has(mine, "mine", range(1, 5))
    with closing(SqliteDriver(path)) as again:
        assert has(again, "mine", range(1, 5))
        assert has(again, "other", range(3, 5))
        assert again.examine(None) == []


KILLED = """
import os, signal, sys
from contextlib import closing
from pathlib import Path
from tests.storage.steps import Disk, SqliteDriver, checkpoint, commit
path, at = Path(sys.argv[1]), int(sys.argv[2])
disk, done = Disk(), []
def count(step):
    if step[0] == "log":
        done.append(step)
        if len(done) == at + 1:
            os.kill(os.getpid(), signal.SIGKILL)
driver = SqliteDriver(path)
checkpoint(path)
disk.before = count
commit(driver, "other", 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("at", [1, 2, 3, 5, 20])
def test_a_process_that_is_killed_while_it_begins_the_log_anew_is_no_replacement(path: Path, at: int) -> None:
    with closing(SqliteDriver(path)) as mine, closing(SqliteDriver(path)) as second:
        for number in range(3):
            assert commit(mine, "mine", number, size=50_000) == Committed()
        killed = subprocess.run([sys.executable, "-c", KILLED, str(path), str(at)], check=False)
        assert killed.returncode == -9
        for number in range(3, 6):
            assert commit(mine, "mine", number) == Committed()
            assert commit(second, "second", number) == Committed()
        assert has(mine, "mine", range(6))
    with closing(SqliteDriver(path)) as again:
        assert has(again, "mine", range(6))
        assert has(again, "second", range(3, 6))
        assert again.examine(None) == []


@pytest.mark.parametrize("mode", ["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
def test_programs_without_a_limit_of_the_log_are_no_replacement(path: Path, mode: str) -> None:
    """Their logs are not cut when they begin anew, and have the former frames behind the new ones."""
    with closing(SqliteDriver(path)) as mine, closing(apsw.Connection(str(path))) as program:
        program.execute("CREATE TABLE own (a)")
        for number in range(20):
            assert commit(mine, "mine", number, size=20_000) == Committed()
            if number % 3 == 0:
                program.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
                program.execute("INSERT INTO own VALUES (1)")
            if number % 7 == 0:
                program.execute("BEGIN; DELETE FROM own; INSERT INTO own VALUES (randomblob(40000))")
                program.cache_flush()
                program.execute("ROLLBACK")
        assert has(mine, "mine", range(20))


@pytest.mark.parametrize("refusals", [1, 2, 3])
def test_writes_that_are_rolled_back_are_no_replacement(path: Path, refusals: int) -> None:
    """A put of a record that must not exist is tried without a look first, and rolled back if it does."""
    again = Put(DOCUMENT, ("d", "0"), {"updated_at": 1}, b"again", Expect.ABSENT, 1)
    with closing(SqliteDriver(path)) as driver:
        assert commit(driver, "mine", 0) == Committed()
    with closing(SqliteDriver(path)) as driver:
        for number in range(1, 20):
            for _ in range(refusals):
                assert isinstance(driver.perform(Commit(Partition("", "mine"), (again,))), Refused)
            if number % 2:
                checkpoint(path)
            assert commit(driver, "mine", number) == Committed()
        assert has(driver, "mine", range(20))


def cut(path: Path, size: int = 4096) -> None:
    os.truncate(log_of(path), log_of(path).stat().st_size - size)


def test_a_log_that_is_cut_after_the_commit_that_began_it_is_noticed(path: Path) -> None:
    with closing(SqliteDriver(path)) as mine:
        assert commit(mine, "mine", 1, size=50_000) == Committed()
        checkpoint(path, "RESTART")
        assert commit(mine, "mine", 2) == Committed()
        cut(path, 1)
        for _ in range(2):
            with pytest.raises(DatabaseReplaced, match="its log was cut short"):
                commit(mine, "mine", 3)
    with closing(SqliteDriver(path)) as again:
        assert not has(again, "mine", range(3, 4))


@pytest.mark.parametrize("size", [1, 4096, 20_000])
def test_a_log_that_is_cut_before_the_answer_is_noticed_at_the_next_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    with closing(SqliteDriver(path)) as mine:
        assert commit(mine, "mine", 1, size=50_000) == Committed()
        answer = mine._watch.after_commit

        def answer_a_cut_log() -> None:
            cut(path, size)
            answer()

        monkeypatch.setattr(mine._watch, "after_commit", answer_a_cut_log)
        with suppress(DatabaseReplaced):
            commit(mine, "mine", 2)
        monkeypatch.undo()
        with pytest.raises(DatabaseReplaced, match="its log was cut short"):
            commit(mine, "mine", 3)


def test_a_log_is_cut_that_another_process_has_written_since(path: Path) -> None:
    """SQLite itself misses the frames, of reads and of commits."""
    with closing(SqliteDriver(path)) as mine, closing(SqliteDriver(path)) as reading:
        assert commit(mine, "mine", 1) == Committed()
        assert has(reading, "mine", range(1, 2))
        with closing(SqliteDriver(path)) as other:
            assert commit(other, "mine", 2, size=10_000) == Committed()
        cut(path, log_of(path).stat().st_size - 2000)
        with pytest.raises(DatabaseReplaced, match="its log was cut short"):
            commit(mine, "mine", 3)
        with pytest.raises(DatabaseReplaced, match="its log was cut short"):
            has(reading, "mine", range(1, 3))


def shrink_and_grow(path: Path) -> None:
    """Leave the file shorter than another process has seen it, and a log by which it grows."""
    with closing(apsw.Connection(str(path))) as program:
        program.execute("DROP TABLE large")
        program.execute("VACUUM")
        program.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        program.execute("CREATE TABLE less AS SELECT randomblob(60000) AS a")


@contextmanager
def open_before_growth(path: Path) -> Iterator[SqliteDriver]:
    """Yield a driver after another program has made the file shorter, and has more pages in the log."""
    with closing(apsw.Connection(str(path))) as program:
        program.execute("CREATE TABLE large AS SELECT randomblob(200000) AS a")
    with closing(SqliteDriver(path)) as mine:
        assert commit(mine, "mine", 1) == Committed()
        checkpoint(path, "TRUNCATE")
        assert commit(mine, "mine", 2) == Committed()
        shrink_and_grow(path)
        yield mine


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_the_file_is_examined_during_any_step_of_a_checkpoint_by_another_process(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    with open_before_growth(path) as mine:
        count, reached, go_on = 0, threading.Event(), threading.Event()

        def wait(step: Step) -> None:
            nonlocal count
            count += step[0] == "file"
            if count == at + 1 and step[0] == "file":
                reached.set()
                assert go_on.wait(30)

        disk.before = wait
        other = threading.Thread(target=checkpoint, args=(path,))
        other.start()

        def let_go_on(_seconds: float) -> None:
            go_on.set()
            other.join()

        monkeypatch.setattr(time, "sleep", let_go_on)
        while other.is_alive() and not reached.is_set():
            reached.wait(0.001)
        mine._watch.check()
        let_go_on(0)
        disk.before = lambda _step: None
        assert commit(mine, "mine", 3) == Committed()


def test_a_process_that_is_killed_in_a_checkpoint_leaves_no_file_that_is_taken_for_cut_short(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_identity, "_PATIENCE_S", 0.05)
    with open_before_growth(path) as mine:
        size = path.stat().st_size

        def fail(step: Step) -> None:
            if step[0] == "file" and step[2] >= size:
                raise apsw.IOError("no disk")

        disk.before = fail
        with suppress(apsw.IOError):
            checkpoint(path)
        disk.before = lambda _step: None
        assert path.stat().st_size == size
        assert int.from_bytes(path.read_bytes()[28:32], "big") * 1024 > size
        assert commit(mine, "mine", 3) == Committed()
        os.truncate(path, size // 2)
        with pytest.raises(DatabaseReplaced, match="was cut short"):
            commit(mine, "mine", 4)


WRITER = """
import sys
from pathlib import Path
from tests.storage.steps import SqliteDriver, commit
driver, number = SqliteDriver(Path(sys.argv[1])), 0
while True:
    commit(driver, sys.argv[2], number, size=200_000)
    print(number, flush=True)
    number += 1
"""


def test_processes_that_only_write_go_on_and_lose_nothing(path: Path) -> None:
    writers = {
        name: subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for name in ("a", "b", "c")
    }
    until = time.monotonic() + 6
    while time.monotonic() < until and all(writer.poll() is None for writer in writers.values()):
        time.sleep(0.05)
    for writer in writers.values():
        writer.kill()
    for name, writer in writers.items():
        answered, error = writer.communicate()
        assert error == b""
        with closing(SqliteDriver(path)) as again:
            assert has(again, name, range(answered.count(b"\n")))
