"""Reads a thread's records as a whole, without its chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from perdure.engine.complete_reads import read_all
from perdure.engine.threads.thread_state import HeadView, View, load_view
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.ops import Expect, Expectation, Put, Range
from perdure.model.program import Program
from perdure.model.record_versions import successor
from perdure.model.records import CHECKPOINT, GC, HEAD, TAG, WRITE, Partition, Record
from perdure.model.removal_plan import Name, find_run_bases
from perdure.model.write_records import read_writes


@dataclass(frozen=True, slots=True)
class Contents:
    """A thread's records as they were read, without its chunks."""

    partition: Partition
    view: View
    heads: dict[str, HeadView]
    tags: tuple[Record, ...]
    checkpoints: list[CheckpointRecord]
    writes: list[PendingWrite]

    @property
    def tagged_names(self) -> set[Name]:
        return {(t.fields["namespace"], t.fields["checkpoint_id"]) for t in self.tags}

    @property
    def latest(self) -> dict[str, str]:
        """Head checkpoint id of each namespace."""
        return {namespace: head.checkpoint_id for namespace, head in self.heads.items()}

    @property
    def bases(self) -> set[Name]:
        """Checkpoints that a rollback of the open run returns to: kept by every removal, like tagged ones."""
        return find_run_bases(self.checkpoints, self.latest, self.view.open_run)


def references(contents: Contents) -> Iterator[bytes]:
    """Yield the references of a thread's checkpoints and pending writes to their values, as stored."""
    for checkpoint in contents.checkpoints:
        yield from checkpoint.references()
    for write in contents.writes:
        yield write.ref


def read(partition: Partition) -> Program[Contents]:
    """Read a thread without its chunks; the parts may differ in time if it is written to meanwhile."""
    view = yield from load_view(partition, "")
    heads, tags, checkpoints, writes = yield from read_all(
        partition, Range(HEAD), Range(TAG), Range(CHECKPOINT), Range(WRITE)
    )
    return Contents(
        partition,
        view,
        view_heads(heads),
        tuple(tags),
        [CheckpointRecord.read(r) for r in checkpoints],
        read_writes(writes),
    )


def read_heads(partition: Partition) -> Program[dict[str, HeadView]]:
    """Return the head of each namespace of a thread."""
    (heads,) = yield from read_all(partition, Range(HEAD))
    return view_heads(heads)


def put_head(namespace: str, head: HeadView, expect: Expectation = Expect.ANY) -> Put:
    """Return the operation that stores a head."""
    fields = {"checkpoint_id": head.checkpoint_id, "seq": head.seq}
    return Put(HEAD, (namespace,), fields, expect=expect, version=head.version)


def move_head(namespace: str, head: HeadView, target: str) -> Put:
    """Return the operation that moves a head to another checkpoint. Its sequence continues: numbers are never
    reused."""
    return put_head(namespace, HeadView(successor(head.version, target), target, head.seq), head.version)


def raise_generation(generation: int, *content: object) -> Put:
    """Return the operation that raises a collection generation when ``content`` is written."""
    return Put(GC, (), expect=generation or Expect.ABSENT, version=successor(generation, *content))


def view_heads(heads: Iterable[Record]) -> dict[str, HeadView]:
    """Return the heads of namespaces from their records."""
    return {r.key[0]: HeadView(r.version, r.fields["checkpoint_id"], r.fields["seq"]) for r in heads}
