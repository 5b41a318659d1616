"""Removal of threads, runs, and checkpoints by rule.

The root goes first: one commit removes checkpoints and raises the thread's collection generation, so that
every write planned before it is planned again. Chunks that nothing needs any more are collected after that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from perdure.engine.retention import outside_records
from perdure.engine.retention.removal_of_writes import unneeded_writes
from perdure.engine.retention.removal_parts import parts, too_large
from perdure.engine.retention.whole_removal import remove_whole
from perdure.engine.threads import transfer_claim
from perdure.engine.threads.chunk_collection import collect
from perdure.engine.threads.chunk_reads import MissingChunk
from perdure.engine.threads.history import delta_history
from perdure.engine.threads.thread_records import Contents, read
from perdure.engine.threads.thread_state import guards
from perdure.engine.threads.undisturbed import is_disturbed
from perdure.engine.transact import ATTEMPTS, Budget
from perdure.errors import CannotTakeBack, Contention, Corrupt
from perdure.model.arguments import refuse_text
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT, belongs
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Fetch,
    FindRuns,
    FindThreads,
    Get,
    Op,
    Put,
    Range,
)
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import (
    CHECKPOINT,
    DOCUMENT,
    EPOCH,
    GC,
    HEAD,
    LANE,
    OF_THREAD,
    SEAL,
    THREADS,
    WRITE,
    Key,
    Partition,
)
from perdure.model.retention import (
    Name,
    Plan,
    by_namespace,
    head_before,
    keep_newest,
    nearest_survivor,
    plan_removal,
    plan_retention,
)
from perdure.model.runs.queue import IN, LATER, OUT, WAITS
from perdure.model.values.chunks import Digester
from perdure.model.write_records import read_writes, record_key

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Keep:
    """Rule that the newest ``last`` checkpoints stay; 0 keeps only tagged ones."""

    last: int

    @classmethod
    def parse(cls, strategy: str, keep_last: int | None) -> Keep:
        if keep_last is not None:
            if keep_last < 1:
                raise ValueError(
                    f"keep_last is at least 1, not {keep_last}; to remove all, use strategy='delete'"
                )
            return cls(keep_last)
        if strategy == "keep_latest":
            return cls(1)
        if strategy == "delete":
            return cls(0)
        raise ValueError(f"the strategy {strategy!r} is unknown; use 'keep_latest', 'delete', or keep_last=N")


def all_threads(tenant: str | None) -> Program[list[Partition]]:
    """Return every thread of a tenant, or of all tenants, in order."""
    return (yield from all_partitions(tenant, THREADS))


def all_partitions(tenant: str | None, space: str) -> Program[list[Partition]]:
    """Return every partition of a space, of a tenant or of all tenants, in order."""
    out: list[Partition] = []
    while True:
        after = out[-1] if out else None
        found = yield from ask(FindThreads(tenant, after=after, limit=_PAGE, space=space))
        out.extend(f.partition for f in found)
        if len(found) < _PAGE:
            return out


def delete_thread(partition: Partition) -> Program[None]:
    """Remove a thread with all its records, and before it what is stored of it elsewhere: cut short in
    between, the thread is there and is listed without the copy of its metadata."""
    elsewhere = yield from outside_records.find(partition)
    yield from outside_records.remove(elsewhere)
    yield from ask(Drop(partition))


def prune(partition: Partition, keep: Keep, digest: Digester, budget: Budget) -> Program[None]:
    """Keep the newest checkpoints of a thread and what they need; remove the rest and its chunks.

    While a run is open, its latest checkpoint and the one that its rollback returns to stay in any case.
    """

    def plan(contents: Contents) -> Plan:
        bases = contents.bases
        if keep.last == 0:
            kept = contents.tagged_names | bases
            if contents.view.open_run is not None:
                kept.update(contents.latest.items())
            return plan_removal(contents.checkpoints, lambda c: (c.namespace, c.id) not in kept)
        return plan_by(contents, keep_newest(keep.last))

    yield from _remove_and_collect(partition, plan, digest, budget)


def prune_by(
    partition: Partition,
    rule: Callable[[list[CheckpointRecord]], set[str]],
    digest: Digester,
    budget: Budget,
) -> Program[None]:
    """As ``prune``, with a rule that returns the ids of the root checkpoints to keep."""

    def plan(contents: Contents) -> Plan:
        return plan_by(contents, rule)

    yield from _remove_and_collect(partition, plan, digest, budget)


def plan_by(contents: Contents, rule: Callable[[list[CheckpointRecord]], set[str]]) -> Plan:
    """Return the plan of ``prune_by`` for a thread as it was read."""
    return plan_retention(contents.checkpoints, contents.latest, contents.tagged_names, rule, contents.bases)


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
    refused: CannotTakeBack | None = None
    without: set[str] = set()
    for run_id in runs:
        if not (yield from ask(FindRuns(tenant, run_id, limit=1))):
            without.add(run_id)
    for run_id in run_ids:
        while True:
            # Removed checkpoints are not found again, so the next page is the first one of the rest.
            found = yield from ask(FindRuns(tenant, run_id, limit=_PAGE))
            new = dict.fromkeys(f.partition for f in found if f.partition not in done)
            for partition in new:
                try:
                    yield from _remove_runs(partition, runs, digest, budget)
                except CannotTakeBack as error:
                    refused = refused or error
            done.update(new)
            if len(found) < _PAGE or not new:
                break
    for partition in (yield from all_threads(tenant)) if without else ():
        if partition not in done and (yield from _has_writes_of(partition, without)):
            try:
                yield from _remove_runs(partition, runs, digest, budget)
            except CannotTakeBack as error:
                refused = refused or error
    if refused is not None:
        raise refused


def _has_writes_of(partition: Partition, run_ids: Collection[str]) -> Program[bool]:
    """Return True if a thread has writes of some runs."""
    after: Key | None = None
    while True:
        (found,) = yield from ask(Fetch(partition, (Range(WRITE, after=after, limit=_PAGE),)))
        if any(belongs(write.nonce, run_ids) for write in read_writes(found)):
            return True
        if len(found) < _PAGE:
            return False
        after = found[-1].key


def take_back(
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
    runs = frozenset((run_id,))
    planner = _plan_of_runs(partition, runs, epoch, within)
    generation = yield from _remove(partition, planner, budget, runs, within)
    if generation is None:
        return
    try:
        yield from collect(partition, generation, digest, budget)
    except MissingChunk:
        # A damaged thread: what nothing needs any more stays in it, but the run is taken back.
        return


def _remove_runs(
    partition: Partition, runs: frozenset[str], digest: Digester, budget: Budget
) -> Program[None]:
    yield from _remove_and_collect(partition, _plan_of_runs(partition, runs), digest, budget, runs)


def _plan_of_runs(
    partition: Partition,
    runs: frozenset[str],
    epoch: int | None = None,
    within: Collection[str] | None = None,
) -> Callable[[Contents], Plan]:
    """Return the planner that removes what runs stored; see ``take_back`` for ``epoch`` and ``within``."""

    def plan(contents: Contents) -> Plan:
        if epoch is not None:
            guards(partition, contents.view, epoch)
        kept = contents.tagged_names | contents.bases
        emptied = _namespaces_emptied_by(contents, runs)
        return plan_removal(
            contents.checkpoints,
            lambda c: (
                (c.run_id in runs or c.namespace in emptied)
                and (c.namespace, c.id) not in kept
                and (within is None or c.namespace in within)
            ),
        )

    return plan


def _namespaces_emptied_by(contents: Contents, runs: frozenset[str]) -> set[str]:
    """Return the namespaces that were empty before ``runs``: all of them if the root was.

    Whatever else is in them was left by a run that was taken back earlier, for a tag or a run that was open
    then. Without a tag it goes with ``runs``: a head must not move to what was taken back.
    """
    groups = by_namespace(contents.checkpoints)
    emptied = {
        namespace
        for namespace, head in contents.latest.items()
        if head_before(head, groups.get(namespace, {}), runs) is None
    }
    return {*groups, *emptied} if ROOT in emptied else emptied


def _remove_and_collect(
    partition: Partition,
    planner: Callable[[Contents], Plan],
    digest: Digester,
    budget: Budget,
    runs: frozenset[str] = frozenset(),
) -> Program[None]:
    generation = yield from _remove(partition, planner, budget, runs)
    if generation is not None:
        yield from collect(partition, generation, digest, budget)


def _remove(
    partition: Partition,
    planner: Callable[[Contents], Plan],
    budget: Budget,
    runs: frozenset[str] = frozenset(),
    within: Collection[str] | None = None,
) -> Program[int | None]:
    """Remove what a planner names; return the collection generation then, ``None`` if no chunks are left to
    collect."""
    for _ in range(ATTEMPTS):
        contents = yield from read(partition)
        plan = planner(contents)
        moved = _moved_heads(partition, contents, set(plan.removed), runs, within)
        doomed = unneeded_writes(contents, set(plan.removed), runs)
        if within is not None:
            doomed = {name: ops for name, ops in doomed.items() if name[0] in within}
        if not plan.removed and not moved and not doomed:
            return None
        if not contents.view.generation and (yield from _is_arriving(partition)):
            return None
        if plan.removed and len(plan.removed) == len(contents.checkpoints) and _all_goes(contents, doomed):
            checks = (*_head_checks(contents), *_NOTHING_ELSE)
            seen = {(record_key(write), write.record_version) for write in contents.writes}
            elsewhere = yield from outside_records.find(partition)
            outcome = yield from remove_whole(partition, contents.view.generation, checks, seen)
            if isinstance(outcome, Committed):
                yield from outside_records.remove(elsewhere)
                return None
            if outcome.kind not in (LANE, DOCUMENT):
                continue
            # Accepted messages of the thread, and its document, stay although no checkpoint is left.
        first = _plan_trim(contents, moved, doomed, budget)
        if first is not None:
            their = unneeded_writes(contents, set(first.removed), frozenset())
            yield from _take_away(partition, contents, first, (), their, budget)
            continue
        generation = yield from _take_away(partition, contents, plan, moved, doomed, budget)
        if generation is not None:
            return generation
    raise Contention(f"thread {partition.thread!r} is written to all the time; prune it later")


def _plan_trim(
    contents: Contents, moved: Sequence[Op], doomed: Mapping[Name, Sequence[Op]], budget: Budget
) -> Plan | None:
    """Return the plan to be committed first if a namespace that goes as a whole is too large for one commit:
    only the head's checkpoint is left of it, without a parent. So what is there is sound at any time, and the
    rest goes at once."""
    counts = Counter(checkpoint.namespace for checkpoint in contents.checkpoints)
    for (namespace, _), ops in doomed.items():
        counts[namespace] += len(ops)
    large = too_large({op.key[0] for op in moved if isinstance(op, Delete)}, counts, budget)
    stored = {(c.namespace, c.id) for c in contents.checkpoints}
    heads = stored & contents.latest.items()
    large &= {namespace for namespace, _ in heads}
    plan = plan_removal(
        contents.checkpoints, lambda c: c.namespace in large and (c.namespace, c.id) not in heads
    )
    return plan if plan.removed else None


def _is_arriving(partition: Partition) -> Program[bool]:
    """Return True if a name is claimed for a thread that is not there yet: nothing of it may be removed."""
    (claims,) = yield from ask(Fetch(partition, (Get(SEAL, transfer_claim.CLAIM),)))
    return bool(claims)


_NOTHING_ELSE = (
    Check(LANE, (IN,), Expect.ABSENT),
    Check(LANE, (OUT,), Expect.ABSENT),
    Check(LANE, (LATER,), Expect.ABSENT),
    Check(LANE, (WAITS,), Expect.ABSENT),
    Check(DOCUMENT, OF_THREAD, Expect.ABSENT),
)


def _head_checks(contents: Contents) -> list[Check]:
    heads = [Check(HEAD, (namespace,), head.version) for namespace, head in contents.heads.items()]
    if "" not in contents.heads:
        heads.append(Check(HEAD, ("",), Expect.ABSENT))
    return [_same_run(contents), *heads]


def _all_goes(contents: Contents, doomed: Mapping[Name, Sequence[Op]]) -> bool:
    """Return True if nothing stays of a thread whose checkpoints are all removed: no tag, and no write of
    another run whose checkpoint is still to come."""
    going = {op.key for ops in doomed.values() for op in ops if isinstance(op, Delete)}
    return not contents.tags and all(record_key(write) in going for write in contents.writes)


def _same_run(contents: Contents) -> Check:
    """Return the check that no run began or ended since the thread was read, as the plan depends on the open
    run."""
    return Check(EPOCH, (), contents.view.epoch or Expect.ABSENT)


def relink(partition: Partition, contents: Contents, plan: Plan) -> Program[list[CheckpointRecord]]:
    """Return the survivors that a plan changes as they are afterwards, with the history that DeltaChannels
    need of removed ancestors."""
    originals = {(c.namespace, c.id): c for c in contents.checkpoints}
    out: list[CheckpointRecord] = []
    for name, record in plan.relinked.items():
        after = record
        if record.parent_id != originals[name].parent_id and record.deltas:
            carried = yield from delta_history(partition, originals[name], record.deltas)
            after = record._replace(carried=carried)
        out.append(after)
    return out


def _take_away(
    partition: Partition,
    contents: Contents,
    plan: Plan,
    moved: Sequence[Op],
    doomed: Mapping[Name, Sequence[Op]],
    budget: Budget,
) -> Program[int | None]:
    """Commit a plan; return the collection generation then, ``None`` if the thread changed meanwhile.

    A plan that does not fit one commit is committed in parts. Each checks the heads of the root and of the
    namespaces that it changes: a checkpoint that was stored since the thread was read may build on what is to
    be removed. Heads move first, and in a namespace links come before removals: cut short in between, no
    survivor has lost its parent. A checkpoint's writes go before it: a later plan finds none whose checkpoint
    is gone. A namespace that goes as a whole goes at once. The root's namespace comes before the others: no
    checkpoint stays without the subgraphs that belong to it. If the root goes as a whole, so do the subgraphs
    that keep their state from run to run, in the same commit or before it: a new run must not find it.
    """
    try:
        relinked = yield from relink(partition, contents, plan)
    except Corrupt:
        if not (yield from is_disturbed(partition, contents.view.generation)):
            raise
        return None
    changes: dict[str, list[Sequence[Op]]] = {ROOT: []}
    for record in relinked:
        changes.setdefault(record.namespace, []).append((record.put(Expect.PRESENT),))
    removed = set(plan.removed)
    for (namespace, checkpoint_id), ops in doomed.items():
        if (namespace, checkpoint_id) not in removed:
            changes.setdefault(namespace, []).append(ops)
    # Children before parents: cut short in between, what is left of them has no hole.
    seqs = {(c.namespace, c.id): c.seq for c in contents.checkpoints}
    for name in sorted(removed, key=lambda name: (-seqs[name], name)):
        changes.setdefault(name[0], []).append((*doomed.get(name, ()), Delete(CHECKPOINT, name)))
    generation = contents.view.generation
    for part in parts(contents.heads, moved, changes, budget):
        raised = successor(generation, *(str(op.key) for op in part))
        guard: list[Op] = [
            Put(GC, (), expect=generation or Expect.ABSENT, version=raised),
            _same_run(contents),
        ]
        outcome = yield from ask(Commit(partition, (*guard, *part)))
        if not isinstance(outcome, Committed):
            return None
        generation = raised
    return generation


def _moved_heads(
    partition: Partition,
    contents: Contents,
    removed: set[Name],
    runs: frozenset[str],
    within: Collection[str] | None = None,
) -> list[Op]:
    """Return the operations on heads: those that ``runs`` moved go to their earlier checkpoints; without
    runs, those whose checkpoint is removed go to its nearest survivor."""
    groups = by_namespace(contents.checkpoints)
    out: list[Op] = []
    for namespace, head in contents.heads.items():
        if within is not None and namespace not in within:
            continue
        group = groups.get(namespace, {})
        kept = {i for i in group if (namespace, i) not in removed}
        before = head_before(head.checkpoint_id, group, runs)
        if before == head.checkpoint_id and (namespace, before) not in removed:
            continue
        if before not in (None, head.checkpoint_id) and before not in kept:
            raise CannotTakeBack(
                f"thread {partition.thread!r}: checkpoint {before} was the latest before the run that is to "
                "be taken back, and was pruned since; nothing was removed. Keep the run, or delete the thread"
            )
        target = before if before in kept else nearest_survivor(head.checkpoint_id, group, kept)
        if target is None and kept:
            target = max(kept, key=lambda i: group[i].seq)
        if target == head.checkpoint_id:
            continue
        if target is None:
            out.append(Delete(HEAD, (namespace,), head.version))
        else:
            # The sequence continues: numbers are never reused.
            out.append(
                Put(
                    HEAD,
                    (namespace,),
                    {"checkpoint_id": target, "seq": head.seq},
                    expect=head.version,
                    version=successor(head.version, target),
                )
            )
    return out
