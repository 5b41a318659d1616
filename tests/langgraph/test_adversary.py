"""Whole threads whose state another thread changes in place all the time: a put never raises, what is stored
is what was there at a moment of the put, everybody reads the same, and no two loads share anything.

A few seconds by default; ``PERDURE_CHAOS=full`` goes on for ten minutes and prints the counts.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

import perdure
from tests.langgraph.adversary import Adversary, Change, fresh_state, message, parts
from tests.langgraph.specimens import likeness, mutable_inside

FULL = os.environ.get("PERDURE_CHAOS") == "full"
SECONDS = 50.0
"""How long each of the twelve cells goes on at full size."""
ROUNDS = 25
RUNS = 6
CHANNELS = ("facts", "rows", "messages")


@pytest.fixture(autouse=True)
def switching_often() -> Iterator[None]:
    """Threads take turns every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(params=["memory://", "sqlite:///{}/f.db"], ids=["memory", "sqlite"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with perdure.connect_sync(request.param.format(tmp_path), migrate=True) as database:
        yield database


def going_on(rounds: int) -> Iterator[int]:
    """Numbers of rounds: so many, or at full size as many as the time allows."""
    end = time.monotonic() + SECONDS
    for number in itertools.count():
        if (time.monotonic() > end) if FULL else number >= rounds:
            return
        yield number


def states(start: Any, made: list[Change], first: int, last: int) -> Iterator[Any]:
    """The states that there were between two moments, each told by how many changes were written down."""
    state = copy.deepcopy(start)
    for number, change in enumerate(made[:last]):
        if number >= first - 1:
            yield state
        change(state)
    yield state


class Machine:
    """One thread of a saver, loaded, changed, put, forked and pruned in random order while an adversary
    changes in place what is put."""

    def __init__(self, db: Any, saver: Any, thread: str, mode: str, rng: random.Random) -> None:
        self.db, self.saver, self.mode, self.rng = db, saver, mode, rng
        self.at: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        self.head = self.at
        self.live: Any = fresh_state()
        self.versions = dict.fromkeys(CHANNELS, 0)
        self.stored: dict[str, Any] = {}
        self.hands: list[Any] = []
        self.names = itertools.count(1)
        self.adversary = Adversary(rng)
        self.counts: Counter[str] = Counter()

    def _call(self, method: str, *args: Any) -> Any:
        if self.mode == "sync":
            return getattr(self.saver, method)(*args)
        return asyncio.run(getattr(self.saver, f"a{method}")(*args))

    def round(self) -> None:
        """Load or fork or go on, then put a few times while everything is changed; then look at it all."""
        rng = self.rng
        way = rng.choice(["go on", "load", "load", "fork"]) if self.stored else "go on"
        if way == "load":
            self._load()
        elif way == "fork":
            self._fork()
        self._grow()
        self.hands = []
        start, live = copy.deepcopy(self.live), self.live
        self.adversary.start(live)
        try:
            puts = [self._put(live, prunes=way != "fork") for _ in range(rng.randrange(1, 4))]
        finally:
            made = self.adversary.stop()
        self.counts["changes"] += len(made)
        apart([live, *self.hands])
        for found, first, last in itertools.chain.from_iterable(puts):
            open_parts = list(itertools.chain.from_iterable(parts(*one) for one in found))
            for state in states(start, made, first, last):
                there = [part for channel, _ in found for part in parts(channel, state[channel])]
                open_parts = [part for part in open_parts if part not in there]
                if not open_parts:
                    break
            assert not open_parts, f"stored, and never there between changes {first} and {last}"

    def _load(self) -> None:
        found, other = (self._call("get_tuple", self.at) for _ in range(2))
        apart([found.checkpoint["channel_values"], other.checkpoint["channel_values"], self.live])
        self._start_from(self.rng.choice([found, other]))

    def _fork(self) -> None:
        old = self.rng.choice(list(self.db.checkpointer().list(self.at, limit=4)))
        self._start_from(self._call("get_tuple", old.config))

    def _start_from(self, found: Any) -> None:
        self.live, self.head = found.checkpoint["channel_values"], found.config
        self.versions = dict(found.checkpoint["channel_versions"])
        self.stored = self.db.checkpointer().get_tuple(found.config).checkpoint["channel_values"]
        assert likeness(self.live) == likeness(self.stored)
        self.counts["loads"] += 1

    def _grow(self) -> None:
        """What a step makes of the lists: it appends, and now and then moves or replaces."""
        rng, live = self.rng, self.live
        live["messages"] = [*live["messages"][:12], message(f"said {next(self.names)}")]
        live["rows"] = [*live["rows"][:12], {"n": 0, "in": {}}]
        if rng.random() < 0.2:
            live["messages"].insert(0, live["messages"].pop(rng.randrange(4)))
        if rng.random() < 0.2:
            live["rows"][rng.randrange(4)] = {"n": 1, "in": {"list": []}}

    def _put(self, live: Any, *, prunes: bool) -> list[tuple[list[tuple[str, Any]], int, int]]:
        """Store a checkpoint that some channels are new in, and perhaps a write on it. For each of the two,
        what another process reads of it, and the moments between which it was stored."""
        rng, adversary = self.rng, self.adversary
        returned = [c for c in CHANNELS if not self.stored or rng.random() < 0.6]
        self.versions.update({channel: self.versions[channel] + 1 for channel in returned})
        if prunes and rng.random() < 0.15:
            self.db.checkpointer().prune([self.at["configurable"]["thread_id"]])
            self.counts["prunes"] += 1
        checkpoint: Any = empty_checkpoint()
        checkpoint.update(
            id=f"{next(self.names):08}", channel_values=dict(live), channel_versions=dict(self.versions)
        )
        new = {channel: self.versions[channel] for channel in returned}
        first = adversary.at
        # Runs alone promise that a channel that is not returned is unchanged.
        of_a_run = {"configurable": {**self.head["configurable"], "__pregel_runtime": None}}
        stored = self._call("put", of_a_run, checkpoint, {"source": "loop", "step": 1, "parents": {}}, new)
        out = [(returned, first, adversary.at)]
        self.head = {"configurable": {**self.head["configurable"], **stored["configurable"]}}
        channel, first = rng.choice(CHANNELS), adversary.at
        if rng.random() < 0.3:
            self._call("put_writes", self.head, [(channel, live[channel])], "task", "")
            out.append(([channel], first, adversary.at))
        theirs, mine = self.db.checkpointer().get_tuple(self.at), self._call("get_tuple", self.at)
        values, writes = theirs.checkpoint["channel_values"], theirs.pending_writes
        assert likeness(mine.checkpoint["channel_values"]) == likeness(values), (
            "two processes read differently"
        )
        assert likeness(mine.pending_writes) == likeness(writes)
        self.hands.append(mine.checkpoint["channel_values"])
        for channel in set(CHANNELS) - set(returned):
            assert likeness(values[channel]) == likeness(self.stored[channel]), f"{channel} was not returned"
        self.stored = values
        self.counts["puts"] += 1
        self.counts["writes"] += len(writes)
        found = [[(c, values[c]) for c in returned], [(c, value) for _, c, value in writes]]
        return [(read, first, last) for read, (_, first, last) in zip(found, out, strict=False)]


def apart(hands: list[Any]) -> None:
    """Assert that values in different hands share nothing that could be changed."""
    for left, right in itertools.combinations(hands, 2):
        assert not mutable_inside(left) & mutable_inside(right), "two loads share an object"


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("hands", [1, 3])
def test_what_is_stored_was_there_at_a_moment_of_the_put(db: Any, mode: str, hands: int) -> None:
    seed = random.SystemRandom().randrange(1 << 30) if FULL else 7
    saver = db.checkpointer()

    def work(name: int) -> Counter[str]:
        machine = Machine(db, saver, f"thread {name}", mode, random.Random(seed + name))
        for _ in going_on(ROUNDS // hands):
            machine.round()
        return machine.counts

    with ThreadPoolExecutor(hands) as executor:
        counts = sum(executor.map(work, range(hands)), Counter[str]())
    print(f"\nseed {seed}: {dict(counts)}")
    assert min(counts["puts"], counts["loads"], counts["changes"]) > 0


class State(TypedDict):
    facts: dict[str, Any]
    rows: list[Any]
    messages: Annotated[list[Any], add_messages]
    turn: int


def restless(saver: Any, adversaries: list[Adversary], rng: random.Random) -> Any:
    """A graph of which each node lets an adversary change its state until long after it has returned."""

    def node(state: State) -> Any:
        adversary = Adversary(rng)
        adversaries.append(adversary)
        adversary.start({channel: state[channel] for channel in CHANNELS})  # type: ignore[literal-required]
        given: Any = {"turn": state["turn"] + 1}
        if rng.random() < 0.5:
            given["facts"] = state["facts"]
        if rng.random() < 0.5:
            given["rows"] = [*state["rows"], {"n": 1, "in": {}}]
        if rng.random() < 0.5:
            given["messages"] = [message(f"new {rng.random()}")]
        return given

    async def anode(state: State) -> Any:
        return node(state)

    graph: Any = StateGraph(State)
    names = ["one", "two", "three"]
    for name in names:
        graph.add_node(name, RunnableLambda(node, anode, name=name))
    for before, after in itertools.pairwise([START, *names, END]):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver)


async def alone(run: Awaitable[object]) -> None:
    """Wait for a run. Its result is dropped: ``asyncio.run`` prints that, which an adversary may change."""
    await run


def values_of(saver: Any, at: Any) -> list[Any]:
    return [likeness((one.checkpoint["channel_values"], one.pending_writes)) for one in saver.list(at)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_runs_end_well_while_their_states_are_changed(db: Any, mode: str) -> None:
    rng, saver, at = random.Random(3), db.checkpointer(), {"configurable": {"thread_id": "t"}}
    adversaries: list[Adversary] = []
    graph = restless(saver, adversaries, rng)
    runs = 0
    for run in going_on(RUNS):
        given: Any = {"turn": run} if run % 5 else {**fresh_state(), "turn": run}
        if mode == "sync":
            graph.invoke(given, at)
        else:
            asyncio.run(alone(graph.ainvoke(given, at)))
        mine = saver.get_tuple(at)
        while adversaries:
            adversaries.pop().stop()
        theirs = db.checkpointer().get_tuple(at)
        assert likeness(mine.checkpoint["channel_values"]) == likeness(theirs.checkpoint["channel_values"])
        assert theirs.checkpoint["channel_values"]["turn"] == run + 3
        runs += 1
        if run % 5 == 4:
            assert values_of(saver, at) == values_of(db.checkpointer(), at)
            saver.prune(["t"])
    print(f"\n{runs} runs of 3 nodes")
