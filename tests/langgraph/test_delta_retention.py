"""A thread whose state is replayed from deltas is pruned, copied, forked and cut, and stays as it was."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

from perdure import PerdureSaver
from tests.langgraph import graphs
from tests.langgraph.graphs import STATES
from tests.langgraph.savers import DRIVERS, opened
from tests.langgraph.session import config

FULL = os.environ.get("PERDURE_CHAOS") == "full"
TURNS = 7
DELTAS = ["delta", "delta-often"]


def talk(graph: Any, thread: str, turns: range, *, durability: str = "async") -> None:
    for n in turns:
        at = {**config(thread), "metadata": {"run_id": f"run {n}"}}
        graph.invoke({"said": [f"turn {n}"]}, at, durability=durability)


def said(graph: Any, at: Any) -> list[str]:
    return graph.get_state(at).values["said"]


def expected(turns: range, start: tuple[str, ...] = ()) -> list[str]:
    out = list(start)
    for n in turns:
        out.append(f"turn {n}")
        out.append(f"first saw {len(out)}")
        out.append(f"second saw {len(out)}")
    return out


def prune_latest(saver: PerdureSaver) -> None:
    saver.prune(["t"])


def prune_to_two(saver: PerdureSaver) -> None:
    saver.prune(["t"], keep_last=2)


def prune_to_five(saver: PerdureSaver) -> None:
    saver.prune(["t"], keep_last=5)


def prune_again_and_again(saver: PerdureSaver) -> None:
    for last in (9, 4, 1, 1):
        saver.prune(["t"], keep_last=last)


def delete_middle_runs(saver: PerdureSaver) -> None:
    saver.delete_for_runs(["run 2", "run 4"])


CUTS: list[Callable[[PerdureSaver], None]] = [
    prune_latest, prune_to_two, prune_to_five, prune_again_and_again, delete_middle_runs,
]  # fmt: skip


NEAR = ("memory", "sqlite")
PLACES = [
    (driver, state)
    for n, driver in enumerate(DRIVERS)
    for state in (DELTAS if FULL or driver in NEAR else [DELTAS[n % len(DELTAS)]])
]
"""Drivers with each kind of thread; in a short run one kind a driver over the network."""


def combinations() -> list[tuple[str, str, Callable[[PerdureSaver], None], str]]:
    """Every cut of every thread; over a network each cut once, of threads that go round, in a short run."""
    threads = list(itertools.product(DELTAS, ("async", "exit")))
    out: list[tuple[str, str, Callable[[PerdureSaver], None], str]] = []
    for at, driver in enumerate(DRIVERS):
        for n, cut in enumerate(CUTS, at):
            some = threads if FULL or driver in NEAR else [threads[n % len(threads)]]
            out += [(driver, state, cut, durability) for state, durability in some]
    return out


@pytest.mark.parametrize(("driver", "state", "cut", "durability"), combinations())
def test_a_thread_that_was_cut_keeps_its_state_and_goes_on(
    driver: str, state: str, cut: Callable[[PerdureSaver], None], durability: str, tmp_path: Path
) -> None:
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        graph = graphs.chain(saver, STATES[state])
        talk(graph, "t", range(TURNS), durability=durability)
        assert said(graph, config()) == expected(range(TURNS))
        states = {
            s.config["configurable"]["checkpoint_id"]: s.values for s in graph.get_state_history(config())
        }
        cut(saver)
        left = list(graph.get_state_history(config()))
        assert 0 < len(left) < len(states)
        assert {s.config["configurable"]["checkpoint_id"]: s.values for s in left}.items() <= states.items()
        for reader in (saver, db.checkpointer()):
            again = graphs.chain(reader, STATES[state])
            assert said(again, config()) == expected(range(TURNS))
        talk(graph, "t", range(TURNS, TURNS + 2), durability=durability)
        assert said(graphs.chain(db.checkpointer(), STATES[state]), config()) == expected(range(TURNS + 2))


@pytest.mark.parametrize(("driver", "state"), PLACES)
def test_a_thread_without_its_last_run_is_the_thread_before_it(
    driver: str, state: str, tmp_path: Path
) -> None:
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        graph = graphs.chain(saver, STATES[state])
        talk(graph, "t", range(TURNS))
        saver.delete_for_runs([f"run {TURNS - 1}"])
        assert said(graph, config()) == expected(range(TURNS - 1))
        talk(graph, "t", range(TURNS - 1, TURNS + 1))
        assert said(graphs.chain(db.checkpointer(), STATES[state]), config()) == expected(range(TURNS + 1))


@pytest.mark.parametrize(("driver", "state"), PLACES)
def test_a_copied_thread_has_the_same_past_and_a_future_of_its_own(
    driver: str, state: str, tmp_path: Path
) -> None:
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        graph = graphs.chain(saver, STATES[state])
        talk(graph, "t", range(TURNS))
        saver.copy_thread("t", "copy")
        pasts = [[s.values for s in graph.get_state_history(config(thread))] for thread in ("t", "copy")]
        assert pasts[0] == pasts[1]
        saver.prune(["copy"])
        saver.delete_thread("t")
        talk(graph, "copy", range(TURNS, TURNS + 2))
        assert said(graph, config("copy")) == expected(range(TURNS + 2))
        assert graph.get_state(config("t")).values == {}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize(("driver", "state"), PLACES)
def test_two_branches_of_a_thread_stay_apart_after_a_prune(
    driver: str, state: str, durability: str, tmp_path: Path
) -> None:
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        graph = graphs.chain(saver, STATES[state])
        talk(graph, "t", range(3), durability=durability)
        middle = graph.get_state(config()).config
        talk(graph, "t", range(3, 5), durability=durability)
        db.tag("t", "left")
        left = graph.get_state(config()).config
        for turn in ("right one", "right two"):
            at, middle = middle, config()
            graph.invoke({"said": [turn]}, at, durability=durability)
        before = said(graph, config()), said(graph, left)
        assert before[1] == expected(range(5))
        assert [item for item in before[0] if item.startswith(("turn", "right"))] == [
            "turn 0", "turn 1", "turn 2", "right one", "right two",
        ]  # fmt: skip
        saver.prune(["t"])
        assert len(list(saver.list(config()))) == 2
        again = graphs.chain(db.checkpointer(), STATES[state])
        assert (said(again, config()), said(again, left)) == before
        again.invoke({"said": ["on the left"]}, left, durability=durability)
        assert said(graph, config())[:-2] == [*before[1], "on the left"]


@pytest.mark.parametrize(("driver", "state"), PLACES)
def test_a_question_that_waits_survives_a_prune(driver: str, state: str, tmp_path: Path) -> None:
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        graph = graphs.asking_twice(saver, STATES[state])
        graph.invoke({"said": ["turn"]}, config())
        graph.invoke(Command(resume="Ada"), config())
        saver.prune(["t"])
        assert [i.value for i in graph.get_state(config()).interrupts] == ["age of Ada?"]
        again = graphs.asking_twice(db.checkpointer(), STATES[state])
        assert again.invoke(Command(resume=36), config())["said"] == ["turn", "before", "Ada is 36", "after"]


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_stateful_subgraph_remembers_after_a_prune(driver: str, stateful: bool, tmp_path: Path) -> None:
    with opened(driver, tmp_path) as db:
        outcomes: list[list[str]] = []
        for thread, last in (("whole", None), ("pruned", 1), ("cut", 3)):
            saver = db.checkpointer()
            graph = graphs.nested(saver, STATES["delta"], stateful=stateful)
            for n in range(4):
                graph.invoke({"said": [f"turn {n}"]}, config(thread))
                if last is not None:
                    saver.prune([thread], keep_last=last)
            outcomes.append(said(graph, config(thread)))
        assert outcomes[0] == outcomes[1] == outcomes[2]
        assert ("deep remembers 3" in outcomes[0]) is stateful


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("edited", [0, 1, 2])
def test_a_fork_from_a_tag_meets_a_subgraph_as_it_was_there(
    edited: int, durability: Any, tmp_path: Path
) -> None:
    """Not with what it remembers of later turns, also where the tagged checkpoint was edited first."""
    with opened("memory", tmp_path) as db:
        outcomes: list[list[str]] = []
        for thread in ("whole", "pruned"):
            saver = db.checkpointer()
            graph = graphs.nested(saver, STATES["plain"], stateful=True)
            graph.invoke({"said": ["turn 0"]}, config(thread), durability=durability)
            at: Any = graph.get_state(config(thread)).config
            db.tag(thread, "kept")
            for n in (1, 2):
                graph.invoke({"said": [f"turn {n}"]}, config(thread), durability=durability)
            if thread == "pruned":
                saver.prune([thread])
            for n in range(edited):
                at = graph.update_state(at, {"said": [f"edited {n}"]}, as_node="leave")
                if thread == "pruned":
                    saver.prune([thread], keep_last=2)
            graph.invoke({"said": ["forked"]}, at, durability=durability)
            outcomes.append(said(graph, config(thread)))
            assert db.fsck(thread) == []
        assert outcomes[0] == outcomes[1]
        assert [text for text in outcomes[0] if text.startswith("middle")][-1] == "middle remembers 1"


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize(("driver", "state"), PLACES)
def test_a_copy_of_a_checkpoint_whose_past_was_removed_has_its_state(
    driver: str, state: str, keep: int, tmp_path: Path
) -> None:
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        graph = graphs.chain(saver, STATES[state])
        talk(graph, "t", range(TURNS))
        before = [found.config for found in graph.get_state_history(config())][:keep]
        looked_at = graph.get_state(before[-1]).values
        saver.prune(["t"], keep_last=keep)
        for at in (before[-1], config()):
            wanted = said(graph, at)
            copied = graph.update_state(at, None, "__copy__")
            assert said(graph, copied) == said(graph, config()) == wanted
            edited = graph.update_state(at, [({"said": ["edited"]}, "first")], "__copy__")
            for reader in (graph, graphs.chain(db.checkpointer(), STATES[state])):
                assert said(reader, copied) == wanted
                assert said(reader, edited) == [*wanted, "edited"]
        assert said(graph, before[-1]) == looked_at["said"]
        saver.prune(["t"])
        assert said(graphs.chain(db.checkpointer(), STATES[state]), config()) == [*wanted, "edited"]
        assert db.fsck("t") == []
