"""A checkpoint that the config of a message names is the one to start from, once, as with the option."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from perdure.runtime import Agent, Options, Runtime
from tests.runtime.graphs import Storage, go, settings, working

PLACE: Any = {"configurable": {"thread_id": "ada"}}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def named(checkpoint_id: Any, **more: Any) -> dict[str, Any]:
    return {"configurable": {"checkpoint_id": checkpoint_id, "checkpoint_ns": "", **more}}


async def logged(runtime: Runtime) -> list[str]:
    return list((await runtime.graph("agent").aget_state(PLACE)).values["log"])


@pytest.mark.parametrize("way", ["config", "config in options", "option"])
def test_a_run_begins_at_a_checkpoint_once_however_it_is_named(near: Storage, way: str) -> None:
    begun: list[str] = []
    failures: list[str] = []

    def first(state: State) -> State:
        begun.append("first")
        return {"log": ["first"]}

    def second(state: State) -> State:
        if failures:
            raise RuntimeError(failures.pop())
        return {"log": ["second"]}

    graph = StateGraph(State).add_sequence([("first", first), ("second", second)]).add_edge(START, "first")

    async def main() -> None:
        async with working(near.database(), graph.compile(), settings=settings(attempts=3)) as runtime:
            await runtime.wait(await runtime.submit("ada", {"log": ["one"]}), 30)
            state = await runtime.graph("agent").aget_state(PLACE)
            old = state.config["configurable"]["checkpoint_id"]
            await runtime.wait(await runtime.submit("ada", {"log": ["two"]}), 30)
            begun.clear()
            failures.append("boom")
            ways: dict[str, dict[str, Any]] = {
                "config": {"config": named(old, model="m")},
                "config in options": {"options": Options(config=named(old, model="m"))},
                "option": {"options": Options(checkpoint_id=old)},
            }
            run = await runtime.wait(await runtime.submit("ada", {"log": ["fork"]}, **ways[way]), 30)
            assert (run.state, run.attempts, begun) == ("done", 2, ["first"])
            assert await logged(runtime) == ["one", "first", "second", "fork", "first", "second"]

    go(main())


def test_a_run_whose_config_names_a_missing_checkpoint_fails_at_once(near: Storage) -> None:
    graph = StateGraph(State).add_node("node", lambda state: {"log": ["node"]}).add_edge(START, "node")

    async def main() -> None:
        async with working(near.database(), graph.compile(), settings=settings(attempts=1)) as runtime:
            run = await runtime.wait(await runtime.submit("ada", {"log": []}, config=named("missing")), 30)
            assert run.state == "failed"
            assert "is not stored" in run.note["error"]

    go(main())


def test_a_config_keeps_its_other_values() -> None:
    options = Options(config={**named("x", model="m"), "tags": ["t"]})
    assert options.checkpoint_id == "x"
    assert options.config == {"configurable": {"model": "m"}, "tags": ["t"]}
    assert Options.read(options.dump()) == options
    assert Options(config=named(None)).checkpoint_id is None


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"config": named("x"), "checkpoint_id": "y"}, ValueError, "two checkpoints"),
        ({"config": named("x", checkpoint_map={"": "x"})}, ValueError, "not of a subgraph"),
        ({"config": {"configurable": {"checkpoint_ns": "node:1"}}}, ValueError, "not of a subgraph"),
        ({"config": named(5)}, TypeError, "is text"),
        ({"checkpoint_id": 5}, TypeError, "is text"),
    ],
)
def test_a_checkpoint_that_cannot_be_a_start_is_refused(
    given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Options(**given)


@pytest.mark.parametrize("name", ["checkpoint_id", "checkpoint_map", "__pregel_read"])
def test_an_agent_names_no_checkpoint_for_all_its_runs(name: str) -> None:
    graph = StateGraph(State).add_node("node", lambda state: {}).add_edge(START, "node").compile()
    config: Any = {"configurable": {name: "x"}}
    with pytest.raises(ValueError, match="LangGraph's own"):
        Agent(graph, config=config)
    with pytest.raises(ValueError, match="LangGraph's own"):
        Agent(graph.with_config(config))
