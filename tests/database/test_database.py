"""The operations of an open database, awaited and blocking: the same names, arguments and results.

Covers perdure.database.asynchronous, perdure.database.thread_entries.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import random
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.database.base import DatabaseBase, handle_of
from perdure.model.ops import Now
from perdure.model.program import ask


def talk(db: DatabaseBase, thread: str, *texts: str) -> None:
    builder = StateGraph(MessagesState).add_node("answer", lambda state: {"messages": [("ai", "yes")]})
    graph = builder.add_edge(START, "answer").compile(checkpointer=db.checkpointer())
    for text in texts:
        graph.invoke({"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": thread}})


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True) as db:
        talk(db, "ada", "one", "two")
        talk(db, "bob", "one")
    return url


def test_a_database_stays_open_when_its_context_manager_is_collected(url: str) -> None:
    """As at module level, where nothing else refers to the context manager."""
    blocking = perdure.connect_sync(url).__enter__()
    awaited = asyncio.run(perdure.connect(url).__aenter__())
    gc.collect()
    assert [thread.thread_id for thread in blocking.threads()] == ["ada", "bob"]

    async def tags() -> dict[str, str]:
        return await awaited.tags("ada")

    assert [asyncio.run(tags()) for _ in range(2)] == [{}, {}]
    blocking.close()
    asyncio.run(awaited.close())


AT_ONCE = {"checkpointer", "store", "history"}
"""What does not touch the database, and so is not awaited."""


def operations(cls: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(value)
        for name, value in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    }


def test_both_databases_have_the_same_operations() -> None:
    awaited, blocking = operations(perdure.Database), operations(perdure.SyncDatabase)
    assert {name: s.parameters for name, s in awaited.items()} == {
        name: s.parameters for name, s in blocking.items()
    }
    assert set(awaited) > {"checkpointer", "store", "threads", "tag", "fsck", "close"}
    for name in set(awaited) - AT_ONCE:
        method = getattr(perdure.Database, name)
        assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method), name
        assert not inspect.iscoroutinefunction(getattr(perdure.SyncDatabase, name)), name
        assert inspect.getdoc(method), name


CALLS: dict[str, tuple[Any, ...]] = {
    "tag": ("ada", "first"),
    "tags": ("ada",),
    "show": ("ada",),
    "timeline": ("ada",),
    "export": ("ada",),
    "fsck": (),
    "repair": ("ada",),
    "find_stuck": (),
    "digest": ("ada",),
    "measure": ("ada",),
    "apply_retention": (),
    "apply_retention_to": ("ada",),
    "untag": ("ada", "first"),
}


def test_awaited_operations_return_what_blocking_ones_do(url: str) -> None:
    async def awaited() -> list[Any]:
        async with perdure.connect(url) as db:
            results: list[Any] = [[thread async for thread in db.threads()]]
            for name, given in CALLS.items():
                results.append(await getattr(db, name)(*given))
            return results

    with perdure.connect_sync(url) as db:
        threads = list(db.threads())
        blocking = [threads, *(getattr(db, name)(*given) for name, given in CALLS.items())]
    assert set(CALLS) == set(operations(perdure.Database)) - AT_ONCE - {"threads", "close", "fork"}
    assert asyncio.run(awaited()) == blocking
    assert [thread.thread_id for thread in threads] == ["ada", "bob"]


def test_a_closed_database_refuses_work(url: str) -> None:
    async def main() -> None:
        async with perdure.connect(url) as db:
            await db.close()
            with pytest.raises(perdure.PerdureError):
                await db.tag("ada", "late")
            await db.close()

    asyncio.run(main())


def test_a_handle_runs_programs_of_either(url: str) -> None:
    async def main() -> int:
        async with perdure.connect(url, tenant="acme") as db:
            assert handle_of(db).tenant == db.tenant == "acme"
            return await handle_of(db).arun(ask(Now()))

    assert asyncio.run(main()) > 0
    with perdure.connect_sync(url) as db:
        assert handle_of(db).run(ask(Now())) > 0


def test_versions_of_a_new_thread_start_anywhere_by_one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def urandom(count: int) -> bytes:
        drawn.append(count)
        return b"\xff" * count

    with perdure.connect_sync("memory://", migrate=True) as db:
        fresh = handle_of(db).draw_version
        assert len({fresh() for _ in range(100)}) == 100
        assert all(each > 0 and each % (1 << 24) == 0 for each in (fresh() for _ in range(100)))
        monkeypatch.setattr(random, "_urandom", urandom)
        assert fresh() == 1 << 54
    assert drawn == [4]


def test_what_is_no_flag_and_no_url_of_memory_is_refused(url: str) -> None:
    no: Any = "no"
    with perdure.connect_sync(url) as db, pytest.raises(TypeError, match="True or False, not 'no'"):
        db.checkpointer(may_list_all_threads=no)
    with pytest.raises(perdure.BadUrl, match="memory:// names no database"):
        perdure.connect_sync("memory://x").__enter__()
