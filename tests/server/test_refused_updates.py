"""A thread with a stored update that its graph refuses is shown without it, and affects no other thread."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import httpx
import pytest
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.errors import EmptyChannelError
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

import perdure
from perdure.langgraph.reading.readable_states import REFUSED, Graph
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState
from tests.server.acceptance.saying import said
from tests.server.acceptance.serving import run
from tests.server.ports import served

SECRET = "nobody-knows-this"


class _Own(Exception):
    pass


class _Number(BaseModel):
    number: int = 0


def _only(state: Any, node: Any) -> Graph:
    builder = StateGraph(state)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile()


def _talk(state: MessagesState) -> dict[str, Any]:
    if state["messages"][-1].text == "remove":
        return {"messages": [RemoveMessage(id=SECRET)]}
    return {"messages": [AIMessage("ok")]}


def _raising(error: type[Exception]) -> Graph:
    def joined(before: list[str], new: list[str]) -> list[str]:
        if SECRET in new:
            raise error(SECRET)
        return before + new

    fields: Any = {
        "said": Annotated[list[str], joined],
        "ask": str,
        "notes": Annotated[list[str], operator.add],
    }
    state: Any = TypedDict("State", fields, total=False)  # type: ignore[misc]
    return _only(state, lambda given: {"said": [given["ask"]], "notes": ["n"]})


REMOVED = {"messages": [{"type": "remove", "id": SECRET, "content": ""}]}
CASES: dict[str, tuple[Graph, Any, Any]] = {
    "node": (_only(MessagesState, _talk), said("hello"), said("remove")),
    "input": (_only(MessagesState, _talk), said("hello"), REMOVED),
    "subgraph": (_only(MessagesState, _only(MessagesState, _talk)), said("hello"), said("remove")),
    "model": (_only(_Number, lambda state: {}), {"number": 1}, {"number": SECRET}),
    **{
        error.__name__: (_raising(error), {"ask": "hello"}, {"ask": SECRET})
        for error in (KeyError, EmptyChannelError, _Own)
    },
}


async def _ok(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    answer = await http.request(method, path, json=body)
    assert answer.status_code == 200, (method, path, answer.text)
    return answer.json()


@pytest.mark.parametrize("name", CASES)
@run
async def test_it_is_shown_without_it_and_hides_no_other(name: str) -> None:
    graph, good, bad = CASES[name]
    async with (
        perdure.connect("memory://") as db,
        Runtime(db, {"graph": graph}, settings=Settings(poll=0.1), all_tenants=True) as runtime,
        served(create_app(None), ServerState.over(runtime, OpenGate())) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        for thread_id in ("sound", "broken"):
            await _ok(http, "POST", "/threads", {"thread_id": thread_id, "metadata": {"graph_id": "graph"}})
            await _ok(
                http, "POST", f"/threads/{thread_id}/runs/wait", {"assistant_id": "graph", "input": good}
            )
        before = await _ok(http, "GET", "/threads/broken")
        failed = await _ok(http, "POST", "/threads/broken/runs/wait", {"assistant_id": "graph", "input": bad})
        assert "__error__" in failed
        row = await _ok(http, "GET", "/threads/broken")
        assert (row["status"], row["error"] is None) == ("error", False)
        if name != "model":
            assert SECRET not in str(row["values"].get("said"))
            for key in ("messages", "said", "notes"):
                kept = before["values"].get(key)
                assert kept is None or row["values"][key][: len(kept)] == kept
        for state in (
            await _ok(http, "GET", "/threads/broken/state?subgraphs=true"),
            (
                await _ok(
                    http, "POST", "/threads/broken/state/checkpoint", {"checkpoint": {}, "subgraphs": True}
                )
            ),
        ):
            assert state["values"] == row["values"]
            (mark,) = state["metadata"][REFUSED]
            assert SECRET not in str(mark)
        states = await _ok(http, "POST", "/threads/broken/history", {"limit": 100})
        assert states[0]["checkpoint_id"] == state["checkpoint_id"]
        assert len(states) >= 4
        patched = await _ok(http, "PATCH", "/threads/broken", {"metadata": {"a": 1}})
        assert (patched["metadata"]["a"], patched["values"]) == (1, row["values"])
        copied = await _ok(http, "POST", "/threads/broken/copy")
        assert copied["values"] == row["values"]
        rows = {each["thread_id"]: each for each in await _ok(http, "POST", "/threads/search", {})}
        assert rows.keys() == {"sound", "broken", copied["thread_id"]}
        assert rows["broken"]["values"] == row["values"]
        assert rows["sound"] == await _ok(http, "GET", "/threads/sound")
        assert await _ok(http, "POST", "/threads/count", {"values": row["values"]}) >= 2
        after = await http.post("/threads/broken/state", json={"values": good, "as_node": "node"})
        assert after.status_code == 200, after.text
        mended = await _ok(http, "GET", "/threads/broken/state")
        assert REFUSED not in mended["metadata"]


@run
async def test_an_edit_that_any_exception_refuses_is_the_clients_error() -> None:
    async with (
        perdure.connect("memory://") as db,
        Runtime(db, {"graph": _raising(_Own)}, settings=Settings(poll=0.1), all_tenants=True) as runtime,
        served(create_app(None), ServerState.over(runtime, OpenGate())) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        body = {"thread_id": "t", "metadata": {"graph_id": "graph"}}
        await _ok(http, "POST", "/threads", body)
        await _ok(http, "POST", "/threads/t/runs/wait", {"assistant_id": "graph", "input": {"ask": "hello"}})
        before = await _ok(http, "GET", "/threads/t/state")
        answer = await http.post("/threads/t/state", json={"values": {"said": [SECRET]}, "as_node": "node"})
        assert answer.status_code == 400
        assert await _ok(http, "GET", "/threads/t/state") == before
        steps = [{"updates": [{"values": {"said": [SECRET]}, "as_node": "__start__"}]}]
        refused = await http.post("/threads", json={**body, "thread_id": "new", "supersteps": steps})
        assert refused.status_code == 400
        assert (await http.get("/threads/new")).status_code == 404
