"""The mark for fields that replace their value on purpose does not change what a graph does."""

from __future__ import annotations

from typing import Annotated, Any

from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from perdure import Replaces
from perdure.langgraph.replaces import ReplacesType


class Typed(TypedDict):
    docs: Annotated[list[str], Replaces]


class Model(BaseModel):
    docs: Annotated[list[str], Replaces] = []


def test_a_marked_field_replaces_its_value() -> None:
    schemas: list[Any] = [Typed, Model]
    for schema in schemas:
        builder: Any = StateGraph(schema).add_node("n", lambda state: {"docs": ["new"]})
        graph = builder.add_edge(START, "n").compile()
        assert graph.invoke({"docs": ["old", "older"]}) == {"docs": ["new"]}


def test_the_mark_can_be_no_reducer() -> None:
    assert not callable(Replaces)
    assert not isinstance(Replaces, type)
    assert repr(Replaces) == "perdure.Replaces"
    assert isinstance(Replaces, ReplacesType)
