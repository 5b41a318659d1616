"""A run from an old checkpoint: a subgraph that keeps its state goes on from what it was at that time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import perdure
from perdure.errors import NotFound
from perdure.langgraph.saver import OnConflict
from tests.langgraph import graphs
from tests.langgraph.graphs import STATES
from tests.langgraph.savers import slow_root
from tests.langgraph.session import config
from tests.pairwise import pairwise


@pairwise(
    messages=[4, 3],  # after a turn, and in one
    state=STATES,
    durability=["sync", "async", "exit"],
    is_async=[False, True],
)
def test_a_subgraph_goes_on_from_its_state_at_that_time(
    messages: int, state: str, durability: Any, is_async: bool
) -> None:
    """Also if the subgraph asks for it before the run's first checkpoint is stored. A run that starts in the
    middle of a turn goes on from what its step has made of the subgraph."""
    with perdure.connect_sync("memory://") as db:
        saver = db.checkpointer()
        graph = graphs.remembering(saver, STATES[state])
        for n in range(4):
            said = graph.invoke({"said": [f"turn {n}"]}, config("t"), durability="sync")["said"]
            assert said[-1] == f"remembers {n + 1}"
        history = list(graph.get_state_history(config("t")))
        old = next(state.config for state in history if len(state.values["said"]) == messages)
        slow_root(saver)
        given: Any = {"said": ["instead"]}
        if is_async:
            said = asyncio.run(graph.ainvoke(given, old, durability=durability))["said"]
        else:
            said = graph.invoke(given, old, durability=durability)["said"]
        before = ["turn 0", "remembers 1", "turn 1", "remembers 2"][:messages]
        assert said == [*before, "instead", "remembers 3"]
        assert graph.invoke({"said": ["more"]}, config("t"))["said"] == [*said, "more", "remembers 4"]
        assert db.fsck("t") == []


def test_with_a_stock_saver_it_goes_on_from_its_latest_state() -> None:
    """It compares ids, and the branch's is the largest: docs/stock-savers.md names the difference."""
    graph = graphs.remembering(InMemorySaver())
    for n in range(4):
        graph.invoke({"said": [f"turn {n}"]}, config("t"), durability="sync")
    history = list(graph.get_state_history(config("t")))
    old = next(state.config for state in history if len(state.values["said"]) == 4)
    assert graph.invoke({"said": ["instead"]}, old, durability="sync")["said"][-1] == "remembers 5"


def test_a_state_that_was_only_looked_at_does_not_matter() -> None:
    """Each run knows where it began, although the same thread of execution has loaded other states since."""
    with perdure.connect_sync("memory://") as db:
        saver = db.checkpointer()
        graph = graphs.remembering(saver)
        for n in range(4):
            graph.invoke({"said": [f"turn {n}"]}, config("t"), durability="sync")
        history = list(graph.get_state_history(config("t")))
        old = next(state.config for state in history if len(state.values["said"]) == 2)
        for state in history:
            graph.get_state(state.config)
        said = graph.invoke({"said": ["instead"]}, old, durability="exit")["said"]
        assert said == ["turn 0", "remembers 1", "instead", "remembers 2"]


def test_before_a_checkpoint_of_which_nothing_is_known_is_what_has_a_smaller_id() -> None:
    with perdure.connect_sync("memory://") as db:
        saver = db.checkpointer()
        graphs.remembering(saver).invoke({"said": ["hello"]}, config("t"))
        within: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "ask"}}
        fresh = db.checkpointer()
        kept = [item.checkpoint["id"] for item in fresh.list(within)]
        for unknown, wanted in (("0", []), (kept[0] + ".1", kept), (kept[0][:-1], kept[1:])):
            page = fresh.list(within, before={"configurable": {"checkpoint_id": unknown}})
            assert [item.checkpoint["id"] for item in page] == wanted


@pytest.mark.parametrize("on_conflict", ["raise", "fork"])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_run", [False, True], ids=["edit", "run"])
@pytest.mark.parametrize("exists", [False, True], ids=["no thread", "thread"])
def test_an_unknown_checkpoint_is_named_and_nothing_is_stored(
    on_conflict: OnConflict, is_async: bool, is_run: bool, exists: bool
) -> None:
    with perdure.connect_sync("memory://") as db:
        graph = graphs.remembering(db.checkpointer(on_conflict=on_conflict))
        if exists:
            graph.invoke({"said": ["turn"]}, config("t"))
        before = list(graph.get_state_history(config("t")))
        unknown: Any = {"configurable": {"thread_id": "t", "checkpoint_id": "1f0-unknown"}}
        given: Any = {"said": ["instead"]}

        def call() -> object:
            if is_run and is_async:
                return asyncio.run(graph.ainvoke(given, unknown))
            if is_run:
                return graph.invoke(given, unknown)
            if is_async:
                return asyncio.run(graph.aupdate_state(unknown, given))
            return graph.update_state(unknown, given)

        with pytest.raises(NotFound, match="thread 't' has no checkpoint 1f0-unknown"):
            call()
        assert list(graph.get_state_history(config("t"))) == before
        assert db.fsck("t") == []
