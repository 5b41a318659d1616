"""Public form of a run's stream parts: configs are reduced to the fields that name a checkpoint.

A config also holds internal values of this package, LangGraph and the worker, and the verified user. Only the
fields listed here leave the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.model.arguments import read_mapping

_NAMES = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")


def reference_of(config: Any) -> dict[str, Any] | None:
    """Return the checkpoint that a config names: ``thread_id``, ``checkpoint_ns``, and the other identifying
    fields that it has; ``None`` if the config has no configurable values."""
    configurable = read_mapping(config).get("configurable")
    if not configurable:
        return None
    found = {name: configurable[name] for name in _NAMES if configurable.get(name) is not None}
    return {"checkpoint_ns": "", **found}


def to_outgoing(mode: str, payload: Any) -> Any:
    """Return a part of LangGraph's stream in the form in which clients receive it."""
    if mode == "checkpoints" and isinstance(payload, Mapping):
        return _encode_checkpoint(payload)
    if mode == "debug" and isinstance(payload, Mapping) and payload.get("type") == "checkpoint":
        return {**payload, "payload": _encode_checkpoint(payload["payload"])}
    return payload


def to_outgoing_event(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return one of LangChain's events in the form in which clients receive it. Events of a graph contain
    parts of its stream, which are converted too."""
    data = read_mapping(event.get("data"))
    chunk = data.get("chunk")
    if isinstance(chunk, tuple) and len(chunk) > 1:
        *namespace, mode, payload = chunk
        return {**event, "data": {**data, "chunk": (*namespace, mode, to_outgoing(str(mode), payload))}}
    return event


def _encode_checkpoint(payload: Mapping[str, Any]) -> dict[str, Any]:
    here, parent = reference_of(payload.get("config")), reference_of(payload.get("parent_config"))
    metadata = payload.get("metadata") or {}
    return {
        # The older form of the two references, which some clients still read.
        "config": here and {"configurable": here},
        "parent_config": parent and {"configurable": parent},
        "checkpoint": here,
        "parent_checkpoint": parent,
        "values": payload.get("values"),
        "metadata": {name: value for name, value in metadata.items() if not name.startswith("__")},
        "next": payload.get("next", []),
        "tasks": [_encode_task(task) for task in payload.get("tasks", ())],
    }


def _encode_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task with a reference to the state of its subgraph, in both forms, in place of the state."""
    subgraph = reference_of(task.get("state"))
    if subgraph is None:
        return {**task, "state": None}
    return {**task, "state": {"configurable": subgraph}, "checkpoint": subgraph}
