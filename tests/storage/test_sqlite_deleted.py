"""What was deleted is not legible in the file any more, nor in the log once that begins anew.

Covers perdure.storage.sqlite.driver.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.database.base import handle_of
from perdure.model.ops import Commit, Delete, Drop, Fetch, Range
from perdure.model.records import CHUNK, Partition
from perdure.storage.sqlite import driver as sqlite
from perdure.testing.conformance import rows
from tests.langgraph import graphs
from tests.langgraph.session import config

SECRET = "ZQXSECRETZQX"
LENGTHS = (1, 20, 300, 3000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
def db(path: Path) -> Iterator[perdure.SyncDatabase]:
    with perdure.connect_sync(f"sqlite:///{path}", migrate=True) as db:
        yield db


def count(path: Path) -> tuple[int, int]:
    """Return how often the secret is legible in the file, and in its log."""
    log = path.with_name(f"{path.name}-wal")
    in_log = log.read_bytes().count(SECRET.encode()) if log.exists() else 0
    return path.read_bytes().count(SECRET.encode()), in_log


def text(owner: str, length: int) -> str:
    """Return a text that takes so many words: some fit a page, others many."""
    return " ".join((owner, *(secrets.token_hex(4) for _ in range(length)), owner))


def talk(db: perdure.SyncDatabase, thread: str, owner: str, length: int) -> None:
    message: Any = {"messages": [("user", text(owner, length))]}
    graphs.chat(db.checkpointer()).invoke(message, config(thread, user_id=f"user {owner}"))


def test_nothing_of_deleted_threads_and_items_is_legible(db: perdure.SyncDatabase, path: Path) -> None:
    chance, store = random.Random(1), db.store()
    threads = {f"{SECRET} {n}": SECRET for n in range(6)} | {f"other {n}": "other" for n in range(6)}
    for length in LENGTHS:
        for thread in chance.sample(sorted(threads), len(threads)):
            talk(db, thread, threads[thread], length)
            store.put(("of", "all"), f"{thread} {length}", {"t": text(threads[thread], length)})
    assert sum(count(path)) > 1000
    for thread, owner in threads.items():
        if owner == SECRET:
            db.checkpointer().delete_thread(thread)
            for length in LENGTHS:
                store.delete(("of", "all"), f"{thread} {length}")
        else:
            talk(db, thread, owner, 20)
    cut = handle_of(db).driver.capabilities.cut_log
    assert cut is not None
    assert cut()
    assert count(path) == (0, 0)
    assert len(db.timeline("other 0")) == 3 * (len(LENGTHS) + 1)


@pytest.mark.parametrize("size", [20, 400, 900, 5000, 100_000])
def test_nothing_of_replaced_and_dropped_records_is_legible(tmp_path: Path, size: int) -> None:
    path = tmp_path / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    driver = sqlite.SqliteDriver(path)
    with closing(driver):
        body = (SECRET.encode() + bytes(8)) * (size // 20)
        places = [Partition("", f"t{n}") for n in range(8)]
        for n in range(5):
            for place in places:
                chunk = rows.chunk(bytes([n]) * 16, body=body)
                driver.perform(Commit(place, (chunk, rows.document("x", body=body))))
        for place in places[:4]:
            driver.perform(Commit(place, (rows.document("x", body=b"{}"),)))
            ((*found,),) = driver.perform(Fetch(place, (Range(CHUNK, bodies=False),)))
            driver.perform(Commit(place, tuple(Delete(CHUNK, each.key) for each in found)))
        for place in places[4:]:
            driver.perform(Drop(place))
        assert driver.capabilities.cut_log is not None
        assert driver.capabilities.cut_log()
        assert count(path) == (0, 0)


def test_the_log_keeps_nothing_of_before_once_it_has_begun_anew(db: perdure.SyncDatabase, path: Path) -> None:
    for _ in range(20):
        talk(db, SECRET, SECRET, 300)
    db.checkpointer().delete_thread(SECRET)
    talk(db, "other", "other", 1)
    assert count(path)[1] > 0
    with closing(apsw.Connection(str(path))) as other:
        other.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    assert count(path)[1] > 0
    talk(db, "other", "other", 1)
    assert count(path) == (0, 0)


def test_the_last_one_that_closes_the_file_leaves_nothing_legible(path: Path) -> None:
    with perdure.connect_sync(f"sqlite:///{path}", migrate=True) as db:
        talk(db, SECRET, SECRET, 300)
        db.checkpointer().delete_thread(SECRET)
    assert not path.with_name("threads.db-wal").exists()
    assert count(path) == (0, 0)


def test_a_log_that_is_in_use_is_not_cut_and_this_is_reported(
    db: perdure.SyncDatabase, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_CUT_MS", 20)
    talk(db, SECRET, SECRET, 20)
    cut = handle_of(db).driver.capabilities.cut_log
    assert cut is not None
    with closing(apsw.Connection(str(path))) as reader:
        reader.execute("BEGIN; SELECT * FROM perdure_thread").fetchall()
        db.checkpointer().delete_thread(SECRET)
        assert not cut()
        reader.execute("COMMIT")
    assert cut()
    assert count(path) == (0, 0)
    talk(db, "other", "other", 1)
    assert len(db.timeline("other")) == 3
