"""Times of nodes over all threads, read in parts that add up, on every backend."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.errors import BadSetting
from perdure.langgraph.reading.thread_steps import StepTask, ThreadStep
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.runtime.operations.node_times import NodeTimes, read_part
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from tests.runtime.graphs import Storage, go, settings, working

SLOW_S = 0.05


def graph() -> StateGraph[Any, Any, Any, Any]:
    """A graph whose node "team" is a subgraph with the node "write"."""

    def plan(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", "planned")]}

    async def write(state: MessagesState) -> dict[str, Any]:
        await asyncio.sleep(SLOW_S)
        if state["messages"][0].text == "fail":
            raise ConnectionError
        return {"messages": [("ai", "written")]}

    team = StateGraph(MessagesState).add_node("write", write).add_edge(START, "write").compile()
    builder = StateGraph(MessagesState).add_node("plan", plan).add_node("team", team)
    return builder.add_edge(START, "plan").add_edge("plan", "team")


async def converse(database: perdure.SyncDatabase, thread: str, *texts: str) -> None:
    app = graph().compile(checkpointer=database.checkpointer())
    config: Any = {"configurable": {"thread_id": thread}}
    for text in texts:
        try:
            await app.ainvoke({"messages": [("user", text)]}, config)
        except ConnectionError:
            assert text == "fail"


async def read_all(walk: ThreadWalk, since: int, seconds: float) -> tuple[dict[str, Any], int, int]:
    """Return the nodes by name, the number of threads, and that of parts."""
    times, examined, parts, cursor = NodeTimes(), 0, 0, ""
    while True:
        part = await read_part(walk, since, cursor, seconds)
        times.merge(part.times)
        examined, parts = examined + part.examined, parts + 1
        if part.cursor is None:
            return {each["node"]: each for each in times.entries()}, examined, parts
        cursor = part.cursor


def test_each_part_goes_on_and_the_sum_is_the_same(storage: Storage) -> None:
    async def main() -> None:
        database = storage.database()
        handle = handle_of(database)
        # More steps than one page has.
        await converse(database, "long", *(f"{number}" for number in range(30)))
        middle = await handle.arun(ask(Now()))
        await converse(database, "short", "1")
        await converse(database, "broken", "fail")
        walk = ThreadWalk(handle, "")
        whole, examined, parts = await read_all(walk, 0, 60.0)
        assert (examined, parts) == (3, 1)
        assert {name: each["count"] for name, each in whole.items()} == {
            "plan": 32,
            "team": 32,
            "team|write": 32,
        }
        assert whole["team|write"]["failed"] == 1
        assert whole["team|write"]["p50"] >= SLOW_S * 0.95e6
        assert whole["plan"]["p95"] <= whole["plan"]["longest"]
        in_parts, examined, parts = await read_all(walk, 0, 0.0)
        assert in_parts == whole
        assert examined == 3
        assert parts > 3
        late, _, _ = await read_all(walk, middle, 60.0)
        assert {name: each["count"] for name, each in late.items()} == {
            "plan": 2,
            "team": 2,
            "team|write": 2,
        }
        for wrong in ("x", "[]", '["", "long", -1]', '["", 1, 2]', "[" * 5000):
            with pytest.raises(BadSetting):
                await read_part(walk, 0, wrong, 1.0)

    go(main())


@pytest.mark.parametrize("on_failure", ["keep", "rollback"])
def test_failures_are_runs_whether_or_not_their_steps_are_kept(near: Storage, on_failure: str) -> None:
    async def main() -> None:
        database = near.database()
        quick = settings(attempts=2, on_failure=on_failure)
        async with working(database, graph().compile(), settings=quick) as runtime:
            for thread, text in (("ada", "fail"), ("bob", "hello"), ("cyd", "fail")):
                await runtime.wait(await runtime.accept(thread, text), 30)
        nodes, _, _ = await read_all(ThreadWalk(handle_of(database), ""), 0, 60.0)
        assert {name: each["failed"] for name, each in nodes.items()} == {
            "plan": 0,
            "team": 0,
            "team|write": 2,
        }
        late, _, _ = await read_all(ThreadWalk(handle_of(database), ""), 1 << 60, 60.0)
        assert late == {}

    go(main())


def step_of(*lengths: int, state: str = "done") -> list[ThreadStep]:
    """A step with a task of each length, in microseconds."""
    tasks = tuple(StepTask("t", "n", state, began_at=10, ended_at=10 + length) for length in lengths)
    return [ThreadStep("", "c", None, 1, None, "loop", 1, ("n",), tasks, 10, 10 + max(lengths))]


def test_percentiles_are_near_and_never_above_the_longest() -> None:
    times = NodeTimes()
    times.add("g", step_of(*(1000 * n for n in range(1, 101))), 0)
    times.add("g", step_of(5, state="asked"), 0)
    (entry,) = times.entries()
    assert (entry["graph"], entry["count"], entry["longest"]) == ("g", 100, 100_000)
    assert abs(entry["p50"] / 50_000 - 1) < 0.09
    assert abs(entry["p95"] / 95_000 - 1) < 0.09
    once = NodeTimes()
    once.add(None, step_of(0), 0)
    assert [(each["p50"], each["longest"]) for each in once.entries()] == [(0, 0)]
    assert json.loads(json.dumps(entry)) == entry
