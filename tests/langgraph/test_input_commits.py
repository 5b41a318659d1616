"""A run's input, START's writes and the next step leave together, and nobody is told anything too soon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from langgraph.func import entrypoint
from langgraph.types import Command, interrupt

import perdure
from bench.proxy import Proxy
from perdure import SyncDatabase
from perdure.langgraph.loop_state import ThreadId
from perdure.model.ops import Commit, Fetch
from perdure.model.program import Effect
from perdure.model.records import WRITE
from perdure.storage.port import CommitLimits
from perdure.testing.conformance import Narrow
from tests.backends import BACKENDS
from tests.langgraph.opening import (
    Direct,
    Node,
    NodeFailed,
    Watched,
    assert_over,
    failing,
    given,
    graph,
    is_opening,
    said,
    slowly,
    sound,
    sources,
    stores,
    watched,
    within,
)
from tests.langgraph.session import config
from tests.servers import postgres


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[SyncDatabase, Watched]]:
    with sound(request.param) as found:
        yield found


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
    opened: tuple[SyncDatabase, Watched], mode: str
) -> None:
    db, driver = opened

    async def turn() -> None:
        async for _ in graph(db.checkpointer()).astream(given(), config(), stream_mode=mode, subgraphs=True):
            pass

    within(90, turn())
    assert driver.openings == 1


@pytest.mark.packs_late
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
    with watched("memory", lambda inner: Narrow(inner, CommitLimits(ops=16, bytes=24_000))) as (db, driver):
        saver = db.checkpointer()
        app = graph(saver)
        for letter in "abc":
            words = [f"{letter}{n} " * 3_000 for n in range(4)]
            within(90, app.ainvoke({"said": words}, config()))
        assert driver.openings == 0
        assert len(said(db.checkpointer())) == 15
        assert sources(db.checkpointer()) == ["input", "loop", "loop"] * 3
        assert db.fsck() == []


def test_with_sync_durability_the_opening_is_stored_before_the_first_node_begins(
    opened: tuple[SyncDatabase, Watched],
) -> None:
    db, driver = opened
    begun: list[Any] = []

    async def node(state: Any) -> Any:
        begun.append((await graph(db.checkpointer()).aget_state(config())).next)
        return {"said": ["an answer"]}

    within(90, graph(db.checkpointer(), node).ainvoke(given(), config(), durability="sync"))
    assert begun == [("node",)]
    assert driver.openings == 1
    assert said(db.checkpointer()) == ["hello", "an answer"]


def test_neither_a_run_that_stores_at_its_exit_nor_a_saver_that_forks_has_an_opening(
    opened: tuple[SyncDatabase, Watched],
) -> None:
    db, driver = opened
    within(90, graph(db.checkpointer(on_conflict="fork")).ainvoke(given(), config()))
    assert driver.openings == 0
    within(90, graph(db.checkpointer()).ainvoke(given("again"), config(), durability="exit"))
    assert driver.openings == 0
    assert said(db.checkpointer()) == ["hello", "an answer", "again", "an answer"]


@pytest.mark.parametrize("durability", ["async", "sync"])
def test_the_opening_of_a_run_without_its_lease_is_refused_before_the_first_node_begins(
    opened: tuple[SyncDatabase, Watched], durability: str
) -> None:
    db, driver = opened
    begun: list[Any] = []

    async def node(state: Any) -> Any:
        begun.append(state)
        return {}

    run = graph(db.checkpointer(), node).ainvoke(
        given(), config(ThreadId.of("t", epoch=1)), durability=durability
    )
    with pytest.raises(perdure.Fenced):
        within(90, run)
    assert driver.openings == 0
    assert said(db.checkpointer()) == []
    if durability == "sync":
        assert begun == []


# Who is told what, and when


def test_a_put_returns_early_only_when_a_write_under_way_carries_it(
    opened: tuple[SyncDatabase, Watched],
) -> None:
    db, driver = opened

    async def run() -> None:
        calls = Direct(db, driver)
        at = await calls.begin()
        put = calls.put_input(at)
        writes = calls.put_writes(at)
        await asyncio.wait_for(put, 60)
        step = calls.put_step(at)
        await asyncio.sleep(0.05)
        assert not writes.done()
        assert not step.done()
        assert sources(db.checkpointer()) == []
        calls.gate.set()
        await asyncio.wait_for(asyncio.gather(writes, step), 60)

    within(90, run())
    assert sources(db.checkpointer()) == ["input", "loop"]


def test_a_put_that_nothing_carries_returns_when_it_is_durable(opened: tuple[SyncDatabase, Watched]) -> None:
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
        await asyncio.wait_for(asyncio.gather(put, late), 60)

    within(90, run())
    assert sources(db.checkpointer()) == ["input"]


def test_a_step_that_comes_late_waits_for_what_it_builds_on(opened: tuple[SyncDatabase, Watched]) -> None:
    db, driver = opened

    async def run() -> None:
        calls = Direct(db, driver)
        at = await calls.begin()
        put, writes = calls.put_input(at), calls.put_writes(at)
        await asyncio.wait_for(put, 60)
        await asyncio.sleep(0.05)
        commits = [effect for effect in driver.effects if isinstance(effect, Commit)]
        assert list(map(len, map(stores, commits))) == [1]
        step = calls.put_step(at)
        await asyncio.sleep(0.05)
        assert [e for e in driver.effects if isinstance(e, Commit)] == commits
        calls.gate.set()
        await asyncio.wait_for(asyncio.gather(writes, step), 60)

    within(90, run())
    assert sources(db.checkpointer()) == ["input", "loop"]


def test_writes_that_come_late_wait_for_what_they_build_on(opened: tuple[SyncDatabase, Watched]) -> None:
    db, driver = opened

    async def run() -> None:
        calls = Direct(db, driver)
        at = await calls.begin()
        put, writes = calls.put_input(at), calls.put_writes(at)
        await asyncio.wait_for(put, 60)
        await asyncio.sleep(0.05)
        driver.before = None
        late = asyncio.ensure_future(calls.saver.aput_writes(calls.on_input(at), [("x", 1)], "another"))
        await asyncio.sleep(0.05)
        assert not late.done()
        calls.gate.set()
        await asyncio.wait_for(asyncio.gather(writes, late), 60)

    within(90, run())
    assert sources(db.checkpointer()) == ["input"]


def test_an_edit_as_the_input_is_durable_when_it_returns(opened: tuple[SyncDatabase, Watched]) -> None:
    db, driver = opened
    app = graph(db.checkpointer())

    async def run() -> None:
        for _ in range(2):
            await app.aupdate_state(config(), given("edited"), as_node="__input__")
            assert sources(db.checkpointer())[-1] == "input"

    within(90, run())
    assert driver.openings == 0


def kept_at_the_end(db: SyncDatabase, body: Awaitable[Any]) -> list[Any]:
    """What is stored the moment that a run is over, whatever becomes of it."""

    async def run() -> list[Any]:
        with suppress(NodeFailed):
            await body
        return sources(db.checkpointer())

    return within(90, run())


async def asking(state: Any) -> Any:
    return {"said": [interrupt("which?")]}


@pytest.mark.parametrize("node", [failing, asking])
def test_the_input_is_stored_when_the_first_node_fails_or_asks(
    opened: tuple[SyncDatabase, Watched], node: Node
) -> None:
    db, driver = opened
    slowly(driver)
    app = graph(db.checkpointer(), node)
    assert kept_at_the_end(db, app.ainvoke(given(), config())) == ["input", "loop"]
    if node is asking:
        within(90, app.ainvoke(Command(resume="this"), config()))
        assert said(db.checkpointer()) == ["hello", "this"]


def test_a_run_that_stops_before_its_first_node_has_stored_its_input(
    opened: tuple[SyncDatabase, Watched],
) -> None:
    db, driver = opened
    slowly(driver)
    app = graph(db.checkpointer())
    stopped = app.ainvoke(given(), config(), interrupt_before=["node"])
    assert kept_at_the_end(db, stopped) == ["input", "loop"]


@pytest.mark.parametrize("end", ["returns", "fails", "asks"])
def test_a_flow_has_stored_its_input_when_it_ends(opened: tuple[SyncDatabase, Watched], end: str) -> None:
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
    opened: tuple[SyncDatabase, Watched], how: str
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
            committing = asyncio.Event()

            async def before(effect: Effect[Any]) -> None:
                if isinstance(effect, Commit):
                    committing.set()
                await asyncio.sleep(0.03)

            driver.before = before
            task = asyncio.ensure_future(app.ainvoke(given(), config()))
            await committing.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            for rest in cancelled.value.args:
                if isinstance(rest, asyncio.Future):
                    await asyncio.wait([rest])
        return sources(db.checkpointer())

    kept = within(90, run())
    assert kept[:1] == ["input"]
    assert_over(saver)
