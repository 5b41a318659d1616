"""Threads of every shape that a genuine saver makes, and the comparison of two savers through a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from perdure.imports.channel_versions import translate_versions

RESUME: Command[Any] = Command(resume="yes")


def _joined(said: list[str], more: Any) -> list[str]:
    return [*said, *(word for words in more for word in words)]


class Talk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    turns: int
    notes: dict[str, Any]


class Long(TypedDict, total=False):
    said: Annotated[list[str], DeltaChannel(_joined)]
    often: Annotated[list[str], DeltaChannel(_joined, snapshot_frequency=3)]


def talk(saver: BaseCheckpointSaver[Any]) -> Any:
    """A graph with messages, tool calls, parallel branches and a question at its end."""

    def answer(state: Talk) -> Talk:
        turn = state.get("turns", 0) + 1
        call = {"name": "look", "args": {"at": turn}, "id": f"call-{turn}"}
        return {
            "messages": [
                AIMessage("let me look", tool_calls=[call], id=f"ai-{turn}"),
                ToolMessage([{"type": "text", "text": "seen"}], tool_call_id=f"call-{turn}", id=f"t-{turn}"),
            ],
            "turns": turn,
            "notes": {"last": turn, "raw": b"\x00\xff", "wide": "ž" * 40},
        }

    def side(state: Talk) -> Talk:
        return {"messages": [AIMessage("aside", id=f"aside-{state.get('turns')}")]}

    def ask(state: Talk) -> Talk:
        return {"messages": [AIMessage(interrupt("go on?"), id=f"asked-{state.get('turns')}")]}

    def spread(state: Talk) -> list[Send]:
        return [Send("side", {"turns": state.get("turns", 0)}), Send("ask", {"turns": state.get("turns", 0)})]

    builder = StateGraph(Talk)
    builder.add_node("answer", answer).add_node("side", side).add_node("ask", ask)
    builder.add_edge(START, "answer").add_conditional_edges("answer", spread, ["side", "ask"])
    return builder.add_edge("side", END).add_edge("ask", END).compile(checkpointer=saver)


def nested(saver: BaseCheckpointSaver[Any]) -> Any:
    """A graph with a subgraph that is checkpointed, keeps its own state, and asks a question."""

    def think(state: Talk) -> Talk:
        return {"messages": [AIMessage("hm", id=f"hm-{len(state['messages'])}")]}

    def ask(state: Talk) -> Talk:
        return {"messages": [AIMessage(interrupt("inside?"), id=f"in-{len(state['messages'])}")]}

    inner = StateGraph(Talk).add_node("think", think).add_node("ask", ask)
    inner.add_edge(START, "think").add_edge("think", "ask")
    outer = StateGraph(Talk).add_node("inner", inner.compile()).add_edge(START, "inner")
    return outer.compile(checkpointer=saver)


def long(saver: BaseCheckpointSaver[Any]) -> Any:
    """A graph with DeltaChannels."""

    def reply(state: Long) -> Long:
        return {"said": [f"reply {len(state['said'])}"], "often": [f"o{len(state.get('often', []))}"]}

    return StateGraph(Long).add_node("reply", reply).add_edge(START, "reply").compile(checkpointer=saver)


@dataclass(frozen=True)
class Shape:
    """A kind of thread: its graph, and what was done in it."""

    graph: Any
    make: Any


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def _talked(graph: Any, thread: str, turns: int = 2) -> None:
    for n in range(turns):
        graph.invoke({"messages": [HumanMessage(f"message {n}", id=f"h-{n}")]}, config(thread))
        if n + 1 < turns:
            graph.invoke(RESUME, config(thread))


def _forked(graph: Any, thread: str) -> None:
    """Two branches; the newest is the one that was made from an old checkpoint."""
    _talked(graph, thread, 3)
    graph.invoke(RESUME, config(thread))
    past = list(graph.get_state_history(config(thread)))[4]
    graph.update_state(past.config, {"turns": 70})
    graph.invoke(None, past.config)


def _finished(graph: Any, thread: str) -> None:
    _talked(graph, thread)
    graph.invoke(RESUME, config(thread))


def _inside(graph: Any, thread: str) -> None:
    for n in range(2):
        graph.invoke({"messages": [HumanMessage(f"nested {n}", id=f"h-{n}")]}, config(thread))
        graph.invoke(RESUME, config(thread))
    graph.invoke({"messages": [HumanMessage("last", id="h-last")]}, config(thread))


def _said(graph: Any, thread: str, turns: int = 7) -> None:
    for n in range(turns):
        graph.invoke({"said": [f"word {n}"]}, config(thread))


SHAPES = {
    "parked": Shape(talk, _talked),
    "finished": Shape(talk, _finished),
    "forked": Shape(talk, _forked),
    "nested": Shape(nested, _inside),
    "delta": Shape(long, _said),
    "odd/ name: ü·%": Shape(talk, _finished),
}


def fill(saver: BaseCheckpointSaver[Any], threads: int) -> dict[str, Shape]:
    """Make threads of every shape in turn; return the shape by thread."""
    made: dict[str, Shape] = {}
    for n in range(threads):
        name, shape = list(SHAPES.items())[n % len(SHAPES)]
        thread = f"{name} {n}"
        shape.make(shape.graph(saver), thread)
        made[thread] = shape
    return made


def go_on(saver: BaseCheckpointSaver[Any], thread: str, shape: Shape) -> Any:
    """Answer the open question, if there is one, else take another turn; return the state after it."""
    graph = shape.graph(saver)
    if graph.get_state(config(thread)).next:
        graph.invoke(RESUME, config(thread))
    elif shape.graph is long:
        graph.invoke({"said": ["one more"]}, config(thread))
    else:
        graph.invoke({"messages": [HumanMessage("one more", id="one-more")]}, config(thread))
    return graph.get_state(config(thread)).values


def fork(saver: BaseCheckpointSaver[Any], thread: str, shape: Shape) -> Any:
    """Go on from the oldest state that has something to do; return the state after it."""
    graph = shape.graph(saver)
    past = [s for s in graph.get_state_history(config(thread)) if s.next and "__start__" not in s.next][-1]
    state = graph.invoke(None, past.config)
    # A question's id comes from the id of the new checkpoint.
    return {**state, "__interrupt__": [question.value for question in state.get("__interrupt__", ())]}


def seen(saver: BaseCheckpointSaver[Any], thread: str, shape: Shape) -> list[Any]:
    """Everything that a graph shows of a thread: state, history, next tasks, open questions."""
    graph = shape.graph(saver)
    return [
        _snapshot(graph.get_state(config(thread), subgraphs=True)),
        *map(_snapshot, graph.get_state_history(config(thread))),
    ]


def raw(saver: BaseCheckpointSaver[Any], thread: str) -> dict[tuple[str, str], Any]:
    """Every checkpoint of every namespace as the saver lists it."""
    return {
        (t.config["configurable"]["checkpoint_ns"], t.checkpoint["id"]): raw_of(t)
        for t in saver.list(config(thread))
    }


def raw_of(found: Any) -> tuple[Any, ...]:
    """A checkpoint's parent, metadata, content and pending writes."""
    return (
        _plain_config(found.parent_config),
        dict(found.metadata),
        {k: v for k, v in translate_versions(found.checkpoint).items() if v},
        # DynamoDBSaver has them in the order of its keys' text.
        sorted(found.pending_writes or (), key=repr),
    )


def _snapshot(state: Any) -> Any:
    def tasks() -> Iterator[Any]:
        for task in state.tasks:
            if isinstance(task.state, dict):
                inner = _plain_config(task.state)
            else:
                inner = None if task.state is None else _snapshot(task.state)
            yield (task.id, task.name, task.path, task.error, task.interrupts, inner, task.result)

    return (
        state.values,
        state.next,
        _plain_config(state.config),
        dict(state.metadata or {}),
        state.created_at,
        _plain_config(state.parent_config),
        list(tasks()),
        state.interrupts,
    )


def _plain_config(found: Any) -> Any:
    if found is None:
        return None
    wanted = ("thread_id", "checkpoint_ns", "checkpoint_id")
    return {k: str(v) for k, v in found["configurable"].items() if k in wanted}
