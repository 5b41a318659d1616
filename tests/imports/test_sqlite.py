"""Threads of langgraph-checkpoint-sqlite, made by its own saver, as they are after an import.

Covers perdure.imports.source, perdure.imports.verify.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

import perdure
from perdure import admin
from perdure.errors import BadUrl
from perdure.imports.importer import Importer, ImportOptions, ThreadReport
from perdure.imports.sqlite import SqliteSource, is_stock
from perdure.testing.faults import Fault, fail, faulty
from tests.imports import threads

FULL = os.environ.get("PERDURE_CHAOS") == "full"
THREADS = 200 if FULL else 12


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, threads.Shape]]:
    path = tmp_path_factory.mktemp("stock") / "old.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        return path, threads.fill(saver, THREADS)


@pytest.fixture
def source(old: tuple[Path, dict[str, threads.Shape]]) -> Iterator[SqliteSource]:
    opened = SqliteSource(old[0])
    yield opened
    opened.close()


def imported(
    source: SqliteSource, db: perdure.SyncDatabase, options: ImportOptions | None = None
) -> list[ThreadReport]:
    importer = Importer(source, db, options or ImportOptions())
    return [importer.import_thread(thread) for thread in source.threads()]


def test_every_thread_is_what_the_stock_saver_says(
    old: tuple[Path, dict[str, threads.Shape]], source: SqliteSource, tmp_path: Path
) -> None:
    path, made = old
    with (
        SqliteSaver.from_conn_string(str(path)) as stock,
        perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db,
    ):
        reports = imported(source, db)
        assert {r.thread: r.state for r in reports} == dict.fromkeys(made, "imported")
        assert sum(r.verified for r in reports) == sum(r.checkpoints for r in reports) > THREADS
        saver = db.checkpointer()
        for thread, shape in made.items():
            assert threads.seen(saver, thread, shape) == threads.seen(stock, thread, shape), thread
            assert threads.raw(saver, thread) == threads.raw(stock, thread), thread
            assert db.fsck(thread) == []


def test_the_next_turn_the_answer_and_a_fork_work_as_with_the_stock_saver(
    old: tuple[Path, dict[str, threads.Shape]], source: SqliteSource, tmp_path: Path
) -> None:
    path, made = old
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    with (
        SqliteSaver.from_conn_string(str(copy)) as stock,
        perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db,
    ):
        imported(source, db)
        saver = db.checkpointer()
        for thread, shape in list(made.items())[:6]:
            assert threads.go_on(saver, thread, shape) == threads.go_on(stock, thread, shape), thread
            assert threads.fork(saver, thread, shape) == threads.fork(stock, thread, shape), thread
            assert db.fsck(thread) == []


def test_an_import_is_repeatable_and_brings_what_came_since(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with (
        SqliteSaver.from_conn_string(str(path)) as stock,
        perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db,
    ):
        made = threads.fill(stock, 6)
        source = SqliteSource(path)
        imported(source, db)
        before = {thread: db.digest(thread) for thread in made}
        assert {r.state for r in imported(source, db)} == {"unchanged"}
        assert {thread: db.digest(thread) for thread in made} == before
        for thread, shape in made.items():
            threads.go_on(stock, thread, shape)
        again = imported(source, db)
        assert {r.state for r in again} == {"extended"}
        assert all(0 < r.checkpoints <= r.verified < 20 for r in again)
        saver = db.checkpointer()
        for thread, shape in made.items():
            assert threads.seen(saver, thread, shape) == threads.seen(stock, thread, shape), thread
            assert db.fsck(thread) == []
            threads.go_on(saver, thread, shape)
        assert {r.state for r in imported(source, db)} == {"unchanged"}
        source.close()


def test_a_thread_that_went_on_in_both_places_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shape = threads.SHAPES["finished"]
    with (
        SqliteSaver.from_conn_string(str(path)) as stock,
        perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db,
    ):
        shape.make(shape.graph(stock), "ada")
        source = SqliteSource(path)
        imported(source, db)
        here = threads.go_on(db.checkpointer(), "ada", shape)
        threads.go_on(stock, "ada", shape)
        (report,) = imported(source, db)
        source.close()
        assert report.state == "skipped"
        assert "went on at the target" in report.why
        assert shape.graph(db.checkpointer()).get_state(threads.config("ada")).values == here
        assert db.fsck("ada") == []


@pytest.mark.parametrize("points", [4, pytest.param(None if FULL else 20, marks=pytest.mark.slow)])
def test_an_import_that_fails_at_any_effect_is_finished_by_the_next(
    points: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "old.db"
    with SqliteSaver.from_conn_string(str(path)) as stock:
        made = threads.fill(stock, 3 if points != 4 else 2)
        source = SqliteSource(path)
        with faulty("memory://") as (db, driver):
            imported(source, db)
            effects = driver.count
        for at in range(1, effects + 1, 1 if points is None else max(1, effects // points)):
            when: Any = ("before", "after")[at % 2]
            url = f"sqlite:///{tmp_path}/{at}-{when}.db"
            with (
                faulty(url, Fault(at, fail("unavailable"), when), migrate=True) as (db, _),
                pytest.raises(perdure.Unavailable),
            ):
                imported(source, db)
            with perdure.connect_sync(url) as db:
                saver = db.checkpointer()
                for thread in made:
                    # Visible as a whole, or not at all.
                    state, expected = (s.get_tuple(threads.config(thread)) for s in (saver, stock))
                    assert expected is not None
                    assert state is None or state.checkpoint["id"] == expected.checkpoint["id"]
                imported(source, db)
                for thread, shape in made.items():
                    assert threads.raw(db.checkpointer(), thread) == threads.raw(stock, thread)
                    assert threads.seen(db.checkpointer(), thread, shape) == threads.seen(
                        stock, thread, shape
                    )
                    assert db.fsck(thread) == []
        source.close()


def test_a_dry_run_counts_and_writes_nothing(source: SqliteSource, tmp_path: Path) -> None:
    with perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db:
        reports = imported(source, db, ImportOptions(dry_run=True))
        assert {r.state for r in reports} == {"imported"}
        assert admin.partitions(db, None) == []
        real = imported(source, db)
        assert [(r.checkpoints, r.writes) for r in reports] == [(r.checkpoints, r.writes) for r in real]


def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadUrl, match="not a file"):
        SqliteSource(tmp_path / "none.db")
    with perdure.connect_sync(f"sqlite:///{tmp_path}/ours.db", migrate=True):
        pass
    assert not is_stock(tmp_path / "ours.db")
    with pytest.raises(BadUrl, match=r"has no tables of langgraph-checkpoint-sqlite.*`perdure copy`"):
        SqliteSource(tmp_path / "ours.db")
