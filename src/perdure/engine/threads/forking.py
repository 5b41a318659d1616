"""Forks of a thread: going on from an earlier checkpoint, while everything after it stays as a branch."""

from __future__ import annotations

from perdure.engine.requests import try_commit, version_of
from perdure.engine.threads import history, transfer_claim
from perdure.engine.threads.thread_records import move_head, put_head, view_heads
from perdure.engine.threads.thread_state import HeadView, guards, load_view, missing_head_error
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Conflict, Contention, NotFound
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT
from perdure.model.ops import Check, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import CHECKPOINT, DOCUMENT, EDITED, HEAD, INBOX, LANE, RUN, Partition
from perdure.model.runs.messages import ROLLED_BACK, Run, encode
from perdure.model.runs.queue import IN, Lane
from perdure.model.times import read_time

_NEWEST_RUNS = Range(RUN, by="first", reverse=True, limit=10)


def fork(partition: Partition, checkpoint_id: str, *, new_id: str, now: str) -> Program[str]:
    """Make a copy of a checkpoint the latest one of its thread; return the copy's id.

    The copy stands beside the original, on the same parent, as LangGraph's own forks do. The checkpoints
    after the original stay, and are reached by their ids. Pending writes of the original are not copied. So a
    step that was under way starts again, and its questions are asked again: the thread does not wait for an
    answer any more, and answers to earlier questions are refused. A subgraph that keeps its state from run to
    run returns to the state that a replay of the original would load.

    Args:
        partition: The thread.
        checkpoint_id: A checkpoint of the graph itself, not of a subgraph.
        new_id: The id of the copy.
        now: The time of the copy, ISO 8601.

    Raises:
        NotFound: There is no such checkpoint.
        Fenced: A run of the thread is open.
        Conflict: An answer was accepted whose run has not begun, or a subgraph that keeps its state had no
            state before the checkpoint.
        Contention: Other writers win each time.
    """
    for _ in range(ATTEMPTS):
        view = yield from load_view(partition, ROOT)
        (found,) = yield from ask(Fetch(partition, (Get(CHECKPOINT, (ROOT, checkpoint_id)),)))
        if not found:
            raise NotFound(
                f"thread {partition.thread!r} has no checkpoint {checkpoint_id!r}; "
                "`perdure threads history` lists what there is"
            )
        if view.head is None:
            if (yield from transfer_claim.is_claimed(partition)):
                raise transfer_claim.not_arrived_error(partition)
            raise missing_head_error(partition, ROOT, checkpoint_id)
        record = _copy(CheckpointRecord.read(found[0]), new_id, now, view.head)
        version = successor(view.head.version, record.id)
        moved = put_head(ROOT, HeadView(version, record.id, record.seq), view.head.version)
        original = Check(CHECKPOINT, (ROOT, checkpoint_id), Expect.PRESENT)
        question = yield from _close_question(partition, now)
        rewound = yield from _plan_rewinds(partition, checkpoint_id)
        copy = record.put(Expect.ABSENT)
        ops = (*guards(partition, view, None), original, *question, moved, copy, *rewound)
        if (yield from try_commit(partition, ops)):
            return record.id
    raise Contention(f"thread {partition.thread!r} keeps being written to; fork it again later")


def _close_question(partition: Partition, now: str) -> Program[list[Op]]:
    """Return the operations that close a thread's question, on condition that no other message comes. They
    note the fork, as a listing would otherwise show the status of the run that asked."""
    lanes, notes, runs = yield from ask(
        Fetch(partition, (Get(LANE, (IN,)), Get(DOCUMENT, EDITED), _NEWEST_RUNS))
    )
    lane = Lane.read(IN, lanes)
    if lane.pending:
        (pending,) = yield from ask(Fetch(partition, (Range(INBOX, after=(lane.bound,), bodies=False),)))
        if any(record.fields["mode"] == "answer" for record in pending):
            raise Conflict(
                f"thread {partition.thread!r} has an answer whose run has not begun, to a question that a "
                "fork asks again; it was not forked. Let a worker run the answer, or cancel it, and fork then"
            )
    if lane.waiting is None:
        return [Check(LANE, (IN,), lane.version or Expect.ABSENT)]
    latest = next(
        (r.id for r in map(Run.read, runs) if r.state != ROLLED_BACK and r.note.get("begun", True)), None
    )
    body = encode({"run_id": latest, "goes_on": False, "is_fork": True}, "document")
    before = version_of(notes)
    fields, version = {"updated_at": read_time(now)}, successor(before, now)
    noted = Put(DOCUMENT, EDITED, fields, body, before or Expect.ABSENT, version)
    return [lane._replace(waiting=None).put(0), noted]


def _plan_rewinds(partition: Partition, checkpoint_id: str) -> Program[list[Op]]:
    """Return the moves of the heads of subgraphs that keep their state, each to the newest checkpoint that
    was stored before the root's checkpoint."""
    (heads,) = yield from ask(Fetch(partition, (Range(HEAD),)))
    ancestors = (yield from history.list_root_ancestors(partition, checkpoint_id)) or frozenset()
    ops: list[Op] = []
    for namespace, head in view_heads(heads).items():
        if namespace == ROOT or ":" in namespace:
            continue
        target = yield from _find_newest_before(partition, namespace, ancestors)
        if target is None:
            raise Conflict(
                f"thread {partition.thread!r}: the subgraph {namespace!r} keeps its state from run to run, "
                f"and had none before checkpoint {checkpoint_id}; it was not forked. Run the graph from this "
                "checkpoint_id, which begins the subgraph anew"
            )
        if target == head.checkpoint_id:
            ops.append(Check(HEAD, (namespace,), head.version))
        else:
            present = Check(CHECKPOINT, (namespace, target), Expect.PRESENT)
            ops += (present, move_head(namespace, head, target))
    return ops


def _find_newest_before(
    partition: Partition, namespace: str, ancestors: frozenset[str]
) -> Program[str | None]:
    below: int | None = None
    while records := (yield from history.read_page(partition, namespace, below=below, limit=history.PAGE)):
        found = yield from history.before_root(partition, records, ancestors)
        if found:
            return found[0].id
        below = records[-1].seq
    return None


def _copy(record: CheckpointRecord, new_id: str, now: str, head: HeadView) -> CheckpointRecord:
    # The names of the loops are copied, too: so the writes on the parent that belong to the original belong
    # to the copy as well.
    copy = record._replace(
        id=new_id, seq=head.seq + 1, ts=now, source="fork", run_id=None, prior=head.checkpoint_id
    )
    if record.step is not None:
        copy = copy._replace(step=record.step + 1)
    if head.checkpoint_id == record.parent_id:
        copy = copy._replace(prior=None)
    return copy
