"""What may be removed from a thread, and how the rest is linked afterwards.

Survivors of the root namespace are chosen by the caller's rule; a checkpoint that is a head or is tagged
always survives. A subgraph's checkpoint follows the root checkpoint that its metadata names. Survivors are
linked to their nearest surviving ancestor, and a link that moved is marked: a marked cut is no hole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from perdure.model.checkpoint import CheckpointRecord

ORIGIN = ""
"""The root link of a subgraph's checkpoint whose root checkpoints were all removed: before everything."""

Name = tuple[str, str]
"""A checkpoint's namespace and id."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to remove, and the survivors whose links change, by name."""

    removed: tuple[Name, ...]
    relinked: Mapping[Name, CheckpointRecord]


def keep_newest(last: int) -> Callable[[list[CheckpointRecord]], set[str]]:
    """The rule that the newest ``last`` checkpoints of the root namespace stay."""

    def rule(roots: list[CheckpointRecord]) -> set[str]:
        newest = sorted(roots, key=lambda c: c.seq, reverse=True)[:last]
        return {c.id for c in newest}

    return rule


def plan_retention(
    checkpoints: Iterable[CheckpointRecord],
    heads: Mapping[str, str],
    tagged: Iterable[Name],
    rule: Callable[[list[CheckpointRecord]], set[str]],
) -> Plan:
    """The plan for a rule over the root namespace's checkpoints."""
    by_namespace: dict[str, dict[str, CheckpointRecord]] = {}
    for checkpoint in checkpoints:
        by_namespace.setdefault(checkpoint.namespace, {})[checkpoint.id] = checkpoint
    tags = set(tagged)
    anchors = tags | set(heads.items())
    roots = by_namespace.get("", {})
    kept: dict[str, set[str]] = {"": rule(list(roots.values()))}
    kept[""] |= {i for namespace, i in anchors if namespace == "" and i in roots}
    # A tag in a subgraph's namespace keeps the root checkpoint that the subgraph ran under.
    for namespace, checkpoint_id in tags:
        tagged_one = by_namespace.get(namespace, {}).get(checkpoint_id)
        if tagged_one is not None and tagged_one.root is not None and tagged_one.root in roots:
            kept[""].add(tagged_one.root)
    ancestry = _Ancestry(roots)
    for namespace, group in by_namespace.items():
        if namespace != "":
            kept[namespace] = _kept_in_subgraph(namespace, group, kept[""], ancestry, heads)
            kept[namespace] |= {i for n, i in tags if n == namespace and i in group}
    removed = tuple(
        (namespace, i) for namespace, group in by_namespace.items() for i in group if i not in kept[namespace]
    )
    return Plan(removed, _relinked(by_namespace, kept, ancestry))


def plan_removal(
    checkpoints: Iterable[CheckpointRecord], removed: Callable[[CheckpointRecord], bool]
) -> Plan:
    """The plan that removes exactly the checkpoints of a rule, in every namespace."""
    by_namespace: dict[str, dict[str, CheckpointRecord]] = {}
    gone: list[Name] = []
    kept: dict[str, set[str]] = {"": set()}
    for checkpoint in checkpoints:
        by_namespace.setdefault(checkpoint.namespace, {})[checkpoint.id] = checkpoint
        if removed(checkpoint):
            gone.append((checkpoint.namespace, checkpoint.id))
        else:
            kept.setdefault(checkpoint.namespace, set()).add(checkpoint.id)
    ancestry = _Ancestry(by_namespace.get("", {}))
    return Plan(tuple(gone), _relinked(by_namespace, kept, ancestry))


def nearest_survivor(start: str | None, group: Mapping[str, CheckpointRecord], kept: set[str]) -> str | None:
    """The nearest kept checkpoint on the parent chain that starts at ``start``."""
    at = start
    while at is not None and at not in kept:
        checkpoint = group.get(at)
        if checkpoint is None:
            return None
        at = checkpoint.parent_id
    return at


def _kept_in_subgraph(
    namespace: str,
    group: Mapping[str, CheckpointRecord],
    roots: set[str],
    ancestry: _Ancestry,
    heads: Mapping[str, str],
) -> set[str]:
    """A task's namespace follows its root checkpoint. A stateful subgraph's also keeps its head, and for
    each kept root the newest that a replay of that root would load."""
    kept = {c.id for c in group.values() if c.root in roots}
    head = heads.get(namespace)
    if head is not None and head in group and all(c.root is None for c in group.values()):
        kept.add(head)
    # A run may be going on whose root checkpoint is not stored yet.
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
            place = checkpoint.root if ancestry.has(checkpoint.root) else checkpoint.root_head
            if (place or ORIGIN) in before:
                kept.add(checkpoint.id)
                break
    return kept


class _Ancestry:
    """Strict ancestors in the root namespace."""

    def __init__(self, roots: Mapping[str, CheckpointRecord]) -> None:
        self._roots = roots

    def has(self, checkpoint_id: str | None) -> bool:
        return checkpoint_id == ORIGIN or checkpoint_id in self._roots

    def strict(self, checkpoint_id: str) -> set[str]:
        out = {ORIGIN}
        at = self._roots[checkpoint_id].parent_id if checkpoint_id in self._roots else None
        while at is not None and at in self._roots:
            out.add(at)
            at = self._roots[at].parent_id
        return out

    def nearest(self, checkpoint_id: str | None, kept: set[str]) -> str:
        return nearest_survivor(checkpoint_id, self._roots, kept) or ORIGIN


def _relinked(
    by_namespace: Mapping[str, Mapping[str, CheckpointRecord]],
    kept: Mapping[str, set[str]],
    ancestry: _Ancestry,
) -> dict[Name, CheckpointRecord]:
    out: dict[Name, CheckpointRecord] = {}
    for namespace, group in by_namespace.items():
        stay = kept.get(namespace, set())
        for checkpoint_id in stay:
            checkpoint = group[checkpoint_id]
            after = checkpoint
            if checkpoint.parent_id in group and checkpoint.parent_id not in stay:
                after = after.moved(parent_id=nearest_survivor(checkpoint.parent_id, group, stay), cut=True)
            if namespace != "":
                if checkpoint.root and ancestry.has(checkpoint.root) and checkpoint.root not in kept[""]:
                    after = after.moved(root=ancestry.nearest(checkpoint.root, kept[""]))
                head = checkpoint.root_head
                if head and ancestry.has(head) and head not in kept[""]:
                    after = after.moved(root_head=ancestry.nearest(head, kept[""]))
            if after is not checkpoint:
                out[namespace, checkpoint_id] = after
    return out
