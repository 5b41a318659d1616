"""Compares what was imported with what the source's own saver returns, before it becomes visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from perdure.engine.threads import chunk_reads, history
from perdure.errors import Corrupt
from perdure.imports.channel_versions import translate_versions
from perdure.imports.payloads import SERDE
from perdure.imports.source import CheckpointEntry
from perdure.langgraph import translate
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree


class Differs(Corrupt):
    """Raised when an imported checkpoint is not what the source has: the source changed meanwhile, or is
    damaged."""


PAGE = 32
"""Checkpoints that are compared at once."""


def load(
    partition: Partition, namespace: str, ids: Sequence[str], digest: Digester
) -> Program[dict[str, CheckpointTuple]]:
    """Return checkpoints with their pending writes as loading returns them, by id; objects stay packed."""
    records = yield from history.find_all(partition, namespace, ids)
    writes = yield from history.read_pending_writes(partition, namespace, ids)
    wanted: dict[str, bytes] = {}
    for record in records:
        wanted.update({f"{record.id}\0{channel}": ref for channel, ref in record.refs.items()})
        wanted.update({f"{record.id}\0\0{n}": w.ref for n, w in enumerate(writes[record.id])})
    trees, _ = yield from chunk_reads.resolve(partition, wanted, digest)
    read = {name: SERDE.value(*join_tree(tree)) for name, tree in trees.items()}
    return {
        record.id: translate.to_tuple(
            SERDE,
            partition,
            record,
            translate.Values(
                {channel: read[f"{record.id}\0{channel}"] for channel in record.refs},
                [
                    (w.task_id, w.channel, read[f"{record.id}\0\0{n}"])
                    for n, w in enumerate(writes[record.id])
                ],
            ),
        )
        for record in records
    }


def compare(
    entry: CheckpointEntry, expected: CheckpointTuple, found: CheckpointTuple | None, *, whole: bool = True
) -> None:
    """Raise ``Differs``, naming the part, if a checkpoint differs from the source's.

    Args:
        entry: The checkpoint.
        expected: The record at the source.
        found: The record at the target, ``None`` if there is none.
        whole: Compare everything, not only the pending writes.
    """
    if found is None:
        raise Differs(f"checkpoint {entry.id} was not stored")
    parts: dict[str, tuple[Any, Any]] = {
        "pending writes": (
            [list(w) for w in expected.pending_writes or ()],
            [list(w) for w in found.pending_writes or ()],
        )
    }
    if whole:
        parts["parent"] = (_find_parent(expected), _find_parent(found))
        parts["metadata"] = (dict(expected.metadata), dict(found.metadata))
        parts |= _pair_parts(translate_versions(expected.checkpoint), found.checkpoint)
    for part, (at_source, at_target) in parts.items():
        if _pack(at_source) != _pack(at_target):
            raise Differs(f"checkpoint {entry.id} was not stored as the source has it: its {part} differs")


def _pair_parts(at_source: Mapping[str, Any], at_target: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    parts: dict[str, tuple[Any, Any]] = {}
    for name in {*at_source, *at_target} - {"channel_values"}:
        # An older form lacks a field where a newer one has an empty field.
        parts[name] = (at_source.get(name) or None, at_target.get(name) or None)
    source_values, target_values = at_source["channel_values"], at_target["channel_values"]
    parts["list of channels"] = (sorted(source_values), sorted(target_values))
    for channel in source_values:
        parts[f"channel {channel!r}"] = (source_values[channel], target_values.get(channel))
    return parts


def _find_parent(found: CheckpointTuple) -> str | None:
    config: Mapping[str, Any] = found.parent_config or {}
    parent: str | None = config.get("configurable", {}).get("checkpoint_id")
    return parent


def _pack(value: Any) -> object:
    if isinstance(value, dict):
        return {key: _pack(held) for key, held in value.items()}
    return SERDE.payload(value)
