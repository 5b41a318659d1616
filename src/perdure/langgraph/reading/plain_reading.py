"""Reads threads as plain data, for people: no object of a stored type is created, and no graph is needed.

Every typed value is returned as a plain dict with the name of its type, so that a program without the types
can inspect and export a thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from perdure.engine.threads import checkpoint_loading, history, tags
from perdure.engine.threads.chunk_reads import resolve
from perdure.engine.threads.thread_state import load_view
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.errors import NotFound, TooLarge
from perdure.langgraph.reading.delta_values import load_deltas, unwrap_snapshot
from perdure.langgraph.reading.plain_serde import PlainSerde, text_of
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.missing_thread import missing_thread
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.values import refs
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree
from perdure.model.values.tree import EncodedDict, EncodedList, Tree
from perdure.model.write_records import visible

_STEP = re.compile(r"-?[0-9]{1,9}")
_NAMED_MAX = 5
EXPORT_FORMAT = "perdure.thread/1"


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel's value in plain data, with its size in bytes and, for lists and dicts, its length.

    Attributes:
        is_replayed: True for the value of a DeltaChannel, assembled from its updates without the reducer.
    """

    name: str
    value: Any
    size: int
    length: int | None
    is_replayed: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint in plain data."""

    namespace: str
    checkpoint_id: str
    parent_id: str | None
    created_at: str
    source: str | None
    step: int | None
    run_id: str | None
    metadata: Mapping[str, Any]
    updated: tuple[str, ...] | None
    tags: tuple[str, ...]
    channels: tuple[ChannelView, ...] = ()
    pending: tuple[tuple[str, str, Any], ...] = ()


def load(
    partition: Partition, namespace: str, checkpoint_id: str | None, digest: Digester
) -> Program[CheckpointView]:
    """Return a checkpoint of a thread with its values, by default the latest of the namespace; raise
    ``NotFound`` if there is none. Records of calls are left out, as they are not pending writes of the
    graph."""
    read = partial(_load, partition, namespace, checkpoint_id, digest)
    return (yield from read_undisturbed(partition, read))


def _load(
    partition: Partition, namespace: str, checkpoint_id: str | None, digest: Digester
) -> Program[CheckpointView]:
    found = yield from checkpoint_loading.load(partition, namespace, checkpoint_id)
    if found.checkpoint is None and (checkpoint_id is not None or namespace):
        raise NotFound(
            f"thread {partition.thread!r} has no checkpoint {checkpoint_id or 'yet'} in namespace "
            f"{namespace!r}; "
            "`perdure threads history` lists those that it has"
        )
    if found.checkpoint is None:
        raise missing_thread(partition)
    tag_names = yield from _read_tag_names(partition)
    view = yield from _read_view(partition, found.checkpoint, visible(found.writes), tag_names, digest)
    deltas = yield from load_deltas(partition, found.checkpoint, digest)
    replayed = (replace(_view_channel(name, tree), is_replayed=True) for name, tree in deltas.items())
    return replace(view, channels=(*view.channels, *replayed))


def read_tags(partition: Partition, namespace: str = "") -> Program[dict[str, str]]:
    """Return the tags of a namespace: name to checkpoint id."""
    found = yield from tags.list_tags(partition)
    return {
        record.key[0]: record.fields["checkpoint_id"]
        for record in found
        if record.fields["namespace"] == namespace
    }


def find_named(partition: Partition, namespace: str, name: str) -> Program[str]:
    """Return the id of the checkpoint that is named by its id, a tag, or the number of its step.

    Raises:
        NotFound: There is none, or several branches have a step of this number.
    """
    named = (yield from read_tags(partition, namespace)).get(name, name)
    if (yield from history.find(partition, namespace, named)) is not None:
        return named
    found: list[tuple[str, int]] = []
    if _STEP.fullmatch(name):
        found = yield from history.find_step(partition, namespace, int(name))
    if len(found) == 1:
        return found[0][0]
    if found:
        ids = ", ".join(checkpoint_id for checkpoint_id, _ in found[:_NAMED_MAX])
        more = ", …" if len(found) > _NAMED_MAX else ""
        raise NotFound(
            f"thread {partition.thread!r} has {len(found)} checkpoints of step {name}, on different "
            f"branches; name one by its id: {ids}{more}"
        )
    raise NotFound(
        f"thread {partition.thread!r} has no checkpoint, tag or step {name[:80]!r}; `perdure threads history "
        "--limit 1000` lists the ids, tags and steps of the newest"
    )


def metadata_of(record: CheckpointRecord) -> dict[str, Any]:
    """Return the metadata of a checkpoint in plain data."""
    metadata: dict[str, Any] = _serde.unpack(record.metadata)
    return metadata


def timeline(partition: Partition, namespace: str = "", limit: int = 100) -> Program[list[CheckpointView]]:
    """Return the newest checkpoints of a namespace, newest first, without their values.

    Args:
        partition: The thread.
        namespace: The namespace, by default the root.
        limit: Maximum number of checkpoints to return.

    Raises:
        NotFound: The root namespace has no checkpoint, so there is no thread.
    """
    tag_names = yield from _read_tag_names(partition)
    out: list[CheckpointView] = []
    below: int | None = None
    while len(out) < limit:
        size = min(history.PAGE, limit - len(out))
        page = yield from history.read_page(partition, namespace, below=below, limit=size)
        if not page:
            break
        out.extend(_make_view(record, tag_names) for record in page)
        below = page[-1].seq
    if not out and namespace == "":
        raise missing_thread(partition)
    return out


def export(partition: Partition, digest: Digester, most: int | None = None) -> Program[dict[str, Any]]:
    """Return a thread as plain JSON data: every checkpoint of every namespace, oldest first, with values,
    pending writes and tags.

    Args:
        partition: The thread.
        digest: Computes the names of stored values.
        most: Maximum size of all values in bytes, ``None`` for no limit. As every checkpoint is exported with
            all of its values, the export of a long thread may be many times larger than its stored records.

    Raises:
        NotFound: There is no such thread.
        TooLarge: The values exceed ``most``.
    """
    return (yield from read_undisturbed(partition, partial(_export, partition, digest, most)))


def _export(partition: Partition, digest: Digester, most: int | None) -> Program[dict[str, Any]]:
    generation = (yield from load_view(partition, "")).generation
    tag_names = yield from _read_tag_names(partition)
    out: list[dict[str, Any]] = []
    size = 0
    for namespace in (yield from history.read_namespaces(partition)):
        below: int | None = None
        pages: list[CheckpointRecord] = []
        while page := (yield from history.read_page(partition, namespace, below=below, limit=history.PAGE)):
            pages.extend(page)
            below = page[-1].seq
        pages.reverse()
        for at in range(0, len(pages), history.PAGE):
            group = pages[at : at + history.PAGE]
            ids = [record.id for record in group]
            writes = yield from history.read_pending_writes(partition, namespace, ids, generation)
            for record in group:
                view = yield from _read_view(partition, record, writes[record.id], tag_names, digest)
                size += sum(channel.size for channel in view.channels)
                if most is not None and size > most:
                    raise TooLarge(
                        f"the values of all checkpoints of thread {partition.thread!r} exceed {most} bytes; "
                        "export it with `perdure export`"
                    )
                out.append(_to_json(view))
    if not out:
        raise missing_thread(partition)
    return {
        "format": EXPORT_FORMAT,
        "tenant": partition.tenant,
        "thread_id": partition.thread,
        "tags": {name: checkpoint for (_, checkpoint), found in tag_names.items() for name in found},
        "checkpoints": out,
    }


def _read_view(
    partition: Partition,
    record: CheckpointRecord,
    writes: tuple[PendingWrite, ...],
    tag_names: Mapping[tuple[str, str], tuple[str, ...]],
    digest: Digester,
) -> Program[CheckpointView]:
    wanted = {f"c{channel}": ref for channel, ref in record.refs.items()}
    wanted.update({f"w{i}": write.ref for i, write in enumerate(writes)})
    trees, _ = yield from resolve(partition, wanted, digest)
    channels = tuple(_view_channel(name, trees[f"c{name}"]) for name in record.refs)
    pending = tuple((w.task_id, w.channel, _to_plain(trees[f"w{i}"])[0]) for i, w in enumerate(writes))
    return _make_view(record, tag_names, channels, pending)


def _view_channel(name: str, tree: Tree) -> ChannelView:
    tree = unwrap_snapshot(tree)
    value, size = _to_plain(tree)
    if isinstance(tree, EncodedList | EncodedDict):
        length = len(tree.items)
    else:
        length = None
    return ChannelView(name, value, size, length)


def _to_plain(tree: Tree) -> tuple[Any, int]:
    kind, body = join_tree(tree)
    value: Any = _serde.value(kind, body)
    if kind in (refs.BYTES, refs.BYTEARRAY):
        value = {"type": "bytes", "value": text_of(body)}
    return value, len(body)


def _make_view(
    record: CheckpointRecord,
    tag_names: Mapping[tuple[str, str], tuple[str, ...]],
    channels: tuple[ChannelView, ...] = (),
    pending: tuple[tuple[str, str, Any], ...] = (),
) -> CheckpointView:
    return CheckpointView(
        record.namespace,
        record.id,
        record.parent_id,
        record.ts,
        record.source,
        record.step,
        record.run_id,
        _serde.unpack(record.metadata),
        record.updated,
        tag_names.get((record.namespace, record.id), ()),
        channels,
        pending,
    )


def _to_json(view: CheckpointView) -> dict[str, Any]:
    return {
        "namespace": view.namespace,
        "checkpoint_id": view.checkpoint_id,
        "parent_id": view.parent_id,
        "created_at": view.created_at,
        "source": view.source,
        "step": view.step,
        "run_id": view.run_id,
        "metadata": view.metadata,
        "tags": list(view.tags),
        "values": {c.name: c.value for c in view.channels},
        "pending_writes": [{"task_id": t, "channel": c, "value": v} for t, c, v in view.pending],
    }


def _read_tag_names(partition: Partition) -> Program[dict[tuple[str, str], tuple[str, ...]]]:
    out: dict[tuple[str, str], tuple[str, ...]] = {}
    for record in (yield from tags.list_tags(partition)):
        place = (record.fields["namespace"], record.fields["checkpoint_id"])
        out[place] = (*out.get(place, ()), record.key[0])
    return out


_serde = PlainSerde()
