"""A thread belongs to one graph where graphs are kept apart, whatever comes at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel

from perdure.server.runs import run_creation
from tests.server.hosting import run, serving

INPUT: Any = {"messages": [{"role": "user", "content": "hi"}]}


def _named(name: str) -> Pregel[Any, Any, Any, Any]:
    builder: Any = StateGraph(MessagesState)
    return builder.add_node(name, lambda _: {"messages": [AIMessage(name)]}).add_edge(START, name).compile()


def _both() -> dict[str, Pregel[Any, Any, Any, Any]]:
    return {"first": _named("first"), "second": _named("second")}


@run
async def test_of_two_graphs_at_once_one_owns_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    both, done = asyncio.Barrier(2), asyncio.Event()
    submitted_next = run_creation._submit_next

    async def late(caller: Any, checked: Any, row: Any) -> Any:
        await both.wait()
        if checked.assistant.graph_id == "second":
            await done.wait()
        try:
            return await submitted_next(caller, checked, row)
        finally:
            done.set()

    async with serving("memory://", of=_both(), shared_threads=False) as served:
        http = await served.http()
        thread = (await http.post("/threads", json={})).json()["thread_id"]
        path = f"/threads/{thread}/runs/wait"
        with monkeypatch.context() as patch:
            patch.setattr(run_creation, "_submit_next", late)
            sent = [http.post(path, json={"assistant_id": name, "input": INPUT}) for name in _both()]
            assert [each.status_code for each in await asyncio.gather(*sent)] == [200, 409]
        again = await http.post(path, json={"assistant_id": "first", "input": INPUT})
        assert again.status_code == 200, again.text
        found = (await http.post("/threads/search", json={"metadata": {"graph_id": "first"}})).json()
        assert [each["thread_id"] for each in found] == [thread]


@run
async def test_the_owner_cannot_be_changed_and_an_unfitting_one_does_not_fail_a_listing() -> None:
    async with serving("memory://", of=_both(), shared_threads=False) as served:
        http = await served.http()
        thread = (await http.post("/threads", json={"metadata": {"graph_id": "first"}})).json()["thread_id"]
        moved = await http.patch(f"/threads/{thread}", json={"metadata": {"graph_id": "second"}})
        assert moved.status_code == 200, "nothing has run"
        path = f"/threads/{thread}/runs/wait"
        assert (await http.post(path, json={"assistant_id": "first", "input": INPUT})).status_code == 200
        moved = await http.patch(f"/threads/{thread}", json={"metadata": {"graph_id": "second"}})
        assert moved.status_code == 409, moved.text
        kept = await http.patch(f"/threads/{thread}", json={"metadata": {"graph_id": "first", "a": 1}})
        assert kept.status_code == 200, kept.text
        # An older server's change, or an application's.
        await served.host.runtime.threads.change(thread, {"graph_id": "second"})
        (listed,) = (await http.post("/threads/search", json={})).json()
        assert listed["status"] == "error"
        assert listed["error"]["error"] == "OtherGraph"
