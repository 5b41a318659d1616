"""Decides which pending writes go together with the checkpoints that are removed from a thread."""

from __future__ import annotations

from collections.abc import Collection

from perdure.engine.threads.thread_records import Contents
from perdure.model.checkpoint import PendingWrite
from perdure.model.heads import ROOT, belongs
from perdure.model.ops import Delete, Op
from perdure.model.records import WRITE, Key
from perdure.model.retention import Name
from perdure.model.write_records import by_record, plan_partial_removal, put_over, record_key


def unneeded_writes(
    contents: Contents, removed: Collection[Name], runs: frozenset[str]
) -> dict[Name, list[Op]]:
    """Return the removals of writes: those on removed checkpoints, and those of ``runs`` on survivors, where
    an overwritten write is restored. Without ``runs`` writes go, too, whose checkpoint is gone already.

    They are grouped by the checkpoint with which they are removed: the one that they belong to, or whose loop
    left them; failing both, by the checkpoint that they are on.
    """
    aside = {w.key: w for w in contents.writes if w.is_aside}
    out: dict[Key, Op] = {}
    place: dict[Key, Name] = {}
    gone = [w for w in contents.writes if (w.namespace, w.checkpoint_id) in removed]
    left_by = {
        (c.namespace, c.parent_id, c.nonce): (c.namespace, c.id)
        for c in contents.checkpoints
        if (c.namespace, c.id) in removed
    }
    for write in _left_by_the_removed(contents, removed, runs):
        key = record_key(write)
        before = aside.get(write.aside.key) if write.idx < 0 else None
        if before is None:
            gone.append(write)
        elif not belongs(before.nonce, runs):
            out[key] = put_over(before._replace(idx=write.idx), write)
            out[before.key] = Delete(WRITE, before.key)
        else:
            gone += (write, before)
        child = left_by.get((write.namespace, write.checkpoint_id, write.nonce))
        if child is not None:
            place[key] = child
            if before is not None:
                place[before.key] = child
    if not runs:
        gone += _without_checkpoint(contents, removed)
    records = by_record(contents.writes)
    for key, some in by_record(gone).items():
        out[key] = plan_partial_removal(records[key], some) or Delete(WRITE, key)
    groups: dict[Name, list[Op]] = {}
    for key, op in out.items():
        groups.setdefault(place.get(key, (key[0], key[1])), []).append(op)
    return groups


def _without_checkpoint(contents: Contents, removed: Collection[Name]) -> list[PendingWrite]:
    """Return the writes whose checkpoint was removed before.

    A write may be stored before its checkpoint, whose id is then above that of the head that the run builds
    on. So only writes below the head are taken, and none of an open run, unless the whole thread goes.
    """
    stored = {(c.namespace, c.id) for c in contents.checkpoints}
    alone = [w for w in contents.writes if (w.namespace, w.checkpoint_id) not in stored]
    if stored and stored <= set(removed):
        return alone
    open_runs = () if contents.view.open_run is None else (contents.view.open_run,)
    return [
        w
        for w in alone
        if w.checkpoint_id < contents.latest.get(w.namespace, contents.latest.get(ROOT, ""))
        and not belongs(w.nonce, open_runs)
    ]


def _left_by_the_removed(
    contents: Contents, removed: Collection[Name], runs: frozenset[str]
) -> list[PendingWrite]:
    """Return the writes on survivors that a removed checkpoint's loop, or a loop of ``runs``, left, and that
    no survivor needs."""
    gone: dict[Name, set[str]] = {}
    needed: dict[Name, set[str]] = {}
    for checkpoint in contents.checkpoints:
        if checkpoint.parent_id is None:
            continue
        parent = (checkpoint.namespace, checkpoint.parent_id)
        if (checkpoint.namespace, checkpoint.id) in removed:
            gone.setdefault(parent, set()).add(checkpoint.nonce)
        else:
            needed.setdefault(parent, set()).update((checkpoint.nonce, *checkpoint.seen))
    return [
        w
        for w in contents.writes
        if w.nonce
        and not w.is_aside
        and (w.namespace, w.checkpoint_id) not in removed
        and (w.nonce in gone.get((w.namespace, w.checkpoint_id), ()) or belongs(w.nonce, runs))
        and w.nonce not in needed.get((w.namespace, w.checkpoint_id), ())
    ]
