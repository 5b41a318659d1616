"""A second import of a thread that went on, was answered or was pruned at the target, and of its source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import perdure
from perdure.database.base import handle_of
from perdure.imports.sqlite import SqliteSource
from perdure.model.records import KINDS, Partition
from tests.engine.transfer.test_transfer import rows
from tests.imports import parity, threads
from tests.langgraph import graphs
from tests.langgraph.graphs import STATES

ADA = Partition("", "ada")


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[SqliteSaver]:
    with SqliteSaver.from_conn_string(str(tmp_path / "old.db")) as saver:
        yield saver


@pytest.fixture
def db() -> Iterator[perdure.SyncDatabase]:
    with perdure.connect_sync("memory://") as opened:
        yield opened


def imported(tmp_path: Path, db: perdure.SyncDatabase) -> Any:
    source = SqliteSource(tmp_path / "old.db")
    try:
        (report,) = parity.imported(source, db)
    finally:
        source.close()
    return report


def contents(db: perdure.SyncDatabase) -> Any:
    return {kind.name: rows(db, ADA, kind) for kind in KINDS}


class Asked(TypedDict, total=False):
    answer: str


def asking(saver: Any, *, fails: bool) -> Any:
    """A graph that asks; what follows the answer in the same task may fail, so that the head stays."""

    def ask(state: Asked) -> Asked:
        answer = interrupt("which?")
        if fails:
            raise RuntimeError("the service is away")
        return {"answer": answer}

    builder = StateGraph(Asked).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def answer(saver: Any, text: str, *, fails: bool) -> None:
    graph = asking(saver, fails=fails)
    if fails:
        with pytest.raises(RuntimeError, match="away"):
            graph.invoke(Command(resume=text), threads.config("ada"))
    else:
        graph.invoke(Command(resume=text), threads.config("ada"))


@pytest.mark.parametrize("there", [None, "theirs, and failed", "theirs"])
def test_an_answer_given_at_the_target_is_kept(
    there: str | None, tmp_path: Path, stock: SqliteSaver, db: perdure.SyncDatabase
) -> None:
    asking(stock, fails=False).invoke({}, threads.config("ada"))
    assert imported(tmp_path, db).state == "imported"
    answer(db.checkpointer(), "mine", fails=True)
    if there is not None:
        answer(stock, there, fails="failed" in there)
    before = contents(db)
    report = imported(tmp_path, db)
    if there is None:
        assert report.state == "unchanged"
    else:
        assert (report.state, "the thread went on at the target (task" in report.why) == ("skipped", True)
    assert contents(db) == before
    # The task runs again with the answer that was given here.
    done = asking(db.checkpointer(), fails=False).invoke(None, threads.config("ada"))
    assert done["answer"] == "mine"
    assert db.fsck("ada") == []


def test_an_answer_given_at_the_source_alone_arrives(
    tmp_path: Path, stock: SqliteSaver, db: perdure.SyncDatabase
) -> None:
    asking(stock, fails=False).invoke({}, threads.config("ada"))
    imported(tmp_path, db)
    answer(stock, "theirs", fails=True)
    assert imported(tmp_path, db).state == "extended"
    done = asking(db.checkpointer(), fails=False).invoke(None, threads.config("ada"))
    assert done["answer"] == "theirs"


@pytest.mark.parametrize("name", ["forked", "nested", "delta"])
@pytest.mark.parametrize("keep", [1, 2])
def test_an_unchanged_source_is_unchanged_after_a_prune_at_the_target(
    name: str, keep: int, tmp_path: Path, stock: SqliteSaver, db: perdure.SyncDatabase
) -> None:
    shape = threads.SHAPES[name]
    shape.make(shape.graph(stock), "ada")
    imported(tmp_path, db)
    count = len(list(db.checkpointer().list(threads.config("ada"))))
    db.checkpointer().prune(["ada"], keep_last=keep)
    assert len(list(db.checkpointer().list(threads.config("ada")))) < count
    before = contents(db)
    assert imported(tmp_path, db).state == "unchanged"
    assert contents(db) == before
    # What comes since is brought, and nothing else.
    threads.go_on(stock, "ada", shape)
    report = imported(tmp_path, db)
    assert (report.state, report.why) == ("extended", "")
    assert 0 < report.checkpoints < 12
    assert imported(tmp_path, db).state == "unchanged"
    graphs = [shape.graph(saver).get_state(threads.config("ada")) for saver in (db.checkpointer(), stock)]
    assert graphs[0].values == graphs[1].values
    assert db.fsck("ada") == []
    # Nor is a thread that went on here taken for changed there.
    threads.go_on(db.checkpointer(), "ada", shape)
    db.checkpointer().prune(["ada"], keep_last=1)
    assert imported(tmp_path, db).state == "unchanged"


@pytest.mark.parametrize("name", ["delta", "delta-often"])
def test_a_branch_from_what_was_pruned_at_the_target_has_its_values(
    name: str, tmp_path: Path, stock: SqliteSaver, db: perdure.SyncDatabase
) -> None:
    """A DeltaChannel of the branch is replayed from checkpoints that do not come again."""
    graph = graphs.chain(stock, STATES[name])
    for n in range(3):
        graph.invoke({"said": [f"turn {n} " * 30]}, threads.config("ada"))
    imported(tmp_path, db)
    db.checkpointer().prune(["ada"], keep_last=1)
    old = next(s.config for s in graph.get_state_history(threads.config("ada")) if s.metadata["step"] == 4)
    graph.invoke({"said": ["on a branch"]}, old)
    graph.update_state(old, {"said": ["edited"]}, "first")
    assert imported(tmp_path, db).state == "extended"
    here = graphs.chain(db.checkpointer(), STATES[name])
    for found in here.get_state_history(threads.config("ada")):
        assert found.values == graph.get_state(found.config).values
    assert here.get_state(threads.config("ada")).values == graph.get_state(threads.config("ada")).values
    assert db.fsck("ada") == []


def test_a_run_that_was_taken_back_at_the_target_does_not_come_again(
    tmp_path: Path, stock: SqliteSaver, db: perdure.SyncDatabase
) -> None:
    shape = threads.SHAPES["finished"]
    graph = shape.graph(stock)
    shape.make(graph, "ada")
    graph.invoke({"messages": [("user", "wrong")]}, {**threads.config("ada"), "metadata": {"run_id": "r9"}})
    imported(tmp_path, db)
    db.checkpointer().delete_for_runs(["r9"])
    before = contents(db)
    assert imported(tmp_path, db).state == "unchanged"
    assert contents(db) == before
    assert handle_of(db).tenant == ""


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_thread_that_was_begun_anew_at_the_source_is_named_as_that(
    goes_on: bool, tmp_path: Path, stock: SqliteSaver, db: perdure.SyncDatabase
) -> None:
    graphs.chain(stock).invoke({"said": ["first"]}, threads.config("ada"))
    assert imported(tmp_path, db).state == "imported"
    if goes_on:
        graphs.chain(db.checkpointer()).invoke({"said": ["here"]}, threads.config("ada"))
    stock.delete_thread("ada")
    graphs.chain(stock).invoke({"said": ["second life"]}, threads.config("ada"))
    before = contents(db)
    report = imported(tmp_path, db)
    assert (report.state, "deleted there and begun anew" in report.why) == ("skipped", not goes_on)
    assert ("went on at the target" in report.why) == goes_on
    assert contents(db) == before
    db.checkpointer().delete_thread("ada")
    assert imported(tmp_path, db).state == "imported"
