"""Text with half of a character that a graph makes: responses and streams are JSON for strict parsers.

LangGraph's SDK parses with orjson, which refuses a lone surrogate with all that stands beside it.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from tests.server.acceptance.saying import said
from tests.server.hosting import run, serving
from tests.server.mcp.test_exchange import tools

HALF, SHOWN = "cut \ud83d", "cut \ufffd"


async def _cut(state: MessagesState) -> dict[str, Any]:
    match state["messages"][-1].text:
        case "ask":
            return {"messages": [AIMessage(str(interrupt({"question": HALF})))]}
        case "custom":
            get_stream_writer()({HALF: HALF})
        case "boom":
            raise ValueError(HALF)
        case _:
            pass
    call = {"name": "mail", "args": {"to": HALF}, "id": "c"}
    return {"messages": [AIMessage(HALF, tool_calls=[call])]}


def graph() -> Any:
    return StateGraph(MessagesState).add_node("cut", _cut).add_edge(START, "cut").compile()


@pytest.mark.parametrize("how", ["value", "ask", "custom", "boom"])
@run
async def test_what_a_graph_cuts_every_client_can_read(near: str, how: str) -> None:
    modes: Any = ["values", "updates", "messages-tuple", "custom", "tasks", "checkpoints", "debug", "events"]
    async with serving(near, of={"cut": graph()}, attempts=1) as server:
        client, http = await server.client(), await server.http()
        await client.threads.create(thread_id="whole", graph_id="cut")
        ended: Any = await client.runs.wait(
            "t", "cut", input=said(how), if_not_exists="create", raise_error=False
        )
        assert SHOWN in str(ended)
        state = await client.threads.get_state("t")
        assert (SHOWN in str(state)) is (how != "boom")
        assert len(await client.threads.search()) == 2
        assert await client.threads.get_history("t")
        assert (await client.threads.get("t"))["thread_id"] == "t"
        streamed = [
            part
            async for part in client.runs.stream(
                "s", "cut", input=said(how), stream_mode=modes, if_not_exists="create"
            )
        ]
        assert SHOWN in str(streamed)
        for method in ("state.get", "agent.getTree", "state.listCheckpoints"):
            answer = await http.post("/threads/t/commands", json={"id": 1, "method": method, "params": {}})
            assert orjson.loads(answer.content)["type"] == "success"


@run
async def test_a_call_of_a_tool_is_answered_with_what_a_graph_cuts(near: str) -> None:
    async with serving(near, of={"cut": graph()}, attempts=1) as server, tools(server) as client:
        for how in ("value", "ask", "custom", "boom"):
            result = await client.call_tool("cut", said(how))
            assert result.is_error is (how in ("ask", "boom"))
            assert SHOWN in str(result.content)
