"""Agents with a schema: what waits across a deploy is answered, whatever the client knows it by."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from perdure.runtime import Agent
from perdure.schema import Schema, rename_channel, rename_node
from tests.runtime.graphs import Storage, go, working


class Before(TypedDict, total=False):
    answer: str


class After(TypedDict, total=False):
    reply: str


def before() -> Any:
    builder = StateGraph(Before).add_node("ask", lambda _: {"answer": interrupt("why?")})
    return builder.add_edge(START, "ask").compile()


def after() -> Agent:
    builder = StateGraph(After).add_node("question", lambda _: {"reply": interrupt("why?")})
    steps = [rename_node(2, "ask", "question"), rename_channel(2, "answer", "reply")]
    return Agent(builder.add_edge(START, "question").compile(), schema=Schema(2, steps))


@pytest.mark.parametrize("by_id", [False, True])
def test_a_question_from_before_a_deploy_is_answered(storage: Storage, by_id: bool) -> None:
    async def main() -> None:
        async with working(storage.database(), before()) as runtime:
            run = await runtime.wait(await runtime.submit("ada", {"answer": ""}), 30)
            assert run.state == "waiting"
        async with working(storage.database(), after()) as runtime:
            known = run.note["interrupts"][0]["id"] if by_id else None
            ended = await runtime.wait(await runtime.answer("ada", "so", interrupt_id=known), 30)
            assert ended.state == "done"
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert (state.values, state.next) == ({"reply": "so"}, ())

    go(main())
