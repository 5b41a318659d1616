"""Writes of a task share a record, and every call of ``put_writes`` and every removal sees each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

import perdure
from perdure.database.base import handle_of
from perdure.engine.retention.thread_removal import remove_whole, write_versions
from perdure.langgraph.commit_plans import drop_partial_output
from perdure.model.ops import Committed, Fetch, Range
from perdure.model.records import GC, WRITE, Key, Partition
from perdure.testing.conformance.backend import at, put

ADA = Partition("", "ada")
CHANNELS = ["x", "y", "messages", ERROR, INTERRUPT, RESUME]
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["one", "two"]),
        st.lists(st.tuples(st.sampled_from(CHANNELS), st.integers(0, 99)), min_size=1, max_size=5),
    ),
    max_size=6,
)


def pending(saver: BaseCheckpointSaver[Any]) -> list[tuple[str, str, Any]]:
    """Pending writes of the thread's latest checkpoint; savers differ in their order."""
    found = saver.get_tuple(at(None, thread="ada"))
    assert found is not None
    return sorted(found.pending_writes or [])


def records(db: perdure.SyncDatabase) -> dict[Key, int]:
    """Versions of the records of writes by key."""
    (found,) = handle_of(db).driver.perform(Fetch(ADA, (Range(WRITE),)))
    return {record.key: record.version for record in found}


@given(CALLS)
@example([("one", [(ERROR, 0), ("x", 0)]), ("one", [(INTERRUPT, 0), ("x", 0)]), ("one", [("x", 0)])])
def test_calls_keep_and_overwrite_what_the_stock_saver_does(
    calls: Sequence[tuple[str, list[tuple[str, int]]]],
) -> None:
    with perdure.connect_sync("memory://") as db:
        stock, ours = InMemorySaver(), db.checkpointer()
        for saver in (stock, ours):
            put(saver, at(None, thread="ada"), "c")
        for task, writes in calls:
            # The stock saver would keep the output of a task that failed, too.
            stock.put_writes(at("c", thread="ada"), drop_partial_output(writes), task)
            ours.put_writes(at("c", thread="ada"), writes, task)
            assert pending(ours) == pending(stock)
        assert db.fsck("ada") == []


def test_a_call_is_one_record_and_another_one_that_fills_a_further_slot_rewrites_it() -> None:
    with perdure.connect_sync("memory://") as db:
        saver = db.checkpointer()
        put(saver, at(None, thread="ada"), "c")
        saver.put_writes(at("c", thread="ada"), [("x", 1), ("y", 2)], "t")
        assert records(db) == {("", "c", "t", 0): 1}
        saver.put_writes(at("c", thread="ada"), [("x", 9), ("y", 9)], "t")
        assert records(db) == {("", "c", "t", 0): 1}
        saver.put_writes(at("c", thread="ada"), [("x", 9), ("y", 9), ("z", 3)], "t")
        (version,) = records(db).values()
        assert version > 1
        assert pending(saver) == [("t", "x", 1), ("t", "y", 2), ("t", "z", 3)]


def test_a_rival_s_slot_in_a_shared_record_is_a_conflict_and_stores_nothing() -> None:
    with perdure.connect_sync("memory://") as db:
        saver = db.checkpointer()
        put(saver, at(None, thread="ada"), "c")
        loaded = saver.get_tuple(at(None, thread="ada"))
        assert loaded is not None
        db.checkpointer().put_writes(at("c", thread="ada"), [("y", 2)], "t")
        db.checkpointer().put_writes(at("c", thread="ada"), [(ERROR, "e")], "t")
        before = pending(saver)
        with pytest.raises(perdure.HeadConflict):
            saver.put_writes(loaded.config, [("x", 1), ("y", 9), ("z", 3)], "t")
        assert pending(saver) == before


def test_a_thread_stays_if_a_slot_of_a_known_record_was_filled_meanwhile() -> None:
    with perdure.connect_sync("memory://") as db:
        saver, handle = db.checkpointer(), handle_of(db)
        put(saver, at(None, thread="ada"), "c")
        saver.put_writes(at("c", thread="ada"), [("x", 1)], "t")
        seen = handle.run(write_versions(ADA))
        saver.put_writes(at("c", thread="ada"), [("x", 1), ("y", 2)], "t")
        (found,) = handle.driver.perform(Fetch(ADA, (Range(GC),)))
        outcome = handle.run(remove_whole(ADA, found[0].version, (), seen))
        assert not isinstance(outcome, Committed)
        assert (outcome.kind, outcome.key) == (WRITE, ("", "c", "t", 0))
        assert pending(saver) == [("t", "x", 1), ("t", "y", 2)]


def test_a_run_that_is_taken_back_leaves_the_other_writes_of_the_record() -> None:
    with perdure.connect_sync("memory://") as db:
        saver = db.checkpointer()
        put(saver, at(None, thread="ada"), "c")

        def loop(run_id: str) -> Any:
            found = saver.get_tuple({**at(None, thread="ada"), "metadata": {"run_id": run_id}})
            assert found is not None
            return found.config

        saver.put_writes(loop("first"), [("x", 1)], "t")
        saver.put_writes(loop("second"), [("x", 9), ("y", 2), (RESUME, "yes")], "t")
        assert pending(saver) == [("t", RESUME, "yes"), ("t", "x", 1), ("t", "y", 2)]
        assert len(records(db)) == 2
        saver.delete_for_runs(["second"])
        assert pending(saver) == [("t", "x", 1)]
        assert db.fsck("ada") == []
        saver.delete_for_runs(["first"])
        assert records(db) == {}
