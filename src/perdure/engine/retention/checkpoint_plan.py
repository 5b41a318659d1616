"""Planner: the checkpoints and writes that are removed from a thread, and the heads that remain.

A planner is a pure function of a thread as it was read. ``checkpoint_removal`` carries out the plan; after an
interruption, a new plan is made from the remaining checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from perdure.engine.threads.thread_records import Contents, move_head
from perdure.engine.transact import Budget
from perdure.errors import CannotTakeBack
from perdure.model.arguments import require_whole
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.heads import ROOT, belongs
from perdure.model.ops import Delete, Op, Put
from perdure.model.records import HEAD, WRITE, Key
from perdure.model.removal_plan import (
    Name,
    Plan,
    find_head_before,
    find_nearest_survivor,
    group_by_namespace,
    make_newest_rule,
    plan_removal,
    plan_retention,
)
from perdure.model.runs.stale_questions import find_added_questions
from perdure.model.write_records import (
    NULL_TASK,
    group_by_record,
    plan_partial_removal,
    put_over,
    record_key,
)

Planner = Callable[[Contents], Plan]
"""Function from a thread, as it was read, to the plan of a removal."""

_NO_RUNS: frozenset[str] = frozenset()


def keep_by(rule: Callable[[list[CheckpointRecord]], set[str]]) -> Planner:
    """Return the planner of a prune by a rule, which returns the ids of the root checkpoints to keep.

    The checkpoints that these need are kept as well. While a run is open, the latest checkpoints and those to
    which a rollback of the run returns are kept, too.
    """

    def plan(contents: Contents) -> Plan:
        kept = plan_retention(
            contents.checkpoints, contents.latest, contents.tagged_names, rule, contents.bases
        )
        return _with_heads_and_writes(contents, kept)

    return plan


def keep_tagged(contents: Contents) -> Plan:
    """Plan the removal of all checkpoints except tagged ones and those that an open run needs."""
    kept = contents.tagged_names | contents.bases
    if contents.view.open_run is not None:
        kept.update(contents.latest.items())
    return _with_heads_and_writes(contents, plan_removal(contents.checkpoints, lambda c: c.name not in kept))


def keep_as_asked(strategy: str, keep_last: int | None) -> Planner:
    """Return the planner of LangGraph's ``prune``; raises ``ValueError`` for a strategy that does not
    exist, or that ``keep_last`` contradicts."""
    if strategy not in ("keep_latest", "delete"):
        raise ValueError(f"the strategy {strategy!r} is unknown; use 'keep_latest', 'delete', or keep_last=N")
    if keep_last is not None:
        require_whole("keep_last", keep_last)
        if strategy == "delete":
            raise ValueError("strategy='delete' keeps no checkpoint; leave out keep_last, or the strategy")
        if keep_last < 1:
            raise ValueError(
                f"keep_last is at least 1, not {keep_last}; to remove all, use strategy='delete'"
            )
        return keep_by(make_newest_rule(keep_last))
    if strategy == "keep_latest":
        return keep_by(make_newest_rule(1))
    return keep_tagged


def remove_runs(runs: frozenset[str], within: Collection[str] | None = None) -> Planner:
    """Return the planner that removes what runs stored, in all namespaces or in those named by ``within``.

    Heads that the runs moved return to the checkpoints at which they were before. The planner raises
    ``CannotTakeBack`` if one of these checkpoints is not stored any more.
    """

    def plan(contents: Contents) -> Plan:
        kept = contents.tagged_names | contents.bases
        emptied = _namespaces_emptied_by(contents, runs)

        def is_removed(checkpoint: CheckpointRecord) -> bool:
            is_theirs = checkpoint.run_id in runs or checkpoint.namespace in emptied
            return is_theirs and checkpoint.name not in kept and _is_within(checkpoint.namespace, within)

        return _with_heads_and_writes(contents, plan_removal(contents.checkpoints, is_removed), runs, within)

    return plan


def takes_all(contents: Contents, plan: Plan) -> bool:
    """Return True if a plan removes all checkpoints and writes of a thread that has checkpoints, and no tags.
    A write that stays is another run's, whose checkpoint is still to come."""
    deleted_keys = {op.key for ops in plan.writes.values() for op in ops if isinstance(op, Delete)}
    return (
        bool(plan.removed)
        and len(plan.removed) == len(contents.checkpoints)
        and not contents.tags
        and all(record_key(write) in deleted_keys for write in contents.writes)
    )


def plan_trim(contents: Contents, plan: Plan, budget: Budget) -> Plan | None:
    """Return the plan to carry out first if a whole namespace is to be removed, but does not fit one commit;
    otherwise ``None``. Of such a namespace it leaves only the head's checkpoint, without a parent. So the
    stored thread is sound at any time, and one commit can remove the rest.
    """
    counts = Counter(checkpoint.namespace for checkpoint in contents.checkpoints)
    for (namespace, _), ops in plan.writes.items():
        counts[namespace] += len(ops)
    heads = contents.latest.items() & {checkpoint.name for checkpoint in contents.checkpoints}
    large = {
        namespace
        for together in group_leaving(plan)
        if sum(counts[namespace] + 1 for namespace in together) > room_of(budget)
        for namespace in together
    } & {namespace for namespace, _ in heads}
    first = plan_removal(contents.checkpoints, lambda c: c.namespace in large and c.name not in heads)
    if first.removed:
        return replace(first, writes=_plan_writes(contents, first.removed))
    return None


def group_leaving(plan: Plan) -> list[list[str]]:
    """Return the namespaces that lose their heads, in groups that are removed together. If the root is among
    them, the first group has the subgraphs that keep their state from run to run, and last the root: a new
    run must not find their state."""
    leaving = sorted(op.key[0] for op in plan.heads if isinstance(op, Delete))
    if ROOT not in leaving:
        return [[ns] for ns in leaving]
    with_root = [ns for ns in leaving if ns != ROOT and ":" not in ns]
    return [[*with_root, ROOT], *([ns] for ns in leaving if ":" in ns)]


def room_of(budget: Budget) -> int:
    """Return the operations of a plan that one commit has room for, beside those on the generation, the open
    run and the root's head."""
    return max(2, budget.ops - 3)


def _is_within(namespace: str, within: Collection[str] | None) -> bool:
    return within is None or namespace in within


def _namespaces_emptied_by(contents: Contents, runs: frozenset[str]) -> set[str]:
    """Return the namespaces that were empty before ``runs``: all of them if the root was.

    Checkpoints of other runs in these namespaces stayed when an earlier run was rolled back, because they
    were tagged or a run was open. Those without a tag are removed with ``runs``: a head must not move to a
    checkpoint that was rolled back.
    """
    groups = group_by_namespace(contents.checkpoints)
    emptied = {
        namespace
        for namespace, head in contents.latest.items()
        if find_head_before(head, groups.get(namespace, {}), runs) is None
    }
    if ROOT in emptied:
        return {*groups, *emptied}
    return emptied


def _with_heads_and_writes(
    contents: Contents, plan: Plan, runs: frozenset[str] = _NO_RUNS, within: Collection[str] | None = None
) -> Plan:
    heads = tuple(_move_heads(contents, plan.removed, runs, within))
    writes = _plan_writes(contents, plan.removed, runs)
    writes_within = {name: ops for name, ops in writes.items() if _is_within(name[0], within)}
    return replace(plan, heads=heads, writes=writes_within)


def _move_heads(
    contents: Contents, removed: Collection[Name], runs: frozenset[str], within: Collection[str] | None
) -> Iterator[Put | Delete]:
    """Yield the operations on heads: a head that ``runs`` moved returns to its earlier checkpoint; without
    runs, a head whose checkpoint is removed moves to the nearest survivor."""
    groups = group_by_namespace(contents.checkpoints)
    for namespace, head in contents.heads.items():
        if not _is_within(namespace, within):
            continue
        group = groups.get(namespace, {})
        kept = {i for i in group if (namespace, i) not in removed}
        earlier = find_head_before(head.checkpoint_id, group, runs)
        if earlier == head.checkpoint_id and (namespace, earlier) not in removed:
            continue
        if earlier not in (None, head.checkpoint_id) and earlier not in kept:
            raise CannotTakeBack(
                f"thread {contents.partition.thread!r}: checkpoint {earlier} was the latest before the run "
                "that is to be taken back, and was pruned since; nothing was removed. Keep the run, or "
                "delete the thread"
            )
        target = earlier
        if earlier not in kept:
            target = find_nearest_survivor(head.checkpoint_id, group, kept)
        if target is None and kept:
            target = max(kept, key=lambda i: group[i].seq)
        if target is None:
            yield Delete(HEAD, (namespace,), head.version)
        elif target != head.checkpoint_id:
            yield move_head(namespace, head, target)


def _plan_writes(
    contents: Contents, removed: Collection[Name], runs: frozenset[str] = _NO_RUNS
) -> dict[Name, list[Op]]:
    """Return the removals of writes: of those on removed checkpoints, and of those of ``runs`` on survivors;
    a write that one of these had overwritten is restored. Without ``runs``, writes whose checkpoint was
    removed earlier are removed, too.

    They are grouped by the checkpoint with which they are removed: the removed one whose loop left them on
    its parent, otherwise the one that they are on.
    """
    aside = {w.key: w for w in contents.writes if w.is_aside}
    out: dict[Key, Op] = {}
    group_of: dict[Key, Name] = {}
    removed_writes = [w for w in contents.writes if (w.namespace, w.checkpoint_id) in removed]
    child_of_loop = {
        (c.namespace, c.parent_id, c.nonce): (c.namespace, c.id)
        for c in contents.checkpoints
        if (c.namespace, c.id) in removed
    }
    for write in _find_left_writes(contents, removed, runs):
        key, overwritten = record_key(write), None
        if write.idx < 0:
            overwritten = aside.get(write.aside.key)
        if overwritten is None:
            removed_writes.append(write)
        elif not belongs(overwritten.nonce, runs):
            out[key] = put_over(overwritten._replace(idx=write.idx), write)
            out[overwritten.key] = Delete(WRITE, overwritten.key)
        else:
            removed_writes += (write, overwritten)
        child = child_of_loop.get((write.namespace, write.checkpoint_id, write.nonce))
        if child is not None:
            group_of[key] = child
            if overwritten is not None:
                group_of[overwritten.key] = child
    removed_writes += _find_questions_of_gotos(contents, removed_writes)
    if not runs:
        removed_writes += _find_writes_without_checkpoint(contents, removed)
    records = group_by_record(contents.writes)
    for key, some in group_by_record(removed_writes).items():
        out[key] = plan_partial_removal(records[key], some) or Delete(WRITE, key)
    groups: dict[Name, list[Op]] = {}
    for key, op in out.items():
        groups.setdefault(group_of.get(key, (key[0], key[1])), []).append(op)
    return groups


def _find_questions_of_gotos(contents: Contents, removed: Sequence[PendingWrite]) -> list[PendingWrite]:
    """Return the questions, also those of other runs, of the tasks that were added by commands whose writes
    are removed: no step would have these tasks any more."""
    commands = {(w.namespace, w.checkpoint_id) for w in removed if w.task_id == NULL_TASK}
    found: list[PendingWrite] = []
    for checkpoint in contents.checkpoints:
        if checkpoint.name in commands:
            here = [w for w in contents.writes if (w.namespace, w.checkpoint_id) == checkpoint.name]
            found += find_added_questions([w for w in here if w in removed], here, checkpoint)
    return found


def _find_writes_without_checkpoint(contents: Contents, removed: Collection[Name]) -> list[PendingWrite]:
    """Return the writes whose checkpoint was removed earlier.

    A write may also be stored before its checkpoint, whose id is then above that of the head that the run
    builds on. So unless the whole thread is removed, only writes on ids below the head are returned, and none
    of an open run.
    """
    stored = {(c.namespace, c.id) for c in contents.checkpoints}
    orphans = [w for w in contents.writes if (w.namespace, w.checkpoint_id) not in stored]
    if stored and stored <= set(removed):
        return orphans
    latest, open_run = contents.latest, contents.view.open_run
    return [
        w
        for w in orphans
        if w.checkpoint_id < latest.get(w.namespace, latest.get(ROOT, ""))
        and (open_run is None or not belongs(w.nonce, (open_run,)))
    ]


def _find_left_writes(
    contents: Contents, removed: Collection[Name], runs: frozenset[str]
) -> list[PendingWrite]:
    """Return the writes on survivors that come from the loop of a removed checkpoint or of ``runs``, and that
    no survivor needs."""
    removed_nonces: dict[Name, set[str]] = {}
    needed_nonces: dict[Name, set[str]] = {}
    for checkpoint in contents.checkpoints:
        if checkpoint.parent_id is None:
            continue
        parent = (checkpoint.namespace, checkpoint.parent_id)
        if (checkpoint.namespace, checkpoint.id) in removed:
            removed_nonces.setdefault(parent, set()).add(checkpoint.nonce)
        else:
            needed_nonces.setdefault(parent, set()).update((checkpoint.nonce, *checkpoint.seen))
    return [
        w
        for w in contents.writes
        if w.nonce
        and not w.is_aside
        and (w.namespace, w.checkpoint_id) not in removed
        and (w.nonce in removed_nonces.get((w.namespace, w.checkpoint_id), ()) or belongs(w.nonce, runs))
        and w.nonce not in needed_nonces.get((w.namespace, w.checkpoint_id), ())
    ]
