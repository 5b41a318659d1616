"""A run's input, START's writes and the next step leave together, and nobody is told anything too soon."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import perdure
from bench.proxy import Proxy
from perdure import Database, HeadConflict, PerdureSaver, Unavailable
from perdure.database import open_database
from perdure.errors import TooLarge
from perdure.langgraph.loads import EPOCH
from perdure.model.ops import Commit, Fetch, Put
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, WRITE
from perdure.storage.port import Driver, Limits
from perdure.testing.conformance import Narrow
from perdure.testing.faults import Fault, fail, faulty, refuse
from tests.backends import BACKENDS, EMPTY
from tests.langgraph.graphs import STATES
from tests.langgraph.session import config
from tests.servers import postgres

T = TypeVar("T")
R = TypeVar("R")
Node = Callable[[Any], Awaitable[Any]]


class NodeFailed(Exception):
    pass


async def answer(state: Any) -> Any:
    await asyncio.sleep(0.01)
    return {"said": ["an answer"]}


def graph(saver: PerdureSaver, node: Node = answer) -> Any:
    builder = StateGraph(STATES["plain"])
    builder.add_node("node", node)  # type: ignore[call-overload]
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile(checkpointer=saver)


def given(word: str = "hello") -> Any:
    return {"said": [word]}


def said(saver: PerdureSaver) -> list[str]:
    return graph(saver).get_state(config()).values.get("said", [])  # type: ignore[no-any-return]


def sources(saver: PerdureSaver) -> list[Any]:
    """Where the checkpoints came from, oldest first; they have to be a chain."""
    found = list(saver.list(config(checkpoint_ns="")))
    ids = [item.checkpoint["id"] for item in found]
    parents = [item.parent_config and item.parent_config["configurable"]["checkpoint_id"] for item in found]
    assert parents == [*ids[1:], None][: len(ids)]
    return [item.metadata.get("source") for item in reversed(found)]


def stores(effect: Effect[Any]) -> list[tuple[Any, ...]]:
    """The checkpoints that a request stores."""
    ops = effect.ops if isinstance(effect, Commit) else ()
    return [op.key for op in ops if isinstance(op, Put) and op.kind is CHECKPOINT]


def is_opening(effect: Effect[Any]) -> bool:
    return len(stores(effect)) == 2


class Watched:
    """A driver that says what is asked of it. ``before`` is awaited ahead of each awaited request."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self.effects: list[Effect[Any]] = []
        self.before: Callable[[Effect[Any]], Awaitable[object]] | None = None

    @property
    def limits(self) -> Limits:
        return self._inner.limits

    def perform(self, effect: Effect[R]) -> R:
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        self.effects.append(effect)
        if self.before is not None:
            await self.before(effect)
        return await self._inner.aperform(effect)

    def close(self) -> None:
        self._inner.close()

    @property
    def openings(self) -> int:
        return sum(map(is_opening, self.effects))


@contextmanager
def watched(
    backend: str, around: Callable[[Driver], Driver] = lambda driver: driver
) -> Iterator[tuple[Database, Watched]]:
    made: list[Watched] = []

    def wrap(driver: Driver) -> Driver:
        made.append(Watched(around(driver)))
        return made[0]

    with EMPTY[backend]() as url:
        database = open_database(url, migrate=True, wrap=wrap)
        try:
            yield database, made[0]
        finally:
            database.close()


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[Database, Watched]]:
    with watched(request.param) as opened:
        yield opened
        assert opened[0].fsck() == []


def within(seconds: float, body: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(body, seconds)

    return asyncio.run(bounded())


def assert_over(saver: PerdureSaver) -> None:
    assert saver._openings._openings == {}


# What leaves together


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_opening_is_one_commit_on_every_backend(backend: str) -> None:
    with watched(backend) as (db, driver):
        saver = db.checkpointer()
        app = graph(saver)

        async def turns() -> None:
            for word in ("one", "two", "three"):
                driver.effects.clear()
                await app.ainvoke(given(word), config())
                first = next(effect for effect in driver.effects if not isinstance(effect, Fetch))
                assert isinstance(first, Commit)
                assert is_opening(first)
                assert any(op.kind is WRITE for op in first.ops)
                assert driver.openings == 1

        within(60, turns())
        assert_over(saver)
        assert said(db.checkpointer()) == ["one", "an answer", "two", "an answer", "three", "an answer"]
        assert sources(db.checkpointer()) == ["input", "loop", "loop"] * 3
        assert db.fsck() == []


@pytest.mark.parametrize("mode", ["values", "updates", "messages", "custom", "debug", "checkpoints"])
def test_an_opening_is_one_commit_however_a_run_is_streamed(
    opened: tuple[Database, Watched], mode: str
) -> None:
    db, driver = opened

    async def turn() -> None:
        async for _ in graph(db.checkpointer()).astream(given(), config(), stream_mode=mode, subgraphs=True):
            pass

    within(10, turn())
    assert driver.openings == 1


def test_a_turn_takes_three_trips_to_postgresql() -> None:
    with ExitStack() as stack:
        url = stack.enter_context(postgres.empty())
        with perdure.connect_sync(url, migrate=True):
            pass
        proxy = Proxy("127.0.0.1", postgres.shared().port, round_trip_s=0.01)
        stack.callback(proxy.close)
        through = proxy.through(url) + "&sslmode=disable&gssencmode=disable"
        db = stack.enter_context(perdure.connect_sync(through))
        app = graph(db.checkpointer())

        async def trips() -> int:
            before = proxy.counts().round_trips
            await app.ainvoke(given(), config())
            return proxy.counts().round_trips - before

        async def turns() -> list[int]:
            return [await trips() for _ in range(9)]

        counted = sorted(within(60, turns()))
        assert counted[0] == counted[4] == 3


def test_what_does_not_fit_one_commit_leaves_apart() -> None:
    with watched("memory", lambda inner: Narrow(inner, Limits(ops=16, bytes=24_000))) as (db, driver):
        saver = db.checkpointer()
        app = graph(saver)
        for letter in "abc":
            words = [f"{letter}{n} " * 3_000 for n in range(4)]
            within(10, app.ainvoke({"said": words}, config()))
        assert driver.openings == 0
        assert len(said(db.checkpointer())) == 15
        assert sources(db.checkpointer()) == ["input", "loop", "loop"] * 3
        assert db.fsck() == []


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_run_that_asks_for_durability_is_not_touched(
    opened: tuple[Database, Watched], durability: str
) -> None:
    db, driver = opened
    within(10, graph(db.checkpointer()).ainvoke(given(), config(), durability=durability))
    assert driver.openings == 0
    assert said(db.checkpointer()) == ["hello", "an answer"]


def test_neither_is_one_that_holds_a_lease_nor_a_saver_that_forks(opened: tuple[Database, Watched]) -> None:
    db, driver = opened
    within(10, graph(db.checkpointer(on_conflict="fork")).ainvoke(given(), config()))
    with pytest.raises(perdure.Fenced):
        within(10, graph(db.checkpointer()).ainvoke(given(), config(**{EPOCH: 1})))
    assert driver.openings == 0


# Who is told what, and when


class Direct:
    """The calls that LangGraph makes, one by one, on a driver whose commits wait for ``gate``."""

    def __init__(self, db: Database, driver: Watched) -> None:
        self.saver = db.checkpointer()
        self.gate = asyncio.Event()
        driver.before = self._wait
        self.input = empty_checkpoint()
        self.step = empty_checkpoint()

    async def _wait(self, effect: Effect[Any]) -> None:
        if isinstance(effect, Commit):
            await self.gate.wait()

    async def begin(self) -> RunnableConfig:
        found = await self.saver.aget_tuple(config(checkpoint_ns=""))
        return config(checkpoint_ns="") if found is None else found.config

    def put_input(self, at: RunnableConfig) -> asyncio.Task[RunnableConfig]:
        return asyncio.ensure_future(self.saver.aput(at, self.input, {"source": "input", "step": -1}, {}))

    def on_input(self, at: RunnableConfig) -> RunnableConfig:
        return {"configurable": {**at["configurable"], "checkpoint_id": self.input["id"]}}

    def put_writes(self, at: RunnableConfig) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.saver.aput_writes(self.on_input(at), [("x", 1)], "task"))

    def put_step(self, at: RunnableConfig) -> asyncio.Task[RunnableConfig]:
        put = self.saver.aput(self.on_input(at), self.step, {"source": "loop", "step": 0}, {})
        return asyncio.ensure_future(put)


def test_a_put_returns_early_only_when_a_write_under_way_carries_it(opened: tuple[Database, Watched]) -> None:
    db, driver = opened

    async def run() -> None:
        calls = Direct(db, driver)
        at = await calls.begin()
        put = calls.put_input(at)
        writes = calls.put_writes(at)
        await asyncio.wait_for(put, 5)
        step = calls.put_step(at)
        await asyncio.sleep(0.05)
        assert not writes.done()
        assert not step.done()
        assert sources(db.checkpointer()) == []
        calls.gate.set()
        await asyncio.wait_for(asyncio.gather(writes, step), 5)

    within(20, run())
    assert sources(db.checkpointer()) == ["input", "loop"]


def test_a_put_that_nothing_carries_returns_when_it_is_durable(opened: tuple[Database, Watched]) -> None:
    db, driver = opened

    async def run() -> None:
        calls = Direct(db, driver)
        at = await calls.begin()
        put = calls.put_input(at)
        await asyncio.sleep(0.05)
        assert not put.done()
        late = calls.put_writes(at)
        await asyncio.sleep(0.05)
        assert not put.done()
        calls.gate.set()
        await asyncio.wait_for(asyncio.gather(put, late), 5)

    within(20, run())
    assert sources(db.checkpointer()) == ["input"]


def test_a_step_that_comes_late_waits_for_what_it_builds_on(opened: tuple[Database, Watched]) -> None:
    db, driver = opened

    async def run() -> None:
        calls = Direct(db, driver)
        at = await calls.begin()
        put, writes = calls.put_input(at), calls.put_writes(at)
        await asyncio.wait_for(put, 5)
        await asyncio.sleep(0.05)
        commits = [effect for effect in driver.effects if isinstance(effect, Commit)]
        assert list(map(len, map(stores, commits))) == [1]
        step = calls.put_step(at)
        await asyncio.sleep(0.05)
        assert [e for e in driver.effects if isinstance(e, Commit)] == commits
        calls.gate.set()
        await asyncio.wait_for(asyncio.gather(writes, step), 5)

    within(20, run())
    assert sources(db.checkpointer()) == ["input", "loop"]


def test_writes_that_come_late_wait_for_what_they_build_on(opened: tuple[Database, Watched]) -> None:
    db, driver = opened

    async def run() -> None:
        calls = Direct(db, driver)
        at = await calls.begin()
        put, writes = calls.put_input(at), calls.put_writes(at)
        await asyncio.wait_for(put, 5)
        await asyncio.sleep(0.05)
        driver.before = None
        late = asyncio.ensure_future(calls.saver.aput_writes(calls.on_input(at), [("x", 1)], "another"))
        await asyncio.sleep(0.05)
        assert not late.done()
        calls.gate.set()
        await asyncio.wait_for(asyncio.gather(writes, late), 5)

    within(20, run())
    assert sources(db.checkpointer()) == ["input"]


def test_an_edit_as_the_input_is_durable_when_it_returns(opened: tuple[Database, Watched]) -> None:
    db, driver = opened
    app = graph(db.checkpointer())

    async def run() -> None:
        for _ in range(2):
            await app.aupdate_state(config(), given("edited"), as_node="__input__")
            assert sources(db.checkpointer())[-1] == "input"

    within(10, run())
    assert driver.openings == 0


def kept_at_the_end(db: Database, body: Awaitable[Any]) -> list[Any]:
    """What is stored the moment that a run is over, whatever becomes of it."""

    async def run() -> list[Any]:
        with suppress(NodeFailed):
            await body
        return sources(db.checkpointer())

    return within(10, run())


def slowly(driver: Watched) -> None:
    async def before(effect: Effect[Any]) -> None:
        await asyncio.sleep(0.03 if isinstance(effect, Commit) else 0)

    driver.before = before


async def failing(state: Any) -> Any:
    raise NodeFailed


async def asking(state: Any) -> Any:
    return {"said": [interrupt("which?")]}


@pytest.mark.parametrize("node", [failing, asking])
def test_the_input_is_stored_when_the_first_node_fails_or_asks(
    opened: tuple[Database, Watched], node: Node
) -> None:
    db, driver = opened
    slowly(driver)
    app = graph(db.checkpointer(), node)
    assert kept_at_the_end(db, app.ainvoke(given(), config())) == ["input", "loop"]
    if node is asking:
        within(10, app.ainvoke(Command(resume="this"), config()))
        assert said(db.checkpointer()) == ["hello", "this"]


def test_a_run_that_stops_before_its_first_node_has_stored_its_input(
    opened: tuple[Database, Watched],
) -> None:
    db, driver = opened
    slowly(driver)
    app = graph(db.checkpointer())
    stopped = app.ainvoke(given(), config(), interrupt_before=["node"])
    assert kept_at_the_end(db, stopped) == ["input", "loop"]


@pytest.mark.parametrize("end", ["returns", "fails", "asks"])
def test_a_flow_has_stored_its_input_when_it_ends(opened: tuple[Database, Watched], end: str) -> None:
    """An entrypoint has no START: its own first write carries the input, or nothing does."""
    db, driver = opened
    slowly(driver)

    @entrypoint(checkpointer=db.checkpointer())
    async def flow(given: str) -> str:
        if end == "fails":
            raise NodeFailed
        return str(interrupt("which?")) if end == "asks" else "done"

    kept = kept_at_the_end(db, flow.ainvoke("hello", config()))
    assert kept == (["input", "loop"] if end == "returns" else ["input"])


@pytest.mark.parametrize("how", ["cancelled", "left"])
def test_a_run_that_is_cancelled_or_left_leaves_nothing_open(
    opened: tuple[Database, Watched], how: str
) -> None:
    db, driver = opened
    slowly(driver)
    saver = db.checkpointer()

    async def sleeping(state: Any) -> Any:
        await asyncio.sleep(60)

    app = graph(saver, sleeping)

    async def run() -> list[Any]:
        if how == "left":
            stream = app.astream(given(), config(), stream_mode="checkpoints")
            async for _ in stream:
                break
            await stream.aclose()
        else:
            task = asyncio.ensure_future(app.ainvoke(given(), config()))
            await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            for rest in cancelled.value.args:
                if isinstance(rest, asyncio.Future):
                    await asyncio.wait([rest])
        return sources(db.checkpointer())

    kept = within(10, run())
    assert kept[:1] == ["input"]
    assert_over(saver)


# Trouble


def test_a_rival_that_comes_between_wins_and_the_run_is_told(opened: tuple[Database, Watched]) -> None:
    """The rival's put gives the head the very version that the run's second put would expect."""
    db, driver = opened
    saver, rival = db.checkpointer(), db.checkpointer()
    within(10, graph(saver).ainvoke(given("before"), config()))
    theirs = empty_checkpoint()

    async def before(effect: Effect[Any]) -> None:
        if is_opening(effect):
            driver.before = None
            found = rival.get_tuple(config(checkpoint_ns=""))
            assert found is not None
            theirs["channel_values"] = found.checkpoint["channel_values"]
            theirs["channel_versions"] = found.checkpoint["channel_versions"]
            rival.put(found.config, theirs, {"source": "loop", "step": 9}, {})

    driver.before = before
    with pytest.raises(HeadConflict):
        within(10, graph(saver).ainvoke(given("lost"), config()))
    assert len(saver.conflicts("t")) == 1
    assert_over(saver)
    found = list(db.checkpointer().list(config(checkpoint_ns="")))
    assert found[0].checkpoint["id"] == theirs["id"]
    assert sources(db.checkpointer()) == ["input", "loop", "loop", "loop"]
    within(10, graph(saver).ainvoke(given("again"), config()))
    assert said(db.checkpointer())[-2:] == ["again", "an answer"]


def test_a_rival_on_a_new_thread_wins_and_the_run_is_told(opened: tuple[Database, Watched]) -> None:
    db, driver = opened
    saver, rival = db.checkpointer(), db.checkpointer()

    async def before(effect: Effect[Any]) -> None:
        if is_opening(effect):
            driver.before = None
            rival.put(config(checkpoint_ns=""), empty_checkpoint(), {"source": "loop", "step": 0}, {})

    driver.before = before
    with pytest.raises(HeadConflict):
        within(10, graph(saver).ainvoke(given("lost"), config()))
    assert len(saver.conflicts("t")) == 1
    assert sources(db.checkpointer()) == ["loop"]


def test_an_opening_that_is_refused_for_a_collection_is_stored_apart(
    opened: tuple[Database, Watched],
) -> None:
    db, driver = opened
    saver = db.checkpointer()
    within(10, graph(saver).ainvoke(given("before"), config()))

    async def before(effect: Effect[Any]) -> None:
        if is_opening(effect):
            driver.before = None
            db.checkpointer().prune(["t"])

    driver.before = before
    within(10, graph(saver).ainvoke(given("after"), config()))
    assert saver.conflicts("t") == ()
    assert said(db.checkpointer()) == ["before", "an answer", "after", "an answer"]


def test_a_write_that_the_backend_cannot_take_fails_alone(opened: tuple[Database, Watched]) -> None:
    """Here it is the step: what it builds on is stored, as it would be without it."""
    db, driver = opened

    async def before(effect: Effect[Any]) -> None:
        ops = effect.ops if isinstance(effect, Commit) else ()
        if any(op.kind is CHECKPOINT and isinstance(op, Put) and op.fields["step"] == 0 for op in ops):
            raise TooLarge("a step")

    driver.before = before
    with pytest.raises(TooLarge):
        within(10, graph(db.checkpointer()).ainvoke(given(), config()))
    assert sources(db.checkpointer()) == ["input"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("new", [True, False])
def test_a_backend_that_fails_fails_the_run_and_is_not_believed(at: int, when: Any, new: bool) -> None:
    with EMPTY["sqlite"]() as url:
        with perdure.connect_sync(url, migrate=True) as db:
            if not new:
                within(10, graph(db.checkpointer()).ainvoke(given("before"), config()))
        with faulty(url, Fault(at, fail("unavailable"), when), counts=[Commit]) as (db, _):
            saver = db.checkpointer()
            app = graph(saver)
            with pytest.raises(Unavailable):
                within(10, app.ainvoke(given("one"), config()))
            assert_over(saver)
            within(10, app.ainvoke(given("two"), config()))
            assert said(db.checkpointer())[-2:] == ["two", "an answer"]
            assert db.fsck() == []


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_commit_that_is_refused_once_is_noticed_by_nobody(at: int) -> None:
    with (
        EMPTY["sqlite"]() as url,
        faulty(url, Fault(at, refuse), counts=[Commit], migrate=True) as (db, _),
    ):
        within(10, graph(db.checkpointer()).ainvoke(given(), config()))
        assert said(db.checkpointer()) == ["hello", "an answer"]
        assert sources(db.checkpointer()) == ["input", "loop", "loop"]
        assert db.fsck() == []


def test_what_an_opening_that_failed_would_have_stored_is_not_taken_for_stored() -> None:
    """The same words once more, from the same process: they have to be sent again."""
    with EMPTY["sqlite"]() as url:
        with perdure.connect_sync(url, migrate=True) as db:
            within(10, graph(db.checkpointer()).ainvoke(given("before"), config()))
        with faulty(url, Fault(1, fail("unavailable")), counts=[Commit]) as (db, _):
            app = graph(db.checkpointer())
            long = "the same words " * 100
            with pytest.raises(Unavailable):
                within(10, app.ainvoke(given(long), config()))
            within(10, app.ainvoke(given(long), config()))
            assert db.fsck() == []
            assert said(db.checkpointer()) == ["before", "an answer", long, "an answer"]


def test_a_database_that_is_closed_meanwhile_fails_the_run(opened: tuple[Database, Watched]) -> None:
    with watched("sqlite") as (db, driver):

        async def before(effect: Effect[Any]) -> None:
            if is_opening(effect):
                await asyncio.to_thread(db.close)

        driver.before = before
        saver = db.checkpointer()
        with pytest.raises(Unavailable, match="closed"):
            within(10, graph(saver).ainvoke(given(), config()))
        assert_over(saver)


@pytest.mark.parametrize("rounds", range(12))
def test_an_event_loop_that_ends_at_any_moment_leaves_all_or_nothing(
    opened: tuple[Database, Watched], rounds: int
) -> None:
    db, _ = opened
    saver = db.checkpointer()
    app = graph(saver)

    async def run() -> None:
        tasks = [asyncio.ensure_future(app.ainvoke(given(), config()))]
        for _ in range(rounds):
            await asyncio.sleep(0)
        assert not tasks[0].done()

    asyncio.run(run())
    gc.collect()
    assert_over(saver)
    # What was on its way arrives before this does.
    saver.put(config("another", checkpoint_ns=""), empty_checkpoint(), {"source": "loop", "step": 0}, {})
    assert sources(db.checkpointer()) in ([], ["input"], ["input", "loop"])
    within(10, app.ainvoke(given("again"), config()))
    assert said(db.checkpointer())[-2:] == ["again", "an answer"]


def test_an_event_loop_that_is_dropped_leaves_nothing_behind(opened: tuple[Database, Watched]) -> None:
    db, driver = opened
    calls = Direct(db, driver)
    loop = asyncio.new_event_loop()
    tasks: list[asyncio.Task[Any]] = []

    async def run() -> None:
        at = await calls.begin()
        tasks.extend((calls.put_input(at), calls.put_writes(at)))
        await tasks[0]

    loop.run_until_complete(run())
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
    assert_over(calls.saver)
    driver.before = None
    within(10, graph(calls.saver).ainvoke(given("again"), config()))
    assert said(db.checkpointer()) == ["again", "an answer"]


def test_a_call_that_carries_and_is_cancelled_fails_the_others() -> None:
    with watched("memory") as (db, driver):

        async def run() -> None:
            calls = Direct(db, driver)
            at = await calls.begin()
            put, writes = calls.put_input(at), calls.put_writes(at)
            await put
            step = calls.put_step(at)
            await asyncio.sleep(0.05)
            assert driver.openings == 1
            step.cancel()
            with pytest.raises(Unavailable, match="cancelled"):
                await asyncio.wait_for(writes, 5)
            assert_over(calls.saver)

        within(20, run())


def test_a_blocked_run_does_not_hold_up_another_thread(opened: tuple[Database, Watched]) -> None:
    db, driver = opened
    saver = db.checkpointer()
    calls = Direct(db, driver)

    async def run() -> None:
        calls.saver = saver
        at = await calls.begin()
        put, writes = calls.put_input(at), calls.put_writes(at)
        await put
        driver.before = None
        started = time.monotonic()
        await graph(saver).ainvoke(given(), config("another"))
        assert time.monotonic() - started < 5
        calls.gate.set()
        await writes

    within(20, run())
