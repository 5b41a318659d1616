"""A thread's finished summary: one of several makers' is kept, in the thread of its run, on all backends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.engine.queue import finished_summary, runs
from perdure.engine.queue.claims import Claim
from perdure.engine.queue.finished_summary import FinishedSummary
from perdure.engine.queue.inbox import Accept
from perdure.engine.queue.runs import Ending, HeldRun
from perdure.model.records import Partition
from perdure.model.runs.messages import DONE, Message
from perdure.model.runs.queue import Debounce
from tests.backends import BACKENDS, EMPTY

AT = Partition("", "t")
NOW = 1_700_000_000_000_000


@pytest.fixture(params=BACKENDS)
def db(request: pytest.FixtureRequest) -> Iterator[perdure.SyncDatabase]:
    with EMPTY[request.param]() as url, perdure.connect_sync(url, migrate=True) as database:
        yield database


def talk(db: perdure.SyncDatabase, run_id: str = "r1") -> None:
    """Make a thread of one turn, with the records of the run that a runtime would have."""
    handle = handle_of(db)
    message = Message(run_id, "hi", "g", "", "coalesce", {})
    handle.run(Accept(AT, message, NOW, Debounce(0, 0), "enqueue", 9, handle.draw_version()).store(None))
    held = handle.run(Claim(AT, "w", ("g",), NOW, 1_000_000, 9, handle.draw_version()).take(None))
    assert isinstance(held, HeldRun)
    handle.run(runs.finish(held, Ending(DONE, {}), NOW, handle.draw_version(), 90))
    builder = StateGraph(MessagesState).add_node("n", lambda _: {}).add_edge(START, "n")
    graph: Any = builder.compile(checkpointer=db.checkpointer())
    graph.invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": "t"}})


def store(db: perdure.SyncDatabase, text: str, before: Any, run_id: str = "r1") -> bool:
    handle = handle_of(db)
    made = FinishedSummary({"text": text}, run_id, before)
    return handle.run(finished_summary.store(AT, made, NOW, fresh=handle.draw_version()))


def test_of_several_makers_the_first_one_s_is_kept(db: perdure.SyncDatabase) -> None:
    talk(db)
    handle = handle_of(db)
    assert handle.run(finished_summary.load(AT)) is None
    assert store(db, "first", None)
    assert not store(db, "second", None)
    found = handle.run(finished_summary.load(AT))
    assert found is not None
    assert found.body == {"text": "first"}
    assert store(db, "third", found)
    assert not store(db, "fourth", found)
    assert db.fsck("t") == []


def test_a_thread_that_was_deleted_gets_none(db: perdure.SyncDatabase) -> None:
    assert not store(db, "early", None)
    talk(db)
    assert store(db, "first", None)
    db.checkpointer().delete_thread("t")
    assert handle_of(db).run(finished_summary.load(AT)) is None
    assert not store(db, "late", None)


def test_a_summary_of_a_deleted_thread_does_not_reach_the_one_that_has_its_id_now(
    db: perdure.SyncDatabase,
) -> None:
    talk(db, "r1")
    db.checkpointer().delete_thread("t")
    talk(db, "r2")
    assert not store(db, "of the deleted thread", None, "r1")
    assert handle_of(db).run(finished_summary.load(AT)) is None
    assert store(db, "of this thread", None, "r2")
