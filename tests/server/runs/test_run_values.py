"""A run shows its clients what a call of the graph returns, and not the rest of its state.

Covers perdure.server.runs.run_values, and the values and updates of streams.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from tests.server.hosting import Served, run, serving

SECRET = "credit score 512"


class _Asked(TypedDict):
    question: str


class _Answer(TypedDict):
    answer: str


class _Whole(TypedDict, total=False):
    question: str
    answer: str
    notes: str


def _think(state: _Whole) -> dict[str, Any]:
    return {"notes": SECRET, "answer": "a first thought"}


def _answer(state: _Whole) -> dict[str, Any]:
    if state["question"] == "ask":
        return {"answer": str(interrupt("which?")), "notes": SECRET}
    return {"answer": "yes"}


def _compile() -> Any:
    builder = StateGraph(_Whole, input_schema=_Asked, output_schema=_Answer)
    builder.add_node("think", _think).add_node("answer", _answer)
    builder.add_edge(START, "think").add_edge("think", "answer")
    return builder.compile()


async def _call_tool(server: Served, arguments: dict[str, Any]) -> str:
    params = {"name": "private", "arguments": arguments}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    accepts = {"accept": "application/json, text/event-stream"}
    return (await (await server.http()).post("/mcp", json=body, headers=accepts)).text


@run
async def test_the_result_of_a_run_has_the_outputs_alone() -> None:
    async with serving("memory://", of={"private": _compile()}) as server:
        client = await server.client()
        asked: Any = {"question": "well?"}
        assert await client.runs.wait(None, "private", input=asked) == {"answer": "yes"}
        thread = (await client.threads.create())["thread_id"]
        assert await client.runs.wait(thread, "private", input=asked) == {"answer": "yes"}
        begun = (await client.runs.list(thread))[0]["run_id"]
        question = await client.runs.wait(thread, "private", input={"question": "ask"})
        assert isinstance(question, dict)
        assert question["answer"] == "a first thought"
        assert set(question) == {"answer", "__interrupt__"}
        assert await client.runs.join(thread, begun) == {"answer": "yes"}
        resumed = await client.runs.wait(thread, "private", command={"resume": "this"})
        assert resumed == {"answer": "this"}
        shown = await _call_tool(server, asked)
        assert json.dumps({"answer": "yes"})[1:-1].replace(" ", "") in shown.replace(" ", "")
        assert SECRET not in shown
        # The state of a thread is that of the graph, for those who may read it.
        assert (await client.threads.get_state(thread))["values"]["notes"] == SECRET  # type: ignore[call-overload]


@pytest.mark.parametrize("is_resumable", [False, True])
@pytest.mark.parametrize("mode", ["values", "updates"])
def test_a_stream_has_the_outputs_alone(mode: Any, is_resumable: bool) -> None:
    @run
    async def stream() -> None:
        async with serving("memory://", of={"private": _compile()}) as server:
            client = await server.client()
            thread = (await client.threads.create())["thread_id"]
            seen = [
                part
                async for part in client.runs.stream(
                    thread,
                    "private",
                    input={"question": "well?"},
                    stream_mode=mode,
                    stream_resumable=is_resumable,
                )
            ]
            shown = [part.data for part in seen if part.event == mode]
            if mode == "values":
                assert shown[-1] == {"answer": "yes"}
            else:
                assert shown == [{"think": {"answer": "a first thought"}}, {"answer": {"answer": "yes"}}]
            assert SECRET not in str(seen)

    stream()
