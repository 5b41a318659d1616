"""What LangGraph makes of a crash by itself, with its own saver: the audit allows for this and nothing else.

When this test fails LangGraph has changed, and the allowance in ``audit.py`` has to go.
"""

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph


class State(TypedDict):
    topic: str
    notes: Annotated[list[str], operator.add]


def test_a_resumed_run_calls_a_stateful_subgraph_without_its_new_input() -> None:
    inner = StateGraph(State)
    inner.add_node("note", lambda state: {"notes": [state["topic"]]})
    inner.add_edge(START, "note")
    stateful = inner.compile(checkpointer=True)
    crashes = iter([False, True, False])

    def call(state: State) -> dict[str, Any]:
        if next(crashes):
            raise ConnectionError("the process ends before the subgraph stores anything")
        return {"notes": stateful.invoke({"topic": state["topic"], "notes": []})["notes"]}

    outer = StateGraph(State)
    outer.add_node("call", call)
    outer.add_edge(START, "call")
    graph = outer.compile(InMemorySaver())

    def ask(topic: str) -> Any:
        config: RunnableConfig = {"configurable": {"thread_id": "t"}, "metadata": {"run_id": topic}}
        return graph.invoke({"topic": topic, "notes": []}, config)["notes"]

    assert ask("one") == ["one"]
    with pytest.raises(ConnectionError):
        ask("two")
    assert ask("two") == ["one", "one"]
