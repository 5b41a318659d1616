"""Names of the events of a run in each stream mode, with subgraphs and without: those of LangGraph's server.

The expected names were recorded from its development server, version 0.16.7, with the same graph.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from tests.server.hosting import run, serving

GIVEN: Any = {"messages": [{"role": "user", "content": "hi"}]}
WORDS = ["messages/metadata", *["messages/partial"] * 3]


def _model(text: str) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage(text)]))


def _graph() -> Any:
    """A graph with a subgraph in a subgraph; each level calls a model."""
    outer, middle, inner = _model("one two"), _model("three four"), _model("five six")
    hidden = RunnableLambda(lambda value: value).with_config(tags=["langsmith:hidden"])

    async def talk(state: MessagesState) -> Any:
        return {"messages": [await outer.ainvoke(state["messages"])]}

    async def below(state: MessagesState) -> Any:
        get_stream_writer()({"custom": 1})
        return {"messages": [await middle.ainvoke(state["messages"])]}

    async def deep(state: MessagesState) -> Any:
        await hidden.ainvoke(1)
        return {"messages": [await inner.ainvoke(state["messages"]), AIMessage("fixed", id="fixed")]}

    deepest = StateGraph(MessagesState).add_node("deep", deep).add_edge(START, "deep").compile()
    builder: Any = StateGraph(MessagesState).add_node("below", below).add_node("deepest", deepest)
    nested = builder.add_edge(START, "below").add_edge("below", "deepest").compile()
    whole: Any = StateGraph(MessagesState).add_node("talk", talk).add_node("nested", nested)
    return whole.add_edge(START, "talk").add_edge("talk", "nested").compile()


def _asking() -> Any:
    def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage(str(interrupt("which?")))]}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()


async def _told(url: str, graph: Any, modes: list[str], *, subgraphs: bool) -> list[Any]:
    async with serving(url, of={"nested": graph}) as server:
        client = await server.client()
        thread = (await client.threads.create())["thread_id"]
        stream = client.runs.stream(
            thread,
            "nested",
            input=GIVEN,
            stream_mode=modes,  # type: ignore[arg-type]
            stream_subgraphs=subgraphs,
        )
        told = [part async for part in stream]
    assert (told[0].event, told[-1].event) == ("metadata", "end")
    return [told[0], *told[1:-1]]


def _names(told: list[Any]) -> list[str]:
    """The names of events, without the ids of tasks in their paths."""
    return ["|".join(part.partition(":")[0] for part in each.event.split("|")) for each in told[1:]]


BELOW = ["messages/metadata", "messages/complete"]
EXPECTED: dict[tuple[tuple[str, ...], bool], list[str]] = {
    (("messages",), True): [*WORDS * 3, *BELOW],
    (("messages",), False): [*WORDS, *BELOW * 3],
    (("messages-tuple",), True): [
        *["messages"] * 3,
        *["messages|nested"] * 3,
        *["messages|nested|deepest"] * 4,
    ],
    (("messages-tuple",), False): ["messages"] * 6,
    # Asked for both, the server sends the tuples alone.
    (("messages", "messages-tuple"), True): [
        *["messages"] * 3,
        *["messages|nested"] * 3,
        *["messages|nested|deepest"] * 4,
    ],
    (("messages", "messages-tuple"), False): ["messages"] * 6,
    (("custom",), True): ["custom|nested"],
    (("custom",), False): [],
    (("updates",), True): [
        "updates",
        "updates|nested",
        "updates|nested|deepest",
        "updates|nested",
        "updates",
    ],
    (("updates",), False): ["updates", "updates"],
    (("values",), True): [
        *["values"] * 2,
        *["values|nested"] * 2,
        *["values|nested|deepest"] * 2,
        *["values|nested", "values"],
    ],
    (("values",), False): ["values"] * 3,
    (("tasks",), True): [
        *["tasks"] * 3,
        *["tasks|nested"] * 3,
        *["tasks|nested|deepest"] * 2,
        *["tasks|nested", "tasks"],
    ],
    (("tasks",), False): ["tasks"] * 4,
}


@pytest.mark.parametrize(("modes", "subgraphs"), list(EXPECTED), ids=str)
@run
async def test_the_names_of_a_mode_are_those_of_langgraph_s_server(
    near: str, modes: tuple[str, ...], subgraphs: bool
) -> None:
    told = await _told(near, _graph(), list(modes), subgraphs=subgraphs)
    assert _names(told) == EXPECTED[modes, subgraphs]


def _kinds(told: list[Any]) -> list[str]:
    return [f"{part.data['event']} {part.data['name']} {len(part.data['parent_ids'])}" for part in told]


def _model_events(level: int) -> list[str]:
    name = f"GenericFakeChatModel {level}"
    return [
        f"on_chat_model_start {name}",
        *[f"on_chat_model_stream {name}"] * 3,
        f"on_chat_model_end {name}",
    ]


EVENTS = [
    "on_chain_start nested 0",
    "on_chain_start talk 1",
    *_model_events(2),
    "on_chain_stream talk 1",
    "on_chain_end talk 1",
    "on_chain_start nested 1",
    "on_chain_start LangGraph 2",
    "on_chain_start below 3",
    *_model_events(4),
    "on_chain_stream below 3",
    "on_chain_end below 3",
    "on_chain_start deepest 3",
    "on_chain_start LangGraph 4",
    "on_chain_start deep 5",
    *_model_events(6),
    "on_chain_stream deep 5",
    "on_chain_end deep 5",
    "on_chain_end LangGraph 4",
    "on_chain_stream deepest 3",
    "on_chain_end deepest 3",
    "on_chain_end LangGraph 2",
    "on_chain_stream nested 1",
    "on_chain_end nested 1",
    "on_chain_end nested 0",
]


@pytest.mark.parametrize("subgraphs", [True, False])
@run
async def test_langchain_s_events_are_those_of_langgraph_s_server(near: str, subgraphs: bool) -> None:
    begun, *told = await _told(near, _graph(), ["events"], subgraphs=subgraphs)
    assert {part.event for part in told} == {"events"}
    # What is hidden, and the parts of the run's own stream, are no events.
    assert _kinds(told) == EVENTS
    ids = {part.data["run_id"] for part in told if not part.data["parent_ids"]}
    assert ids == {begun.data["run_id"]}
    form = {"data", "event", "metadata", "name", "parent_ids", "run_id", "tags"}
    assert all(set(part.data) == form for part in told)


@run
async def test_events_come_beside_the_parts_of_other_modes(near: str) -> None:
    _, *told = await _told(near, _graph(), ["events", "messages", "custom"], subgraphs=True)
    assert _kinds([part for part in told if part.event == "events"]) == EVENTS
    others = [name for name in _names([None, *told]) if name != "events"]
    assert others == [*WORDS, "custom|nested", *WORDS * 2, *BELOW]


@run
async def test_a_question_is_in_the_events_of_the_graph_alone(near: str) -> None:
    told = await _told(near, _asking(), ["events"], subgraphs=True)
    assert {part.event for part in told[1:]} == {"events"}
    assert _kinds(told[1:]) == ["on_chain_start nested 0", "on_chain_start ask 1", "on_chain_end nested 0"]
