"""A graph that is served by a process which has LangGraph alone: branches, joins, Sends, questions, a
subgraph, and values of types that JSON does not have."""

from __future__ import annotations

import operator
from datetime import datetime
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict

WHEN = datetime(2026, 1, 2, 3, 4, 5)
CALL = {"name": "look", "args": {"at": 1}, "id": "call-1"}


class State(TypedDict, total=False):
    """What the agent knows."""

    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    seen: datetime
    tags: set[str]
    item: str


class Inner(TypedDict, total=False):
    """What the subgraph knows."""

    notes: Annotated[list[str], operator.add]
    inner: str


def answer(state: State) -> State:
    """Answer, with a call of a tool if that was asked for."""
    said = str(state["messages"][-1].content)
    calls = [CALL] if said == "tool" else []
    return {"messages": [AIMessage(f"you said {said}", tool_calls=calls)], "seen": WHEN, "tags": {"a", "b"}}


def ask(state: State) -> State:
    """Ask a question."""
    return {"messages": [AIMessage(f"answer {interrupt({'question': 'sure?'})}")]}


def left(state: State) -> State:
    """End at once."""
    return {"notes": ["left"]}


def right(state: State) -> State:
    """End after an answer."""
    return {"notes": [f"right {interrupt('right?')}"]}


def meet(state: State) -> State:
    """Begin when both have ended."""
    return {"notes": ["met"]}


def work(state: State) -> State:
    """Work on an item; ask about one of them."""
    item = state.get("item")
    return {"notes": [f"{item} {interrupt('which?') if item == 'b' else ''}".strip()]}


def look(state: State) -> State:
    """Answer the call of the tool."""
    return {"messages": [ToolMessage("seen", tool_call_id="call-1")]}


def route(state: State) -> Any:
    """Choose by the word that was said."""
    word = str(state["messages"][-2].content)
    chosen: dict[str, Any] = {
        "both": ["left", "right"],
        "send": [Send("work", {"item": item}) for item in "ab"],
        "tool": "look",
    }
    return chosen.get(word, word if word in ("ask", "inner") else END)


def first(state: Inner) -> Inner:
    """Note something inside."""
    return {"inner": "x"}


def second(state: Inner) -> Inner:
    """Ask from inside."""
    return {"notes": [f"inner {interrupt('inner?')}"]}


_inner = StateGraph(Inner).add_node("first", first).add_node("second", second)
_inner.add_edge(START, "first").add_edge("first", "second")

builder = StateGraph(State).add_node(answer).add_node(ask).add_node(left).add_node(right)
builder.add_node(meet).add_node(work).add_node(look)
builder.add_node("inner", _inner.compile())
builder.add_edge(START, "answer").add_edge(["left", "right"], "meet")
builder.add_conditional_edges("answer", route, ["ask", "left", "right", "work", "look", "inner", END])
graph = builder.compile()
