"""Decides which checkpoints a removal takes, and to which ancestor each survivor is linked.

Survivors of the root namespace are chosen by the caller's rule; a checkpoint that is a head or is tagged
always survives, and so do the checkpoints to which the rollback of an open run returns. A subgraph's
checkpoint follows the root checkpoint that its metadata names. Survivors are linked to their nearest
surviving ancestor, and a link that moved is marked: a marked cut is not a hole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Delete, Op, Put

ORIGIN = ""
"""Place of a subgraph's checkpoint that was stored before any root checkpoint: before everything."""

Name = tuple[str, str]
"""Namespace and id of a checkpoint."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a removal from a thread as it was read.

    Attributes:
        removed: the checkpoints to remove.
        relinked: the survivors whose links change, by name.
        heads: the operations on heads.
        writes: the operations on pending writes, by the checkpoint with which they are removed.
    """

    removed: frozenset[Name]
    relinked: Mapping[Name, CheckpointRecord]
    heads: Sequence[Put | Delete] = ()
    writes: Mapping[Name, Sequence[Op]] = field(default_factory=dict[Name, Sequence[Op]])

    @property
    def is_empty(self) -> bool:
        """True if nothing is removed."""
        return not (self.removed or self.heads or self.writes)


def keep_newest(last: int) -> Callable[[list[CheckpointRecord]], set[str]]:
    """Return the rule that the newest ``last`` checkpoints of the root namespace stay."""

    def rule(roots: list[CheckpointRecord]) -> set[str]:
        newest = sorted(roots, key=lambda c: c.seq, reverse=True)[:last]
        return {c.id for c in newest}

    return rule


def plan_retention(
    checkpoints: Iterable[CheckpointRecord],
    heads: Mapping[str, str],
    tagged: Iterable[Name],
    rule: Callable[[list[CheckpointRecord]], set[str]],
    bases: Collection[Name] = (),
) -> Plan:
    """Return the plan for a rule over the root namespace's checkpoints.

    Args:
        heads: head checkpoint id of each namespace.
        rule: returns the ids of the root checkpoints to keep.
        bases: result of ``find_run_bases`` for the open run.
    """
    groups = by_namespace(checkpoints)
    tags = set(tagged)
    anchors = {*tags, *heads.items(), *bases}
    roots = groups.get("", {})
    kept: dict[str, set[str]] = {"": rule(list(roots.values()))}
    kept[""] |= {i for namespace, i in anchors if namespace == "" and i in roots}
    # A tag in a subgraph's namespace keeps the root checkpoint that the subgraph ran under.
    for namespace, checkpoint_id in tags:
        tagged_one = groups.get(namespace, {}).get(checkpoint_id)
        if tagged_one is not None and tagged_one.root is not None and tagged_one.root in roots:
            kept[""].add(tagged_one.root)
    ancestry = _Ancestry(roots)
    for namespace, group in groups.items():
        if namespace != "":
            kept[namespace] = _find_kept_in_subgraph(namespace, group, kept[""], ancestry, heads)
            kept[namespace] |= {i for n, i in (*tags, *bases) if n == namespace and i in group}
    return _plan(groups, kept, ancestry, _is_same_run)


def plan_removal(
    checkpoints: Iterable[CheckpointRecord], removed: Callable[[CheckpointRecord], bool]
) -> Plan:
    """Return the plan that removes exactly the checkpoints of a rule, in every namespace."""
    groups = {"": dict[str, CheckpointRecord](), **by_namespace(checkpoints)}
    kept = {
        namespace: {i for i, checkpoint in group.items() if not removed(checkpoint)}
        for namespace, group in groups.items()
    }
    return _plan(groups, kept, _Ancestry(groups[""]), _always)


def find_run_bases(
    checkpoints: Iterable[CheckpointRecord], heads: Mapping[str, str], run_id: str | None
) -> set[Name]:
    """Return the stored heads, at most one a namespace, that the rollback of a run returns to."""
    if run_id is None:
        return set()
    groups = by_namespace(checkpoints)
    bases = {ns: find_head_before(head, groups.get(ns, {}), {run_id}) for ns, head in heads.items()}
    return {(ns, base) for ns, base in bases.items() if base is not None and base in groups.get(ns, {})}


def by_namespace(checkpoints: Iterable[CheckpointRecord]) -> dict[str, dict[str, CheckpointRecord]]:
    """Group checkpoints by namespace, then by id."""
    groups: dict[str, dict[str, CheckpointRecord]] = {}
    for checkpoint in checkpoints:
        groups.setdefault(checkpoint.namespace, {})[checkpoint.id] = checkpoint
    return groups


def find_head_before(head: str, group: Mapping[str, CheckpointRecord], runs: Collection[str]) -> str | None:
    """Return the head of a namespace before some runs, the last of which moved it to ``head``.

    The result is an id, stored or not; ``None`` if there was no head; ``head`` if none of the runs moved it.
    The parent is not a substitute: a run that started from an old checkpoint has that one as its parent.
    """
    at: str | None = head
    passed: set[str] = set()
    while at is not None and at in group and group[at].run_id in runs and at not in passed:
        passed.add(at)
        at = group[at].replaced_head
    return at


def find_nearest_survivor(
    start: str | None, group: Mapping[str, CheckpointRecord], kept: set[str]
) -> str | None:
    """Return the nearest kept checkpoint on the parent chain that starts at ``start``."""
    at = start
    while at is not None and at not in kept:
        checkpoint = group.get(at)
        if checkpoint is None:
            return None
        at = checkpoint.parent_id
    return at


def _find_kept_in_subgraph(
    namespace: str,
    group: Mapping[str, CheckpointRecord],
    roots: set[str],
    ancestry: _Ancestry,
    heads: Mapping[str, str],
) -> set[str]:
    """Return the ids to keep in a subgraph's namespace.

    A task's namespace follows its root checkpoint. A stateful subgraph's also keeps its head, and for each
    kept root the newest checkpoint that a replay of that root would load.
    """
    kept = {c.id for c in group.values() if c.root in roots}
    head = heads.get(namespace)
    if head is not None and head in group and all(c.root is None for c in group.values()):
        kept.add(head)
    # A run may be in progress whose root checkpoint is not stored yet.
    current = heads.get("")
    kept |= {
        c.id
        for c in group.values()
        if c.root is not None and not ancestry.has(c.root) and c.root_head == current
    }
    if ":" in namespace.rsplit("|", 1)[-1]:
        return kept
    if head is not None and head in group:
        kept.add(head)
    newest_first = sorted(group.values(), key=lambda c: c.seq, reverse=True)
    for root in roots:
        before = ancestry.strict(root)
        for checkpoint in newest_first:
            if ancestry.has(checkpoint.root):
                place = checkpoint.root
            else:
                place = checkpoint.root_head
            if (place or ORIGIN) in before:
                kept.add(checkpoint.id)
                break
    return kept


class _Ancestry:
    """Ancestry within the root namespace."""

    def __init__(self, roots: Mapping[str, CheckpointRecord]) -> None:
        self._roots = roots
        self._passed = {name for root in roots.values() for name in root.passed}

    def has(self, checkpoint_id: str | None) -> bool:
        return checkpoint_id == ORIGIN or checkpoint_id in self._roots or checkpoint_id in self._passed

    def strict(self, checkpoint_id: str) -> set[str]:
        """Return a checkpoint's strict ancestors, with removed ones that subgraphs name, and the origin."""
        out = {ORIGIN}
        at: str | None = checkpoint_id
        while at is not None and at in self._roots:
            out.update((at, *self._roots[at].passed))
            at = self._roots[at].parent_id
        return out - {checkpoint_id}

    def find_passed(self, checkpoint_id: str, kept: set[str], named: set[str]) -> tuple[str, ...]:
        """Return the ``named`` removed checkpoints between a kept one and its nearest kept ancestor."""
        if not named:
            return ()
        out = set(self._roots[checkpoint_id].passed)
        at = self._roots[checkpoint_id].parent_id
        while at is not None and at in self._roots and at not in kept:
            out.update((at, *self._roots[at].passed))
            at = self._roots[at].parent_id
        return tuple(sorted(out & named))


def _is_same_run(survivor: CheckpointRecord, removed: CheckpointRecord) -> bool:
    """Return True if a survivor's ``prior`` may skip a checkpoint that a prune removes.

    Checkpoints that the same run replaced do not matter. Another run's checkpoint does, and its name stays
    although it is gone: a rollback of the survivor must not go further back than that.
    """
    return survivor.run_id is not None and survivor.run_id == removed.run_id


def _always(survivor: CheckpointRecord, removed: CheckpointRecord) -> bool:
    """Return True: a survivor's ``prior`` skips rolled-back checkpoints, as if never stored."""
    return True


def _plan(
    groups: Mapping[str, Mapping[str, CheckpointRecord]],
    kept: Mapping[str, set[str]],
    ancestry: _Ancestry,
    passes: Callable[[CheckpointRecord, CheckpointRecord], bool],
) -> Plan:
    """Return the plan that keeps checkpoints, given by their ids in each namespace."""
    out: dict[Name, CheckpointRecord] = {}
    # A subgraph's checkpoint keeps the name of its root where that is removed: moved to an ancestor it would
    # be older than other branches that part there. The survivors after that root remember it instead.
    named = {
        name
        for namespace, group in groups.items()
        if namespace != ""
        for checkpoint_id in kept[namespace]
        for name in (group[checkpoint_id].root, group[checkpoint_id].root_head)
        if name is not None
    }
    for namespace, group in groups.items():
        stay = kept[namespace]
        for checkpoint_id in stay:
            checkpoint = group[checkpoint_id]
            after = checkpoint
            if checkpoint.parent_id in group and checkpoint.parent_id not in stay:
                after = after._replace(
                    parent_id=find_nearest_survivor(checkpoint.parent_id, group, stay), cut=True
                )
            replaced = _find_replaced_head(checkpoint, group, stay, passes)
            if replaced != after.replaced_head:
                after = after._replace(prior=replaced or ORIGIN)
            root = checkpoint.root
            if namespace == "":
                passed = ancestry.find_passed(checkpoint_id, stay, named)
                if passed != checkpoint.passed:
                    after = after._replace(passed=passed)
            elif root and root not in kept[""] and ancestry.has(root) and checkpoint.root_head != root:
                # The head at the time counts only where the root itself was never stored.
                after = after._replace(root_head=root)
            if after is not checkpoint:
                out[namespace, checkpoint_id] = after
    removed = ((namespace, i) for namespace, group in groups.items() for i in group.keys() - kept[namespace])
    return Plan(frozenset(removed), out)


def _find_replaced_head(
    checkpoint: CheckpointRecord,
    group: Mapping[str, CheckpointRecord],
    stay: Collection[str],
    passes: Callable[[CheckpointRecord, CheckpointRecord], bool],
) -> str | None:
    """Return the head that a survivor replaced, skipping removed ones that may be skipped."""
    at = checkpoint.replaced_head
    passed: set[str] = set()
    while at is not None and at in group and at not in stay and at not in passed:
        if not passes(checkpoint, group[at]):
            break
        passed.add(at)
        at = group[at].replaced_head
    return at
