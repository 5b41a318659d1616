"""What LangGraph makes of a crash by itself, with its own saver: the audit allows for this and nothing else.

When this test fails LangGraph has changed, and the allowance in ``audit.py`` has to go.
"""

import operator
from threading import Event
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


class PutsTheRootLate(InMemorySaver):
    """Ends a run when the put of its second step comes, which waits until its subgraph has stored a step."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = True
        self._is_ahead = Event()

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> RunnableConfig:
        namespace = config["configurable"]["checkpoint_ns"]
        if self.ends and namespace == "" and metadata["step"] == 1:
            assert self._is_ahead.wait(60)
            raise ConnectionError("the process ends before the step that calls the subgraph is stored")
        stored = super().put(config, checkpoint, metadata, new_versions)
        if namespace == "call" and metadata["step"] == 1:
            self._is_ahead.set()
        return stored


def test_a_stateful_subgraph_may_be_stored_ahead_of_its_run_in_durability_async() -> None:
    inner = StateGraph(State)
    inner.add_node("note", lambda state: {"notes": [f"{state['topic']} {len(state['notes'])}"]})
    inner.add_edge(START, "note")
    stateful = inner.compile(checkpointer=True)
    outer = StateGraph(State)
    outer.add_node("first", lambda _: {"notes": []})
    outer.add_node("call", lambda _: stateful.invoke({"topic": "one", "notes": []}))
    outer.add_edge(START, "first")
    outer.add_edge("first", "call")
    saver = PutsTheRootLate()
    graph = outer.compile(saver)
    config: RunnableConfig = {"configurable": {"thread_id": "t"}, "metadata": {"run_id": "one"}}

    def ask() -> Any:
        return graph.invoke({"topic": "one", "notes": []}, config, durability="async")["notes"]

    with pytest.raises(ConnectionError):
        ask()
    saver.ends = False
    assert ask() == ["one 0", "one 1"]
