"""Copy of a thread: its checkpoints, writes, tags, chunks and pin, as of one moment."""

from __future__ import annotations

from perdure.engine.threads import arrival_leftovers, schema_pin, transfer_claim
from perdure.engine.threads.chunk_reads import ChunkReader, MissingChunk, reachable
from perdure.engine.threads.thread_records import Contents, put_head, read, read_heads, references
from perdure.engine.threads.thread_state import missing_head_error
from perdure.engine.threads.undisturbed import is_disturbed
from perdure.engine.transact import ATTEMPTS, Budget, commit_or_raise, split_into_batches
from perdure.errors import Conflict, Contention
from perdure.model.heads import ROOT
from perdure.model.ops import Expect, Op, Put, Stage
from perdure.model.program import Program, ask
from perdure.model.records import GC, TAG, Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.packs import pack_puts
from perdure.model.write_records import make_new_puts


def copy_thread(
    source: Partition, target: Partition, digest: Digester, budget: Budget, first_version: int
) -> Program[None]:
    """Copy a thread's checkpoints, writes, tags, chunks and pin to a thread that must not exist.

    Args:
        first_version: unique to this copy.

    Raises:
        NotFound: the source has not arrived yet.
        Conflict: the target exists, or is an incomplete copy.
        Contention: the source keeps being written to.
    """
    for _ in range(ATTEMPTS):
        if (yield from transfer_claim.is_claimed(source)):
            raise transfer_claim.not_arrived_error(source)
        contents = yield from read(source)
        pin = yield from schema_pin.plan_copy(source)
        if (yield from is_disturbed(source, contents.view.generation)):
            continue
        if (yield from read_heads(source)) != contents.heads:
            # The thread was written to while it was read: heads and checkpoints differ in time.
            continue
        stored = {(c.namespace, c.id) for c in contents.checkpoints}
        for namespace, head_id in contents.latest.items():
            if (namespace, head_id) not in stored:
                raise missing_head_error(source, namespace, head_id)
        if not contents.checkpoints and not contents.writes:
            return
        try:
            reader = ChunkReader(source, digest)
            needed = yield from reachable(source, references(contents), digest, reader)
            chunks = yield from reader.find(needed)
        except MissingChunk:
            if not (yield from is_disturbed(source, contents.view.generation)):
                raise
            continue
        yield from _write_copy(target, contents, pin, pack_puts(chunks), budget, first_version)
        return
    raise Contention(f"thread {source.thread!r} keeps being written to or pruned; copy it later")


def _write_copy(
    target: Partition,
    contents: Contents,
    pin: tuple[Put, ...],
    chunks: list[Put],
    budget: Budget,
    first_version: int,
) -> Program[None]:
    heads = {ns: put_head(ns, head, Expect.ABSENT) for ns, head in contents.heads.items()}
    root = [put for ns, put in heads.items() if ns == ROOT]
    rows: list[Op] = [c._replace(blocks=()).put() for c in contents.checkpoints]
    rows.extend(make_new_puts(contents.writes))
    rows.extend(Put(TAG, t.key, t.fields, version=t.version) for t in contents.tags)
    rows.extend(put for ns, put in heads.items() if ns != ROOT)
    # Look before claiming, which would replace the claim of another writer, and once more afterwards: a
    # thread may have been begun in between.
    yield from _refuse_occupied(target)
    yield from commit_or_raise(target, (yield from transfer_claim.claim(first_version)), _occupied_error)
    yield from _refuse_occupied(target)
    ours = transfer_claim.checks(first_version)
    born = Put(GC, (), expect=Expect.ABSENT, version=first_version)
    try:
        for batch in split_into_batches(chunks, budget):
            yield from ask(Stage(target, tuple(batch)))
        for some in split_into_batches(rows, budget, reserve=len(ours)):
            yield from commit_or_raise(target, [*ours, *some], _occupied_error)
        # The root's head last: until it exists, with the generation, the copy is invisible.
        last = [born, transfer_claim.release(first_version), *pin, *root]
        yield from commit_or_raise(target, last, _occupied_error)
    except Conflict:
        yield from arrival_leftovers.withdraw(target, first_version, budget)
        raise


def _refuse_occupied(target: Partition) -> Program[None]:
    there = yield from read(target)
    if there.heads or there.checkpoints or there.writes or there.tags:
        raise _occupied_error(target)


def _occupied_error(target: Partition) -> Conflict:
    return Conflict(
        f"thread {target.thread!r} already has checkpoints, or is half a copy; copy to a thread that "
        "does not exist, or delete it first"
    )
