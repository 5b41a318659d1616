"""A sweeper works for its share of the time, alone, and continues what a dead one began."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Retention, RetentionRules
from perdure.database.base import handle_of
from perdure.engine.retention import sweep
from perdure.engine.retention.sweep import RetentionProgress
from perdure.errors import Unavailable
from perdure.model.ops import Now
from perdure.model.program import Effect
from perdure.model.records import Partition
from perdure.model.retention_policy import ThreadTtl
from perdure.retention import sweeper
from perdure.retention.sweeper import RetentionOptions
from perdure.storage.batching import PendingRequest
from perdure.storage.port import WrappingDriver
from perdure.storage.sqlite.driver import SqliteDriver
from tests.langgraph import graphs
from tests.langgraph.session import config

ONE = RetentionRules(Retention(keep_last=1))


def fill(db: perdure.Database | perdure.SyncDatabase, count: int) -> None:
    graph = graphs.chat(db.checkpointer())
    for n in range(count):
        graph.invoke(graphs.message(n), config(f"t{n}"))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_a_share_is_above_none_and_at_most_all(share: float) -> None:
    with pytest.raises(ValueError, match="share is"):
        RetentionOptions(share=share)


def test_a_share_is_kept_by_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RetentionOptions().pause_after(1.0) == pytest.approx(19.0)
    assert RetentionOptions(share=1.0).pause_after(1.0) == 0
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(sweeper, "QUANTUM", 2)
    with perdure.connect_sync("memory://", retention=Retention(keep_last=1)) as db:
        fill(db, 5)
        done = db.apply_retention(RetentionOptions(share=0.5))
    assert done is not None
    assert (done.threads, done.checkpoints) == (5, 10)
    first, *others = waited
    assert first == 0
    assert len(others) >= 3
    assert all(pause > 0 for pause in others)


@pytest.mark.anyio
async def test_it_sweeps_without_blocking_the_loop() -> None:
    async with perdure.connect("memory://", retention=ONE) as db:
        await asyncio.to_thread(fill, db, 3)
        done = await db.apply_retention(RetentionOptions(share=1.0))
        assert done is not None
        assert done.checkpoints == 6
        again = await db.apply_retention(RetentionOptions(share=1.0))
        assert again is not None
        assert (again.threads, again.checkpoints) == (3, 0)


def test_a_second_one_does_nothing() -> None:
    with perdure.connect_sync("memory://", retention=ONE) as db:
        fill(db, 2)
        inner: list[Any] = []

        def rival(state: RetentionProgress) -> None:
            inner.append(db.apply_retention(RetentionOptions(owner="two")))

        outer = RetentionOptions(owner="one", share=1.0, on_step=rival)
        assert db.apply_retention(outer) is not None
        # While the first one sweeps; after its last step the database is free.
        assert inner[0] is None
        assert inner[-1] is not None


def test_what_a_dead_one_began_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "QUANTUM", 1)
    monkeypatch.setattr(sweeper, "LEASE_S", 0.0)
    with perdure.connect_sync("memory://", retention=ONE) as db:
        fill(db, 4)

        def die(state: RetentionProgress) -> None:
            if state.swept.threads == 2:
                raise Unavailable("killed here")

        with pytest.raises(Unavailable):
            db.apply_retention(RetentionOptions(owner="one", share=1.0, on_step=die))
        state, _ = handle_of(db).run(sweep.read_progress(""))
        assert (state.owner, state.swept.threads) == ("one", 2)
        visited: list[Any] = []
        visit = sweep.visit

        def watched(partition: Partition, *how: Any) -> Any:
            visited.append(partition.thread)
            return visit(partition, *how)

        monkeypatch.setattr(sweep, "visit", watched)
        done = db.apply_retention(RetentionOptions(owner="two", share=1.0))
        assert done is not None
        assert (done.threads, done.checkpoints) == (4, 8)
        assert visited == ["t2", "t3"]


@pytest.mark.parametrize("owner", ["one", "two"])
def test_what_was_interrupted_is_continued_at_once(owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "QUANTUM", 1)
    with perdure.connect_sync("memory://", retention=ONE) as db:
        fill(db, 4)

        def interrupt(state: RetentionProgress) -> None:
            if state.swept.threads == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            db.apply_retention(RetentionOptions(owner="one", share=1.0, on_step=interrupt))
        done = db.apply_retention(RetentionOptions(owner=owner, share=1.0))
        assert done is not None
        assert (done.threads, done.checkpoints) == (4, 8)


@pytest.mark.parametrize(
    "other",
    [
        RetentionOptions(share=1.0, rules=RetentionRules(Retention(keep_last=2))),
        RetentionOptions(share=1.0, rules=RetentionRules(Retention(keep_last=1, keep_for="1s"))),
        RetentionOptions(share=1.0, rules=replace(ONE, only_default=True)),
        RetentionOptions(share=1.0, rules=replace(ONE, usual_ttl=ThreadTtl(60.0))),
        RetentionOptions(share=1.0, rules=RetentionRules(Retention(keep_last=1), {"a": Retention()})),
    ],
)
def test_what_was_interrupted_is_not_continued_on_other_terms(
    other: RetentionOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "QUANTUM", 1)
    with perdure.connect_sync("memory://", retention=ONE) as db:
        fill(db, 4)

        def interrupt(state: RetentionProgress) -> None:
            if state.swept.threads == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            db.apply_retention(RetentionOptions(share=1.0, on_step=interrupt))
        visited = set[str]()
        visit = sweep.visit

        def watched(partition: Partition, *how: Any) -> Any:
            visited.add(partition.thread)
            return visit(partition, *how)

        monkeypatch.setattr(sweep, "visit", watched)
        assert db.apply_retention(other) is not None
        assert visited == {"t0", "t1", "t2", "t3"}


def test_a_failure_of_another_kind_leaves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "QUANTUM", 1)
    with perdure.connect_sync("memory://", retention=ONE) as db:
        fill(db, 3)

        def fail(state: RetentionProgress) -> None:
            raise BrokenPipeError

        with pytest.raises(BrokenPipeError):
            db.apply_retention(RetentionOptions(share=1.0, on_step=fail))
        assert db.apply_retention(RetentionOptions(share=1.0)) is not None


@pytest.mark.parametrize("moment", range(1, 5))
def test_an_interruption_before_a_write_is_answered_leaves_no_lease(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The write is carried out nevertheless, by a thread that the interruption does not reach."""
    # A process that a shell started in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", migrate=True, retention=ONE) as db:
        fill(db, 2)
        driver: Any = handle_of(db).driver
        while not isinstance(driver, SqliteDriver):
            driver = driver._inner
        commits = driver._commits
        execute, left = commits._execute, moment

        def late(group: Sequence[PendingRequest]) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                time.sleep(0.1)
            execute(group)

        monkeypatch.setattr(commits, "_execute", late)
        with pytest.raises(KeyboardInterrupt):
            db.apply_retention(RetentionOptions(share=1.0))
        assert db.apply_retention(RetentionOptions(share=1.0)) is not None


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_clock_that_is_set_during_a_step_does_not_move_the_end_of_the_lease(jump_s: int) -> None:
    class Set(WrappingDriver):
        """A driver whose database's clock is set by a jump after the first look at it in a step."""

        looks = 0

        def perform(self, effect: Effect[Any]) -> Any:
            answer = self._inner.perform(effect)
            if not isinstance(effect, Now):
                return answer
            self.looks += 1
            return answer + (jump_s * 1_000_000 if self.looks > 2 else 0)

        async def aperform(self, effect: Effect[Any]) -> Any:
            raise NotImplementedError

    with perdure.connect_sync("memory://", retention=ONE) as db:
        fill(db, 2)
        states: list[RetentionProgress] = []
        sweeper = handle_of(db).sweeper(RetentionOptions(share=0.5, on_step=states.append))
        driver = sweeper._driver = Set(sweeper._driver)
        assert sweeper.run(sweeper.apply()) is not None
        assert driver.looks > 3
        until = time.time_ns() // 1000 + (jump_s + 120) * 1_000_000
        assert until - 120_000_000 < states[0].until < until


def test_a_dry_run_stores_nothing_and_needs_no_lease() -> None:
    with perdure.connect_sync("memory://", retention=ONE) as db:
        fill(db, 2)
        planned = db.apply_retention(RetentionOptions(share=1.0, dry_run=True))
        assert planned is not None
        assert planned.checkpoints == 4
        assert handle_of(db).run(sweep.read_progress(""))[1] == 0
        assert len(db.timeline("t0")) == 3
        assert db.apply_retention(RetentionOptions(share=1.0)) == planned


def test_one_thread_is_swept_beside_a_sweep() -> None:
    with perdure.connect_sync("memory://", retention=ONE) as db:
        fill(db, 2)
        assert db.apply_retention_to("t1").checkpoints == 2
        assert [len(db.timeline(t)) for t in ("t0", "t1")] == [3, 1]
