"""What cannot be stored is named by its path inside the value, wherever it was to be stored."""

from __future__ import annotations

import dataclasses
import threading
from collections import namedtuple
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

import perdure
from perdure.errors import Unserialisable
from perdure.history.neutral_messages import neutral
from perdure.model.runs.messages import copy_plain


@dataclasses.dataclass
class Box:
    inside: Any


class Model(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    inside: Any = None


Pair = namedtuple("Pair", "left right")
LOCK = threading.Lock()
CYCLE: list[Any] = []
CYCLE.append(CYCLE)

PARTS: dict[str, tuple[Any, str]] = {
    "key": ({"a": {"b": LOCK}}, "['a']['b']: an object of type _thread.lock"),
    # It may be what a user wrote.
    "text as a key": ({"a": {"x": 1, "b c": LOCK}}, "['a'][key 1]: an object of type _thread.lock"),
    "index": ([1, [2, 3, LOCK]], "[1][2]: an object of type _thread.lock"),
    "tuple": ((1, (LOCK,)), "[1][0]: an object of type _thread.lock"),
    "data class": ({"a": [Box({"b": LOCK})]}, "['a'][0].inside['b']: an object of type _thread.lock"),
    "model": (Model(inside=[Model(inside=LOCK)]), ".inside[0].inside: an object of type _thread.lock"),
    "named tuple": (Pair(1, LOCK), "an object of type _thread.lock"),
    "message": (AIMessage("hi", additional_kwargs={"raw": LOCK}), ".additional_kwargs['raw']: an object"),
    "set": ({"a": {LOCK}}, "['a']{…}: an object of type _thread.lock"),
    "surrogate key": ({"a": {"\ud800": 1}}, "['a']"),
    "itself": (CYCLE, "nested too deeply, or contains itself"),
    "whole": (LOCK, "channel 'kept': an object of type _thread.lock"),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_state_names_the_path(name: str) -> None:
    value, named = PARTS[name]

    class State(TypedDict, total=False):
        kept: Any
        other: str

    builder = StateGraph(State)
    builder.add_node("keep", lambda state: {"kept": value, "other": "sound"})
    builder.add_edge(START, "keep")
    with perdure.connect_sync("memory://") as database:
        graph = builder.compile(checkpointer=database.checkpointer())
        for call in (
            lambda: graph.invoke({"other": "x"}, {"configurable": {"thread_id": "writes"}}),
            lambda: graph.invoke({"kept": value}, {"configurable": {"thread_id": "input"}}),
            lambda: graph.update_state({"configurable": {"thread_id": "edit"}}, {"kept": value}, "keep"),
        ):
            with pytest.raises(Unserialisable) as caught:
                call()
            assert "channel 'kept'" in str(caught.value) or "__start__" in str(caught.value)
            assert named.removeprefix("channel 'kept'") in str(caught.value), caught.value


JSON: dict[str, tuple[Any, str]] = {
    "nan": ({"a": [1, {"b": float("nan")}]}, "['a'][1]['b'] is nan"),
    "object": ({"a": (LOCK,)}, "['a'][0] is a lock"),
    "key": ({"a": {(1, 2): 3}}, "['a'] has the key (1, 2)"),
    "surrogate": ({"a": ["\ud800"]}, "['a'][0] holds a lone surrogate"),
    "key with a surrogate": ({"a": {"\ud800": 1}}, "['a'] has a key with a lone surrogate"),
    "long integer": ({"a": [10**5000]}, "['a'][0] is an integer of more than 4,300 digits"),
}


@pytest.mark.parametrize("name", JSON)
def test_plain_data_names_the_path(name: str) -> None:
    value, named = JSON[name]
    with pytest.raises(Unserialisable) as caught:
        copy_plain(value, "message")
    assert named in str(caught.value)
    with perdure.connect_sync("memory://") as database:
        with pytest.raises(Unserialisable) as stored:
            database.store().put(("a",), "k", value)
        assert named.partition("]")[0] in str(stored.value)
    with pytest.raises(Unserialisable) as kept:
        neutral({"role": "user", "content": [{"type": "text", "text": "hi", "more": value}]})
    assert f"['content'][0]['more']{named}" in str(kept.value)
