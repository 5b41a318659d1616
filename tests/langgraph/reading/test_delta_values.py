"""Values of DeltaChannels that are read without their graph are those that the graph itself reads.

Covers perdure.langgraph.reading.plain_serde.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, TypedDict

import pytest
from deepagents._messages_reducer import _messages_delta_reducer as reduce_messages
from deepagents.middleware.filesystem import _file_data_delta_reducer as reduce_files
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Overwrite

import perdure
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.langgraph.reading.plain_serde import PlainSerde, text_of
from perdure.langgraph.reading.thread_messages import load_messages
from perdure.langgraph.values.serde import Serde
from perdure.model.model_calls import Prices
from perdure.model.records import Partition

AT: Any = {"configurable": {"thread_id": "t"}}


def append(base: list[Any], updates: Any) -> list[Any]:
    return [*base, *(item for update in updates for item in update)]


def add(base: Any, updates: Any) -> Any:
    return (base or 0) + sum(updates)


class State(TypedDict, total=False):
    messages: Annotated[list[Any], DeltaChannel(reduce_messages, snapshot_frequency=3)]
    files: Annotated[dict[str, Any], DeltaChannel(reduce_files, snapshot_frequency=3)]
    notes: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=1000)]
    count: Annotated[int, DeltaChannel(add, snapshot_frequency=1000)]


def graph(database: SyncDatabase) -> Any:
    return StateGraph(State).add_node("n", lambda _: {}).add_edge(START, "n").compile(database.checkpointer())


ids = st.sampled_from("abcde")
messages = st.lists(
    st.builds(HumanMessage, st.text(max_size=5), id=ids)
    | st.builds(AIMessage, st.just("x" * 5000), id=ids)
    | st.builds(lambda name: RemoveMessage(id=name), ids),
    max_size=3,
)
files: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    ids, st.none() | st.builds(dict, content=st.text(max_size=5)), max_size=3
)
notes = st.lists(
    st.integers(-9, 9) | st.none() | st.dictionaries(ids, st.integers(0, 9), max_size=2), max_size=3
)
updates = st.one_of(
    st.builds(lambda new: {"messages": new}, messages),
    st.builds(lambda new: {"messages": new}, messages.map(Overwrite)),
    st.just({"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("again", id="f")]}),
    st.builds(lambda new: {"files": new}, files),
    st.builds(lambda new: {"files": Overwrite(new)}, st.dictionaries(ids, st.just({"content": "o"}))),
    st.builds(lambda new: {"notes": new}, notes),
)


@settings(max_examples=25, deadline=None)
@given(given=st.lists(updates, max_size=8))
def test_a_value_is_what_the_graph_makes_of_it(given: list[dict[str, Any]]) -> None:
    with perdure.connect_sync("memory://") as database:
        app = graph(database)
        for update in ({"messages": [HumanMessage("first", id="first")], "notes": [0]}, *given):
            app.update_state(AT, update, as_node="n")
        values = app.get_state(AT).values
        shown = {each.name: each for each in database.show("t").channels}
        held = [(each["value"]["id"], each["value"]["content"]) for each in shown["messages"].value]
        assert held == [(each.id, each.content) for each in values["messages"]]
        assert shown["messages"].length == len(values["messages"])
        assert shown["notes"].value == values["notes"]
        if "files" in shown or values.get("files"):
            assert shown["files"].value == values["files"]
        handle = handle_of(database)
        page = handle.run(load_messages(Partition("", "t"), handle.digest, Prices({}, "EUR")))
        assert [each["id"] for each in page.messages] == [each.id for each in values["messages"]][-40:]


def test_what_only_its_reducer_knows_is_left_out() -> None:
    with perdure.connect_sync("memory://") as database:
        app = graph(database)
        app.invoke({"count": 1, "notes": ["one"]}, AT)
        app.invoke({"count": 2, "notes": ["two"]}, AT)
        assert app.get_state(AT).values["count"] == 3
        shown = {each.name: (each.value, each.is_replayed) for each in database.show("t").channels}
        assert "count" not in shown
        assert shown["notes"] == (["one", "two"], True)


def test_earlier_checkpoints_have_their_own_values() -> None:
    with perdure.connect_sync("memory://") as database:
        app = graph(database)
        for number in range(5):
            app.invoke({"messages": [HumanMessage(str(number), id=str(number))]}, AT)
        for state in app.get_state_history(AT):
            shown = {
                each.name: each.value
                for each in database.show("t", state.config["configurable"]["checkpoint_id"]).channels
            }
            found = [each["value"]["id"] for each in shown.get("messages", [])]
            assert found == [each.id for each in state.values.get("messages", [])]


@pytest.mark.parametrize("value", [b"\x00\xff", b""])
def test_bytes_are_text_in_base64(value: bytes) -> None:
    assert base64.b64decode(text_of(value)) == value
    assert PlainSerde().unpack(Serde().pack({"a": [1, None]})) == {"a": [1, None]}


def test_half_of_a_character_is_read_as_it_was_stored() -> None:
    assert PlainSerde().unpack(Serde().pack(["cut \ud83d"])) == ["cut \ud83d"]
