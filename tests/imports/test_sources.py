"""Every kind of source: imports that are killed and resumed, long threads, and threads that come once."""

from __future__ import annotations

import functools
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import perdure
from perdure.imports.kinds import SourceKind
from perdure.testing.faults import WRITES, faulty
from tests.imports import parity, threads
from tests.imports.histories.test_conversations import chat
from tests.imports.killed import KilledImports
from tests.imports.stocks import STOCKS, Made, Stock

POINTS = 20 if parity.FULL else 3
DISTANT = {"aws-dynamodb", "plain-d1"}
SOURCES = [pytest.param(name, marks=[pytest.mark.slow] if name in DISTANT else []) for name in STOCKS]


@pytest.fixture(scope="module")
def children() -> Iterator[KilledImports]:
    with KilledImports() as opened:
        yield opened


def filled(saver: Any, count: int) -> Made:
    return threads.fill(saver, count)


@pytest.mark.timeout(3600 if parity.FULL else 120)
@pytest.mark.parametrize("name", SOURCES)
def test_an_import_that_is_killed_anywhere_is_finished_by_the_next(
    name: str, children: KilledImports, tmp_path: Path
) -> None:
    empty, whole = tmp_path / "empty.db", tmp_path / "whole.db"
    with perdure.connect_sync(f"sqlite:///{empty}", migrate=True):
        pass
    make = functools.partial(filled, count=6 if parity.FULL else 2)
    with STOCKS[name](tmp_path, make) as stock:
        source = stock.opened()
        shutil.copy(empty, whole)
        with faulty(f"sqlite:///{whole}") as (db, driver):
            parity.imported(source, db)
            effects = driver.count
            stock.check(db)
            expected = {thread: threads.raw(db.checkpointer(), thread) for thread in stock.made}
            heads = {thread: head(db, thread) for thread in stock.made}
        assert effects >= POINTS
        for point in range(POINTS):
            at, when = 1 + point * effects // POINTS, ("before", "after")[point % 2]
            target = tmp_path / f"{at}-{when}.db"
            shutil.copy(empty, target)
            ended = children.run(stock.kind, stock.where, f"sqlite:///{target}", at, when)
            assert ended == signal.SIGKILL, (at, when)
            if point % 2:
                # The one that resumes is killed as well, unless it ends before.
                again = children.run(stock.kind, stock.where, f"sqlite:///{target}", max(1, at // 2), "after")
                assert again in (signal.SIGKILL, 0)
            with perdure.connect_sync(f"sqlite:///{target}") as db:
                for thread in stock.made:
                    # Visible as a whole, or not at all.
                    assert head(db, thread) in (None, heads[thread])
                states = {r.state for r in parity.imported(source, db)}
                assert states <= {"imported", "unchanged"}
                for thread, there in expected.items():
                    assert threads.raw(db.checkpointer(), thread) == there, (at, when, thread)
                    assert head(db, thread) == heads[thread]
                    assert db.fsck(thread) == []
                assert {r.state for r in parity.imported(source, db)} == {"unchanged"}
        source.close()


def head(db: perdure.SyncDatabase, thread: str) -> str | None:
    """The id of a thread's latest checkpoint."""
    found = db.checkpointer().get_tuple(threads.config(thread))
    return None if found is None else found.checkpoint["id"]


MANY = 200 if parity.FULL else 12


@pytest.mark.slow
@pytest.mark.timeout(3600 if parity.FULL else 120)
@pytest.mark.parametrize("name", STOCKS)
def test_an_import_of_many_threads_is_finished_although_it_is_killed_again_and_again(
    name: str, children: KilledImports, tmp_path: Path
) -> None:
    """Every import goes on where the killed one before it ended: it brings a few threads more."""
    url = f"sqlite:///{tmp_path}/target.db"
    with STOCKS[name](tmp_path, functools.partial(filled, count=MANY)) as stock:
        source = stock.opened()
        with faulty("memory://", counts=WRITES) as (db, driver):
            # More than are compared, where a saver has shapes of threads that it does not keep apart.
            threads_there = len(parity.imported(source, db))
            writes = driver.count
        with perdure.connect_sync(url, migrate=True):
            pass
        kills, step = 0, max(1, writes // (POINTS + 2))
        arrived: list[int] = []
        for point in range(POINTS):
            when = ("before", "after")[point % 2]
            ended = children.run(stock.kind, stock.where, url, step + point % 3, when, writes=True)
            assert ended == signal.SIGKILL, point
            kills += 1
            with perdure.connect_sync(url) as db:
                arrived.append(len(list(db.threads())))
        assert arrived == sorted(arrived)
        assert arrived[0] < arrived[-1] < threads_there
        with perdure.connect_sync(url) as db:
            reports = parity.imported(source, db)
            assert set(stock.made) <= {r.thread for r in reports}
            assert {r.state for r in reports} == {"imported", "unchanged"}
            stock.check(db)
            assert all(db.fsck(thread) == [] for thread in stock.made)
            assert {r.state for r in parity.imported(source, db)} == {"unchanged"}
        source.close()
        print(f"{name}: {threads_there} threads, {writes} writes, {kills} kills, arrived {arrived}")


TURNS = 1000 if parity.FULL else 60


def long_talk(saver: Any) -> Made:
    graph = chat(saver)
    for n in range(TURNS):
        graph.invoke({"messages": [HumanMessage(f"word {n}", id=f"h-{n}")]}, threads.config("long"))
    return {"long": threads.Shape(chat, None)}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(STOCKS))
def test_a_long_thread_comes_whole_and_goes_on(name: str, tmp_path: Path) -> None:
    with (
        STOCKS[name](tmp_path, long_talk) as stock,
        perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db,
    ):
        source = stock.opened()
        (report,) = parity.imported(source, db)
        steps = TURNS * (2 if stock.kind is SourceKind.HISTORY else 3)
        assert (report.state, report.checkpoints, report.verified) == ("imported", steps, steps)
        compare_long(stock, db)
        assert [r.state for r in parity.imported(source, db)] == ["unchanged"]
        source.close()
        assert db.fsck("long") == []
        more = {"messages": [HumanMessage("more", id="more")]}
        said = chat(db.checkpointer()).invoke(more, threads.config("long"))["messages"]
        assert said[-1].content == f"{2 * TURNS + 1} so far"


def compare_long(stock: Stock, db: perdure.SyncDatabase) -> None:
    """Compare a thread one checkpoint at a time: a whole history of it takes gigabytes of memory."""
    ours, there = (list_ids(saver) for saver in (db.checkpointer(), stock.saver))
    if stock.kind is SourceKind.HISTORY:
        stock.check(db)
        return
    assert ours == there
    for name in ours:
        config: Any = {"configurable": {"thread_id": "long", "checkpoint_ns": "", "checkpoint_id": name}}
        here, expected = (threads.raw_of(s.get_tuple(config)) for s in (db.checkpointer(), stock.saver))
        if stock.kind is SourceKind.PLAIN:
            here, expected = (found[2:] for found in (here, expected))
        assert here == expected, name


def list_ids(saver: Any) -> list[str]:
    return [found.checkpoint["id"] for found in saver.list(threads.config("long"))]


@pytest.mark.timeout(3600 if parity.FULL else 120)
@pytest.mark.parametrize(
    "name", ["plain", pytest.param("plain-d1", marks=pytest.mark.slow), "plain-postgres", "history"]
)
def test_threads_without_a_saver_of_their_own_come_once_and_go_on(name: str, tmp_path: Path) -> None:
    make = functools.partial(filled, count=MANY)
    with STOCKS[name](tmp_path, make) as stock, perdure.connect_sync("memory://") as db:
        source = stock.opened()
        reports = parity.imported(source, db)
        assert {r.thread: r.state for r in reports} == dict.fromkeys(stock.made, "imported")
        assert all(r.verified == r.checkpoints > 0 for r in reports)
        stock.check(db)
        before = {thread: db.digest(thread) for thread in stock.made}
        assert {r.state for r in parity.imported(source, db)} == {"unchanged"}
        assert {thread: db.digest(thread) for thread in stock.made} == before
        source.close()
        saver = db.checkpointer()
        for thread, shape in stock.made.items():
            if stock.kind is SourceKind.HISTORY:
                said = chat(saver).invoke({"messages": [HumanMessage("more")]}, threads.config(thread))
                assert len(said["messages"]) == len(before_of(stock, thread)) + 2
            else:
                assert threads.go_on(saver, thread, shape) == threads.go_on(stock.saver, thread, shape)
                assert threads.fork(saver, thread, shape) == threads.fork(stock.saver, thread, shape)
            assert db.fsck(thread) == []


def before_of(stock: Stock, thread: str) -> list[Any]:
    found: list[Any] = stock.saver.get_tuple(threads.config(thread)).checkpoint["channel_values"]["messages"]
    return found
