"""A thread's finished summary: one of several makers' is kept, in a thread that exists, on all backends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.engine import summaries
from perdure.model.records import Partition
from tests.backends import BACKENDS, EMPTY

AT = Partition("", "t")
NOW = 1_700_000_000_000_000


@pytest.fixture(params=BACKENDS)
def db(request: pytest.FixtureRequest) -> Iterator[perdure.SyncDatabase]:
    with EMPTY[request.param]() as url, perdure.connect_sync(url, migrate=True) as database:
        yield database


def talk(db: perdure.SyncDatabase) -> None:
    builder = StateGraph(MessagesState).add_node("n", lambda _: {}).add_edge(START, "n")
    graph = builder.compile(checkpointer=db.checkpointer())
    graph.invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": "t"}})


def store(db: perdure.SyncDatabase, text: str, before: Any) -> bool:
    handle = handle_of(db)
    return handle.run(summaries.store(AT, {"text": text}, NOW, before, fresh=handle.fresh()))


def test_of_several_makers_the_first_one_s_is_kept(db: perdure.SyncDatabase) -> None:
    talk(db)
    handle = handle_of(db)
    assert handle.run(summaries.waiting(AT)) is None
    assert store(db, "first", None)
    assert not store(db, "second", None)
    found = handle.run(summaries.waiting(AT))
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
    assert handle_of(db).run(summaries.waiting(AT)) is None
    assert not store(db, "late", None)
