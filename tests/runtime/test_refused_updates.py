"""A run whose update was refused runs again: its node is called once more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.runtime import Agent, Runtime, Settings
from perdure.runtime.options import Options


def _graph(called: list[str], faults: list[int], *, waits: bool = False) -> Any:
    """A graph whose first calls remove a message that does not exist."""

    def answer(state: MessagesState) -> dict[str, Any]:
        called.append("answer")
        if faults:
            faults.pop()
            return {"messages": [RemoveMessage(id="nobody")]}
        return {"messages": [AIMessage("ok", id="answer")]}

    def beside(state: MessagesState) -> dict[str, Any]:
        called.append("beside")
        return {"messages": [AIMessage("beside", id="beside")]}

    async def aanswer(state: MessagesState) -> dict[str, Any]:
        return answer(state)

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer if waits else aanswer)
    builder.add_node("beside", beside)
    builder.add_edge(START, "answer")
    builder.add_edge(START, "beside")
    return builder.compile()


@pytest.mark.parametrize("waits", [False, True])
def test_the_next_attempt_calls_the_node_again_and_no_other(waits: bool) -> None:
    called: list[str] = []

    async def main() -> list[str]:
        settings = Settings(attempts=3, backoff=0.01, max_backoff=0.02, poll=0.05)
        graph = _graph(called, [1], waits=waits)
        async with (
            perdure.connect("memory://", migrate=True) as db,
            Runtime(db, Agent(graph), settings=settings) as runtime,
        ):
            run = await runtime.wait(await runtime.accept("t", "hello"))
            assert run.state == "done", run
            reader = graph.copy({"checkpointer": db.checkpointer()})
            state = await reader.aget_state({"configurable": {"thread_id": "t"}})
            return [message.text for message in state.values["messages"]]

    assert sorted(asyncio.run(main())) == ["beside", "hello", "ok"]
    assert (called.count("answer"), called.count("beside")) == (2, 1)


def test_a_failed_run_is_gone_on_with() -> None:
    called: list[str] = []

    async def main() -> None:
        settings = Settings(attempts=1, poll=0.05)
        async with (
            perdure.connect("memory://", migrate=True) as db,
            Runtime(db, Agent(_graph(called, [1])), settings=settings) as runtime,
        ):
            keeping = Options(on_failure="keep")
            failed = await runtime.wait(await runtime.accept("t", "hello", options=keeping))
            assert failed.state == "failed"
            assert (await runtime.wait(await runtime.submit("t", None, options=keeping))).state == "done"

    asyncio.run(main())
    assert called.count("beside") == 1
