"""The form in which a run's checkpoints leave the process: of a config only what names a checkpoint.

A config also holds what this package, LangGraph and the worker need, and the verified user: whatever is not
listed here stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")


def reference_of(config: Any) -> dict[str, Any] | None:
    """The checkpoint that a config names: ``thread_id``, ``checkpoint_ns``, and the others where there are
    any."""
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    if not configurable:
        return None
    found = {name: configurable[name] for name in _NAMES if configurable.get(name) is not None}
    return {"checkpoint_ns": "", **found}


def outgoing(mode: str, payload: Any) -> Any:
    """A part of LangGraph's stream as clients get it."""
    if mode == "checkpoints" and isinstance(payload, Mapping):
        return _checkpoint(payload)
    if mode == "debug" and isinstance(payload, Mapping) and payload.get("type") == "checkpoint":
        return {**payload, "payload": _checkpoint(payload["payload"])}
    return payload


def outgoing_event(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """One of LangChain's events as clients get it: a graph's own have the parts of its stream within."""
    data = event.get("data")
    chunk = data.get("chunk") if isinstance(data, Mapping) else None
    if isinstance(data, Mapping) and isinstance(chunk, tuple) and len(chunk) > 1:
        *namespace, mode, payload = chunk
        return {**event, "data": {**data, "chunk": (*namespace, mode, outgoing(str(mode), payload))}}
    return event


def _checkpoint(payload: Mapping[str, Any]) -> dict[str, Any]:
    here, parent = reference_of(payload.get("config")), reference_of(payload.get("parent_config"))
    metadata = payload.get("metadata") or {}
    return {
        # The older form of the two references, which some clients still read.
        "config": None if here is None else {"configurable": here},
        "parent_config": None if parent is None else {"configurable": parent},
        "checkpoint": here,
        "parent_checkpoint": parent,
        "values": payload.get("values"),
        "metadata": {name: held for name, held in metadata.items() if not name.startswith("__")},
        "next": payload.get("next", []),
        "tasks": [_task(task) for task in payload.get("tasks", ())],
    }


def _task(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task; the state of a subgraph is not sent, but the reference to it."""
    below = reference_of(task.get("state"))
    shown = {name: held for name, held in task.items() if name != "state"}
    return {**shown, "state": None} if below is None else {**shown, "checkpoint": below}
