"""A sweep removes what killed imports, moves, copies and first writes left, and nothing of live ones."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base.id import uuid6

import perdure
from perdure import RetentionRules
from perdure.database.base import handle_of
from perdure.engine.retention import sweep
from perdure.engine.retention.sweep import RetentionResult, RetentionTerms
from perdure.engine.retention.thread_expiry import Clocks
from perdure.engine.threads import transfer_claim
from perdure.engine.transact import Budget, commit_with_chunks
from perdure.engine.transfer import importing
from perdure.errors import Contention
from perdure.model.ops import Commit, Committed, Expect, Fetch, Now, Put, Range, Stage
from perdure.model.program import ask
from perdure.model.records import CHUNK, DOCUMENT, GC, KINDS, OF_THREAD, WRITE
from perdure.model.values.packs import make_chunk_puts
from tests import backends
from tests.engine.threads.test_arrival_leftovers import ADA, SHAPE, arrivals, is_claimed, killed, stock
from tests.engine.transfer.test_transfer import in_memory, rows
from tests.langgraph import graphs
from tests.langgraph.session import config

__all__ = ["stock"]
LEASE_US = transfer_claim.LEASE_US


def swept(db: perdure.SyncDatabase, after_us: int = 0, *, dry_run: bool = False) -> RetentionResult:
    """The thread "ada", as a sweep finds it after so much time."""
    handle = handle_of(db)
    terms = RetentionTerms(RetentionRules(), handle.digest, handle.budget, dry_run=dry_run)
    now = handle.run(ask(Now()))
    return handle.run(sweep.visit(ADA, terms, Clocks(now + after_us, now)))


def held(db: perdure.SyncDatabase) -> int:
    return sum(len(rows(db, ADA, kind)) for kind in KINDS)


@pytest.mark.parametrize("way", ["import", "move", "copy"])
def test_a_killed_arrival_is_removed_after_its_lease(way: str, stock: Path) -> None:
    arrive = arrivals(stock)[way]
    claimed = at = 0
    while True:
        at += 1
        db, is_killed = killed(arrive, at)
        if not is_killed:
            break
        if not is_claimed(db):
            continue
        claimed += 1
        before = held(db)
        assert swept(db, LEASE_US - 60_000_000) == RetentionResult(threads=1)
        planned = swept(db, LEASE_US, dry_run=True)
        assert held(db) == before
        assert planned == swept(db, LEASE_US)
        assert (planned.unfinished, planned.expired) == (1, 0)
        assert held(db) == 0
        arrive[1](db)
        assert db.fsck("ada") == []
        assert swept(db, 2 * LEASE_US) == RetentionResult(threads=1)
    assert claimed >= 2


def test_documents_of_the_name_stay() -> None:
    db = in_memory()
    driver = handle_of(db).driver
    noted = Put(DOCUMENT, OF_THREAD, {"updated_at": 1}, b"{}", version=1)
    claim = transfer_claim.make_claim(7, 0, Expect.ABSENT)
    driver.perform(Commit(ADA, (noted, claim)))
    assert swept(db).unfinished == 1
    assert not is_claimed(db)
    assert len(rows(db, ADA, DOCUMENT)) == 1


def test_an_arrival_that_goes_on_after_its_lease_is_refused_and_can_be_repeated() -> None:
    db = in_memory()
    handle = handle_of(db)
    found = handle.run(importing.survey(ADA))
    arrival = handle.run(importing.begin(ADA, found, {"": 1}, 5, handle.budget))
    handle.run(importing.store(arrival, (), {b"name": b"value"}))
    assert swept(db, LEASE_US).unfinished == 1
    with pytest.raises(Contention, match="Run the import again"):
        handle.run(importing.store(arrival, (), {b"other": b"value"}))
    again = handle.run(importing.begin(ADA, handle.run(importing.survey(ADA)), {"": 1}, 6, handle.budget))
    handle.run(importing.store(again, (), {b"other": b"value"}))
    assert [record.key for record in rows(db, ADA, CHUNK)] == [(b"other",)]


@pytest.mark.parametrize("has_generation", [False, True])
@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_chunks_that_belong_to_no_thread_are_removed(backend: str, has_generation: bool) -> None:
    with backends.EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True) as db:
        driver = handle_of(db).driver
        if has_generation:
            driver.perform(Commit(ADA, (Put(GC, (), expect=Expect.ABSENT, version=9),)))
        driver.perform(Stage(ADA, tuple(make_chunk_puts({b"left": b"by a dead writer"}, 0))))
        done = db.apply_retention()
        assert done is not None
        assert (done.unfinished, done.bytes) == (1, len(b"by a dead writer"))
        assert list(db.threads()) == []
        assert driver.perform(Fetch(ADA, (Range(CHUNK), Range(GC)))) == ((), ())
        SHAPE.make(SHAPE.graph(db.checkpointer()), "ada")
        again = db.apply_retention()
        assert again is not None
        assert again.unfinished == 0
        assert db.fsck("ada") == []


def test_the_write_of_a_task_to_a_name_that_is_swept_is_kept_whenever_it_comes() -> None:
    """The name has the generation and the chunks of a first write that was killed."""
    place: RunnableConfig = {
        "configurable": {"thread_id": "ada", "checkpoint_ns": "", "checkpoint_id": str(uuid6())}
    }
    at, has_come = 0, True
    while has_come:
        at += 1
        db = in_memory()
        handle = handle_of(db)
        driver = handle.driver
        driver.perform(Commit(ADA, (Put(GC, (), expect=Expect.ABSENT, version=9),)))
        driver.perform(Stage(ADA, tuple(make_chunk_puts({b"left": b"by a dead writer"}, 9))))
        terms = RetentionTerms(RetentionRules(), handle.digest, handle.budget)
        sweeping = sweep.visit(ADA, terms, Clocks(handle.run(ask(Now())), 0))
        answer: Any = None
        done, has_come = RetentionResult(), False
        for step in count(1):
            try:
                effect = sweeping.send(answer)
            except StopIteration as ended:
                done = ended.value
                break
            if step == at:
                db.checkpointer().put_writes(place, [("messages", "x" * 4000)], "task")
                has_come = True
            answer = driver.perform(effect)
        assert len(rows(db, ADA, WRITE)) == has_come
        assert db.fsck("ada") == []
        if not has_come:
            assert done == RetentionResult(threads=1, unfinished=1, bytes=len(b"by a dead writer"))
            assert held(db) == 0
    assert at > 5


def test_a_first_write_between_its_chunks_and_its_commit_is_refused_and_repeated() -> None:
    db = in_memory()
    driver = handle_of(db).driver
    born = Put(GC, (), expect=Expect.ABSENT, version=9)
    noted = Put(DOCUMENT, ("threads", "x"), {"updated_at": 1}, b"{}", version=1)
    writer = commit_with_chunks(ADA, (born, noted), make_chunk_puts({b"c": b"value"}, 9), Budget(1 + 1, 1))
    effect = next(writer)
    while not isinstance(effect, Stage):
        effect = writer.send(driver.perform(effect))
    driver.perform(effect)
    assert swept(db).unfinished == 1
    last = writer.send(None)
    assert isinstance(last, Commit)
    assert not isinstance(driver.perform(last), Committed)
    graphs.chat(db.checkpointer()).invoke(graphs.message(1), config("ada"))
    assert db.fsck("ada") == []
    assert swept(db, LEASE_US) == RetentionResult(threads=1)
