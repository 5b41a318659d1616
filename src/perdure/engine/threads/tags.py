"""Tags: named anchors on checkpoints, which no pruning removes."""

from __future__ import annotations

from perdure.engine.requests import try_commit, version_of
from perdure.engine.threads import transfer_claim
from perdure.engine.threads.thread_records import raise_generation
from perdure.engine.threads.thread_state import HeadView, load_view, missing_head_error
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Contention, NotFound
from perdure.model.arguments import require_text
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import CHECKPOINT, SEAL, TAG, Partition, Record


def set_tag(
    partition: Partition, name: str, *, namespace: str = "", checkpoint_id: str | None = None
) -> Program[str]:
    """Point a tag at a checkpoint, the latest if no id is given; return the checkpoint's id.

    This raises the collection generation, so that a removal planned without the tag is planned again.

    Raises:
        ValueError: the name is empty.
        TypeError: the name is not text.
        NotFound: there is no such checkpoint.
        Contention: other writers win each time.
    """
    require_text("a tag", name)
    if not name:
        raise ValueError("a tag needs a name that is not empty")
    missed: HeadView | None = None
    for _ in range(ATTEMPTS):
        view = yield from load_view(partition, namespace)
        (tags,) = yield from ask(Fetch(partition, (Get(TAG, (name,)),)))
        target = checkpoint_id or view.head_id
        if target is None:
            raise NotFound(
                f"thread {partition.thread!r} has no checkpoint to tag; `perdure threads ls` lists what "
                "there is"
            )
        version, generation = version_of(tags), view.generation
        moved = successor(version, namespace, target)
        place = {"namespace": namespace, "checkpoint_id": target}
        ops: list[Op] = [
            Check(CHECKPOINT, (namespace, target), Expect.PRESENT),
            raise_generation(generation, name, target),
            Put(TAG, (name,), place, expect=version or Expect.ABSENT, version=moved),
        ]
        if not generation:
            ops.append(transfer_claim.UNCLAIMED)
        outcome = yield from ask(Commit(partition, tuple(ops)))
        if isinstance(outcome, Committed):
            return target
        if outcome.kind is SEAL:
            raise NotFound(f"thread {partition.thread!r} has not arrived yet, and has no checkpoint to tag")
        if outcome.kind is CHECKPOINT and checkpoint_id is not None:
            raise NotFound(f"thread {partition.thread!r} has no checkpoint {checkpoint_id!r} to tag")
        if outcome.kind is CHECKPOINT:
            # The checkpoint was removed between two reads, so the head has moved: read again. If the head
            # still names it, the thread is damaged.
            if view.head == missed:
                raise missing_head_error(partition, namespace, target)
            missed = view.head
    raise Contention(f"thread {partition.thread!r}: the tag {name!r} is being changed by others; try again")


def remove_tag(partition: Partition, name: str) -> Program[None]:
    """Remove a tag; its checkpoint is then like any other. Raises ``NotFound`` if there is none."""
    if not (yield from try_commit(partition, (Delete(TAG, (name,), Expect.PRESENT),))):
        raise NotFound(f"thread {partition.thread!r} has no tag {name!r}")


def list_tags(partition: Partition) -> Program[tuple[Record, ...]]:
    """Return the tags of a thread, by name."""
    (records,) = yield from ask(Fetch(partition, (Range(TAG),)))
    return records
