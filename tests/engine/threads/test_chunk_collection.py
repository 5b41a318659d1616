"""Chunks of older generations that nothing reaches are deleted, and no others."""

from __future__ import annotations

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine import complete_reads
from perdure.engine.threads.chunk_collection import collect
from perdure.engine.threads.thread_records import read
from perdure.model.ops import Commit, Put
from perdure.model.program import ask
from perdure.model.records import CHUNK, GC, Partition
from perdure.model.values.packs import make_chunk_puts
from tests.engine.transfer.test_transfer import grow, in_memory, rows

ADA = Partition("", "ada")


def thread_with_orphans(count: int) -> tuple[perdure.SyncDatabase, int]:
    """A thread with chunks that nothing refers to, in a generation before its own."""
    db = in_memory()
    grow(db, "ada", 2)
    orphans = {bytes([n]) * 16: b"unreachable" for n in range(count)}
    generation = handle_of(db).run(read(ADA)).view.generation
    handle_of(db).run(
        ask(Commit(ADA, (Put(GC, (), version=generation + 1), *make_chunk_puts(orphans, generation))))
    )
    return db, generation + 1


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_every_page_of_chunks_is_collected(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete_reads, "PAGE", page)
    db, generation = thread_with_orphans(5)
    handle, needed = handle_of(db), len(rows(db, ADA, CHUNK)) - 5
    assert handle.run(collect(ADA, generation, handle.digest, handle.budget)) == 5
    assert len(rows(db, ADA, CHUNK)) == needed
    assert db.fsck("ada") == []


def test_a_chunk_of_the_current_generation_stays() -> None:
    db, generation = thread_with_orphans(1)
    handle = handle_of(db)
    handle.run(ask(Commit(ADA, tuple(make_chunk_puts({b"new" * 5: b"to be referred to"}, generation)))))
    assert handle.run(collect(ADA, generation, handle.digest, handle.budget)) == 1
    assert (b"new" * 5,) in {row.key for row in rows(db, ADA, CHUNK)}


def test_a_generation_that_has_passed_is_read_again() -> None:
    db, generation = thread_with_orphans(3)
    handle = handle_of(db)
    handle.run(ask(Commit(ADA, (Put(GC, (), version=generation + 1),))))
    assert handle.run(collect(ADA, generation, handle.digest, handle.budget)) == 3
    assert db.fsck("ada") == []
