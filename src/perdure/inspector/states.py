"""The state at a checkpoint: its channels with sizes, the writes of its tasks, and differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.serde.types import ERROR

from perdure.errors import NotFound
from perdure.inspector import diff
from perdure.inspector.access import Access
from perdure.inspector.timeline import number, read_thread, require_parameter
from perdure.langgraph.reading import plain_reading
from perdure.langgraph.reading.plain_reading import ChannelView, CheckpointView
from perdure.langgraph.reading.thread_steps import load_step
from perdure.langgraph.values.large_channel_warning import WARN_BYTES
from perdure.model.records import Partition
from perdure.runtime.failures.failure_location import write_text_for_clients
from perdure.runtime.json_encoding import to_plain
from perdure.storage.own_threads import run_in_own_thread

ITEMS = 40
"""Number of a list's items that a page shows at once."""

_SHOWN_BYTES = 64 * 1024
"""Size up to which a value is shown in full."""

_DIFF_MOST = 200
"""Maximum number of changed items of one kind that are sent; the counts are always complete."""


async def checkpoint(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the state at a checkpoint: channels with sizes, metadata, pending writes by task, and the nodes
    and times of the step that made it.

    Of a long list only the last items are returned, and of a large value only the beginning.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread, ``checkpoint`` (the latest without it) and ``namespace``.
    """
    partition, _ = await read_thread(access, asked)
    view = await _load_view(access, partition, asked.get("checkpoint") or None, asked.get("namespace") or "")
    program = load_step(partition, access.handle.digest, view.namespace, view.checkpoint_id)
    about: dict[str, Any] = {"nodes": [], "began_at": None, "ended_at": None}
    if (step := await access.handle.arun(program)) is not None:
        about["nodes"] = list(step.nodes)
        if step.source == "loop":
            about |= {"began_at": step.began_at, "ended_at": step.ended_at}
    return {**await run_in_own_thread(_describe, view), **about}


async def channel(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return items of a channel that is a list, or the whole of any other value.

    Args:
        access: The viewer's rights.
        asked: as for ``checkpoint``, with the ``channel`` and ``before``, the index before which the items
            end.

    Raises:
        NotFound: There is no such channel.
    """
    partition, _ = await read_thread(access, asked)
    wanted = require_parameter(asked, "channel")
    view = await _load_view(access, partition, asked.get("checkpoint") or None, asked.get("namespace") or "")
    for found in view.channels:
        if found.name == wanted:
            if isinstance(found.value, list):
                return _list_items(found.value, number(asked, "before"))
            return {"value": to_plain(found.value)}
    raise NotFound(f"checkpoint {view.checkpoint_id} has no channel {wanted!r}")


async def find_difference(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the changes between two checkpoints, by channel.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread, ``after`` (a checkpoint, tag or step, by default the latest), ``before``
            (by default the parent) and ``namespace``.

    Raises:
        NotFound: There is no such checkpoint.
    """
    (partition, _), namespace = await read_thread(access, asked), asked.get("namespace") or ""
    after = await _load_view(
        access, partition, await _find_id(access, partition, asked.get("after"), namespace), namespace
    )
    old_id = await _find_id(access, partition, asked.get("before"), namespace) or after.parent_id
    before = None
    if old_id is not None:
        before = await _load_view(access, partition, old_id, namespace)
    found = await run_in_own_thread(_find_changes, before, after)
    return {
        "before": old_id,
        "after": after.checkpoint_id,
        "channels": {name: truncate(change) for name, change in found.items()},
    }


async def _load_view(
    access: Access, partition: Partition, checkpoint_id: str | None, namespace: str
) -> CheckpointView:
    return await access.handle.arun(
        plain_reading.load(partition, namespace, checkpoint_id, access.handle.digest)
    )


async def _find_id(access: Access, partition: Partition, named: str | None, namespace: str) -> str | None:
    """Return the id of a checkpoint that is named by its id, a tag or its step."""
    if not named:
        return None
    return await access.handle.arun(plain_reading.find_named(partition, namespace, named))


def _find_changes(before: CheckpointView | None, after: CheckpointView) -> dict[str, diff.Change]:
    return diff.changes(_values_of(before), _values_of(after))


def _values_of(view: CheckpointView | None) -> dict[str, Any]:
    """Return the values of a checkpoint's channels as JSON data, none without a checkpoint."""
    if view is None:
        return {}
    return {each.name: to_plain(each.value) for each in view.channels}


def _describe(view: CheckpointView) -> dict[str, Any]:
    return {
        "checkpoint_id": view.checkpoint_id,
        "namespace": view.namespace,
        "parent_id": view.parent_id,
        "created_at": view.created_at,
        "source": view.source,
        "step": view.step,
        "run_id": view.run_id,
        "metadata": to_plain(view.metadata),
        "tags": list(view.tags),
        "alert_bytes": WARN_BYTES,
        "channels": [_describe_channel(each) for each in view.channels],
        "writes": [
            {"task_id": task, "channel": name, **_show_value(_show_write(name, to_plain(value)))}
            for task, name, value in view.pending
        ],
    }


def _show_write(channel: str, value: Any) -> Any:
    """Return the value of a write; for an error, the text that clients get."""
    if channel != ERROR:
        return value
    if isinstance(value, dict):
        return {
            **value,
            "message": write_text_for_clients(str(value.get("error")), str(value.get("message"))),
        }
    return write_text_for_clients(str(value).partition("(")[0], str(value))


def _describe_channel(view: ChannelView) -> dict[str, Any]:
    about = {
        "name": view.name,
        "bytes": view.size,
        "length": view.length,
        "is_replayed": view.is_replayed,
    }
    if isinstance(view.value, list):
        return {**about, **_list_items(view.value, None)}
    return {**about, **_show_value(to_plain(view.value))}


def _list_items(value: list[Any], before: int | None) -> dict[str, Any]:
    """Return the items of a list before an index, at most ``ITEMS`` and about ``_SHOWN_BYTES``."""
    start, size = len(value), 0
    if before is not None:
        start = min(before, start)
    items: list[Any] = []
    while start > 0 and len(items) < ITEMS and size < _SHOWN_BYTES:
        start -= 1
        items.append(_show_value(to_plain(value[start])))
        size += items[-1]["bytes"]
    return {"items": items[::-1], "start": start, "total": len(value)}


def _show_value(value: Any) -> dict[str, Any]:
    text = diff.canonical(value)
    if len(text) <= _SHOWN_BYTES:
        return {"value": value, "bytes": len(text)}
    return {"beginning": text[:_SHOWN_BYTES].decode(errors="ignore"), "bytes": len(text)}


def truncate(change: diff.Change) -> diff.Change:
    """Return a change with its counts and at most ``_DIFF_MOST`` items of a kind, so that a page stays
    small."""
    if change["change"] != "list":
        return change
    kinds = ("removed", "added", "edited", "moved")
    cut = {kind: change[kind][:_DIFF_MOST] for kind in kinds}
    return {**change, **cut, "counts": {kind: len(change[kind]) for kind in kinds}}


def shorten_values(change: diff.Change) -> diff.Change:
    """Return a change with large values as the beginning of their text."""
    out = dict(change)
    for side in ("before", "after"):
        if side in change and "beginning" in (shown := _show_value(change[side])):
            out[side] = f"{shown['beginning']}…"
    return out
