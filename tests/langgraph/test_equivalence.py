"""The same script on LangGraph's own saver and on Perdure shows a user the same."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from tests.langgraph import graphs
from tests.langgraph.savers import DRIVERS, opened, slow_root
from tests.langgraph.scenarios import SCENARIOS
from tests.langgraph.session import Session, config, play

MODES = (
    ("sync", "sync"),
    ("async", "async"),
    ("async", "exit"),
    ("sync", "async"),
    ("sync", "exit"),
    ("async", "sync"),
)
"""Kinds of call, and durabilities. The first three meet each of both."""

SUBGRAPHS = [name for name in SCENARIOS if name.startswith(("nested", "embedded"))]


@cache
def reference(name: str, mode: str, durability: str) -> list[Any]:
    build, script = SCENARIOS[name]
    return play(script, Session(build(InMemorySaver()), mode, durability))


def ways() -> list[Any]:
    """Every scenario in every mode."""
    return [
        pytest.param(
            name, *mode, id="-".join((name, *mode)), marks=[] if is_quick(n, m) else [pytest.mark.slow]
        )
        for n, name in enumerate(SCENARIOS)
        for m, mode in enumerate(MODES)
    ]


def is_quick(scenario: int, mode: int) -> bool:
    """Whether a mode is the one of the first three that shows a scenario in the quick run; they go round."""
    return mode == scenario % 3


@pytest.mark.parametrize(("name", "mode", "durability"), ways())
def test_a_script_shows_what_it_shows_on_the_stock_saver(
    name: str, durability: str, mode: str, tmp_path: Path
) -> None:
    build, script = SCENARIOS[name]
    with opened("memory", tmp_path) as db:
        saver = db.checkpointer()
        record = play(script, Session(build(saver), mode, durability))
        assert record == reference(name, mode, durability)
        assert saver.conflicts("t") == ()


def rounds() -> list[Any]:
    """Every scenario in three ways in memory, and in one of them, which goes round, on a file."""
    out = [
        pytest.param(name, "memory", *mode, marks=[] if is_quick(n, m) else [pytest.mark.slow])
        for n, name in enumerate(SCENARIOS)
        for m, mode in enumerate(MODES[:3])
    ]
    return out + [
        pytest.param(name, "sqlite", *MODES[n % 3], marks=[pytest.mark.slow] if n % 2 else [])
        for n, name in enumerate(SCENARIOS)
    ]


@pytest.mark.parametrize(("name", "driver", "mode", "durability"), rounds())
def test_savers_that_take_turns_show_the_same(
    name: str, driver: str, durability: str, mode: str, tmp_path: Path
) -> None:
    """Each call finds what another saver left, with a memory of its own that is a call behind."""
    build, script = SCENARIOS[name]
    with opened(driver, tmp_path) as one, opened(driver, tmp_path) as two:
        savers = [one.checkpointer(), (one if driver == "memory" else two).checkpointer()]
        record = play(script, Session(build(savers[0]), mode, durability, savers))
        assert record == reference(name, mode, durability)
        assert [saver.conflicts("t") for saver in savers] == [(), ()]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", SUBGRAPHS)
def test_a_subgraph_that_is_stored_before_its_root_changes_nothing(
    name: str, mode: str, tmp_path: Path
) -> None:
    build, script = SCENARIOS[name]
    with opened("memory", tmp_path) as db:
        record = play(script, Session(build(slow_root(db.checkpointer(), 0.01)), mode, "async"))
    assert record == reference(name, mode, "async")


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_replay_does_not_see_what_a_subgraph_did_on_another_branch(driver: str, tmp_path: Path) -> None:
    """Here the stock saver shows more. It takes the subgraph's checkpoint with the largest id below the
    replayed one, though that was made on a branch that the replayed checkpoint does not descend from.
    Perdure goes by descent."""

    def replayed(saver: Any) -> str:
        graph = graphs.nested(saver, stateful=True)
        graph.invoke({"said": ["turn 0"]}, config())
        first = graph.get_state(config()).config
        graph.invoke({"said": ["on a branch"]}, config())
        graph.invoke({"said": ["on the other branch"]}, first)
        entered = next(s.config for s in graph.get_state_history(config()) if s.next == ("middle",))
        said = graph.invoke(None, entered)["said"]
        return next(item for item in reversed(said) if item.startswith("deep"))

    with opened(driver, tmp_path) as db:
        assert replayed(db.checkpointer()) == "deep remembers 1"
    assert replayed(InMemorySaver()) == "deep remembers 2"
