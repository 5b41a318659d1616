"""Plans of removals: which checkpoints go, and to which ancestor each survivor is linked.

In the root namespace the caller's rule chooses the survivors; a checkpoint that is a head or is tagged always
survives, and so do the checkpoints to which the rollback of an open run returns. A subgraph's checkpoint
survives if the root checkpoint that its metadata names does. A survivor whose parent is removed is linked to
its nearest surviving ancestor and marked as ``cut``: a check then does not take its parent for lost.
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
        placed: subgraphs' checkpoints among the removed ones, by name, that would count as older once their
            root checkpoints are gone. In these records they name the root checkpoint also as ``root_head``.
        heads: the operations on heads.
        writes: the operations on pending writes, by the checkpoint with which they are removed.
    """

    removed: frozenset[Name]
    relinked: Mapping[Name, CheckpointRecord]
    heads: Sequence[Put | Delete] = ()
    writes: Mapping[Name, Sequence[Op]] = field(default_factory=dict[Name, Sequence[Op]])
    placed: Mapping[Name, CheckpointRecord] = field(default_factory=dict[Name, CheckpointRecord])

    @property
    def is_empty(self) -> bool:
        """True if nothing is removed."""
        return not (self.removed or self.heads or self.writes)


def make_newest_rule(last: int) -> Callable[[list[CheckpointRecord]], set[str]]:
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
    """Return the plan that keeps the root checkpoints that a rule chooses, and those that always survive.

    Args:
        heads: head checkpoint id of each namespace.
        rule: returns the ids of the root checkpoints to keep.
        bases: result of ``find_run_bases`` for the open run.
    """
    groups = group_by_namespace(checkpoints)
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
    return _make_plan(groups, kept, ancestry, _is_same_run)


def plan_removal(
    checkpoints: Iterable[CheckpointRecord], removed: Callable[[CheckpointRecord], bool]
) -> Plan:
    """Return the plan that removes exactly the checkpoints of a rule, in every namespace."""
    groups = {"": dict[str, CheckpointRecord](), **group_by_namespace(checkpoints)}
    kept = {
        namespace: {i for i, checkpoint in group.items() if not removed(checkpoint)}
        for namespace, group in groups.items()
    }
    return _make_plan(groups, kept, _Ancestry(groups[""]), _may_skip_any)


def find_run_bases(
    checkpoints: Iterable[CheckpointRecord], heads: Mapping[str, str], run_id: str | None
) -> set[Name]:
    """Return the heads to which a rollback of a run returns, at most one a namespace, if they are stored."""
    if run_id is None:
        return set()
    groups = group_by_namespace(checkpoints)
    bases = {ns: find_head_before(head, groups.get(ns, {}), {run_id}) for ns, head in heads.items()}
    return {(ns, base) for ns, base in bases.items() if base is not None and base in groups.get(ns, {})}


def group_by_namespace(checkpoints: Iterable[CheckpointRecord]) -> dict[str, dict[str, CheckpointRecord]]:
    """Group checkpoints by namespace, then by id."""
    groups: dict[str, dict[str, CheckpointRecord]] = {}
    for checkpoint in checkpoints:
        groups.setdefault(checkpoint.namespace, {})[checkpoint.id] = checkpoint
    return groups


def find_head_before(head: str, group: Mapping[str, CheckpointRecord], runs: Collection[str]) -> str | None:
    """Return the head that a namespace had before some runs, given the head after them.

    The result is an id, stored or not; ``None`` if there was no head; ``head`` if none of the runs moved it.
    The parent of a run's first checkpoint may be another one: the run may have started from an old
    checkpoint.
    """
    current: str | None = head
    visited: set[str] = set()
    while (
        current is not None and current in group and group[current].run_id in runs and current not in visited
    ):
        visited.add(current)
        current = group[current].replaced_head
    return current


def find_nearest_survivor(
    start: str | None, group: Mapping[str, CheckpointRecord], kept: set[str]
) -> str | None:
    """Return the nearest kept checkpoint on the parent chain that starts at ``start``."""
    current = start
    while current is not None and current not in kept:
        checkpoint = group.get(current)
        if checkpoint is None:
            return None
        current = checkpoint.parent_id
    return current


def _find_kept_in_subgraph(
    namespace: str,
    group: Mapping[str, CheckpointRecord],
    roots: set[str],
    ancestry: _Ancestry,
    heads: Mapping[str, str],
) -> set[str]:
    """Return the ids to keep in a subgraph's namespace.

    In the namespace of a task, checkpoints are kept with their root checkpoint. In that of a stateful
    subgraph the head is kept, too, and for each kept root checkpoint the newest checkpoint that a replay of
    it loads.
    """
    kept = {c.id for c in group.values() if c.root in roots}
    head = heads.get(namespace)
    if head is not None and head in group and all(c.root is None for c in group.values()):
        kept.add(head)
    # Checkpoints of a run in progress stay, as its root checkpoint may not be stored yet.
    root_head = heads.get("")
    kept |= {
        c.id
        for c in group.values()
        if c.root is not None and not ancestry.has(c.root) and c.root_head == root_head
    }
    if ":" in namespace.rsplit("|", 1)[-1]:
        return kept
    if head is not None and head in group:
        kept.add(head)
    newest_first = sorted(group.values(), key=lambda c: c.seq, reverse=True)
    for root in roots:
        ancestors = ancestry.find_ancestors(root)
        for checkpoint in newest_first:
            place = checkpoint.root
            if not ancestry.has(place):
                place = checkpoint.root_head
            if (place or ORIGIN) in ancestors:
                kept.add(checkpoint.id)
                break
    return kept


class _Ancestry:
    """Ancestry within the root namespace."""

    def __init__(self, roots: Mapping[str, CheckpointRecord]) -> None:
        self._roots = roots
        self._passed = {name for root in roots.values() for name in root.passed}

    def has(self, checkpoint_id: str | None) -> bool:
        """Return True if the place of a root checkpoint is known: it is stored, or noted as removed."""
        return checkpoint_id == ORIGIN or checkpoint_id in self._roots or checkpoint_id in self._passed

    def find_ancestors(self, checkpoint_id: str) -> set[str]:
        """Return a checkpoint's ancestors without itself, with the origin and removed ones that subgraphs
        name."""
        ancestors = {ORIGIN}
        current: str | None = checkpoint_id
        while current is not None and current in self._roots:
            ancestors.update((current, *self._roots[current].passed))
            current = self._roots[current].parent_id
        return ancestors - {checkpoint_id}

    def find_passed(self, checkpoint_id: str, kept: set[str], named: set[str]) -> tuple[str, ...]:
        """Return the ``named`` removed checkpoints between a kept one and its nearest kept ancestor."""
        if not named:
            return ()
        between = set(self._roots[checkpoint_id].passed)
        current = self._roots[checkpoint_id].parent_id
        while current is not None and current in self._roots and current not in kept:
            between.update((current, *self._roots[current].passed))
            current = self._roots[current].parent_id
        return tuple(sorted(between & named))


def _is_same_run(survivor: CheckpointRecord, removed: CheckpointRecord) -> bool:
    """Return True if a survivor's ``prior`` may skip a checkpoint that a prune removes.

    It may if the survivor's run has stored the removed checkpoint. The id of another run's checkpoint stays
    in ``prior`` although the checkpoint is removed: a rollback of the survivor must not go further back.
    """
    return survivor.run_id is not None and survivor.run_id == removed.run_id


def _may_skip_any(survivor: CheckpointRecord, removed: CheckpointRecord) -> bool:
    """Return True: a survivor's ``prior`` skips all rolled-back checkpoints, as if they had never existed."""
    return True


def _make_plan(
    groups: Mapping[str, Mapping[str, CheckpointRecord]],
    kept: Mapping[str, set[str]],
    ancestry: _Ancestry,
    may_skip: Callable[[CheckpointRecord, CheckpointRecord], bool],
) -> Plan:
    """Return the plan that keeps checkpoints, given by their ids in each namespace."""
    relinked: dict[Name, CheckpointRecord] = {}
    # A subgraph's checkpoint still names its root after that is removed: if it named an ancestor of the root,
    # it would count as older than other branches that begin there. So the survivors after the root note it
    # in ``passed``.
    named = {
        name
        for namespace, group in groups.items()
        if namespace != ""
        for checkpoint_id in kept[namespace]
        for name in (group[checkpoint_id].root, group[checkpoint_id].root_head)
        if name is not None
    }
    for namespace, group in groups.items():
        kept_here = kept[namespace]
        for checkpoint_id in kept_here:
            checkpoint = group[checkpoint_id]
            changed = checkpoint
            if checkpoint.parent_id in group and checkpoint.parent_id not in kept_here:
                survivor = find_nearest_survivor(checkpoint.parent_id, group, kept_here)
                changed = changed._replace(parent_id=survivor, cut=True)
            replaced = _find_replaced_head(checkpoint, group, kept_here, may_skip)
            if replaced != changed.replaced_head:
                changed = changed._replace(prior=replaced or ORIGIN)
            if namespace == "":
                passed = ancestry.find_passed(checkpoint_id, kept_here, named)
                if passed != checkpoint.passed:
                    changed = changed._replace(passed=passed)
            elif _loses_place(checkpoint, kept[""], ancestry):
                changed = changed._replace(root_head=checkpoint.root)
            if changed is not checkpoint:
                relinked[namespace, checkpoint_id] = changed
    removed = [group[i] for namespace, group in groups.items() for i in group.keys() - kept[namespace]]
    # No other root checkpoint is an ancestor of a survivor once the links are changed.
    places = {ORIGIN, *kept[""], *named}
    placed = {
        checkpoint.name: checkpoint._replace(root_head=checkpoint.root)
        for checkpoint in removed
        if (checkpoint.root_head or ORIGIN) in places and _loses_place(checkpoint, kept[""], ancestry)
    }
    return Plan(frozenset(checkpoint.name for checkpoint in removed), relinked, placed=placed)


def _loses_place(checkpoint: CheckpointRecord, kept_roots: Collection[str], ancestry: _Ancestry) -> bool:
    """Return True if a subgraph's checkpoint has to name its root checkpoint as ``root_head``, too: as that
    was stored, it is the checkpoint's place, and not the head at the time."""
    root = checkpoint.root
    return bool(root) and root not in kept_roots and ancestry.has(root) and checkpoint.root_head != root


def _find_replaced_head(
    checkpoint: CheckpointRecord,
    group: Mapping[str, CheckpointRecord],
    kept_here: Collection[str],
    may_skip: Callable[[CheckpointRecord, CheckpointRecord], bool],
) -> str | None:
    """Return the head that a survivor replaced, without the removed ones that may be skipped."""
    current = checkpoint.replaced_head
    visited: set[str] = set()
    while current is not None and current in group and current not in kept_here and current not in visited:
        if not may_skip(checkpoint, group[current]):
            break
        visited.add(current)
        current = group[current].replaced_head
    return current
