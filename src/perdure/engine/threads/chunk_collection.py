"""Deletes the chunks of a thread that none of its checkpoints and writes reaches any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from perdure.engine.complete_reads import read_all
from perdure.engine.requests import try_commit
from perdure.engine.threads.chunk_reads import ChunkReader, MissingChunk, reachable
from perdure.engine.threads.thread_records import Contents, read, references
from perdure.engine.threads.undisturbed import is_disturbed
from perdure.engine.transact import ATTEMPTS, Budget, split_into_batches
from perdure.errors import Contention
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import BLOB, CHUNK, GC, PACK, Key, Partition, Record
from perdure.model.values.chunks import Digester
from perdure.model.values.packs import PACK_BYTES, make_packs


def collect(partition: Partition, generation: int, digest: Digester, budget: Budget) -> Program[int]:
    """Delete the unreachable chunks of older generations; return their count.

    Call it only after the commit that raised the generation: a later write either stores a chunk under the
    new generation or refers to one that is still reachable. Chunks are deleted only in the generation in
    which the thread was read. If the generation has changed, the thread is read again: the database may have
    come back in an older state, which needs chunks that were unreachable before.
    """
    deleted, is_outdated = 0, False
    for _ in range(ATTEMPTS):
        contents = yield from read(partition)
        if is_outdated:
            generation = contents.view.generation
        try:
            count, is_outdated = yield from _delete_unreached(partition, contents, generation, digest, budget)
        except MissingChunk:
            if not (yield from is_disturbed(partition, contents.view.generation)):
                raise
            is_outdated = True
            continue
        deleted += count
        if not is_outdated:
            return deleted
    raise Contention(f"thread {partition.thread!r} keeps being pruned; prune it later")


def _delete_unreached(
    partition: Partition, contents: Contents, generation: int, digest: Digester, budget: Budget
) -> Program[tuple[int, bool]]:
    """Delete the chunks that a thread as it was read does not reach; return their count, and True if the
    thread has to be read again: its generation has changed, or chunks were packed or stored again meanwhile.
    """
    loose, packs, blobs = yield from read_all(partition, Range(CHUNK), Range(PACK), Range(BLOB, bodies=False))
    reader = ChunkReader(partition, digest)
    reader.hold((*loose, *packs))
    needed = yield from reachable(partition, references(contents), digest, reader)
    removals = list(_plan_removals((*loose, *blobs), needed, generation))
    guard = Check(GC, (), generation or Expect.ABSENT)
    deleted, is_outdated = 0, False
    for batch in split_into_batches(removals, budget, reserve=1):
        ops = list[Op](batch)
        while ops:
            outcome = yield from ask(Commit(partition, (guard, *ops)))
            if isinstance(outcome, Committed):
                deleted += len(ops)
                break
            if outcome.kind is GC:
                return deleted, True
            ops, is_outdated = [op for op in ops if op.key != outcome.key], True
    # As many packs at once as one commit can remove and store.
    most = max(1, min((budget.ops - 1) // 2, budget.bytes // (2 * PACK_BYTES)))
    old = (record for record in packs if record.fields["generation"] < generation)
    for pack_batch in split_into_batches(_find_partly_dead(old, reader, needed), Budget(most, budget.bytes)):
        ops, count = _repack(pack_batch, reader, needed)
        if (yield from try_commit(partition, (guard, *ops))):
            deleted += count
        else:
            is_outdated = True
    return deleted, is_outdated


def _plan_removals(
    records: Iterable[Record], needed: AbstractSet[bytes], generation: int
) -> Iterator[Delete]:
    """Yield the removals of the records of chunks that are not needed, of older generations."""
    for record in records:
        age = record.fields["generation"]
        if age < generation and record.key[0] not in needed:
            yield Delete(record.kind, record.key, unchanged={"generation": age})


def _find_partly_dead(
    packs: Iterable[Record], reader: ChunkReader, needed: AbstractSet[bytes]
) -> Iterator[Record]:
    """Yield the packs that hold a chunk that is not needed, or is in another pack."""
    return (
        record
        for record in packs
        if (pack := reader.packs.get(record.key)) is not None
        and not all(_is_needed(name, record, reader, needed) for name in pack.chunks)
    )


def _repack(
    records: Iterable[Record], reader: ChunkReader, needed: AbstractSet[bytes]
) -> tuple[list[Op], int]:
    """Return the operations that store the needed chunks of packs in new ones of the same blocks, and the
    number of chunks that are left out."""
    ops: dict[Key, Op] = {}
    live: dict[int, dict[bytes, bytes]] = {}
    newest = count = 0
    for record in records:
        age = record.fields["generation"]
        newest = max(newest, age)
        ops[record.key] = Delete(PACK, record.key, unchanged={"generation": age})
        for name, body in reader.packs[record.key].chunks.items():
            if _is_needed(name, record, reader, needed):
                live.setdefault(record.key[0], {})[name] = body
            else:
                count += 1
    for block, chunks in live.items():
        for made in make_packs(chunks, newest, block):
            # A new pack may be the same as an old one: then that is neither removed nor stored again.
            if ops.pop(made.put.key, None) is None:
                ops[made.put.key] = made.put
    return list(ops.values()), count


def _is_needed(name: bytes, pack: Record, reader: ChunkReader, needed: AbstractSet[bytes]) -> bool:
    """Return True if a chunk is needed from this pack."""
    return name in needed and reader.places[name] == (PACK, pack.key)
