"""Labels of side effects: two effects of a step never share one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import perdure
from perdure.errors import NotAllowed
from perdure.runtime import effect, effects
from tests.runtime.nodes.test_effects import graph, working


class Sender:
    def __init__(self, name: str) -> None:
        self.name = name

    async def send(self, text: str) -> str:
        return f"{self.name} {text}"


async def charge(amount: int) -> str:
    return f"receipt {amount}"


async def run_of(node: Callable[[MessagesState], Awaitable[Any]]) -> tuple[str, str]:
    async with perdure.connect("memory://") as db, working(db, graph(node)) as app:
        run = await app.wait(await app.accept("t", "go"))
        assert run.attempts == 1, "another attempt would repeat what the first was not able to record"
        return run.state, str(run.note)


def test_two_effects_of_a_step_with_one_label_are_refused() -> None:
    async def node(state: MessagesState) -> dict[str, Any]:
        first = await effect(Sender("sms").send, "x")
        second = await effect(Sender("mail").send, "x")
        return {"messages": [AIMessage(f"{first} {second}")]}

    state, note = asyncio.run(run_of(node))
    assert state == "failed"
    assert "two side effects of one step have the label" in note
    assert "Sender.send" in note


@pytest.mark.parametrize("call", [functools.partial(charge, 1), lambda: charge(1)], ids=["partial", "lambda"])
def test_a_function_without_a_name_needs_a_label(call: Callable[[], Awaitable[str]]) -> None:
    with pytest.raises(NotAllowed, match="effects\\(call, label=…\\)"):
        effects(call)

    async def node(state: MessagesState) -> dict[str, Any]:
        first = await effects(call, label="charge")()
        second = await effects(call, label="charge", number=1)()
        return {"messages": [AIMessage(f"{first} {second}")]}

    assert asyncio.run(run_of(node))[0] == "done"


def test_an_effect_that_failed_may_be_called_again_in_its_step() -> None:
    calls: list[int] = []

    async def flaky() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("once")
        return len(calls)

    async def node(state: MessagesState) -> dict[str, Any]:
        with pytest.raises(ConnectionError):
            await effect(flaky)
        return {"messages": [AIMessage(str(await effect(flaky)))]}

    assert asyncio.run(run_of(node))[0] == "done"
    assert len(calls) == 2


def test_parallel_calls_of_a_tool_do_not_share_a_result() -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return await effect(charge, amount)

    def model(state: MessagesState) -> dict[str, Any]:
        calls = [{"name": "pay", "args": {"amount": n}, "id": str(n)} for n in (10, 20)]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    builder = StateGraph(MessagesState).add_node(model).add_node("tools", ToolNode([pay]))
    agent = builder.add_edge(START, "model").add_edge("model", "tools").compile()

    async def main() -> tuple[str, str]:
        async with perdure.connect("memory://") as db, working(db, agent) as app:
            run = await app.wait(await app.accept("t", "go"))
            return run.state, str(run.note)

    state, note = asyncio.run(main())
    assert state == "failed"
    assert "two side effects of one step" in note
