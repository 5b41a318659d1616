"""A run that begins beside a rival, on a backend that fails, or in an event loop that ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

import perdure
from perdure import HeadConflict, SyncDatabase, Unavailable
from perdure.errors import TooLarge
from perdure.model.ops import Commit, Put
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT
from perdure.testing.faults import Fault, fail, faulty, refuse
from tests.backends import EMPTY
from tests.langgraph.opening import (
    Direct,
    Watched,
    assert_over,
    given,
    graph,
    is_opening,
    said,
    sound,
    sources,
    watched,
    within,
)
from tests.langgraph.session import config


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[SyncDatabase, Watched]]:
    with sound(request.param) as found:
        yield found


def test_a_rival_that_comes_between_wins_and_the_run_is_told(opened: tuple[SyncDatabase, Watched]) -> None:
    """The rival's put gives the head the very version that the run's second put would expect."""
    db, driver = opened
    saver, rival = db.checkpointer(), db.checkpointer()
    within(90, graph(saver).ainvoke(given("before"), config()))
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
        within(90, graph(saver).ainvoke(given("lost"), config()))
    assert len(saver.conflicts("t")) == 1
    assert_over(saver)
    found = list(db.checkpointer().list(config(checkpoint_ns="")))
    assert found[0].checkpoint["id"] == theirs["id"]
    assert sources(db.checkpointer()) == ["input", "loop", "loop", "loop"]
    within(90, graph(saver).ainvoke(given("again"), config()))
    assert said(db.checkpointer())[-2:] == ["again", "an answer"]


def test_a_rival_on_a_new_thread_wins_and_the_run_is_told(opened: tuple[SyncDatabase, Watched]) -> None:
    db, driver = opened
    saver, rival = db.checkpointer(), db.checkpointer()

    async def before(effect: Effect[Any]) -> None:
        if is_opening(effect):
            driver.before = None
            rival.put(config(checkpoint_ns=""), empty_checkpoint(), {"source": "loop", "step": 0}, {})

    driver.before = before
    with pytest.raises(HeadConflict):
        within(90, graph(saver).ainvoke(given("lost"), config()))
    assert len(saver.conflicts("t")) == 1
    assert sources(db.checkpointer()) == ["loop"]


def test_an_opening_that_is_refused_for_a_collection_is_stored_apart(
    opened: tuple[SyncDatabase, Watched],
) -> None:
    db, driver = opened
    saver = db.checkpointer()
    within(90, graph(saver).ainvoke(given("before"), config()))

    async def before(effect: Effect[Any]) -> None:
        if is_opening(effect):
            driver.before = None
            db.checkpointer().prune(["t"])

    driver.before = before
    within(90, graph(saver).ainvoke(given("after"), config()))
    assert saver.conflicts("t") == ()
    assert said(db.checkpointer()) == ["before", "an answer", "after", "an answer"]


def test_a_write_that_the_backend_cannot_take_fails_alone(opened: tuple[SyncDatabase, Watched]) -> None:
    """Here it is the step: what it builds on is stored, as it would be without it."""
    db, driver = opened

    async def before(effect: Effect[Any]) -> None:
        ops = effect.ops if isinstance(effect, Commit) else ()
        if any(op.kind is CHECKPOINT and isinstance(op, Put) and op.fields["step"] == 0 for op in ops):
            raise TooLarge("a step")

    driver.before = before
    with pytest.raises(TooLarge):
        within(90, graph(db.checkpointer()).ainvoke(given(), config()))
    assert sources(db.checkpointer()) == ["input"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("new", [True, False])
def test_a_backend_that_fails_fails_the_run_and_is_not_believed(at: int, when: Any, new: bool) -> None:
    with EMPTY["sqlite"]() as url:
        with perdure.connect_sync(url, migrate=True) as db:
            if not new:
                within(90, graph(db.checkpointer()).ainvoke(given("before"), config()))
        with faulty(url, Fault(at, fail("unavailable"), when), counts=[Commit]) as (db, _):
            saver = db.checkpointer()
            app = graph(saver)
            with pytest.raises(Unavailable):
                within(90, app.ainvoke(given("one"), config()))
            assert_over(saver)
            within(90, app.ainvoke(given("two"), config()))
            assert said(db.checkpointer())[-2:] == ["two", "an answer"]
            assert db.fsck() == []


@pytest.mark.parametrize("at", [1, 2])
def test_a_commit_that_is_refused_once_is_noticed_by_nobody(at: int) -> None:
    with (
        EMPTY["sqlite"]() as url,
        faulty(url, Fault(at, refuse), counts=[Commit], migrate=True) as (db, _),
    ):
        within(90, graph(db.checkpointer()).ainvoke(given(), config()))
        assert said(db.checkpointer()) == ["hello", "an answer"]
        assert sources(db.checkpointer()) == ["input", "loop", "loop"]
        assert db.fsck() == []


def test_what_an_opening_that_failed_would_have_stored_is_not_taken_for_stored() -> None:
    """The same words once more, from the same process: they have to be sent again."""
    with EMPTY["sqlite"]() as url:
        with perdure.connect_sync(url, migrate=True) as db:
            within(90, graph(db.checkpointer()).ainvoke(given("before"), config()))
        with faulty(url, Fault(1, fail("unavailable")), counts=[Commit]) as (db, _):
            app = graph(db.checkpointer())
            long = "the same words " * 100
            with pytest.raises(Unavailable):
                within(90, app.ainvoke(given(long), config()))
            within(90, app.ainvoke(given(long), config()))
            assert db.fsck() == []
            assert said(db.checkpointer()) == ["before", "an answer", long, "an answer"]


def test_a_database_that_is_closed_meanwhile_fails_the_run(opened: tuple[SyncDatabase, Watched]) -> None:
    with watched("sqlite") as (db, driver):

        async def before(effect: Effect[Any]) -> None:
            if is_opening(effect):
                await asyncio.to_thread(db.close)

        driver.before = before
        saver = db.checkpointer()
        with pytest.raises(Unavailable, match="closed"):
            within(90, graph(saver).ainvoke(given(), config()))
        assert_over(saver)


@pytest.mark.parametrize("rounds", range(12))
def test_an_event_loop_that_ends_at_any_moment_leaves_all_or_nothing(
    opened: tuple[SyncDatabase, Watched], rounds: int
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
    # On a busy machine the node may have answered in so many rounds, and the loop ended at what follows.
    assert sources(db.checkpointer()) in ([], ["input"], ["input", "loop"], ["input", "loop", "loop"])
    within(90, app.ainvoke(given("again"), config()))
    assert said(db.checkpointer())[-2:] == ["again", "an answer"]


def test_an_event_loop_that_is_dropped_leaves_nothing_behind(opened: tuple[SyncDatabase, Watched]) -> None:
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
    within(90, graph(calls.saver).ainvoke(given("again"), config()))
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
                await asyncio.wait_for(writes, 60)
            assert_over(calls.saver)

        within(90, run())


def test_a_blocked_run_does_not_hold_up_another_thread(opened: tuple[SyncDatabase, Watched]) -> None:
    db, driver = opened
    saver = db.checkpointer()
    calls = Direct(db, driver)

    async def run() -> None:
        calls.saver = saver
        at = await calls.begin()
        put, writes = calls.put_input(at), calls.put_writes(at)
        await put
        driver.before = None
        await asyncio.wait_for(graph(saver).ainvoke(given(), config("another")), 60)
        calls.gate.set()
        await writes

    within(90, run())
