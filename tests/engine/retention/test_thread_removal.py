"""A thread goes as a whole only as it was read: a task's write that comes meanwhile stays, and keeps it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base.id import uuid6

import perdure
from perdure.database.base import handle_of
from perdure.engine.retention.checkpoint_removal import delete_for_runs
from perdure.engine.retention.thread_expiry import read_expiry_facts
from perdure.engine.retention.thread_removal import remove_expired, remove_whole, write_versions
from perdure.engine.transact import Budget
from perdure.errors import Unavailable
from perdure.model.ops import Check, Committed, Expect, Fetch, Range
from perdure.model.program import Program
from perdure.model.records import CHECKPOINT, EPOCH, GC, WRITE, Key, Partition
from perdure.storage.port import Driver
from perdure.testing.faults import Fault, FaultyDriver, fail
from tests.engine.transfer.test_transfer import database, in_memory
from tests.langgraph import graphs
from tests.langgraph.session import config

HERE = Partition("", "a")


def talked(db: perdure.SyncDatabase) -> None:
    graph = graphs.chat(db.checkpointer())
    for n in range(2):
        graph.invoke(graphs.message(n), {**config("a"), "metadata": {"run_id": "r"}})


def removed_expired(db: perdure.SyncDatabase) -> Program[Any]:
    thread = yield from read_expiry_facts(HERE)
    return (yield from remove_expired(HERE, thread))


def removed_runs(db: perdure.SyncDatabase) -> Program[Any]:
    handle = handle_of(db)
    return (
        yield from delete_for_runs("", ["r"], handle.digest, Budget(handle.limits.ops, handle.limits.bytes))
    )


def written(driver: Driver) -> set[Key]:
    return {record.key for record in driver.perform(Fetch(HERE, (Range(WRITE),)))[0]}


@pytest.mark.parametrize("removal", [removed_expired, removed_runs])
def test_a_write_that_comes_once_the_others_were_read_is_kept(
    removal: Callable[[perdure.SyncDatabase], Program[Any]],
) -> None:
    """It belongs to a checkpoint of another run that is still to come."""
    kept = 0
    for at in count(1):
        new = str(uuid6())
        place: RunnableConfig = {
            "configurable": {"thread_id": "a", "checkpoint_ns": "", "checkpoint_id": new}
        }
        with perdure.connect_sync("memory://") as db:
            talked(db)
            driver = handle_of(db).driver
            program, answer, was_read, has_come = removal(db), None, False, False
            for step in count(1):
                try:
                    effect = program.send(answer)
                except StopIteration:
                    break
                if step == at:
                    db.checkpointer().put_writes(place, [("messages", "hello")], "task")
                    has_come = True
                    kept += was_read
                answer = driver.perform(effect)
                reads = isinstance(effect, Fetch) and any(item.kind is WRITE for item in effect.items)
                was_read = was_read or (reads and not has_come)
            if was_read and has_come:
                assert [key[1] for key in written(driver)].count(new) == 1, f"lost at effect {at}"
            assert db.fsck("a") == []
        if not has_come:
            break
    assert kept >= 2


def messages(db: perdure.SyncDatabase) -> int:
    return len(graphs.chat(db.checkpointer()).get_state(config("a")).values.get("messages", ()))


def test_a_removal_that_is_cut_short_leaves_a_thread_that_goes_on() -> None:
    db = in_memory()
    talked(db)
    whole = messages(db)
    counting = FaultyDriver(handle_of(db).driver)
    database(counting).checkpointer().prune(["a"], strategy="delete")
    assert counting.count >= 4
    for at, when in itertools.product(range(1, counting.count + 1), ("before", "after")):
        db = in_memory()
        talked(db)
        cut = FaultyDriver(handle_of(db).driver, Fault(at, fail("unavailable"), cast(Any, when)))
        with pytest.raises(Unavailable):
            database(cut).checkpointer().prune(["a"], strategy="delete")
        assert db.fsck("a") == []
        left = messages(db)
        assert left in (0, whole)
        graphs.chat(db.checkpointer()).invoke(graphs.message(2), config("a"))
        assert messages(db) == left + 2
        assert db.fsck("a") == []
        db.checkpointer().prune(["a"], strategy="delete")
        assert list(db.threads()) == []


def test_what_keeps_a_thread_is_named_and_it_has_a_generation_again() -> None:
    with perdure.connect_sync("memory://") as db:
        talked(db)
        handle = handle_of(db)
        (found,) = handle.driver.perform(Fetch(HERE, (Range(GC),)))
        outcome = handle.run(remove_whole(HERE, found[0].version, (), ()))
        assert not isinstance(outcome, Committed)
        assert outcome.kind is WRITE
        (again,) = handle.driver.perform(Fetch(HERE, (Range(GC),)))
        assert again[0].version > found[0].version
        busy = Check(EPOCH, (), 7)
        outcome = handle.run(remove_whole(HERE, again[0].version, (busy,), handle.run(write_versions(HERE))))
        assert not isinstance(outcome, Committed)
        assert outcome.kind is EPOCH
        assert handle.driver.perform(Fetch(HERE, (Range(GC),)))[0] == again
        idle = Check(EPOCH, (), Expect.ABSENT)
        outcome = handle.run(remove_whole(HERE, again[0].version, (idle,), handle.run(write_versions(HERE))))
        assert isinstance(outcome, Committed)
        assert handle.driver.perform(Fetch(HERE, (Range(GC), Range(CHECKPOINT)))) == ((), ())
