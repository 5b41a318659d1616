"""A thread is read as a whole: its heads, tags, checkpoints and pending writes, without its chunks."""

from __future__ import annotations

from perdure.database.base import handle_of
from perdure.engine.threads.chunk_reads import reachable
from perdure.engine.threads.thread_records import read, read_heads, references
from perdure.model.records import CHECKPOINT, WRITE, Partition
from perdure.model.write_records import record_key
from tests.chunk_names import chunk_names
from tests.engine.transfer.test_transfer import grow, in_memory, rows

ADA = Partition("", "ada")


def test_a_thread_is_read_as_a_whole() -> None:
    db = in_memory()
    grow(db, "ada", 2)
    grow(db, "other", 1)
    db.tag("ada", "approved")
    handle = handle_of(db)
    contents = handle.run(read(ADA))
    assert {c.id for c in contents.checkpoints} == {row.key[1] for row in rows(db, ADA, CHECKPOINT)}
    assert {record_key(write) for write in contents.writes} == {row.key for row in rows(db, ADA, WRITE)}
    assert contents.tagged_names == set(contents.latest.items()) == {("", db.show("ada").checkpoint_id)}
    assert contents.heads == handle.run(read_heads(ADA))
    reached = handle.run(reachable(ADA, references(contents), handle.digest))
    assert reached == chunk_names(db, ADA)


def test_a_thread_that_is_not_there_is_empty() -> None:
    contents = handle_of(in_memory()).run(read(ADA))
    assert (contents.checkpoints, contents.writes, contents.tags, contents.heads) == ([], [], (), {})
