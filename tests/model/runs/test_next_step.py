"""Without the graph it is known whether a step follows a checkpoint: as LangGraph itself says."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

import perdure
from perdure.database.base import handle_of
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, HEAD, Partition
from perdure.model.runs.next_step import has_next_step

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


def say(_: Mapping[str, Any]) -> dict[str, Any]:
    return {"said": ["something"]}


def send(state: Mapping[str, Any]) -> list[Send]:
    return [Send("sent", state)]


def build(deferred: Sequence[str] = (), length: int = 1) -> StateGraph[Any, Any, Any, Any]:
    """A graph in which a node follows one node, two nodes, or a ``Send``."""
    left, right = "l" * length, "r" * length
    builder: Any = StateGraph(Said)
    for name in (left, right, "both", "sent", "last"):
        builder.add_node(name, say, defer=name in deferred)
    builder.add_edge(START, left).add_edge(START, right).add_edge([left, right], "both")
    builder.add_conditional_edges("both", send, ["sent"])
    builder.add_edge("sent", "last")
    return cast(StateGraph[Any, Any, Any, Any], builder)


def read_head() -> Program[CheckpointRecord]:
    (heads,) = yield from ask(Fetch(Partition("", "t"), (Get(HEAD, ("",)),)))
    (found,) = yield from ask(
        Fetch(Partition("", "t"), (Get(CHECKPOINT, ("", heads[0].fields["checkpoint_id"])),))
    )
    return CheckpointRecord.read(found[0])


@pytest.mark.parametrize("deferred", [(), ("both",), ("l", "last"), ("both", "r", "sent", "last")])
def test_after_each_step_and_each_edit_it_is_what_the_graph_says(deferred: Sequence[str]) -> None:
    with perdure.connect_sync("memory://", migrate=True) as database:
        graph, handle = build(deferred).compile(checkpointer=database.checkpointer()), handle_of(database)

        def agrees() -> bool:
            follows = bool(graph.get_state(CONFIG).next)
            assert has_next_step(handle.run(read_head())) == follows
            return follows

        graph.invoke({"said": []}, CONFIG, interrupt_before="*")
        outcomes = [agrees()]
        while graph.get_state(CONFIG).next:
            graph.invoke(None, CONFIG, interrupt_before="*")
            outcomes.append(agrees())
        for node in ("l", "r", "both", "sent", "last", START, "last", "r", "l", "__input__", "both"):
            graph.update_state(CONFIG, {"said": ["edited"]}, as_node=node)
            outcomes.append(agrees())
            graph.update_state(CONFIG, None, as_node="__copy__")
            outcomes.append(agrees())
        graph.update_state(CONFIG, None, as_node=END)
        outcomes.append(agrees())
        assert set(outcomes) == {False, True}


def test_long_names_of_awaited_nodes_count_as_ended_together() -> None:
    with perdure.connect_sync("memory://", migrate=True) as database:
        graph = build(length=80).compile(checkpointer=database.checkpointer())
        graph.invoke({"said": []}, CONFIG)
        handle = handle_of(database)
        assert not has_next_step(handle.run(read_head()))
        graph.update_state(CONFIG, {"said": []}, as_node="l" * 80)
        assert has_next_step(handle.run(read_head()))
        graph.update_state(CONFIG, {"said": []}, as_node="r" * 80)
        assert has_next_step(handle.run(read_head()))
