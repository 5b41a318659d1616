"""A thread on which several graphs run is read with the one that has made its latest checkpoint.

Covers perdure.model.thread_agents.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
from typing import Annotated, Any

import httpx
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from tests.server.hosting import run, serving

INPUT: dict[str, Any] = {"log": []}


class _Log(TypedDict):
    log: Annotated[list[str], operator.add]


class _Graphs:
    """``first`` and ``second``, of which ``first`` waits for ``opened``."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.opened.set()
        self.reached = asyncio.Event()

    def _make(self, *names: str) -> Any:
        builder: Any = StateGraph(_Log)
        for name in names:
            builder.add_node(name, self._node(name))
        builder.add_edge(START, names[0])
        for before, after in itertools.pairwise(names):
            builder.add_edge(before, after)
        return builder.compile()

    def _node(self, name: str) -> Any:
        async def node(state: _Log) -> _Log:
            if name == "x":
                self.reached.set()
                await self.opened.wait()
            return {"log": [name]}

        return node

    @property
    def served(self) -> dict[str, Any]:
        return {"first": self._make("x", "y"), "second": self._make("a", "b", "c")}


async def _post(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _require_graph(http: httpx.AsyncClient, thread: str, graph: str, following: list[str]) -> None:
    """Require that a thread is shown, found and read as one of a graph."""
    shown = (await http.get(f"/threads/{thread}")).json()
    assert shown["metadata"]["graph_id"] == graph
    for name in ("graph_id", "assistant_id"):
        found = await _post(http, "/threads/search", metadata={name: shown["metadata"][name]})
        assert thread in [each["thread_id"] for each in found]
    other = "second" if graph == "first" else "first"
    others = await _post(http, "/threads/search", metadata={"graph_id": other})
    assert thread not in [each["thread_id"] for each in others]
    state = (await http.get(f"/threads/{thread}/state")).json()
    assert state["next"] == following
    assert state["metadata"]["graph_id"] == graph


@run
async def test_a_delayed_run_owns_the_thread_once_it_has_run(near: str) -> None:
    async with serving(near, of=_Graphs().served) as server:
        http = await server.http()
        thread = (await _post(http, "/threads"))["thread_id"]
        path = f"/threads/{thread}/runs"
        delayed = await _post(
            http, path, assistant_id="second", input=INPUT, after_seconds=1, interrupt_before=["b"]
        )
        await _post(http, f"{path}/wait", assistant_id="first", input=INPUT)
        await _require_graph(http, thread, "first", [])
        await http.get(f"{path}/{delayed['run_id']}/join")
        await _require_graph(http, thread, "second", ["b"])
        await _post(http, f"/threads/{thread}/state", values={"log": ["edit"]}, as_node="b")
        await _require_graph(http, thread, "second", ["c"])
        copied = (await _post(http, f"/threads/{thread}/copy"))["thread_id"]
        await _require_graph(http, copied, "second", ["c"])


@run
async def test_a_run_that_left_nothing_leaves_the_thread_to_the_graph_before(near: str) -> None:
    graphs = _Graphs()
    async with serving(near, of=graphs.served) as server:
        http = await server.http()
        thread = (await _post(http, "/threads"))["thread_id"]
        path = f"/threads/{thread}/runs"
        await _post(http, f"{path}/wait", assistant_id="second", input=INPUT, interrupt_before=["b"])
        graphs.opened.clear()
        for body in ({}, {"after_seconds": 600}):
            graphs.reached.clear()
            made = await _post(http, path, assistant_id="first", input=INPUT, **body)
            if not body:
                await graphs.reached.wait()
            cancelled = await http.post(f"{path}/{made['run_id']}/cancel?wait=1&action=rollback")
            assert cancelled.status_code == 200, cancelled.text
            await _require_graph(http, thread, "second", ["b"])
        await _post(http, f"/threads/{thread}/state", values={"log": ["edit"]}, as_node="b")


@run
async def test_runs_of_two_graphs_at_once_leave_the_thread_to_the_last(near: str) -> None:
    async with serving(near, of=_Graphs().served) as server:
        http = await server.http()
        for _ in range(3):
            thread = (await _post(http, "/threads"))["thread_id"]
            path = f"/threads/{thread}/runs"
            names = ("first", "second", "first", "second")
            made = await asyncio.gather(
                *(_post(http, path, assistant_id=name, input=INPUT, interrupt_after="*") for name in names)
            )
            for each in made:
                await http.get(f"{path}/{each['run_id']}/join")
            state = (await http.get(f"/threads/{thread}/state")).json()
            await _require_graph(http, thread, state["metadata"]["graph_id"], state["next"])
            assert state["next"] in (["y"], ["b"])


@run
async def test_a_client_may_choose_the_graph_until_another_runs(near: str) -> None:
    async with serving(near, of=_Graphs().served) as server:
        http = await server.http()
        thread = (await _post(http, "/threads"))["thread_id"]
        path = f"/threads/{thread}"
        await _post(http, f"{path}/runs/wait", assistant_id="first", input=INPUT)
        changed = await http.patch(path, json={"metadata": {"graph_id": "second"}})
        assert changed.json()["metadata"]["graph_id"] == "second"
        found = await _post(http, "/threads/search", metadata={"graph_id": "second"})
        assert [each["thread_id"] for each in found] == [thread]
        await _post(http, f"{path}/state", values={"log": ["edit"]}, as_node="a")
        await _require_graph(http, thread, "second", ["b"])
        await _post(http, f"{path}/runs/wait", assistant_id="first", input=INPUT)
        await _require_graph(http, thread, "first", [])
