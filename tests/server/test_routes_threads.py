"""Threads over HTTP: those that begin with a state."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.errors import InvalidUpdateError
from langgraph.graph.state import CompiledStateGraph

from tests.server.acceptance.saying import said
from tests.server.hosting import run, serving

FIRST: dict[str, Any] = {"updates": [{"values": said("x"), "as_node": "__start__"}]}
UNUSABLE: dict[str, tuple[Any, Any, int]] = {
    "unknown node": ("aware", [FIRST, {"updates": [{"values": said("y"), "as_node": "nobody"}]}], 400),
    "values of no node": ("aware", [FIRST, {"updates": [{"values": 5, "as_node": "answer"}]}], 400),
    "no message": ("aware", [FIRST, {"updates": [{"values": {"messages": [5]}, "as_node": "answer"}]}], 400),
    "unknown graph": ("nobody", [FIRST], 422),
    "no name of a graph": (["aware"], [FIRST], 422),
    "no updates": ("aware", [{"updates": 5}], 422),
    "no update": ("aware", [{"updates": ["x"]}], 422),
    "unknown command": ("aware", [{"updates": [{"command": {"nothing": 1}, "as_node": "answer"}]}], 422),
    "no command": ("aware", [{"updates": [{"command": [1], "as_node": "answer"}]}], 422),
}


@pytest.mark.parametrize("what", UNUSABLE)
@run
async def test_a_thread_whose_supersteps_cannot_be_written_is_not_created(near: str, what: str) -> None:
    graph_id, steps, status = UNUSABLE[what]
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        body = {"thread_id": "t", "metadata": {"graph_id": graph_id}, "supersteps": steps}
        answer = await http.post("/threads", json=body)
        assert answer.status_code == status, answer.text
        assert await client.threads.count() == 0
        assert (await http.get("/threads/t")).status_code == 404


@pytest.mark.parametrize("is_over", [False, True])
@run
async def test_a_message_that_is_accepted_while_the_supersteps_are_refused_keeps_its_thread(
    near: str, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    async with serving(near) as server:
        client, http = await server.client(), await server.http()

        async def overtaken(graph: Any, config: Any, steps: Any) -> None:
            accepted = await client.runs.create("t", "aware", input=said("hello"))
            if is_over:
                await client.runs.join("t", accepted["run_id"])
            raise InvalidUpdateError("no such node")

        monkeypatch.setattr(CompiledStateGraph, "abulk_update_state", overtaken)
        body = {"thread_id": "t", "metadata": {"graph_id": "aware"}, "supersteps": [FIRST]}
        answer = await http.post("/threads", json=body)
        assert answer.status_code == 400, answer.text
        (accepted,) = await client.runs.list("t")
        await client.runs.join("t", accepted["run_id"])
        values: Any = (await client.threads.get_state("t"))["values"]
        assert values["messages"][0]["content"] == "hello"
