"""A graph whose conversation is kept elsewhere leaves nothing in memory."""

from __future__ import annotations

import asyncio
import gc
import re
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from perdure.errors import NotAllowed
from perdure.history.disposable_saver import DisposableSaver


def _answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("x" * 1000)]}


def _graph(saver: DisposableSaver, node: Any = _answer) -> Any:
    return StateGraph(MessagesState).add_node("answer", node).add_edge(START, "answer").compile(saver)


@pytest.mark.slow
def test_a_thousand_warm_calls_leave_nothing_in_memory() -> None:
    saver = DisposableSaver()
    graph = _graph(saver)

    def calls(count: int) -> int:
        for _ in range(count):
            with saver.call() as config:
                assert len(graph.invoke({"messages": ["hi"]}, config)["messages"]) == 2
                assert saver.threads == 1
        gc.collect()
        return len(gc.get_objects())

    calls(50)
    after_100 = calls(50)
    assert calls(900) - after_100 < 450, "less than half an object for each call"
    assert saver.threads == 0


def test_calls_at_once_have_threads_of_their_own() -> None:
    saver = DisposableSaver()
    graph = _graph(saver)

    async def one(n: int) -> None:
        with saver.call({"configurable": {"user": n}, "tags": ["t"]}) as config:
            assert config["configurable"]["user"] == n
            assert config["tags"] == ["t"]
            assert len((await graph.ainvoke({"messages": [str(n)]}, config))["messages"]) == 2

    async def all_at_once() -> None:
        await asyncio.gather(*(one(n) for n in range(20)))

    asyncio.run(all_at_once())
    assert saver.threads == 0


def test_within_a_call_a_node_may_interrupt() -> None:
    def asking(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("really?"))]}

    saver = DisposableSaver()
    graph = _graph(saver, asking)
    with saver.call() as config:
        assert graph.invoke({"messages": ["hi"]}, config)["__interrupt__"][0].value == "really?"
        assert graph.invoke(Command(resume="yes"), config)["messages"][-1].content == "yes"


def test_a_call_that_fails_leaves_nothing() -> None:
    def failing(state: MessagesState) -> dict[str, Any]:
        raise RuntimeError("no")

    saver = DisposableSaver()
    graph = _graph(saver, failing)
    with pytest.raises(RuntimeError, match="no"), saver.call() as config:
        graph.invoke({"messages": ["hi"]}, config)
    assert saver.threads == 0


def test_a_thread_outside_a_call_is_refused() -> None:
    saver = DisposableSaver()
    graph = _graph(saver)
    with pytest.raises(NotAllowed, match=re.escape("saver.call()")):
        graph.invoke({"messages": ["hi"]}, {"configurable": {"thread_id": "mine"}})
    with saver.call() as config:
        pass
    with pytest.raises(NotAllowed):
        graph.invoke({"messages": ["hi"]}, config)
    assert saver.threads == 0
