"""Tests of a graph with the parts of perdure.testing: sound, strict, resumed after a restart, and recorded.

pytest examples/test_graph.py
"""

from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AnyMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from perdure import Replaces, admin
from perdure.errors import UndeclaredKey
from perdure.testing import assert_sound, from_export, strict
from perdure.testing.fixtures import Cold, cold

__all__ = ["cold"]

THREAD: Any = {"configurable": {"thread_id": "ada"}}


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    flights: Annotated[list[str], Replaces]


def search(state: State) -> dict[str, Any]:
    return {"flights": ["LH 1", "LH 2"]}


def book(state: State) -> dict[str, Any]:
    flight = interrupt({"choose": state["flights"]})
    return {"messages": [("ai", f"booked {flight}")]}


def build() -> Any:
    return StateGraph(State).add_sequence([search, book]).add_edge(START, "search")


def test_the_graph_is_sound() -> None:
    assert_sound(build().compile())


def test_no_key_is_dropped() -> None:
    with pytest.raises(UndeclaredKey, match="the input has the key 'passengers'"):
        strict(build().compile()).invoke({"messages": [("user", "to Rome")], "passengers": 2})


def test_a_restarted_process_takes_the_answer(cold: Cold) -> None:
    with cold() as db:
        graph = build().compile(checkpointer=db.checkpointer())
        graph.invoke({"messages": [("user", "to Rome")]}, THREAD)
    with cold() as db:
        graph = build().compile(checkpointer=db.checkpointer())
        result = graph.invoke(Command(resume="LH 2"), THREAD)
    assert [message.content for message in result["messages"]] == ["to Rome", "booked LH 2"]


def test_a_recorded_thread_goes_on_each_time_anew(cold: Cold, tmp_path: Path) -> None:
    # `perdure export ada --output ada.perdure` makes such a file of your own threads.
    file = tmp_path / "ada.perdure"
    with cold() as db, admin.new_archive(file) as archive:
        build().compile(checkpointer=db.checkpointer()).invoke({"messages": [("user", "to Rome")]}, THREAD)
        for each in admin.partitions(db, ""):
            admin.move(db, each, archive)
    for flight in ("LH 1", "LH 2"):
        with from_export(file) as db:
            graph = build().compile(checkpointer=db.checkpointer())
            assert graph.get_state(THREAD).next == ("book",)
            result = graph.invoke(Command(resume=flight), THREAD)
        assert result["messages"][-1].content == f"booked {flight}"
