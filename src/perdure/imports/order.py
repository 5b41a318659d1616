"""Decides which checkpoints of a source are new to the target, and the order in which they are stored.

A checkpoint that is not at the target is new, or was imported earlier and pruned there. To tell these apart,
an import records the largest id of the thread at the source, and a digest of all ids up to it: as ids begin
with the time, these are the checkpoints that it has imported.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b

from perdure.engine.transfer.importing import CheckpointKey
from perdure.imports.source import CheckpointEntry

_SIZE = 16


def make_extent(outline: Iterable[CheckpointEntry]) -> bytes:
    """Return the digest of the ids of a thread at the source, followed by the largest id: the extent of an
    import, which the next import needs."""
    entries = list(outline)
    last = max((entry.id for entry in entries), default="")
    return _digest(entries) + last.encode("utf-8", "surrogatepass")


def find_pruned(
    outline: Sequence[CheckpointEntry], known: Collection[CheckpointKey], before: bytes
) -> set[CheckpointKey]:
    """Return the checkpoints that were imported earlier and are no longer at the target.

    Args:
        outline: The thread at the source.
        known: The checkpoints at the target.
        before: The ``extent`` of the last import, empty if there was none. If it does not match, because the
            source has removed a checkpoint since or added one with an earlier id from a slow clock, only
            ancestors of ``known`` are considered pruned.
    """
    digest, last = before[:_SIZE], _read_last_id(before)
    earlier = [entry for entry in outline if entry.id <= last]
    if digest and _digest(earlier) == digest:
        return {(e.namespace, e.id) for e in earlier} - set(known)
    entries = {(e.namespace, e.id): e for e in outline}
    found: set[CheckpointKey] = set()
    for key in known:
        ancestor = entries.get(key)
        while ancestor is not None and ancestor.parent_id is not None:
            parent = (ancestor.namespace, ancestor.parent_id)
            if parent in known or parent in found:
                break
            found.add(parent)
            ancestor = entries.get(parent)
    return found


def find_unfinished(
    outline: Iterable[CheckpointEntry], known: Collection[CheckpointKey], before: bytes
) -> set[CheckpointKey]:
    """Return the checkpoints that an unfinished import has stored at the target. The source may have pruned
    them, or changed their parents, since.

    Args:
        outline: The thread at the source.
        known: The checkpoints at the target.
        before: The ``extent`` of the last finished import, empty if there was none.
    """
    if not before:
        return set()
    last = _read_last_id(before)
    return {(e.namespace, e.id) for e in outline if e.id > last}.intersection(known)


def is_begun_anew(outline: Iterable[CheckpointEntry], head_id: str, before: bytes) -> bool:
    """Return True if the target is as it was imported, and nothing of that is left at the source.

    Args:
        outline: The thread at the source.
        head_id: The latest checkpoint at the target.
        before: The ``extent`` of the last finished import, empty if there was none.
    """
    last = _read_last_id(before)
    return bool(before) and head_id <= last and all(entry.id > last for entry in outline)


def _read_last_id(extent: bytes) -> str:
    return extent[_SIZE:].decode("utf-8", "surrogatepass")


def find_missing(
    outline: Iterable[CheckpointEntry],
    known: Collection[CheckpointKey],
    pruned: Collection[CheckpointKey] = (),
) -> list[CheckpointEntry]:
    """Return the checkpoints that the target lacks, parents before children, otherwise by id.

    Args:
        outline: The thread at the source.
        known: The checkpoints at the target.
        pruned: The checkpoints that were pruned at the target, which are left out.
    """
    entries = {(e.namespace, e.id): e for e in outline}
    return _sort_parents_first([e for key, e in entries.items() if key not in known and key not in pruned])


def _digest(entries: Iterable[CheckpointEntry]) -> bytes:
    digest = blake2b(digest_size=_SIZE, person=b"perdure.extent")
    for entry in sorted(entries, key=lambda entry: entry[:2]):
        for part in (entry.namespace, entry.id):
            raw = part.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.digest()


def _sort_parents_first(entries: list[CheckpointEntry]) -> list[CheckpointEntry]:
    """Sort by id, but parents before their children, whose ids are smaller if a process had a slow clock."""
    keys = {(e.namespace, e.id) for e in entries}
    children: dict[CheckpointKey, list[CheckpointEntry]] = {}
    ready: list[tuple[str, str, CheckpointEntry]] = []
    for entry in entries:
        parent = (entry.namespace, entry.parent_id or "")
        if entry.parent_id is not None and parent in keys and entry.parent_id != entry.id:
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
    # Entries that are left out are among their own ancestors: the importer refuses a thread with such a
    # cycle.
    return out
