"""Keys that LangGraph drops are reported: of nodes, of subgraphs, of inputs; and nothing else changes."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, StateSnapshot, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from perdure.errors import UndeclaredKey
from perdure.langgraph.values.undeclared import INPUT, ReportedOnce, refuse, watch_undeclared


class State(TypedDict, total=False):
    topic: str
    log: Annotated[list[str], operator.add]


class Update(BaseModel):
    log: list[str] = []
    colour: str = "red"


@dataclass
class Data:
    log: list[str]
    size: int


def graph(node: Any, **options: Any) -> Any:
    builder: Any = StateGraph(State, **options)
    return builder.add_node("work", node).add_edge(START, "work").compile(checkpointer=InMemorySaver())


def seen(compiled: Any, value: Any) -> tuple[Any, list[tuple[str, str]]]:
    """The result of a run of the watched graph, and what was reported."""
    reported: list[tuple[str, str]] = []
    watched = watch_undeclared(compiled, lambda node, key: reported.append((node, key)))
    config: Any = {"configurable": {"thread_id": "ada"}}
    return watched.invoke(value, config), reported


UPDATES: list[tuple[Any, list[str]]] = [
    ({"log": ["a"]}, []),
    ({"log": ["a"], "colour": "red"}, ["colour"]),
    (Command(update={"log": ["a"], "colour": "red"}), ["colour"]),
    (Command(update=[("log", ["a"]), ("size", 1)]), ["size"]),
    ([Command(update={"log": ["a"]}), {"size": 1}], ["size"]),
    (Update(log=["a"], colour="blue"), ["colour"]),
    (Data(["a"], 3), ["size"]),
    (None, []),
]


@pytest.mark.parametrize(("update", "keys"), UPDATES, ids=[str(update) for update, _ in UPDATES])
def test_a_key_that_a_node_returns_is_reported_and_dropped_as_before(update: Any, keys: list[str]) -> None:
    compiled = graph(lambda state: update)
    result, reported = seen(compiled, {"topic": "cats"})
    assert reported == [("work", key) for key in keys]
    assert result == compiled.invoke({"topic": "cats"}, {"configurable": {"thread_id": "other"}})
    assert set(result) <= {"topic", "log"}


def test_a_key_of_the_input_is_reported_also_one_that_the_input_may_not_have() -> None:
    class Input(TypedDict):
        topic: str

    result, reported = seen(
        graph(lambda state: {}, input_schema=Input), {"topic": "cats", "log": ["a"], "x": 1}
    )
    assert sorted(reported) == [(INPUT, "log"), (INPUT, "x")]
    assert result == {"topic": "cats", "log": []}


def test_a_key_that_an_update_of_the_state_has_is_reported() -> None:
    reported: list[tuple[str, str]] = []
    watched = watch_undeclared(graph(lambda state: {}), lambda node, key: reported.append((node, key)))
    config: Any = {"configurable": {"thread_id": "ada"}}
    watched.update_state(config, {"topic": "dogs", "x": 1}, as_node="work")
    assert reported == [("work", "x")]
    assert watched.get_state(config).values["topic"] == "dogs"


class Inner(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    own: str


def test_subgraphs_are_watched_and_still_resumed() -> None:
    inner: Any = StateGraph(Inner)
    inner.add_node("ask", lambda state: {"log": [interrupt("which?")], "own": "a", "inner": 1})
    inner.add_edge(START, "ask")
    outer = graph(inner.compile())
    reported: list[tuple[str, str]] = []
    watched = watch_undeclared(outer, lambda node, key: reported.append((node, key)))
    config: Any = {"configurable": {"thread_id": "ada"}}
    assert watched.invoke({"topic": "cats"}, config)["__interrupt__"][0].value == "which?"
    within = watched.get_state(config, subgraphs=True).tasks[0].state
    assert isinstance(within, StateSnapshot)
    assert within.next == ("ask",)
    assert watched.invoke(Command(resume="this"), config) == {"topic": "cats", "log": ["this"]}
    assert reported == [("work/ask", "inner")]


def test_the_graph_itself_is_left_as_it_is() -> None:
    compiled = graph(lambda state: {"x": 1})
    watch_undeclared(compiled, refuse)
    assert compiled.invoke({"topic": "cats"}, {"configurable": {"thread_id": "ada"}})["topic"] == "cats"


def test_a_refused_key_ends_the_run_before_anything_of_the_step_is_stored() -> None:
    watched = watch_undeclared(graph(lambda state: {"log": ["a"], "x": 1}), refuse)
    config: Any = {"configurable": {"thread_id": "ada"}}
    with pytest.raises(UndeclaredKey, match="the node 'work' returned the key 'x'"):
        watched.invoke({"topic": "cats"}, config)
    assert watched.get_state(config).values == {"topic": "cats", "log": []}
    with pytest.raises(UndeclaredKey, match="the input has the key 'y'"):
        watched.invoke({"y": 1}, config)


def test_a_functional_graph_has_no_keys() -> None:
    @entrypoint()
    def work(value: dict[str, int]) -> dict[str, int]:
        return value

    assert watch_undeclared(work, refuse) is work


def test_each_key_is_reported_once_and_not_without_end() -> None:
    reported: list[tuple[str, str]] = []
    once = ReportedOnce(lambda node, key: reported.append((node, key)))
    for _ in range(2):
        for key in ("a", "b"):
            once("work", key)
    assert reported == [("work", "a"), ("work", "b")]
    for number in range(5000):
        once(INPUT, str(number))
    assert len(reported) == 1000
