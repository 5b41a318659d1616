"""The checks of graphs that users put into their tests: both fail for a fault, and pass without."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from perdure import Replaces
from perdure.errors import UndeclaredKey
from perdure.runtime import Agent
from perdure.runtime.agents.graph_factories import Factory
from perdure.testing import assert_sound, strict


class Bare(TypedDict):
    docs: list[str]


class Marked(TypedDict):
    docs: Annotated[list[str], Replaces]


def graph(schema: Any, **update: Any) -> Any:
    builder: Any = StateGraph(schema).add_node("work", lambda state: update)
    return builder.add_edge(START, "work").compile()


def test_a_sound_graph_passes_and_a_faulty_one_fails_with_its_findings() -> None:
    assert_sound(graph(Marked))
    assert_sound(Agent(graph(Marked)))
    for faulty in (graph(Bare), Agent(graph(Bare))):
        with pytest.raises(
            AssertionError, match=r"test_graph_assertions\.py:\d+: bare-collection: channel docs"
        ):
            assert_sound(faulty)


def test_an_intended_finding_is_left_out_and_a_choice_that_matches_none_is_an_error() -> None:
    assert_sound(graph(Bare), ignore=["bare-collection:docs"])
    with pytest.raises(
        AssertionError, match="nothing was found that ignore=bare-collection:docs would leave out"
    ):
        assert_sound(graph(Marked), ignore=["bare-collection:docs"])
    with pytest.raises(ValueError, match="there is no check 'bare'"):
        assert_sound(graph(Marked), ignore=["bare"])


def test_a_factory_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="app:make makes a graph for each run"):
        assert_sound(Agent(Factory("app:make", lambda config: None, {"config": "config"})))


def test_a_strict_graph_raises_for_a_key_that_would_be_dropped() -> None:
    assert strict(graph(Marked, docs=["b"])).invoke({"docs": ["a"]}) == {"docs": ["b"]}
    with pytest.raises(UndeclaredKey, match="the node 'work' returned the key 'dosc'"):
        strict(graph(Marked, dosc=["b"])).invoke({"docs": ["a"]})
