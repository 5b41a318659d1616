"""Threads that a program made without a server are listed as those that clients made."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.model.retention_policy import ThreadTtl
from perdure.model.times import time_of
from perdure.runtime.threads.order import Order
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.threads import Threads
from tests.runtime.graphs import HOUR_US, Storage, Talk, go, working
from tests.server.acceptance.saying import said
from tests.server.listening import place
from tests.server.test_thread_expiry import expired


def program(saver: Any, *, asks: bool = False) -> Any:
    """A graph of a program that knows no server."""

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", str(interrupt("really?")) if asks else "well")]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def config(thread: str, **metadata: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}, "metadata": metadata}


def spoken(storage: Storage, *threads: str, asks: bool = False, **metadata: Any) -> None:
    graph = program(storage.database().checkpointer(), asks=asks)
    for thread in threads:
        graph.invoke({"messages": [("user", "hello")]}, config(thread, **metadata))


async def rows(threads: Threads, **asked: Any) -> list[ThreadRow]:
    return [row async for row in threads.index.search(**asked)]


def now_us() -> int:
    return time.time_ns() // 1000


def test_a_programs_threads_are_listed_with_their_times_and_status(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        before = now_us()
        await asyncio.to_thread(spoken, storage, "one")
        await asyncio.to_thread(spoken, storage, "asks", asks=True)
        await asyncio.to_thread(spoken, storage, "of ada", user="ada")
        between = now_us()
        await asyncio.to_thread(spoken, storage, "one")
        after = now_us()
        async with working(storage.database(), talk.graph) as runtime:
            threads = runtime.threads
            await threads.create("of a client", {"user": "bob"})
            await runtime.wait(await runtime.accept("of the runtime", "hello"), 30)
            found = await rows(threads)
            assert {row.thread_id for row in found[:2]} == {"of a client", "of the runtime"}
            assert [row.thread_id for row in found[2:]] == ["one", "of ada", "asks"]
            (one, ada, asks) = found[2:]
            assert before <= one.created_at < between < one.updated_at <= after
            assert before <= asks.created_at <= asks.updated_at < ada.created_at <= ada.updated_at < between
            assert {row.thread_id: row.status for row in found if row.status != "idle"} == {
                "asks": "interrupted"
            }
            assert [r.thread_id for r in await rows(threads, status="interrupted")] == ["asks"]
            assert [r.thread_id for r in await rows(threads, metadata={"user": "ada"})] == ["of ada"]
            assert [r.thread_id for r in await rows(threads, metadata={"user": "bob"})] == ["of a client"]
            assert await threads.index.count() == 5
            assert await threads.index.count(status="idle") == 4
            oldest = await rows(threads, order=Order("created_at", descending=False))
            assert [row.thread_id for row in oldest][:3] == ["one", "asks", "of ada"]
            assert [r.thread_id for r in await rows(threads, skip=3)] == ["of ada", "asks"]
            assert await threads.get("one") == one
            # Known to clients it is the same thread.
            changed = await threads.change("one", {"title": "First"})
            assert (changed.metadata, changed.created_at) == ({"title": "First"}, one.created_at)

    go(main())


def test_a_programs_threads_that_are_over_are_swept(
    storage: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time_ns

    async def main() -> None:
        await asyncio.to_thread(spoken, storage, "old")
        usual = ThreadTtl(default_ttl=30)
        async with working(storage.database(), talk.graph, thread_ttl=usual) as runtime:
            assert await expired(runtime) == 0
        database, line = storage.open()
        line.ahead_us = HOUR_US
        async with working(database, talk.graph) as runtime:
            assert await expired(runtime) == 0, "nobody set a time to live"
        kept = ThreadTtl(default_ttl=30, strategy="keep_latest")
        async with working(database, talk.graph, thread_ttl=kept) as runtime:
            before = len(storage.rows("old"))
            assert await expired(runtime) == 0
            assert len(storage.rows("old")) == before, "by the clock of its host its time goes on"
            monkeypatch.setattr(time, "time_ns", lambda: real() + HOUR_US * 1000)
            assert await expired(runtime) == 0
            assert 0 < len(storage.rows("old")) < before
            monkeypatch.setattr(time, "time_ns", real)
        await asyncio.to_thread(spoken, storage, "older")
        async with working(database, talk.graph, thread_ttl=usual) as runtime:
            assert await expired(runtime) == 0, "by the clock of its host its time goes on"
            monkeypatch.setattr(time, "time_ns", lambda: real() + HOUR_US * 1000)
            assert await expired(runtime) == 2
            assert storage.rows("old") == storage.rows("older") == []

    go(main())


def test_the_server_shows_them_and_goes_on_with_them(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"

    async def main() -> None:
        with perdure.connect_sync(url, migrate=True) as database:
            graph = program(database.checkpointer())
            for n in range(15):
                graph.invoke({"messages": [("user", "hello")]}, config(f"t{n}", n=n))
        async with place(url) as here, here.client() as client:
            found: list[Any] = [*await client.threads.search(limit=100)]
            assert [t["thread_id"] for t in found] == [f"t{n}" for n in reversed(range(15))]
            assert all(t["created_at"] > "2020" and t["updated_at"] >= t["created_at"] for t in found)
            assert [t["thread_id"] for t in await client.threads.search(metadata={"n": 3})] == ["t3"]
            assert await client.threads.count() == 15
            state: Any = await client.runs.wait("t3", "chat", input=said("again"))
            assert len(state["messages"]) == 4
            assert (await client.threads.search())[0]["thread_id"] == "t3"

    asyncio.run(main())


@pytest.mark.parametrize("checkpoint_id", ["", "1", "not an id", "1ef6aaaa-0000-4000-8000-000000000000"])
def test_an_id_that_has_no_time_has_none(checkpoint_id: str) -> None:
    assert time_of(checkpoint_id) is None


def test_the_time_of_an_id_is_when_it_was_made() -> None:
    before = now_us()
    at = time_of(str(uuid6()))
    assert at is not None
    assert before - 1 <= at <= now_us() + 1
