"""Executor of plans: removes checkpoints of a thread, their writes, and then the chunks that nothing needs.

The root goes first: one commit removes checkpoints and raises the thread's collection generation, so that
every write planned before it is planned again. Chunks that nothing needs any more are collected after that.
Killed in between it leaves a sound thread, and the next removal takes the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from perdure.engine.complete_reads import list_all_partitions, read_all
from perdure.engine.retention import checkpoint_plan as planning
from perdure.engine.retention.checkpoint_plan import Planner, group_leaving, room_of
from perdure.engine.retention.thread_removal import NO_QUEUES, everywhere, remove_whole
from perdure.engine.threads import transfer_claim
from perdure.engine.threads.chunk_collection import collect
from perdure.engine.threads.chunk_reads import ChunkReader, MissingChunk, reachable
from perdure.engine.threads.history import read_delta_history
from perdure.engine.threads.thread_records import Contents, read, references
from perdure.engine.threads.thread_state import guards
from perdure.engine.threads.undisturbed import is_disturbed
from perdure.engine.transact import ATTEMPTS, Budget
from perdure.errors import CannotTakeBack, Contention, Corrupt
from perdure.model.arguments import refuse_text
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT, belongs
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Fetch, FindRuns, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import CHECKPOINT, DOCUMENT, EPOCH, GC, HEAD, LANE, SEAL, WRITE, Partition
from perdure.model.removal_plan import Plan
from perdure.model.values.chunks import Digester
from perdure.model.write_records import read_writes, record_key, stored_bytes

_PAGE = 1000
_WEIGHED = 256
"""Number of chunks whose sizes are read together."""


def prune(partition: Partition, planner: Planner, digest: Digester, budget: Budget) -> Program[None]:
    """Remove what a planner names, and the chunks that nothing needs then."""
    generation = yield from _remove(partition, planner, budget)
    if generation is not None:
        yield from collect(partition, generation, digest, budget)


def delete_for_runs(tenant: str, run_ids: Sequence[str], digest: Digester, budget: Budget) -> Program[None]:
    """Remove the checkpoints and the writes of runs in every thread that has them.

    The index finds threads by the checkpoints of a run. For a run without any, as one that failed in the
    first step after an answer, the writes of all threads are looked through.

    Each head that the runs moved returns to its earlier checkpoint. Tagged checkpoints stay, and so does what
    the rollback of an open run returns to. A thread whose earlier head is not stored any more is left as it
    is, and the error raised after all the others are done.

    Raises:
        CannotTakeBack: the earlier head of a thread is not stored any more.
    """
    refuse_text("run_ids", run_ids)
    runs = frozenset(run_ids)
    done: set[Partition] = set()
    refusals: list[CannotTakeBack] = []
    without: set[str] = set()

    def take_out(partition: Partition) -> Program[None]:
        done.add(partition)
        try:
            yield from prune(partition, planning.remove_runs(runs), digest, budget)
        except CannotTakeBack as error:
            refusals.append(error)

    for run_id in runs:
        if not (yield from ask(FindRuns(tenant, run_id, limit=1))):
            without.add(run_id)
    for run_id in run_ids:
        is_over = False
        while not is_over:
            # Removed checkpoints are not found again, so the next page is the first one of the rest.
            found = yield from ask(FindRuns(tenant, run_id, limit=_PAGE))
            new = dict.fromkeys(hit.partition for hit in found if hit.partition not in done)
            for partition in new:
                yield from take_out(partition)
            is_over = len(found) < _PAGE or not new
    for partition in (yield from list_all_partitions(tenant)) if without else ():
        if partition not in done and (yield from _has_writes_of(partition, without)):
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
        epoch: lease under which the caller holds the run, ``None`` for a run that is over.
        within: the namespaces to roll back, without the root's; by default the whole thread is.

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
        # A damaged thread: what nothing needs any more stays in it, but the run is taken back.
        return


def weigh(contents: Contents, plan: Plan, digest: Digester) -> Program[int]:
    """Return the bytes that a plan frees: of checkpoints, their writes, and the chunks that nothing else
    needs, less what the records of the survivors gain."""
    changed = yield from _relink(contents, plan)
    touched = plan.removed | plan.relinked.keys()
    before = replace(
        contents,
        checkpoints=[c for c in contents.checkpoints if c.name in touched],
        writes=[w for w in contents.writes if (w.namespace, w.checkpoint_id) in plan.removed],
    )
    after = replace(
        contents,
        checkpoints=[*changed, *(c for c in contents.checkpoints if c.name not in touched)],
        writes=[w for w in contents.writes if (w.namespace, w.checkpoint_id) not in plan.removed],
    )
    reader = ChunkReader(contents.partition, digest)
    needed = yield from reachable(contents.partition, references(after), digest, reader)
    doomed = sorted((yield from reachable(contents.partition, references(before), digest, reader)) - needed)
    for at in range(0, len(doomed), _WEIGHED):
        yield from reader.find(doomed[at : at + _WEIGHED])
    records = sum(len(c.put().body) for c in before.checkpoints) - sum(len(c.put().body) for c in changed)
    return records + stored_bytes(before.writes) + sum(reader.sizes(doomed).values())


def _has_writes_of(partition: Partition, run_ids: Collection[str]) -> Program[bool]:
    """Return True if a thread has writes of some runs."""
    (found,) = yield from read_all(partition, Range(WRITE))
    return any(belongs(write.nonce, run_ids) for write in read_writes(found))


def _remove(partition: Partition, planner: Planner, budget: Budget) -> Program[int | None]:
    """Remove what a planner names; return the collection generation then, ``None`` if no chunks are left to
    collect."""
    for _ in range(ATTEMPTS):
        contents = yield from read(partition)
        plan = planner(contents)
        if plan.is_empty:
            return None
        if not contents.view.generation and (yield from _is_arriving(partition)):
            return None
        if planning.takes_all(contents, plan):
            heads = {ROOT: Check(HEAD, (ROOT,), Expect.ABSENT)}
            heads |= {ns: Check(HEAD, (ns,), head.version) for ns, head in contents.heads.items()}
            checks = (_require_same_run(contents), *heads.values(), *NO_QUEUES)
            seen = {(record_key(write), write.record_version) for write in contents.writes}
            whole = remove_whole(partition, contents.view.generation, checks, seen)
            outcome = yield from everywhere(partition, whole)
            if isinstance(outcome, Committed):
                return None
            if outcome.kind not in (LANE, DOCUMENT):
                continue
            # Accepted messages of the thread, and its document, stay although no checkpoint is left.
        first = planning.plan_trim(contents, plan, budget)
        generation = yield from _carry_out(contents, first or plan, budget)
        if first is None and generation is not None:
            return generation
    raise Contention(f"thread {partition.thread!r} keeps being written to; prune it later")


def _is_arriving(partition: Partition) -> Program[bool]:
    """Return True if a name is claimed for a thread that is not there yet: nothing of it may be removed."""
    (claims,) = yield from ask(Fetch(partition, (Get(SEAL, transfer_claim.CLAIM),)))
    return bool(claims)


def _require_same_run(contents: Contents) -> Check:
    """Return the check that no run began or ended since the thread was read, as the plan depends on the open
    run."""
    return Check(EPOCH, (), contents.view.epoch or Expect.ABSENT)


def _relink(contents: Contents, plan: Plan) -> Program[list[CheckpointRecord]]:
    """Return the survivors that a plan changes as they are afterwards, with the history that DeltaChannels
    need of removed ancestors."""
    originals = {checkpoint.name: checkpoint for checkpoint in contents.checkpoints}
    out: list[CheckpointRecord] = []
    for name, record in plan.relinked.items():
        if record.parent_id != originals[name].parent_id and record.deltas:
            carried = yield from read_delta_history(contents.partition, originals[name], record.deltas)
            record = record._replace(carried=carried)
        out.append(record)
    return out


def _carry_out(contents: Contents, plan: Plan, budget: Budget) -> Program[int | None]:
    """Commit a plan; return the collection generation then, ``None`` if the thread changed meanwhile.

    A plan that does not fit one commit is committed in parts. Each checks the heads of the root and of the
    namespaces that it changes: a checkpoint that was stored since the thread was read may build on one that
    is to be removed.
    """
    try:
        relinked = yield from _relink(contents, plan)
    except Corrupt:
        if not (yield from is_disturbed(contents.partition, contents.view.generation)):
            raise
        return None
    generation = contents.view.generation
    for part in _divide(contents, plan, relinked, budget):
        raised = successor(generation, *(str(op.key) for op in part))
        guard = Put(GC, (), expect=generation or Expect.ABSENT, version=raised)
        outcome = yield from ask(Commit(contents.partition, (guard, _require_same_run(contents), *part)))
        if not isinstance(outcome, Committed):
            return None
        generation = raised
    return generation


def _divide(
    contents: Contents, plan: Plan, relinked: Iterable[CheckpointRecord], budget: Budget
) -> list[list[Op]]:
    """Divide a plan into commits, each with the operations or checks on the heads that it depends on.

    Heads move first, and in a namespace links come before removals: cut short in between, no survivor has
    lost its parent. A checkpoint's writes are removed before it: a later plan would not find writes whose
    checkpoint is gone. A whole namespace is removed by one commit. The root's namespace comes before the
    others: no checkpoint stays without the subgraphs that belong to it. If the whole root is removed, so are
    the subgraphs that keep their state from run to run, in the same commit or before it: a new run must not
    find their state.
    """
    groups: dict[str, list[Sequence[Op]]] = {ROOT: []}
    for record in relinked:
        groups.setdefault(record.namespace, []).append((record.put(Expect.PRESENT),))
    for name, ops in plan.writes.items():
        if name not in plan.removed:
            groups.setdefault(name[0], []).append(ops)
    # Children before parents: cut short in between, what is left of them has no hole. The head's comes last.
    seqs = {checkpoint.name: checkpoint.seq for checkpoint in contents.checkpoints}
    heads = contents.latest.items()
    for name in sorted(plan.removed, key=lambda name: (name in heads, -seqs[name], name)):
        groups.setdefault(name[0], []).append((*plan.writes.get(name, ()), Delete(CHECKPOINT, name)))
    moves = sorted((op for op in plan.heads if isinstance(op, Put)), key=lambda op: op.key)
    last = {op.key[0]: op for op in plan.heads if isinstance(op, Delete)}
    staying = [[group] for ns, some in groups.items() if ns not in last for group in some]
    leaving = [
        [group for ns in namespaces for group in (*groups.get(ns, ()), (last[ns],))]
        for namespaces in group_leaving(plan)
    ]
    packing = _Packing(contents, budget)
    for unit in (*([(move,)] for move in moves), *(leaving + staying if ROOT in last else staying + leaving)):
        packing.add(unit)
    packing.end()
    return packing.parts


class _Packing:
    """Commits that are filled one after the other."""

    def __init__(self, contents: Contents, budget: Budget) -> None:
        self.parts: list[list[Op]] = []
        self._heads = {ns: Check(HEAD, (ns,), head.version) for ns, head in contents.heads.items()}
        self._room, self._bytes = room_of(budget), budget.bytes
        self._touched: dict[str, Op] = {}
        self._ops: list[Op] = []
        self._held = 0

    def add(self, unit: Sequence[Sequence[Op]]) -> None:
        """Add groups of operations: to one commit if that has room for all, else a group to one commit."""
        self._make_room([op for group in unit for op in group])
        for group in unit:
            self._make_room(group)
            for op in group:
                # A group may be too large for any commit.
                self._make_room((op,))
                namespace = op.key[0]
                if op.kind is HEAD:
                    after = op.version if isinstance(op, Put) else Expect.ABSENT
                    self._touched[namespace], self._heads[namespace] = op, Check(HEAD, op.key, after)
                else:
                    self._touched.setdefault(namespace, self._head(namespace))
                    self._ops.append(op)
                    self._held += _size(op)

    def end(self) -> None:
        """End the commit under way."""
        if self._touched:
            self.parts.append([*{ROOT: self._head(ROOT), **self._touched}.values(), *self._ops])
        self._touched, self._ops, self._held = {}, [], 0

    def _make_room(self, ops: Sequence[Op]) -> None:
        """End the commit under way unless it has room for these operations, too."""
        count = len(self._touched.keys() | {op.key[0] for op in ops}) + len(self._ops)
        count += sum(op.kind is not HEAD for op in ops)
        if count > self._room or self._held + sum(map(_size, ops)) > self._bytes:
            self.end()

    def _head(self, namespace: str) -> Check:
        """Return the check of a head; a namespace without a head must not have got one since."""
        return self._heads.get(namespace) or Check(HEAD, (namespace,), Expect.ABSENT)


def _size(op: Op) -> int:
    if isinstance(op, Put):
        return len(op.body)
    return 0
