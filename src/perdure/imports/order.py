"""Decides which checkpoints of a source are new to the target, and the order in which they are stored."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

from perdure.engine.importing import CheckpointKey
from perdure.imports.source import CheckpointEntry


def missing(outline: Iterable[CheckpointEntry], known: Collection[CheckpointKey]) -> list[CheckpointEntry]:
    """Return the checkpoints that the target lacks, parents before children, otherwise by id.

    An ancestor of a checkpoint that the target has is left out: it was pruned there since it was imported.
    """
    entries = {(e.namespace, e.id): e for e in outline}
    pruned: set[CheckpointKey] = set()
    for key in known:
        at = entries.get(key)
        while at is not None and at.parent_id is not None:
            parent = (at.namespace, at.parent_id)
            if parent in known or parent in pruned:
                break
            pruned.add(parent)
            at = entries.get(parent)
    return _in_order([e for key, e in entries.items() if key not in known and key not in pruned])


def _in_order(entries: list[CheckpointEntry]) -> list[CheckpointEntry]:
    """Sort by id, as far as parents come first: the clocks of two processes may have differed."""
    there = {(e.namespace, e.id) for e in entries}
    children: dict[CheckpointKey, list[CheckpointEntry]] = {}
    ready: list[tuple[str, str, CheckpointEntry]] = []
    for entry in entries:
        parent = (entry.namespace, entry.parent_id or "")
        if entry.parent_id is not None and parent in there and entry.parent_id != entry.id:
            children.setdefault(parent, []).append(entry)
        else:
            ready.append((entry.id, entry.namespace, entry))
    heapq.heapify(ready)
    out: list[CheckpointEntry] = []
    while ready:
        _, _, entry = heapq.heappop(ready)
        out.append(entry)
        for child in children.pop((entry.namespace, entry.id), ()):
            heapq.heappush(ready, (child.id, child.namespace, child))
    # What is left names itself among its ancestors: its links cannot be kept, and the importer refuses it.
    return out
