"""The fixtures that users import: half a graph, everything thrown away, resumed to the same end."""

from __future__ import annotations

from typing import Any

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt

from perdure import PerdureSaver
from perdure.testing.fixtures import Cold, cold

__all__ = ["cold"]

THREAD: Any = {"configurable": {"thread_id": "ada"}}


def compiled(saver: PerdureSaver) -> CompiledStateGraph[Any, Any, Any, Any]:
    builder = StateGraph(MessagesState)
    builder.add_node("plan", lambda state: {"messages": [("ai", "a plan")]})
    builder.add_node("ask", lambda state: {"messages": [("ai", f"told: {interrupt('go on?')}")]})
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "ask")
    return builder.compile(checkpointer=saver)


def test_half_a_graph_is_resumed_cold(cold: Cold) -> None:
    with cold() as db:
        half = compiled(db.checkpointer()).invoke({"messages": [("user", "hello")]}, THREAD)
        assert len(half["messages"]) == 2
    with cold() as db:
        graph = compiled(db.checkpointer())
        assert graph.get_state(THREAD).next == ("ask",)
        whole = graph.invoke(Command(resume="yes"), THREAD)
    assert [m.content for m in whole["messages"]] == ["hello", "a plan", "told: yes"]
