"""Each deliberate break of an import has to fail the check of its promise, which holds without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

import perdure
from perdure.database.opening import open_database
from perdure.engine.threads import arrival_leftovers, checkpoints, transfer_claim
from perdure.engine.transfer import importing
from perdure.engine.transfer.importing import StoredThread
from perdure.errors import Unavailable
from perdure.imports import importer
from perdure.imports.encode import ThreadEncoder
from perdure.imports.importer import Importer, ImportOptions
from perdure.imports.sqlite import SqliteSource
from perdure.model.ops import Check, Expect
from perdure.model.records import SEAL
from perdure.storage.memory import MemoryDriver
from perdure.testing.faults import WRITES, Fault, FaultyDriver, fail
from tests.imports import threads
from tests.imports.test_again import answer, asking
from tests.langgraph import graphs

AT = threads.config("ada")
SHAPE = threads.SHAPES["finished"]


def imported(path: Path, db: perdure.SyncDatabase) -> str:
    source = SqliteSource(path)
    try:
        return Importer(source, db, ImportOptions()).import_thread("ada").state
    finally:
        source.close()


def killed(path: Path, at: int) -> perdure.SyncDatabase:
    """A target at which an import was killed after a write."""
    memory = MemoryDriver()
    faulty = FaultyDriver(memory, Fault(at, fail("unavailable"), "after"), counts=WRITES)
    with pytest.raises(Unavailable):
        imported(path, open_database("memory://", wrap=lambda own: faulty))
    return open_database("memory://", wrap=lambda own: memory)


def nothing_is_left_of_a_killed_import(path: Path) -> None:
    """The source has made its thread anew before the import is repeated."""
    with SqliteSaver.from_conn_string(str(path)) as stock:
        SHAPE.make(SHAPE.graph(stock), "ada")
        db = killed(path, 2)
        stock.delete_thread("ada")
        graphs.chat(stock).invoke(graphs.message(1), AT)
        assert imported(path, db) == "imported"
        assert threads.raw(db.checkpointer(), "ada") == threads.raw(stock, "ada")
        assert db.fsck("ada") == []


def a_thread_begun_after_a_killed_import_is_its_own(path: Path) -> None:
    with SqliteSaver.from_conn_string(str(path)) as stock:
        SHAPE.make(SHAPE.graph(stock), "ada")
    db = killed(path, 2)
    graphs.chat(db.checkpointer()).invoke(graphs.message(1), AT)
    assert len(list(db.checkpointer().list(AT))) == 3
    assert db.fsck("ada") == []


def a_run_that_forked_is_taken_back_to_what_was_the_head(path: Path) -> None:
    with SqliteSaver.from_conn_string(str(path)) as stock:
        graph = graphs.chat(stock)
        for n in range(2):
            graph.invoke(graphs.message(n), AT)
        head = graph.get_state(AT).config["configurable"]["checkpoint_id"]
        past = list(graph.get_state_history(AT))[3]
        graph.invoke(graphs.message(7), {**past.config, "metadata": {"run_id": "r9"}})
    with perdure.connect_sync("memory://") as db:
        assert imported(path, db) == "imported"
        db.checkpointer().delete_for_runs(["r9"])
        found = db.checkpointer().get_tuple(AT)
        assert found is not None
        assert found.checkpoint["id"] == head
        assert db.fsck("ada") == []


def an_answer_given_at_the_target_is_kept(path: Path) -> None:
    with SqliteSaver.from_conn_string(str(path)) as stock, perdure.connect_sync("memory://") as db:
        asking(stock, fails=False).invoke({}, AT)
        imported(path, db)
        answer(db.checkpointer(), "mine", fails=True)
        answer(stock, "theirs", fails=True)
        imported(path, db)
        assert asking(db.checkpointer(), fails=False).invoke(None, AT)["answer"] == "mine"


def a_prune_is_no_difference(path: Path) -> None:
    shape = threads.SHAPES["forked"]
    with SqliteSaver.from_conn_string(str(path)) as stock, perdure.connect_sync("memory://") as db:
        shape.make(shape.graph(stock), "ada")
        imported(path, db)
        db.checkpointer().prune(["ada"], keep_last=1)
        assert imported(path, db) == "unchanged"


def no_discard(patch: pytest.MonkeyPatch) -> None:
    def discard(*given: Any) -> Any:
        return True
        yield

    patch.setattr(arrival_leftovers, "discard", discard)


def no_prior(patch: pytest.MonkeyPatch) -> None:
    real = ThreadEncoder.encode_checkpoint

    def checkpoint(self: ThreadEncoder, found: Any, stored: Any) -> Any:
        record, chunks = real(self, found, stored)
        return record._replace(prior=None), chunks

    patch.setattr(ThreadEncoder, "encode_checkpoint", checkpoint)


def no_look_for_a_claim(patch: pytest.MonkeyPatch) -> None:
    assert vars(checkpoints)["transfer_claim"] is transfer_claim
    patch.setattr(transfer_claim, "UNCLAIMED", Check(SEAL, transfer_claim.CLAIM, Expect.ANY))


def no_comparison_of_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Importer, "_refuse_answered", lambda self, plan: None)
    real = importing.survey

    def survey(partition: Any) -> Any:
        found = yield from real(partition)
        blank = {key: write._replace(nonce="") for key, write in found.writes.items()}
        return StoredThread(found.view, found.heads, found.checkpoints, blank, found.is_partial, found.extent)

    patch.setattr(importing, "survey", survey)


def no_memory_of_what_was_brought(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(importer, "make_extent", lambda outline: b"")


@dataclass(frozen=True)
class Trial:
    """A break, and the check that has to notice it."""

    mutant: Callable[[pytest.MonkeyPatch], None]
    check: Callable[[Path], None]


TRIALS = [
    Trial(no_discard, nothing_is_left_of_a_killed_import),
    Trial(no_prior, a_run_that_forked_is_taken_back_to_what_was_the_head),
    Trial(no_look_for_a_claim, a_thread_begun_after_a_killed_import_is_its_own),
    Trial(no_comparison_of_answers, an_answer_given_at_the_target_is_kept),
    Trial(no_memory_of_what_was_brought, a_prune_is_no_difference),
]


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.mutant.__name__)
def test_a_break_is_noticed(trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial.check(tmp_path / "sound.db")
    trial.mutant(monkeypatch)
    with pytest.raises(AssertionError):
        trial.check(tmp_path / "broken.db")
