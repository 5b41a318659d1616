"""Deletes the chunks of a thread that none of its checkpoints and writes reaches any more."""

from __future__ import annotations

from perdure.engine.chunk_reads import MissingChunk, reachable
from perdure.engine.thread_records import Contents, read, references
from perdure.engine.transact import ATTEMPTS, Budget, batches
from perdure.engine.undisturbed import is_disturbed
from perdure.errors import Contention
from perdure.model.chunks import Digester
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Fetch, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHUNK, GC, Key, Partition

_PAGE = 1000


def collect(partition: Partition, generation: int, digest: Digester, budget: Budget) -> Program[int]:
    """Delete the unreachable chunks of older generations; return their count.

    Call it only after the commit that raised the generation: a later write either stores a chunk under the
    new generation or refers to one that is still reachable. Chunks are deleted only in the generation in
    which the thread was read. If that has passed, the thread is read again: the database may have come back
    older than it was, and need again what was removed.
    """
    deleted, is_over = 0, False
    for _ in range(ATTEMPTS):
        contents = yield from read(partition)
        generation = contents.view.generation if is_over else generation
        try:
            count, is_over = yield from _delete_unreached(partition, contents, generation, digest, budget)
        except MissingChunk:
            if not (yield from is_disturbed(partition, contents.view.generation)):
                raise
            is_over = True
            continue
        deleted += count
        if not is_over:
            return deleted
    raise Contention(f"thread {partition.thread!r} is pruned all the time; prune it later")


def _delete_unreached(
    partition: Partition, contents: Contents, generation: int, digest: Digester, budget: Budget
) -> Program[tuple[int, bool]]:
    """Delete the chunks that a thread as it was read does not reach; return their count, and true if the
    generation has passed."""
    needed = yield from reachable(partition, references(contents), digest)
    doomed: list[Op] = []
    after: Key | None = None
    while True:
        (records,) = yield from ask(Fetch(partition, (Range(CHUNK, after=after, limit=_PAGE, bodies=False),)))
        for record in records:
            age = record.fields["generation"]
            if age < generation and record.key[0] not in needed:
                doomed.append(Delete(CHUNK, record.key, unchanged={"generation": age}))
        if len(records) < _PAGE:
            break
        after = records[-1].key
    guard = Check(GC, (), generation or Expect.ABSENT)
    deleted = 0
    for batch in batches(doomed, budget, reserve=1):
        ops = list(batch)
        while ops:
            outcome = yield from ask(Commit(partition, (guard, *ops)))
            if isinstance(outcome, Committed):
                deleted += len(ops)
                break
            if outcome.kind is GC:
                return deleted, True
            ops = [op for op in ops if op.key != outcome.key]
    return deleted, False
