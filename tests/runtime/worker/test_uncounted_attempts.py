"""What an error says of another thread, database or limit is an error of the node like any other.

Covers perdure.storage.error_origins.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel

from perdure.database.base import handle_of
from perdure.engine.queue.runs import EXCUSES_MOST
from perdure.engine.threads import schema_pin
from perdure.engine.threads.steering import TakenBack
from perdure.errors import (
    KeyMissing,
    LimitPending,
    LimitReached,
    SchemaTooNew,
    ThreadPinned,
    TooLarge,
    Unavailable,
)
from perdure.model.limits import SharedLimit
from perdure.model.records import Partition
from perdure.runtime import Runtime
from perdure.schema import Schema
from tests.runtime.graphs import Heard, Storage, eventually, go, settings, stored, working

OTHER: Any = {"configurable": {"thread_id": "other"}}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Calling:
    """A graph whose node makes a call, and counts how often."""

    def __init__(self) -> None:
        self.count = 0
        self.call: Callable[[], Awaitable[Any]] | None = None
        self.is_busy, self.gate = asyncio.Event(), asyncio.Event()

    @property
    def graph(self) -> Pregel[Any, Any, Any, Any]:
        return StateGraph(State).add_node("node", self._node).add_edge(START, "node").compile()

    async def _node(self, state: State) -> State:
        if self.call is not None and state["log"] == ["call"]:
            self.count += 1
            await self.call()
        if state["log"] == ["busy"]:
            self.is_busy.set()
            await self.gate.wait()
        return {"log": ["done"]}

    async def fails(self, runtime: Runtime, attempts: int = 2) -> dict[str, Any]:
        """Run the graph; return the note of its run, which has failed after so many attempts."""
        run = await runtime.wait(await runtime.submit("ada", {"log": ["call"]}), 60)
        assert (run.state, self.count) == ("failed", attempts), run.note
        return dict(run.note)


async def make_other_thread(database: Any, version: int) -> None:
    saver = database.checkpointer(schema=Schema(version))
    await Calling().graph.copy(update={"checkpointer": saver}).ainvoke({"log": []}, OTHER)


@pytest.mark.parametrize("thread", ["ada", "other"])
def test_an_edit_that_is_refused_is_a_failed_attempt_and_no_lost_lease(near: Storage, thread: str) -> None:
    calling, heard = Calling(), Heard()

    async def main() -> None:
        database = near.database()
        terms = settings(attempts=2)
        async with working(database, calling.graph, settings=terms, observers=[heard]) as runtime:
            busy = await runtime.submit("other", {"log": ["busy"]})
            await eventually(calling.is_busy.is_set)
            place: Any = {"configurable": {"thread_id": thread}}
            graph = runtime.graph("agent")
            calling.call = lambda: graph.aupdate_state(place, {"log": ["edit"]}, as_node="node")
            note = await calling.fails(runtime)
            assert note["error"].startswith("Fenced: ")
            assert heard.count("run.lost") == heard.count("run.write_refused") == 0
            calling.gate.set()
            assert (await runtime.wait(busy, 30)).state == "done"

    go(main())


@pytest.mark.parametrize("kind", [SchemaTooNew, ThreadPinned])
def test_another_thread_that_is_not_for_this_version_is_a_failed_attempt(near: Storage, kind: Any) -> None:
    calling = Calling()

    async def main() -> None:
        database = near.database()
        await make_other_thread(database, 1)
        handle = handle_of(database)
        if kind is ThreadPinned:
            handle.run(schema_pin.pin(Partition("", "other"), 1, now=1))
            saver = database.checkpointer(schema=Schema(2))
        else:
            await make_other_thread(database, 2)
            saver = database.checkpointer(schema=Schema(1))
        calling.call = lambda: saver.aget_tuple(OTHER)
        async with working(database, calling.graph, settings=settings(attempts=2)) as runtime:
            note = await calling.fails(runtime)
            assert note["kind"] == kind.__name__

    go(main())


def test_another_database_that_is_away_is_a_failed_attempt(near: Storage) -> None:
    calling = Calling()

    async def main() -> None:
        with stored("memory") as elsewhere:
            other, line = elsewhere.open()
            line.is_dead = True
            saver = other.checkpointer()
            calling.call = lambda: saver.aget_tuple(OTHER)
            async with working(near.database(), calling.graph, settings=settings(attempts=2)) as runtime:
                note = await calling.fails(runtime)
                assert note["error"].startswith("Unavailable: ")

    go(main())


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (SchemaTooNew("another's"), 1),
        (ThreadPinned("another's"), 1),
        (TakenBack("another's"), 2),
        (LimitPending("another's", "elsewhere", 0.0), 2),
        (LimitPending("of runs", "runs", 0.0), 2),
        (LimitReached("another's", "elsewhere"), 2),
        (TooLarge("its own"), 1),
        (Unavailable("of nothing known"), EXCUSES_MOST + 2),
        (KeyMissing("of nothing known"), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_that_is_raised_by_hand_is_bounded(memory: Storage, error: Exception, attempts: int) -> None:
    calling = Calling()

    async def call() -> None:
        raise error

    async def main() -> None:
        calling.call = call
        limits = {"runs": SharedLimit(of="run", concurrency=5)}
        terms = settings(attempts=2, backoff=0.001, max_backoff=0.002, limits=limits)
        async with working(memory.database(), calling.graph, settings=terms) as runtime:
            await calling.fails(runtime, attempts)

    go(main())
