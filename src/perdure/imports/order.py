"""Decides which checkpoints of a source are new to the target, and the order in which they are stored.

What is not at the target is new, or was pruned there. Checkpoints have the time in their ids, so an import
notes the largest id of the thread at the source, with a digest of all ids up to it: those were brought.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b

from perdure.engine.transfer.importing import CheckpointKey
from perdure.imports.source import CheckpointEntry

_SIZE = 16


def extent(outline: Iterable[CheckpointEntry]) -> bytes:
    """Return what the next import has to know of a thread as it is at the source now."""
    entries = list(outline)
    last = max((entry.id for entry in entries), default="")
    return _digest(entries) + last.encode("utf-8", "surrogatepass")


def find_pruned(
    outline: Sequence[CheckpointEntry], known: Collection[CheckpointKey], before: bytes
) -> set[CheckpointKey]:
    """Return the checkpoints that were brought earlier and are not at the target any more.

    Args:
        outline: The thread at the source.
        known: The checkpoints at the target.
        before: The ``extent`` of the last import, empty if there was none. If the source has removed some of
            those since, or got one by a clock that is late, only ancestors of what is known are taken for
            pruned.
    """
    digest, last = before[:_SIZE], _last_of(before)
    earlier = [entry for entry in outline if entry.id <= last]
    if digest and _digest(earlier) == digest:
        return {(e.namespace, e.id) for e in earlier} - set(known)
    entries = {(e.namespace, e.id): e for e in outline}
    found: set[CheckpointKey] = set()
    for key in known:
        at = entries.get(key)
        while at is not None and at.parent_id is not None:
            parent = (at.namespace, at.parent_id)
            if parent in known or parent in found:
                break
            found.add(parent)
            at = entries.get(parent)
    return found


def find_unfinished(
    outline: Iterable[CheckpointEntry], known: Collection[CheckpointKey], before: bytes
) -> set[CheckpointKey]:
    """Return the checkpoints that an import has stored at the target beside those that were brought earlier,
    and that it did not finish. They may have been pruned or linked otherwise since.

    Args:
        outline: The thread at the source.
        known: The checkpoints at the target.
        before: The ``extent`` of the last import that ended, empty if there was none.
    """
    if not before:
        return set()
    last = _last_of(before)
    return {(e.namespace, e.id) for e in outline if e.id > last}.intersection(known)


def _last_of(extent: bytes) -> str:
    return extent[_SIZE:].decode("utf-8", "surrogatepass")


def find_missing(
    outline: Iterable[CheckpointEntry], known: Collection[CheckpointKey], gone: Collection[CheckpointKey] = ()
) -> list[CheckpointEntry]:
    """Return the checkpoints that the target lacks, parents before children, otherwise by id.

    Args:
        outline: The thread at the source.
        known: The checkpoints at the target.
        gone: Those that were pruned there, which are left out.
    """
    entries = {(e.namespace, e.id): e for e in outline}
    return _in_order([e for key, e in entries.items() if key not in known and key not in gone])


def _digest(entries: Iterable[CheckpointEntry]) -> bytes:
    digest = blake2b(digest_size=_SIZE, person=b"perdure.extent")
    for entry in sorted(entries, key=lambda entry: entry[:2]):
        for part in (entry.namespace, entry.id):
            raw = part.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.digest()


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
