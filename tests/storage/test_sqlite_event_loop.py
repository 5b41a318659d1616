"""Calls of SQLite's driver in an event loop's own thread: none that looks at a file.

Covers perdure.storage.sqlite.file_identity and perdure.storage.sqlite.driver.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.errors import DatabaseReplaced
from perdure.storage.sqlite import driver, file_identity

NAMES = ("stat", "listdir", "scandir", "mkdir", "rename", "replace", "unlink", "rmdir")
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of the operating system in the thread of a running loop, as a tool counts that replaces them."""
    found: Counter[str] = Counter()

    def watching(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **given: Any) -> Any:
            # A thread of the driver has no loop.
            if asyncio._get_running_loop() is not None:
                found[name] += 1
            return call(*args, **given)

        return watched

    for name in NAMES:
        monkeypatch.setattr(os, name, watching(name, getattr(os, name)))
    return found


def test_no_file_is_looked_at_on_a_loop(seen: Counter[str], tmp_path: Path) -> None:
    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [("ai", "Hello.")]})
    graph.add_edge(START, "answer")

    async def main() -> None:
        async with perdure.connect(f"sqlite:///{tmp_path / 'items.db'}", migrate=True) as db:
            agent: Any
            store, agent = db.store(), graph.compile(checkpointer=db.checkpointer())
            # What is imported at its first use is looked up on the loop, whoever imports it.
            await store.aput(("a",), "k", {})
            await agent.ainvoke({"messages": [("user", "Hello?")]}, CONFIG)
            seen.clear()
            for pause in (0.0, 0.0, 2 * file_identity._FRESH_S):
                await asyncio.sleep(pause)
                assert await store.aget(("a",), "k") is not None
                await asyncio.sleep(pause)
                assert (await agent.aget_state(CONFIG)).values["messages"]
                await agent.ainvoke({"messages": [("user", "And?")]}, CONFIG)
                await store.aput(("a",), "k", {"n": 1})
                await store.asearch(("a",))
            assert not seen

    asyncio.run(main())


def test_a_file_that_was_replaced_is_noticed_a_moment_later(tmp_path: Path) -> None:
    path = tmp_path / "items.db"

    async def main() -> None:
        async with perdure.connect(f"sqlite:///{path}", migrate=True) as db:
            store = db.store()
            await store.aput(("a",), "k", {})
            assert await store.aget(("a",), "k") is not None
            path.unlink()
            path.write_bytes(b"something else")
            # What was read a moment ago may be read once more.
            await asyncio.sleep(2 * file_identity._FRESH_S)
            with pytest.raises(DatabaseReplaced, match="was replaced by another file"):
                await store.aget(("a",), "k")

    asyncio.run(main())


def test_a_loop_of_quick_reads_leaves_turns_to_others(tmp_path: Path) -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with perdure.connect(f"sqlite:///{tmp_path / 'items.db'}", migrate=True) as db:
            saver = db.checkpointer()
            assert await saver.aget_tuple(CONFIG) is None
            other = asyncio.create_task(take_turns())
            end = time.monotonic() + 30 * driver._ON_LOOP_S
            before = turns
            while time.monotonic() < end:
                await saver.aget_tuple(CONFIG)
            other.cancel()
            assert turns - before >= 5

    asyncio.run(main())
