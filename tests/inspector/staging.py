"""Databases for the inspector's tests: threads that real graphs made, and large ones written in bulk."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt

from perdure.database.blocking import SyncDatabase

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
HOSTILE_ID = "a/b?c=1&d=<script>document.title='owned'</script>#\"' ö%2F"


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    facts: dict[str, Any]


def graph() -> StateGraph[Any, Any, Any, Any]:
    """A graph with a tool, two parallel nodes, and a question before anything is sent."""

    def plan(state: State) -> dict[str, Any]:
        text = state["messages"][-1].text
        if text.startswith("send"):
            call = {"name": "send", "args": {"to": "board"}, "id": "call-1"}
            return {"messages": [AIMessage("", id="plan", tool_calls=[call])]}
        return {"messages": [AIMessage(f"About {text}.")]}

    def send(state: State) -> dict[str, Any]:
        answer = interrupt({"question": "May I send it?"})
        return {"messages": [ToolMessage(f"sent: {answer}", tool_call_id="call-1")]}

    def left(state: State) -> dict[str, Any]:
        return {"notes": ["left"]}

    def right(state: State) -> dict[str, Any]:
        return {"notes": ["right"], "facts": {"turns": len(state["messages"])}}

    def route(state: State) -> list[str]:
        last = state["messages"][-1] if state["messages"] else None
        return ["send"] if isinstance(last, AIMessage) and last.tool_calls else ["left", "right"]

    built = StateGraph(State)
    for node in (plan, send, left, right):
        built.add_node(node.__name__, node)
    built.add_edge(START, "plan")
    built.add_conditional_edges("plan", route, ["send", "left", "right"])
    built.add_edge("send", END)
    return built


def compiled(database: SyncDatabase) -> CompiledStateGraph[Any, Any, Any, Any]:
    return graph().compile(checkpointer=database.checkpointer())


def at(thread_id: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread_id, **more}}


def say(app: CompiledStateGraph[Any, Any, Any, Any], thread_id: str, text: str) -> None:
    app.invoke({"messages": [HumanMessage(text)], "notes": [], "facts": {}}, at(thread_id))


def fill(database: SyncDatabase) -> None:
    """Store a few threads: one with a fork, an edit and a tag, one that waits, one that is hostile."""
    app = compiled(database)
    for text in ("tides", "the moon", "cats"):
        say(app, "plain", text)
    history = list(app.get_state_history(at("plain")))
    first = history[-2].values["messages"][0]
    app.update_state(at("plain"), {"messages": [HumanMessage("tides, please", id=first.id)]}, as_node="plan")
    app.update_state(
        at("plain"), {"messages": [RemoveMessage(history[0].values["messages"][1].id)]}, as_node="plan"
    )
    app.update_state(history[4].config, {"notes": ["forked"]}, as_node="plan")
    database.tag("plain", "approved", history[2].config["configurable"]["checkpoint_id"])
    say(app, "waiting", "send the minutes")
    say(app, "answered", "send the minutes")
    app.invoke(Command(resume="yes"), at("answered"))
    say(app, HOSTILE_ID, HOSTILE)
