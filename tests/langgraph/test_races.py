"""Of two runs that start from one state, one wins and the other is told; nothing acknowledged is lost."""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

import perdure
from tests.backends import BACKENDS, EMPTY
from tests.langgraph import racing
from tests.langgraph.racing import PAIRS, Move, Runner, Tally, judge, race, talking, together, watch
from tests.langgraph.savers import opened
from tests.langgraph.session import config

FULL = os.environ.get("PERDURE_CHAOS") == "full"
RACES: dict[str, tuple[Move, Move]] = {
    "invoke on an old thread": (racing.says, racing.says),
    "invoke on a fresh thread": (racing.says, racing.says),
    "invoke and update_state": (racing.says, racing.edits),
    "answer by thread": (racing.answers, racing.answers),
    "answer by head id": (racing.answers_at_the_head, racing.answers_at_the_head),
}


def run_races(
    kind: str,
    state: str,
    durability: str,
    face: str,
    where: str,
    *,
    apart: float | None,
) -> Tally:
    """``apart`` is how much later the second rival starts, from race to race; ``None``: both have loaded
    the same state before either goes on."""
    asks = kind.startswith("answer")
    threads = [f"race {n}" for n in range(PAIRS)]
    count, backend = where.split(" on ")
    with ExitStack() as stack:
        url = stack.enter_context(EMPTY[backend]())
        databases = [
            stack.enter_context(perdure.connect_sync(url, migrate=True)) for _ in range(1 + (count == "two"))
        ]
        savers = [databases[0].checkpointer(), databases[-1].checkpointer()]
        if count == "one":
            savers[1] = savers[0]
        rivals = tuple(
            Runner(talking(saver, state, asks=asks), name, durability)
            for saver, name in zip(savers, ("ann", "bob"), strict=True)
        )
        if kind != "invoke on a fresh thread":
            for thread in threads:
                rivals[0].graph.invoke({"said": ["hello"]}, config(thread), durability="exit")
        heads = {thread: rivals[0].graph.get_state(config(thread)).config for thread in threads}
        rivals_savers = list({id(saver): saver for saver in savers}.values())
        starts = None if apart is None else watch(rivals_savers)
        if apart is None:
            together(rivals_savers)
        races = race((rivals[0], rivals[1]), RACES[kind], heads, face, apart=apart or 0.0)
        reader = databases[0].checkpointer()
        fresh = talking(reader, state, asks=asks)
        return judge(races, fresh, reader, answers=asks, starts=starts)


WHERE = [
    ("one on memory", "async"),
    ("one on sqlite", "threads"),
    ("two on sqlite", "async"),
    ("two on sqlite", "threads"),
]
ELSEWHERE = [name for name in BACKENDS if name not in ("memory", "sqlite")]


def combinations() -> list[Any]:
    """Every kind with every durability and state; where and how they run goes round. In the long run they go
    round twice, and all run on every backend. A quarter of them is quick to run: every kind somewhere."""
    every = list(itertools.product(RACES, ("plain", "delta"), ("sync", "async", "exit")))
    out: list[Any] = [
        pytest.param(*combination, *WHERE[n % 4], marks=[] if is_quick(n) else [pytest.mark.slow])
        for n, combination in enumerate(every)
    ]
    if FULL:
        out += [(*combination, *WHERE[n % 4]) for n, combination in enumerate(every, 2)]
    for backend in ELSEWHERE:
        there = list(itertools.product((f"two on {backend}", f"one on {backend}"), ("async", "threads")))
        some = every if FULL else every[ELSEWHERE.index(backend) :: 6]
        out += [(*combination, *there[n % 4]) for n, combination in enumerate(some)]
    return out


def is_quick(number: int) -> bool:
    return number % 8 in (0, 3)


@pytest.mark.parametrize(("kind", "state", "durability", "where", "face"), combinations())
def test_one_of_two_runs_that_loaded_the_same_state_wins(
    kind: str, state: str, durability: str, where: str, face: str
) -> None:
    tally = run_races(kind, state, durability, face, where, apart=None)
    assert tally == Tally(won=PAIRS, lost=PAIRS, both_won=0, both_lost=0)


def starts() -> list[Any]:
    """Every kind with every durability, at once and a little apart; in a short run where they run goes
    round."""
    places = ["one on sqlite", "two on sqlite", *(f"two on {name}" for name in ELSEWHERE if FULL)]
    every = itertools.product(RACES, ("sync", "async", "exit"), (0.0, 0.02))
    return [
        pytest.param(
            kind,
            durability,
            where,
            apart,
            id=f"{kind}-{durability}-{where}-{apart:g} s apart",
            marks=[] if is_quick(n) else [pytest.mark.slow],
        )
        for n, (kind, durability, apart) in enumerate(every)
        for m, where in enumerate(places)
        if FULL or (n // 2 + n + m) % 2
    ]


@pytest.mark.parametrize(("kind", "durability", "where", "apart"), starts())
def test_runs_that_start_whenever_they_do_lose_nothing_that_was_acknowledged(
    kind: str, durability: str, where: str, apart: float
) -> None:
    """A run may load what its rival has stored: then it goes on from there, and the rival has lost. Now
    and then it loads in the middle of its rival's writes, and both are told to try again. One that addresses
    by id what its rival has left meanwhile replays it: a fork that it declared."""
    tally = run_races(kind, "delta", durability, "threads", where, apart=apart)
    assert tally.won + tally.lost == 2 * (PAIRS - tally.forked)
    if kind != "answer by head id":
        assert tally.forked == 0
    assert tally.both_lost <= PAIRS // 4


@pytest.mark.parametrize("state", ["plain", "delta"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("move", [racing.answers, racing.answers_at_the_head])
def test_an_answer_after_the_end_of_the_first_comes_to_what_it_comes_to_on_the_stock_saver(
    move: Move, durability: str, state: str, tmp_path: Path
) -> None:
    """By thread nothing asks any more, and LangGraph drops it; by id it replays the checkpoint as a fork."""

    def shown(saver: BaseCheckpointSaver[Any]) -> list[Any]:
        rivals = [Runner(talking(saver, state, asks=True), name, durability) for name in ("ann", "bob")]
        graph = rivals[0].graph
        graph.invoke({"said": ["hello"]}, config(), durability="exit")
        head = graph.get_state(config()).config
        for runner in rivals:
            method, args, options = move(runner, "t", head)
            getattr(runner.graph, method)(*args, **options)
        return [state.values.get("said") for state in graph.get_state_history(config())]

    with opened("sqlite", tmp_path) as db:
        assert shown(db.checkpointer()) == shown(InMemorySaver())


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_where_forks_are_allowed_each_branch_holds_its_own_words(durability: str, tmp_path: Path) -> None:
    """Both runs stand, and what one wrote on the checkpoint that both came from is none of the other's."""
    heads = {}
    with opened("memory", tmp_path) as db:
        savers = [db.checkpointer(on_conflict="fork") for _ in range(2)]
        ann, bob = (
            Runner(talking(saver, "delta", asks=False), name, durability)
            for saver, name in zip(savers, ("ann", "bob"), strict=True)
        )
        for thread in (f"race {n}" for n in range(PAIRS)):
            ann.graph.invoke({"said": ["hello"]}, config(thread), durability="exit")
            heads[thread] = ann.graph.get_state(config(thread)).config
        together(savers)
        leaks = 0
        for one in race((ann, bob), (racing.says, racing.says), heads, "async"):
            assert [error for _, error in one.outcomes] == [None, None]
            ends = [s.values["said"] for s in ann.graph.get_state_history(config(one.thread)) if not s.next]
            ends = [said for said in ends if any(one.thread in item for item in said)]
            assert len(ends) == 2
            leaks += sum(sum(one.thread in item for item in said) - 1 for said in ends)
        assert leaks == 0
