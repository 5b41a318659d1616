"""The schema of an answer goes with its question; and the root answers."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from tests.server.hosting import run, serving

SCHEMA = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
INPUT: Any = {"messages": [{"role": "user", "content": "hi"}]}


def _ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(str(interrupt("sure?", response_schema=SCHEMA)))]}


@run
async def test_a_question_is_sent_with_the_schema_of_its_answer(near: str) -> None:
    builder: Any = StateGraph(MessagesState)
    graph = builder.add_node("ask", _ask).add_edge(START, "ask").compile()
    async with serving(near, of={"ask": graph}) as served:
        client = await served.client()
        thread = (await client.threads.create())["thread_id"]
        asked: list[Any] = []
        async for part in client.runs.stream(thread, "ask", input=INPUT, stream_mode="updates"):
            data: Any = part.data
            asked += data.get("__interrupt__", []) if isinstance(data, dict) else []
        assert [one["response_schema"] for one in asked] == [SCHEMA]


@run
async def test_the_root_answers(near: str) -> None:
    async with serving(near) as served:
        found = await (await served.http()).get("/")
        assert (found.status_code, found.json()) == (200, {"ok": True})
