"""What is read of a compiled graph: its channels, its nodes and their functions, its subgraphs."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AnyMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.channels import DeltaChannel, EphemeralValue
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.managed import RemainingSteps
from langgraph.prebuilt import ToolNode
from typing_extensions import TypedDict

from perdure import Replaces
from perdure.langgraph.graph_facts import ChannelKind, metadata, read, read_all, strip_annotations


def joined(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class State(TypedDict):
    topic: str
    docs: Annotated[list[str], Replaces]
    notes: NotRequired[Annotated[list[str], operator.add]]
    log: Annotated[list[str], DeltaChannel(joined)]
    flash: Annotated[str, EphemeralValue]
    left: RemainingSteps


class Call:
    def __call__(self, state: State) -> dict[str, Any]:
        return {}


def node(state: State) -> dict[str, Any]:
    return {}


async def anode(state: State, extra: int) -> dict[str, Any]:
    return {}


def test_each_channel_has_its_kind_type_and_reducer() -> None:
    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile()
    facts = read(graph)
    assert {c.name: (c.kind, c.type, c.reducer, c.marked) for c in facts.channels} == {
        "topic": (ChannelKind.REPLACES, str, None, False),
        "docs": (ChannelKind.REPLACES, list[str], None, True),
        "notes": (ChannelKind.REDUCES, list[str], operator.add, False),
        "log": (ChannelKind.DELTA, list[str], joined, False),
        "flash": (ChannelKind.OTHER, str, None, False),
    }
    assert facts.managed == {"left"}
    assert facts.keys == {"topic", "docs", "notes", "log", "flash", "left"}
    assert {c.schema for c in facts.channels} == {State}


def test_the_schema_that_made_the_channel_declares_it() -> None:
    class Input(TypedDict):
        messages: list[AnyMessage]

    class Marked(TypedDict):
        docs: Annotated[list[str], Replaces]

    @dataclass
    class Whole:
        messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
        docs: list[str] = field(default_factory=list)

    builder: Any = StateGraph(Whole, input_schema=Input, output_schema=Marked)
    facts = read(builder.add_node("n", lambda state: {}).add_edge(START, "n").compile())
    assert {c.name: (c.schema, c.kind) for c in facts.channels} == {
        "messages": (Whole, ChannelKind.REDUCES),
        "docs": (Whole, ChannelKind.REPLACES),
    }
    assert {c.name: c.marked for c in facts.channels} == {"messages": False, "docs": True}


def test_the_functions_of_nodes_are_those_that_their_author_wrote() -> None:
    @tool
    def weather(city: str) -> str:
        """Tell the weather."""
        return city

    assert isinstance(weather, StructuredTool)
    builder: Any = StateGraph(MessagesState)
    builder.add_node("plain", node)
    builder.add_node("async", partial(anode, extra=1))
    builder.add_node("object", Call())
    builder.add_node("tools", ToolNode([weather]))
    builder.add_edge(START, "plain")
    found = {each.name: (each.functions, each.tools) for each in read(builder.compile()).nodes}
    assert found["plain"] == ((node,), ())
    assert found["async"] == ((anode,), ())
    assert found["object"] == ((Call.__call__,), ())
    assert found["tools"] == ((), (weather.func,))


def test_subgraphs_are_read_once_with_their_path() -> None:
    inner = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()

    def call(state: MessagesState) -> Any:
        return inner.invoke(state)

    middle: Any = StateGraph(MessagesState).add_node("call", call).add_edge(START, "call").compile()
    builder: Any = StateGraph(MessagesState).add_node("middle", middle).add_node("again", middle)
    found = list(read_all(builder.add_edge(START, "middle").compile()))
    assert [facts.path for facts in found] == [(), ("middle",), ("middle", "call")]
    assert found[1].graph is middle
    assert found[0].nodes[0].graphs == (middle,)


def test_functional_graphs_have_no_keys() -> None:
    @entrypoint()
    def graph(value: str) -> str:
        return value

    facts = read(graph)
    assert not facts.has_schema
    assert facts.channels == ()
    assert [each.functions[0].__name__ for each in facts.nodes] == ["graph"]


def test_annotations_are_read_through_their_wrappers() -> None:
    wrapped = NotRequired[Annotated[Annotated[list[str], "inner"], "outer"]]
    assert strip_annotations(wrapped) == list[str]
    assert metadata(wrapped) == ("inner", "outer")
    assert metadata(str) == ()
