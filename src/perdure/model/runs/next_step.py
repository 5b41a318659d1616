"""Whether a checkpoint has a step left to execute, by the channels with which LangGraph triggers nodes: known
without the graph."""

from __future__ import annotations

from typing import Any

import ormsgpack

from perdure.model.checkpoint import CheckpointRecord
from perdure.model.values import refs

_START, _SENDS, _JOIN = "__start__", "__pregel_tasks", "join:"
_TRIGGERS = (_START, "branch:to:", _JOIN)
"""Beginnings of the names of the channels that trigger a node which has not seen their version."""
_INTERRUPT = "__interrupt__"
"""LangGraph's key, beside those of nodes, of the versions that were seen when a graph was interrupted."""
NO_SENDS = refs.tree(refs.LIST, 0, b"", b"")
"""Stored value of the channel of ``Send``s if it has none."""
_FINISHED = refs.entry(refs.inline(refs.MSGPACK, ormsgpack.packb(True)))
"""End of the value of a deferred node's channel once the node may start: the value is a pair with a flag."""


def has_next_step(record: CheckpointRecord) -> bool:
    """Return True if a step follows a checkpoint.

    A node that waits for several others follows once all of them have ended. If their names are too long to
    be stored within the checkpoint, it counts as following as soon as one of them has ended.
    """
    if record.refs.get(_SENDS, NO_SENDS) != NO_SENDS:
        return True
    seen = [versions for node, versions in record.versions_seen.items() if node != _INTERRUPT]
    return any(
        channel.startswith(_TRIGGERS)
        and _is_available(channel, ref)
        and all(versions.get(channel) != record.versions.get(channel) for versions in seen)
        for channel, ref in record.refs.items()
    )


def _is_available(channel: str, ref: bytes) -> bool:
    """Return True if the value of a channel triggers a node."""
    if channel == _START:
        return True
    if ref[0] == refs.LIST:
        return ref.endswith(_FINISHED)
    if not channel.startswith(_JOIN) or ref[0] != refs.inline(refs.MSGPACK, b"")[0]:
        return True
    # The name has the names of the nodes to wait for, joined by plus signs; the value is the set of those
    # that have ended.
    _, _, ended = ormsgpack.unpackb(ref[1:], ext_hook=_unpack)
    awaited, _, _ = channel.removeprefix(_JOIN).rpartition(":")
    return len("+".join(ended)) == len(awaited)


def _unpack(_: int, data: bytes) -> Any:
    return ormsgpack.unpackb(data)
