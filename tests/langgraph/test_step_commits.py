"""A step's writes and the checkpoint that follows it share a commit, and no call returns too soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Durability

from perdure import SyncDatabase
from perdure.engine.threads.steering import Taking
from perdure.errors import Unavailable
from perdure.langgraph.loop_state import ThreadId
from perdure.model.ops import Commit, Op, Put, Refused
from perdure.model.program import Effect, Program
from perdure.model.records import HEAD, WRITE, Partition
from perdure.model.runs.messages import OPEN, Message, Run
from perdure.storage.port import Driver, WrappingDriver
from tests.backends import BACKENDS
from tests.langgraph.graphs import STATES
from tests.langgraph.opening import Watched, given, graph, said, sound, sources, stores, watched, within
from tests.langgraph.session import config


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[SyncDatabase, Watched]]:
    with sound(request.param) as found:
        yield found


def writes(effect: Effect[Any]) -> int:
    """The number of pending writes that a request stores."""
    ops = effect.ops if isinstance(effect, Commit) else ()
    return sum(isinstance(op, Put) and op.kind is WRITE for op in ops)


def commits(driver: Watched) -> list[tuple[int, int]]:
    """Of each commit the numbers of checkpoints and of pending writes, in order."""
    return [(len(stores(e)), min(1, writes(e))) for e in driver.effects if isinstance(e, Commit)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_of_one_task_is_one_commit_on_every_backend(backend: str) -> None:
    with watched(backend) as (db, driver):
        app = graph(db.checkpointer())

        async def turn(durability: Any) -> list[tuple[int, int]]:
            driver.effects.clear()
            await app.ainvoke(given(), config(), durability=durability)
            return commits(driver)

        assert within(60, turn("async")) == [(2, 1), (1, 1)]
        assert within(60, turn("sync")) == [(2, 1), (1, 1)]
        assert said(db.checkpointer()) == ["hello", "an answer"] * 2
        assert sources(db.checkpointer()) == ["input", "loop", "loop"] * 2
        assert db.fsck() == []


def test_a_step_shares_its_commit_although_the_checkpoint_before_it_is_still_being_stored(
    opened: tuple[SyncDatabase, Watched],
) -> None:
    db, driver = opened

    async def turn() -> None:
        ended = asyncio.Event()

        async def node(state: Any) -> Any:
            ended.set()
            return {"said": ["an answer"]}

        async def until_ended(effect: Effect[Any]) -> None:
            if isinstance(effect, Commit):
                await ended.wait()

        driver.before = until_ended
        await graph(db.checkpointer(), node).ainvoke(given(), config())

    within(60, turn())
    assert commits(driver) == [(2, 1), (1, 1)]


def test_a_task_that_ends_before_others_is_stored_before_they_end(
    opened: tuple[SyncDatabase, Watched],
) -> None:
    db, driver = opened

    async def turn() -> int:
        stored = asyncio.Event()
        found = 0

        async def quick(state: Any) -> Any:
            return {"said": ["quick"]}

        async def slow(state: Any) -> Any:
            nonlocal found
            await stored.wait()
            found = sum(map(writes, driver.effects))
            return {"said": ["slow"]}

        async def before(effect: Effect[Any]) -> None:
            if writes(effect) and not stores(effect):
                stored.set()

        driver.before = before
        builder = StateGraph(STATES["plain"])
        for name, node in {"quick": quick, "slow": slow}.items():
            builder.add_node(name, node)
            builder.add_edge(START, name)
            builder.add_edge(name, END)
        app: Any = builder.compile(checkpointer=db.checkpointer())
        await app.ainvoke(given(), config())
        return found

    assert within(60, turn())
    assert commits(driver) == [(2, 1), (0, 1), (1, 1)]


class Step:
    """A checkpoint with a load behind it, and the calls on it that LangGraph makes when a step ends."""

    def __init__(self, db: SyncDatabase) -> None:
        self.saver = db.checkpointer()
        self.next = empty_checkpoint()
        self.at = config()

    async def begin(self) -> None:
        await self.saver.aget_tuple(config(checkpoint_ns=""))
        first = empty_checkpoint()
        self.at = await self.saver.aput(config(checkpoint_ns=""), first, {"source": "loop", "step": 0}, {})

    def put_writes(self, task: str = "task") -> asyncio.Task[None]:
        return asyncio.ensure_future(self.saver.aput_writes(self.at, [("x", 1)], task))

    def put(self) -> asyncio.Task[RunnableConfig]:
        metadata: Any = {"source": "loop", "step": 1}
        return asyncio.ensure_future(self.saver.aput(self.at, self.next, metadata, {}))

    async def stored(self) -> tuple[list[str], bool]:
        """The tasks with writes, and True if the next checkpoint is there."""
        found = await self.saver.aget_tuple(self.at)
        head = await self.saver.aget_tuple(config(checkpoint_ns=""))
        assert found is not None
        assert head is not None
        tasks = sorted(task for task, *_ in found.pending_writes or ())
        return tasks, head.checkpoint["id"] == self.next["id"]


def test_no_call_returns_before_the_commit_is_durable(opened: tuple[SyncDatabase, Watched]) -> None:
    db, driver = opened

    async def body() -> None:
        step = Step(db)
        await step.begin()
        asked, gate = asyncio.Event(), asyncio.Event()

        async def before(effect: Effect[Any]) -> None:
            asked.set()
            await gate.wait()

        driver.before = before
        calls = [step.put_writes("one"), step.put_writes("two"), step.put()]
        await asked.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        gate.set()
        await asyncio.gather(*calls)
        assert commits(driver)[-1] == (1, 1)
        driver.before = None
        assert await step.stored() == (["one", "two"], True)
        assert step.saver._steps._steps == {}

    within(60, body())


class _Bound(Taking):
    """Messages of which nothing is left to be bound to the run."""

    def plan_ops(self) -> Program[tuple[Op, ...]]:
        yield from ()
        return ()


def taking(held: tuple[Message, ...]) -> Taking:
    run = Run("run", 1, 1, OPEN, "graph", "", 1, 1, None, 0, 0)
    return _Bound(Partition("", "t"), run, lambda message: True, 8, task_id="task", held=held)


@pytest.mark.parametrize("held", [(), (Message("two", {}, "graph", mode="steer", seq=2),)])
def test_writes_wait_for_nothing_where_a_task_holds_messages(
    opened: tuple[SyncDatabase, Watched], held: tuple[Message, ...]
) -> None:
    db, driver = opened

    async def body() -> None:
        step = Step(db)
        await step.begin()
        asked, gate = asyncio.Event(), asyncio.Event()

        async def before(effect: Effect[Any]) -> None:
            asked.set()
            await gate.wait()

        driver.before = before
        driver.effects.clear()
        put = step.put()
        await asked.wait()
        thread = ThreadId.of(step.at["configurable"]["thread_id"], taking=taking(held))
        step.at = config(thread, checkpoint_ns="", checkpoint_id=step.next["id"])
        written = step.put_writes()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(driver.effects) == 1 + len(held)
        gate.set()
        await asyncio.gather(put, written)
        driver.before = None
        assert (await step.stored())[0] == ["task"]

    within(60, body())


class _Once(WrappingDriver):
    """Answers the first commit of writes with a checkpoint in its own way."""

    def __init__(self, inner: Driver, answer: Refused | Exception) -> None:
        super().__init__(inner)
        self.answer: Refused | Exception | None = answer

    def perform(self, effect: Effect[Any]) -> Any:
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[Any]) -> Any:
        if writes(effect) and stores(effect) and (answer := self.answer) is not None:
            self.answer = None
            if isinstance(answer, Exception):
                raise answer
            return answer
        return await self._inner.aperform(effect)


def test_what_a_shared_commit_could_not_store_is_stored_apart() -> None:
    with watched("memory", lambda inner: _Once(inner, Refused(HEAD, ("",)))) as (db, driver):

        async def body() -> None:
            step = Step(db)
            await step.begin()
            await asyncio.gather(step.put_writes(), step.put())
            assert await step.stored() == (["task"], True)

        within(60, body())
        assert sorted(commits(driver)[-2:]) == [(0, 1), (1, 0)]
        assert db.fsck() == []


def test_every_call_of_a_commit_that_fails_raises_its_error() -> None:
    with watched("memory", lambda inner: _Once(inner, Unavailable("the database is away"))) as (db, _):

        async def body() -> None:
            step = Step(db)
            await step.begin()
            calls = [step.put_writes(), step.put()]
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert [str(error) for error in found] == ["the database is away"] * 2
            assert await step.stored() == ([], False)
            await asyncio.gather(step.put_writes(), step.put())
            assert await step.stored() == (["task"], True)

        within(60, body())


@pytest.mark.parametrize("cancelled", [0, 1])
def test_a_cancelled_call_takes_no_other_with_it(
    opened: tuple[SyncDatabase, Watched], cancelled: int
) -> None:
    db, driver = opened

    async def body() -> None:
        step = Step(db)
        await step.begin()
        asked, gate = asyncio.Event(), asyncio.Event()

        async def before(effect: Effect[Any]) -> None:
            asked.set()
            await gate.wait()

        driver.before = before
        calls: list[asyncio.Task[Any]] = [step.put_writes(), step.put()]
        await asked.wait()
        calls[cancelled].cancel()
        gate.set()
        with suppress(asyncio.CancelledError):
            await calls[cancelled]
        await calls[1 - cancelled]
        driver.before = None
        tasks, is_there = await step.stored()
        # Of the cancelled call nothing is promised.
        assert tasks == ["task"] if cancelled else is_there
        assert step.saver._steps._steps == {}

    within(60, body())


@pytest.mark.parametrize("durability", ["async", "sync"])
def test_a_load_waits_for_what_a_run_before_it_still_stores(
    opened: tuple[SyncDatabase, Watched], durability: Durability
) -> None:
    db, driver = opened
    app = graph(db.checkpointer())

    async def body() -> None:
        gate, asked = asyncio.Event(), asyncio.Event()
        commits_made = 0

        async def before(effect: Effect[Any]) -> None:
            nonlocal commits_made
            if isinstance(effect, Commit):
                commits_made += 1
            if commits_made == 2 and not asked.is_set():
                asked.set()
                await gate.wait()

        driver.before = before
        first = asyncio.create_task(app.ainvoke(given(), config(), durability=durability))
        await asked.wait()
        # LangGraph leaves the last put under way when the caller of a cancelled run returns, or cancels it
        # when it may be at the database already.
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        second = asyncio.create_task(app.ainvoke(given(), config()))
        await asyncio.sleep(0.05)
        assert not second.done()
        gate.set()
        await second

    within(60, body())
    assert said(db.checkpointer())[-2:] == ["hello", "an answer"]
    assert db.fsck() == []


@pytest.mark.parametrize("durability", ["async", "exit", "sync"])
def test_a_load_waits_for_the_end_of_a_stream_that_was_left(
    opened: tuple[SyncDatabase, Watched], durability: Durability
) -> None:
    db, _ = opened
    holds = True

    async def first(state: Any) -> Any:
        return {"said": ["first"]}

    async def second(state: Any) -> Any:
        if holds:
            await asyncio.Event().wait()
        return {"said": ["second"]}

    builder: Any = StateGraph(STATES["plain"])
    builder.add_node("first", first).add_node("second", second)
    builder.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    app = builder.compile(checkpointer=db.checkpointer())

    async def body() -> None:
        nonlocal holds
        for _ in range(5):
            holds = True
            async for _part in app.astream(given(), config(), durability=durability, stream_mode="updates"):
                break
            holds = False
            await app.ainvoke(given(), config(), durability=durability)

    within(60, body())
    assert said(db.checkpointer())[-3:] == ["hello", "first", "second"]
    assert db.fsck() == []


def test_a_load_waits_for_the_writes_of_a_stream_that_was_left(opened: tuple[SyncDatabase, Watched]) -> None:
    db, driver = opened

    async def work(state: Any) -> Any:
        return {"said": ["worked"]}

    builder: Any = StateGraph(STATES["plain"])
    for name in ("one", "two", "three"):
        builder.add_node(name, work).add_edge(START, name)
    app = builder.compile(checkpointer=db.checkpointer())

    async def before(effect: Effect[Any]) -> None:
        if writes(effect):
            await asyncio.sleep(0.05)

    async def body() -> None:
        await app.ainvoke(given(), config())
        driver.before = before
        for _ in range(3):
            async for _part in app.astream(given(), config(), stream_mode="updates"):
                break
            await app.ainvoke(None, config())

    within(60, body())
    assert said(db.checkpointer()) == ["hello", *["worked"] * 3] * 4
    assert db.fsck() == []


@pytest.mark.parametrize("times", [1, 6])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_load_waits_for_what_is_stored_at_the_exit_of_a_wrapped_stream(
    opened: tuple[SyncDatabase, Watched], is_new: bool, times: int
) -> None:
    db, _ = opened
    app = graph(db.checkpointer())

    async def wrap(stream: Any, times: int) -> AsyncIterator[Any]:
        async for part in wrap(stream, times - 1) if times else stream:
            yield part

    async def body() -> None:
        if not is_new:
            await app.ainvoke(given(), config())
        stream = app.astream(given(), config(), stream_mode="values", durability="exit")
        async for _part in wrap(stream, times):
            break
        del stream
        await app.ainvoke(given(), config(), durability="exit")

    within(60, body())
    before = [] if is_new else ["hello", "an answer"]
    assert said(db.checkpointer()) == [*before, "hello", "hello", "an answer"]
    assert db.fsck() == []
