"""Two runs that start from the same state of a thread at once, many times over, and who may say what then."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from perdure import HeadConflict, PerdureSaver
from perdure.langgraph.loop_state import ThreadId
from tests.langgraph.graphs import STATES
from tests.langgraph.session import config

PAIRS = 20
_RUNNING: ContextVar[str] = ContextVar("_RUNNING", default="")
PATIENCE = 60.0
"""Seconds that a run waits for its rival: far more than that takes."""


def together(savers: Sequence[PerdureSaver]) -> None:
    """Give the savers one starting line: the first two loads of a thread whose name starts with "race" wait
    for each other, so that both runs have seen the same state whatever the scheduler does."""
    arrived: Counter[str] = Counter()
    barriers: dict[str, threading.Barrier] = defaultdict(lambda: threading.Barrier(2))
    events: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
    lock = threading.Lock()

    def arrive(thread: str) -> int:
        with lock:
            arrived[thread] += thread.startswith("race")
            return arrived[thread] or 3

    class Together(PerdureSaver):
        def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
            found = super().get_tuple(config)
            thread = config["configurable"]["thread_id"]
            if arrive(thread) <= 2:
                with lock:
                    barrier = barriers[thread]
                barrier.wait(PATIENCE)
            return found

        async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
            found = await super().aget_tuple(config)
            thread = config["configurable"]["thread_id"]
            place = arrive(thread)
            if place == 2:
                events[thread].set()
            if place <= 2:
                await asyncio.wait_for(events[thread].wait(), PATIENCE)
            return found

    for saver in savers:
        saver.__class__ = Together


@dataclass(frozen=True, slots=True)
class Start:
    """What a run found when it began: whether that was the head, and whether it waited for an answer."""

    at_head: bool = True
    asked: bool = True


Starts = dict[tuple[str, str], Start]
"""The starts that are known, by the runner's name and thread."""


class Watching(PerdureSaver):
    """A saver that notes how each run starts."""

    starts: Starts

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = super().get_tuple(config)
        if found is not None and (name := _RUNNING.get()):
            loaded = cast(ThreadId, found.config["configurable"]["thread_id"]).loop
            at_head = loaded is not None and loaded.loaded.was_head
            writes = found.pending_writes or []
            asked = {task for task, channel, _ in writes if channel == INTERRUPT}
            done = {task for task, channel, _ in writes if channel not in WRITES_IDX_MAP}
            start = Start(at_head, bool(asked - done))
            self.starts.setdefault((name, config["configurable"]["thread_id"]), start)
        return found


def watch(savers: Sequence[PerdureSaver]) -> Starts:
    """What the savers will note, as they note it."""
    starts: Starts = {}
    for saver in savers:
        saver.__class__ = Watching
        cast(Watching, saver).starts = starts
    return starts


def talking(saver: BaseCheckpointSaver[Any], state: str, *, asks: bool) -> Any:
    """Three nodes of which two take their time; the first asks a question if it is told to."""

    def ask(state: Any) -> Any:
        return {"said": [f"heard {interrupt('which?')}" if asks else "ready"]}

    def pausing(name: str, seconds: float) -> RunnableLambda[Any, Any]:
        def node(state: Any) -> Any:
            time.sleep(seconds)
            return {"said": [name]}

        async def anode(state: Any) -> Any:
            await asyncio.sleep(seconds)
            return {"said": [name]}

        return RunnableLambda(node, anode, name=name)

    graph = StateGraph(STATES[state])
    graph.add_node("ask", ask)
    graph.add_node("think", pausing("think", 0.02))
    graph.add_node("speak", pausing("speak", 0.03))
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "think")
    graph.add_edge("think", "speak")
    graph.add_edge("speak", END)
    return graph.compile(checkpointer=saver)


@dataclass(frozen=True, slots=True)
class Runner:
    """One rival: a graph on its saver, and what it says in each race."""

    graph: Any
    name: str
    durability: str

    def word(self, thread: str) -> str:
        return f"{self.name} in {thread}"


Move = Callable[[Runner, str, RunnableConfig], tuple[str, tuple[Any, ...], dict[str, Any]]]
"""What a rival does on a thread, given the head's config before the race: a method and its arguments."""


def says(runner: Runner, thread: str, head: RunnableConfig) -> Any:
    given = {"said": [runner.word(thread)]}
    return "invoke", (given, config(thread)), {"durability": runner.durability}


def edits(runner: Runner, thread: str, head: RunnableConfig) -> Any:
    return "update_state", (config(thread), {"said": [runner.word(thread)]}, "speak"), {}


def answers(runner: Runner, thread: str, head: RunnableConfig) -> Any:
    given: Command[str] = Command(resume=runner.word(thread))
    return "invoke", (given, config(thread)), {"durability": runner.durability}


def answers_at_the_head(runner: Runner, thread: str, head: RunnableConfig) -> Any:
    return "invoke", (Command(resume=runner.word(thread)), head), {"durability": runner.durability}


@dataclass(slots=True)
class Tally:
    """What came of the races."""

    won: int = 0
    both_won: int = 0
    both_lost: int = 0
    lost: int = 0
    forked: int = 0
    unheard: int = 0


@dataclass(frozen=True, slots=True)
class Race:
    """One thread that two rivals raced for, and what each was told: an error, or ``None``."""

    thread: str
    outcomes: tuple[tuple[Runner, BaseException | None], ...]


def race(
    rivals: tuple[Runner, Runner],
    moves: tuple[Move, Move],
    heads: Mapping[str, RunnableConfig],
    face: str,
    *,
    apart: float = 0.0,
) -> list[Race]:
    """Race on all threads at once: ``face`` is "async" for one event loop, "threads" for sync calls. There
    the second rival may start later than the first, from race to race by so many seconds more."""
    calls = [
        (runner, thread, move(runner, thread, head))
        for thread, head in heads.items()
        for runner, move in zip(rivals, moves, strict=True)
    ]

    def call(
        runner: Runner, made: tuple[str, tuple[Any, ...], dict[str, Any]], late: float
    ) -> BaseException | None:
        name, args, options = made
        _RUNNING.set(runner.name)
        time.sleep(late)
        try:
            getattr(runner.graph, name)(*args, **options)
        except Exception as error:
            return error
        return None

    async def acall(
        runner: Runner, made: tuple[str, tuple[Any, ...], dict[str, Any]]
    ) -> BaseException | None:
        name, args, options = made
        try:
            await getattr(runner.graph, f"a{name}")(*args, **options)
        except Exception as error:
            return error
        return None

    async def gather(coroutines: list[Coroutine[Any, Any, Any]]) -> list[Any]:
        return await asyncio.gather(*coroutines)

    if face == "async":
        results = asyncio.run(gather([acall(runner, made) for runner, _, made in calls]))
    else:
        with ThreadPoolExecutor(len(calls)) as pool:
            late = [n // 2 * apart * (n % 2) for n in range(len(calls))]
            results = list(pool.map(lambda c, late: call(c[0], c[2], late), calls, late))
    outcomes = iter(zip((runner for runner, _, _ in calls), results, strict=True))
    return [Race(thread, (next(outcomes), next(outcomes))) for thread in heads]


def judge(
    races: list[Race],
    graph: Any,
    saver: PerdureSaver,
    *,
    answers: bool,
    starts: Starts | None,
) -> Tally:
    """Assert what must hold of every race and count the rest. ``graph`` and ``saver`` read afresh. Without
    ``starts`` the rivals had both seen the same state.

    A run that began at a checkpoint which was not the head any more has declared a fork. LangGraph drops an
    answer where nothing asks, whatever the saver.
    """
    tally = Tally()
    for one in races:
        began = {r.name: (starts or {}).get((r.name, one.thread), Start()) for r, _ in one.outcomes}
        if not all(start.at_head for start in began.values()):
            _judge_fork(one, graph, began)
            tally.forked += 1
            continue
        said = graph.get_state(config(one.thread)).values["said"]
        winners = [runner for runner, error in one.outcomes if error is None]
        for runner, error in one.outcomes:
            word = runner.word(one.thread)
            times = sum(word in item for item in said)
            if error is None:
                if answers and not began[runner.name].asked:
                    tally.unheard += 1
                    continue
                assert times == 1, f"{word!r} was acknowledged and is {times} times in {said}"
                continue
            tally.lost += 1
            hidden = runner.graph.checkpointer.conflicts(one.thread)
            assert _is_conflict(error) or hidden, f"{word!r} lost, and was told {error!r}"
            if starts is None:
                assert times == 0, f"{word!r} lost and is in {said}"
        tally.won += len(winners)
        tally.both_won += len(winners) == 2
        tally.both_lost += not winners
        _assert_chain(saver, one.thread)
    return tally


def _judge_fork(one: Race, graph: Any, began: Mapping[str, Start]) -> None:
    """The late run replayed a checkpoint that its rival had left. What the rival was told stays true of its
    branch; the thread is where the late run took it, which is LangGraph's to decide."""
    (early, error), (late, late_error) = sorted(one.outcomes, key=lambda o: not began[o[0].name].at_head)
    assert began[early.name].at_head
    assert not began[late.name].at_head
    assert late_error is None or _is_conflict(late_error), f"{late.name} was told {late_error!r}"
    history = [state.values.get("said", []) for state in graph.get_state_history(config(one.thread))]
    ends = [said for said in history if said[-1:] == ["speak"]]
    if error is None:
        word = early.word(one.thread)
        assert any(sum(word in item for item in said) == 1 for said in ends), f"{word!r} is in none of {ends}"
    else:
        assert _is_conflict(error) or early.graph.checkpointer.conflicts(one.thread)


def _is_conflict(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, HeadConflict):
            return True
        if isinstance(error, BaseExceptionGroup):
            return any(map(_is_conflict, error.exceptions))
        error = error.__cause__ or error.__context__
    return False


def _assert_chain(saver: PerdureSaver, thread: str) -> None:
    """No checkpoint of the root namespace has two children, and all hang together."""
    found = list(saver.list({"configurable": {"thread_id": thread, "checkpoint_ns": ""}}))
    ids = [item.config["configurable"]["checkpoint_id"] for item in found]
    parents = [item.parent_config and item.parent_config["configurable"]["checkpoint_id"] for item in found]
    assert parents == [*ids[1:], None], f"thread {thread} is not a chain"
