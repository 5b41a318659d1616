"""Executor of plans: removes checkpoints of a thread, their writes, and then the chunks that nothing needs.

Commits change links, and then remove checkpoints, those of the root's namespace first. Each raises the
thread's collection generation, so that every write planned before it is planned again. Chunks that nothing
needs any more are collected after that. If the process is killed in between, the thread is sound, and the
next removal takes the rest of what was planned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from perdure.engine.complete_reads import list_all_partitions, read_all
from perdure.engine.requests import read_record, try_commit
from perdure.engine.retention import checkpoint_plan as planning
from perdure.engine.retention.checkpoint_plan import Planner, group_leaving, room_of
from perdure.engine.retention.thread_removal import remove_whole, remove_with_records_elsewhere
from perdure.engine.threads import transfer_claim
from perdure.engine.threads.chunk_collection import collect
from perdure.engine.threads.chunk_reads import ChunkReader, MissingChunk, reachable
from perdure.engine.threads.history import read_delta_history
from perdure.engine.threads.thread_records import Contents, raise_generation, read, references
from perdure.engine.threads.thread_state import guards
from perdure.engine.threads.undisturbed import is_disturbed
from perdure.engine.transact import ATTEMPTS, Budget
from perdure.errors import CannotTakeBack, Contention, Corrupt
from perdure.model.arguments import to_text_ids
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT, belongs
from perdure.model.ops import Check, Committed, Delete, Expect, Expectation, FindRuns, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, DOCUMENT, EPOCH, HEAD, LANE, SEAL, WRITE, Partition
from perdure.model.removal_plan import Plan
from perdure.model.values.chunks import Digester
from perdure.model.write_records import read_writes, record_key, stored_bytes

_PAGE = 1000
_WEIGHED = 256
"""Number of chunks whose sizes are read together."""


def prune(partition: Partition, planner: Planner, digest: Digester, budget: Budget) -> Program[None]:
    """Remove what a planner names, and then the chunks that nothing needs any more."""
    generation = yield from _remove(partition, planner, budget)
    if generation is not None:
        yield from collect(partition, generation, digest, budget)


def delete_for_runs(
    tenant: str, run_ids: Sequence[str | UUID], digest: Digester, budget: Budget
) -> Program[None]:
    """Remove the checkpoints and the writes of runs in every thread that has them.

    The index finds threads by the checkpoints of a run. For a run without checkpoints, such as one that
    failed in the first step after an answer, the writes of all threads are searched.

    Each head that the runs moved returns to its earlier checkpoint. Tagged checkpoints stay, and so do those
    to which a rollback of an open run returns. A thread whose earlier head is not stored any more is left as
    it is, and the error is raised after all other threads are done.

    Raises:
        TypeError: an id is neither text nor a UUID.
        CannotTakeBack: the earlier head of a thread is not stored any more.
    """
    ids = to_text_ids("run_ids", run_ids)
    runs = frozenset(ids)
    done: set[Partition] = set()
    refusals: list[CannotTakeBack] = []
    without_checkpoints: set[str] = set()

    def take_out(partition: Partition) -> Program[None]:
        done.add(partition)
        try:
            yield from prune(partition, planning.remove_runs(runs), digest, budget)
        except CannotTakeBack as error:
            refusals.append(error)

    for run_id in runs:
        if not (yield from ask(FindRuns(tenant, run_id, limit=1))):
            without_checkpoints.add(run_id)
    for run_id in ids:
        is_over = False
        while not is_over:
            # Removed checkpoints are not found again, so the next page is the first one of the rest.
            found = yield from ask(FindRuns(tenant, run_id, limit=_PAGE))
            new = dict.fromkeys(hit.partition for hit in found if hit.partition not in done)
            for partition in new:
                yield from take_out(partition)
            is_over = len(found) < _PAGE or not new
    if without_checkpoints:
        for partition in (yield from list_all_partitions(tenant)):
            if partition not in done and (yield from _has_writes_of(partition, without_checkpoints)):
                yield from take_out(partition)
    if refusals:
        raise refusals[0]


def roll_back(
    partition: Partition,
    run_id: str,
    digest: Digester,
    budget: Budget,
    epoch: int | None = None,
    within: Collection[str] | None = None,
) -> Program[None]:
    """Roll back a run: remove its checkpoints from a thread, whose heads return to their earlier checkpoints.

    Args:
        epoch: epoch of the lease under which the caller holds the run, ``None`` for a run that is over.
        within: the namespaces to roll back, without the root's; by default all of the thread.

    Raises:
        Fenced: the lease is over.
        CannotTakeBack: an earlier head is not stored any more.
    """
    planner = planning.remove_runs(frozenset((run_id,)), within)

    def plan_fenced(contents: Contents) -> Plan:
        if epoch is not None:
            guards(partition, contents.view, epoch)
        return planner(contents)

    try:
        yield from prune(partition, plan_fenced, digest, budget)
    except MissingChunk:
        # The thread is damaged. The run is rolled back by now; only chunks that nothing needs any more stay.
        return


def weigh(contents: Contents, plan: Plan, digest: Digester) -> Program[int]:
    """Return the bytes that a plan frees: of checkpoints, their writes, and the chunks that nothing else
    needs, less what the records of the survivors gain."""
    changed = yield from _relink(contents, plan)
    touched = plan.removed | plan.relinked.keys()
    leaving = replace(
        contents,
        checkpoints=[c for c in contents.checkpoints if c.name in touched],
        writes=[w for w in contents.writes if (w.namespace, w.checkpoint_id) in plan.removed],
    )
    staying = replace(
        contents,
        checkpoints=[*changed, *(c for c in contents.checkpoints if c.name not in touched)],
        writes=[w for w in contents.writes if (w.namespace, w.checkpoint_id) not in plan.removed],
    )
    reader = ChunkReader(contents.partition, digest)
    needed = yield from reachable(contents.partition, references(staying), digest, reader)
    doomed = sorted((yield from reachable(contents.partition, references(leaving), digest, reader)) - needed)
    for at in range(0, len(doomed), _WEIGHED):
        yield from reader.find(doomed[at : at + _WEIGHED])
    records = sum(len(c.put().body) for c in leaving.checkpoints) - sum(len(c.put().body) for c in changed)
    return records + stored_bytes(leaving.writes) + sum(reader.sizes(doomed).values())


def _has_writes_of(partition: Partition, run_ids: Collection[str]) -> Program[bool]:
    """Return True if a thread has writes of some runs."""
    (found,) = yield from read_all(partition, Range(WRITE))
    return any(belongs(write.nonce, run_ids) for write in read_writes(found))


def _remove(partition: Partition, planner: Planner, budget: Budget) -> Program[int | None]:
    """Remove what a planner names; return the collection generation afterwards, ``None`` if there are no
    chunks to collect."""
    for _ in range(ATTEMPTS):
        contents = yield from read(partition)
        plan = planner(contents)
        if plan.is_empty:
            return None
        # If a name is claimed for a thread that is not there yet, nothing of it may be removed.
        if not contents.view.generation and (yield from read_record(partition, SEAL, transfer_claim.CLAIM)):
            return None
        if planning.takes_all(contents, plan):
            heads = {ROOT: Check(HEAD, (ROOT,), Expect.ABSENT)}
            heads |= {ns: Check(HEAD, (ns,), head.version) for ns, head in contents.heads.items()}
            checks = (_require_same_run(contents), *heads.values(), *transfer_claim.NO_QUEUES)
            seen = {(record_key(write), write.record_version) for write in contents.writes}
            removal = remove_whole(partition, contents.view.generation, checks, seen)
            outcome = yield from remove_with_records_elsewhere(partition, removal)
            if isinstance(outcome, Committed):
                return None
            if outcome.kind not in (LANE, DOCUMENT):
                continue
            # The thread has accepted messages or a document: they stay, and only its checkpoints are removed.
        first = planning.plan_trim(contents, plan, budget)
        generation = yield from _carry_out(contents, first or plan, budget)
        if first is None and generation is not None:
            return generation
    raise Contention(f"thread {partition.thread!r} keeps being written to; prune it later")


def _require_same_run(contents: Contents) -> Check:
    """Return the check that no run began or ended since the thread was read, as the plan depends on the open
    run."""
    return Check(EPOCH, (), contents.view.epoch or Expect.ABSENT)


def _relink(contents: Contents, plan: Plan) -> Program[list[CheckpointRecord]]:
    """Return the survivors that a plan changes, as they are to be stored: with the history of removed
    ancestors that their DeltaChannels need."""
    originals = {checkpoint.name: checkpoint for checkpoint in contents.checkpoints}
    out: list[CheckpointRecord] = []
    for name, record in plan.relinked.items():
        if record.parent_id != originals[name].parent_id and record.deltas:
            carried = yield from read_delta_history(contents.partition, originals[name], record.deltas)
            record = record._replace(carried=carried)
        out.append(record)
    return out


def _carry_out(contents: Contents, plan: Plan, budget: Budget) -> Program[int | None]:
    """Commit a plan; return the collection generation afterwards, ``None`` if the thread changed meanwhile.

    A plan that does not fit one commit is committed in parts. Each part checks the heads of the root and of
    the namespaces that it changes: a checkpoint that was stored since the thread was read may build on one
    that is to be removed.
    """
    try:
        relinked = yield from _relink(contents, plan)
    except Corrupt:
        if not (yield from is_disturbed(contents.partition, contents.view.generation)):
            raise
        return None
    generation = contents.view.generation
    for part in _divide(contents, plan, relinked, budget):
        guard = raise_generation(generation, *(str(op.key) for op in part))
        if not (yield from try_commit(contents.partition, (guard, _require_same_run(contents), *part))):
            return None
        generation = guard.version
    return generation


def _divide(
    contents: Contents, plan: Plan, relinked: Iterable[CheckpointRecord], budget: Budget
) -> list[list[Op]]:
    """Divide a plan into commits, each with the operations or checks on the heads that it depends on.

    Heads move before anything is removed, and links change in all namespaces: if the process is killed in
    between, no survivor has lost its parent, and no subgraph's checkpoint its place among those of the root,
    so that a replay and the next plan choose as before. For the same reason, a plan of several commits first
    notes the places of the subgraphs' checkpoints that it removes after their root checkpoints.

    A checkpoint's writes are removed before it, because a later plan would not find writes whose checkpoint
    is gone. A whole namespace is removed by one commit. The root's namespace comes before the others, so that
    no root checkpoint stays whose subgraphs are gone. If the whole root is removed, so are the subgraphs that
    keep their state from run to run, in the same commit or before it: a new run must not find their state.
    """
    groups: dict[str, list[Sequence[Op]]] = {ROOT: []}
    for name, ops in plan.writes.items():
        if name not in plan.removed:
            groups.setdefault(name[0], []).append(ops)
    # Children before parents, and the head's checkpoint last: if the process is killed in between, the chain
    # of those that are left has no gap.
    seqs = {checkpoint.name: checkpoint.seq for checkpoint in contents.checkpoints}
    heads = contents.latest.items()
    for name in sorted(plan.removed, key=lambda name: (name in heads, -seqs[name], name)):
        groups.setdefault(name[0], []).append((*plan.writes.get(name, ()), Delete(CHECKPOINT, name)))
    moves = sorted((op for op in plan.heads if isinstance(op, Put)), key=lambda op: op.key)
    head_removals = {op.key[0]: op for op in plan.heads if isinstance(op, Delete)}
    staying = [[group] for ns, some in groups.items() if ns not in head_removals for group in some]
    leaving = [
        [group for ns in namespaces for group in (*groups.get(ns, ()), (head_removals[ns],))]
        for namespaces in group_leaving(plan)
    ]
    units = staying + leaving
    if ROOT in head_removals:
        units = leaving + staying
    links = [record.put(Expect.PRESENT) for record in relinked]
    parts = _fill_commits(contents, budget, [*([(op,)] for op in (*moves, *links)), *units])
    if len(parts) == 1:
        return parts
    places = [[(record.put(Expect.PRESENT),)] for record in plan.placed.values()]
    return [*_fill_commits(contents, budget, places), *parts]


def _fill_commits(
    contents: Contents, budget: Budget, units: Iterable[Sequence[Sequence[Op]]]
) -> list[list[Op]]:
    filler = _CommitFiller(contents, budget)
    for unit in units:
        filler.add(unit)
    filler.end()
    return filler.parts


class _CommitFiller:
    """Commits that are filled with operations one after the other."""

    def __init__(self, contents: Contents, budget: Budget) -> None:
        self.parts: list[list[Op]] = []
        self._heads = {ns: Check(HEAD, (ns,), head.version) for ns, head in contents.heads.items()}
        self._room, self._bytes_max = room_of(budget), budget.bytes
        self._touched: dict[str, Op] = {}
        self._ops: list[Op] = []
        self._bytes_used = 0

    def add(self, unit: Sequence[Sequence[Op]]) -> None:
        """Add groups of operations: all to one commit if they fit, otherwise each group to one commit if it
        fits."""
        self._make_room([op for group in unit for op in group])
        for group in unit:
            self._make_room(group)
            for op in group:
                # A group may be too large for any commit.
                self._make_room((op,))
                namespace = op.key[0]
                if op.kind is HEAD:
                    after: Expectation = Expect.ABSENT
                    if isinstance(op, Put):
                        after = op.version
                    self._touched[namespace], self._heads[namespace] = op, Check(HEAD, op.key, after)
                else:
                    self._touched.setdefault(namespace, self._check_head(namespace))
                    self._ops.append(op)
                    self._bytes_used += _size(op)

    def end(self) -> None:
        """End the commit under way."""
        if self._touched:
            self.parts.append([*{ROOT: self._check_head(ROOT), **self._touched}.values(), *self._ops])
        self._touched, self._ops, self._bytes_used = {}, [], 0

    def _make_room(self, ops: Sequence[Op]) -> None:
        """End the commit under way unless it has room for these operations, too."""
        count = len(self._touched.keys() | {op.key[0] for op in ops}) + len(self._ops)
        count += sum(op.kind is not HEAD for op in ops)
        if count > self._room or self._bytes_used + sum(map(_size, ops)) > self._bytes_max:
            self.end()

    def _check_head(self, namespace: str) -> Check:
        """Return the check of a head; a namespace without a head must not have got one since."""
        return self._heads.get(namespace) or Check(HEAD, (namespace,), Expect.ABSENT)


def _size(op: Op) -> int:
    if isinstance(op, Put):
        return len(op.body)
    return 0
