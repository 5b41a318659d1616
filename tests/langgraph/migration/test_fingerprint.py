"""The fingerprint of a graph changes with what threads depend on, and with nothing else."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from enum import Enum
from typing import Annotated, Any, List, Literal, NotRequired, Optional, Union  # noqa: UP035 - older ways to write a type

import pytest
from langchain_core.messages import AnyMessage
from langgraph.channels import DeltaChannel, EphemeralValue
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel, create_model
from typing_extensions import TypedDict

import perdure
from perdure.langgraph.migration.fingerprint import fingerprint
from perdure.runtime import isolated_subgraph
from perdure.schema import Schema, convert, drop, rename_channel, rename_node
from perdure.schema.schema_file import RecordedSchema, contradictions, differences, verdict
from perdure.schema.steps import Step


def longest(left: list[str], right: list[str]) -> list[str]:
    return max(left, right, key=len)


def shortest(left: list[str], right: list[str]) -> list[str]:
    return min(left, right, key=len)


def folded(held: list[str], updates: list[list[str]]) -> list[str]:
    return [*held, *(word for update in updates for word in update)]


FIELDS: dict[str, Any] = {
    "messages": Annotated[list[AnyMessage], add_messages],
    "topic": str,
    "notes": Annotated[list[str], operator.add],
    "count": int,
}


def state_of(fields: dict[str, Any], *, name: str = "S") -> Any:
    """Return the state, a TypedDict, that has these fields."""
    return TypedDict(name, fields)  # type: ignore[operator]


def graph(
    fields: Any = None,
    nodes: tuple[str, ...] = ("ask", "tell"),
    within: Any = None,
    node: Callable[[Any], Any] = lambda _: {},
    edges: Callable[[Any], Any] | None = None,
    **compiled: Any,
) -> Any:
    """A graph in a row, whose state has these fields; ``within`` is the graph that its last node runs."""
    state = fields if isinstance(fields, type) else state_of(FIELDS | (fields or {}))
    builder: Any = StateGraph(state)
    for name in nodes:
        builder.add_node(name, node)
    if within is not None:
        builder.add_node("inner", within)
        nodes = (*nodes, "inner")
    if edges is not None:
        edges(builder)
    else:
        for before, after in zip((START, *nodes), (*nodes, END), strict=True):
            builder.add_edge(before, after)
    return builder.compile(**compiled)


def without(*names: str) -> Any:
    return state_of({name: kind for name, kind in FIELDS.items() if name not in names})


def renamed(old: str, new: str) -> Any:
    return state_of({new if name == old else name: kind for name, kind in FIELDS.items()})


def model(**fields: Any) -> Any:
    return {"order": create_model("Order", **fields)}


def record(*fields: Any) -> Any:
    return {"order": make_dataclass("Order", fields)}


def states(**members: Any) -> Any:
    return {"mood": Enum("Mood", members)}


SUB = graph(without("notes"), nodes=("find",))
DELTA = Annotated[list[str], DeltaChannel(folded, list)]

CHANGES: dict[str, tuple[Any, Any]] = {
    "a channel renamed": (graph(), graph(renamed("topic", "subject"))),
    "a channel added": (graph(), graph({"more": str})),
    "a channel removed": (graph(), graph(without("count"))),
    "str to int": (graph(), graph({"topic": int})),
    "str to a list that adds up": (graph(), graph({"topic": Annotated[list[str], operator.add]})),
    "a list to a dict": (graph({"x": list[str]}), graph({"x": dict[str, str]})),
    "elements of a list": (graph({"x": list[str]}), graph({"x": list[int]})),
    "values of a dict": (graph({"x": dict[str, str]}), graph({"x": dict[str, int]})),
    "keys of a dict": (graph({"x": dict[str, str]}), graph({"x": dict[int, str]})),
    "an optional value made required": (graph({"x": str | None}), graph({"x": str})),
    "a required value made optional": (graph({"x": str}), graph({"x": str | None})),
    "one more in a union": (graph({"x": int | str}), graph({"x": int | str | float})),
    "a literal more": (graph({"x": Literal["a"]}), graph({"x": Literal["a", "b"]})),
    "a reducer added": (graph(), graph({"count": Annotated[int, operator.add]})),
    "a reducer removed": (graph(), graph({"notes": list[str]})),
    "another reducer": (graph(), graph({"notes": Annotated[list[str], longest]})),
    "a reducer for another": (
        graph({"notes": Annotated[list[str], longest]}),
        graph({"notes": Annotated[list[str], shortest]}),
    ),
    "messages without their reducer": (graph(), graph({"messages": list[AnyMessage]})),
    "messages that add up": (graph(), graph({"messages": Annotated[list[AnyMessage], operator.add]})),
    "a delta channel": (graph(), graph({"notes": DELTA})),
    "no delta channel any more": (graph({"notes": DELTA}), graph()),
    "a value that does not last": (graph(), graph({"topic": Annotated[str, EphemeralValue]})),
    "a node renamed": (graph(), graph(nodes=("question", "tell"))),
    "a node added": (graph(), graph(nodes=("ask", "tell", "more"))),
    "a node removed": (graph(), graph(nodes=("ask",))),
    "an interrupt before a node": (graph(), graph(interrupt_before=["ask"])),
    "no interrupt any more": (graph(interrupt_before=["ask"]), graph()),
    "an interrupt after instead of before": (graph(interrupt_before=["ask"]), graph(interrupt_after=["ask"])),
    "interrupts everywhere": (graph(interrupt_before=["ask"]), graph(interrupt_before="*")),
    "a field added to a model": (graph(model(a=(int, ...))), graph(model(a=(int, ...), b=(str, "")))),
    "a field removed from a model": (graph(model(a=(int, ...), b=(int, ...))), graph(model(a=(int, ...)))),
    "a field of a model of another type": (graph(model(a=(int, ...))), graph(model(a=(str, ...)))),
    "a field of a model made required": (graph(model(a=(int, 1))), graph(model(a=(int, ...)))),
    "a field of a dataclass renamed": (graph(record(("a", int))), graph(record(("b", int)))),
    "a field of a dataclass of another type": (graph(record(("a", int))), graph(record(("a", str)))),
    "a member of an enum removed": (graph(states(a=1, b=2)), graph(states(a=1))),
    "a member of an enum with another value": (graph(states(a=1)), graph(states(a="one"))),
    "a subgraph's node renamed": (graph(within=SUB), graph(within=graph(without("notes"), nodes=("seek",)))),
    "a subgraph's channel added": (
        graph(within=SUB),
        graph(within=graph({"own": str}, nodes=("find",))),
    ),
    "a subgraph that is checkpointed from now on": (
        graph(within=graph(nodes=("find",), checkpointer=False)),
        graph(within=graph(nodes=("find",))),
    ),
}
"""Forty deploys that live threads notice: the graph before and after."""


class Plain(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    topic: NotRequired[str]
    notes: Annotated[list[str], operator.add]
    count: int


@dataclass
class AsDataclass:
    messages: Annotated[list[AnyMessage], add_messages]
    topic: str
    notes: Annotated[list[str], operator.add]
    count: int


class AsModel(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    topic: str
    notes: Annotated[list[str], operator.add]
    count: int = 0


def isolated(inner: Any) -> Any:
    return graph(within=isolated_subgraph(inner, lambda state: state, lambda result: {}))


def turned(builder: Any) -> None:
    builder.add_edge(START, "tell").add_edge("tell", "ask").add_edge("ask", END)


def branched(builder: Any) -> None:
    builder.add_conditional_edges(START, lambda _: "ask", ["ask", "tell"])


HARMLESS: dict[str, tuple[Any, Any]] = {
    "the same": (graph(), graph()),
    "a node does something else": (graph(), graph(node=lambda _: {"count": 1})),
    "edges turned round": (graph(), graph(edges=turned)),
    "an edge made conditional": (graph(), graph(edges=branched)),
    "fields in another order": (graph(), graph(state_of(dict(reversed(FIELDS.items()))))),
    "nodes in another order": (graph(), graph(nodes=("tell", "ask"))),
    "the state's class renamed": (graph(), graph(state_of(FIELDS, name="Another"))),
    "a field that need not be there": (graph(), graph(Plain)),
    "the state as a dataclass": (graph(), graph(AsDataclass)),
    "the state as a model": (graph(), graph(AsModel)),
    "an older way to write an optional": (graph({"x": Optional[int]}), graph({"x": int | None})),  # noqa: UP045
    "an older way to write a union": (graph({"x": Union[int, str]}), graph({"x": int | str})),  # noqa: UP007
    "an older way to write a list": (graph({"x": List[int]}), graph({"x": list[int]})),  # noqa: UP006
    "a union in another order": (graph({"x": int | str}), graph({"x": str | int})),
    "a literal in another order": (graph({"x": Literal["a", "b"]}), graph({"x": Literal["b", "a"]})),
    "a field marked as one that replaces": (graph(), graph({"topic": Annotated[str, perdure.Replaces]})),
    "a name for the graph": (graph(), graph(name="support")),
    "debugging": (graph(), graph(debug=True)),
    "a subgraph without checkpoints rewritten": (
        graph(within=graph(nodes=("find",), checkpointer=False)),
        graph(within=graph({"own": str}, nodes=("seek", "sort"), checkpointer=False)),
    ),
    "an isolated subgraph rewritten": (
        isolated(graph(nodes=("find",))),
        isolated(graph({"own": str}, nodes=("seek", "sort"))),
    ),
}
"""Twenty deploys that live threads do not notice."""


def test_the_corpora_have_their_size() -> None:
    assert (len(CHANGES), len(HARMLESS)) == (40, 20)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_needs_a_new_version(name: str) -> None:
    before, after = map(fingerprint, CHANGES[name])
    assert verdict(RecordedSchema(1, before), 1, after)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_change_needs_none(name: str) -> None:
    before, after = map(fingerprint, HARMLESS[name])
    assert verdict(RecordedSchema(1, before), 1, after) == []


def test_differences_are_named() -> None:
    before, after = map(fingerprint, CHANGES["a reducer for another"])
    (line,) = differences(before, after)
    assert line.startswith("channel notes was 'list[str], reduced by ")
    assert "longest" in line
    before, after = map(fingerprint, CHANGES["a node renamed"])
    assert differences(before, after) == ["node ask is gone", "node question is new"]
    before, after = map(fingerprint, CHANGES["a field of a dataclass renamed"])
    assert [line.rpartition(".")[2] for line in differences(before, after)] == [
        "Order: field a is gone",
        "Order: field b is new",
    ]


def test_versions_are_compared_with_the_record() -> None:
    now = fingerprint(graph())
    assert verdict(None, 1, now) == ["it is not recorded yet"]
    assert verdict(RecordedSchema(2, now), 1, now) == ["its schema version is 1, and version 2 is recorded"]
    assert verdict(RecordedSchema(1, now), 2, now) == ["version 1 is recorded, its schema version is 2"]


def test_steps_that_lead_elsewhere_are_named() -> None:
    now = fingerprint(graph())
    fine: list[Step] = [rename_channel(2, "subject", "topic"), rename_node(2, "say", "tell"), drop(2, "old")]
    assert contradictions(Schema(2, fine), now) == []
    wrong: list[Step] = [
        rename_channel(2, "topic", "tpoic"),
        rename_node(2, "ask", "question"),
        convert(2, "none", str),
        drop(2, "count"),
    ]
    found = contradictions(Schema(2, wrong), now)
    assert [line.partition(": ")[2] for line in found] == [
        "the graph has no channel 'tpoic'",
        "the graph has no node 'question'",
        "the graph has no channel 'none'",
        "the graph still has the channel 'count'",
    ]
