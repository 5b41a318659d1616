"""The recorded schema: a file in the program's repository with the version and fingerprint of each graph.

A check compares it with the graph as it is: a graph that changed needs a new version, so that no deploy
changes it by accident.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.errors import BadSetting
from perdure.schema.schema import Schema
from perdure.schema.steps import (
    ChannelConverted,
    ChannelDropped,
    ChannelRenamed,
    NodeRenamed,
)

FILE = "perdure.schema.json"
FORMAT = "perdure.schema/1"

Fingerprint = dict[str, Any]
"""Parts of a graph that threads depend on, by section: ``channels`` and ``types`` by name, ``nodes`` and
``interrupts``."""
_SECTIONS = {"channels": "channel", "types": "type", "nodes": "node", "interrupts": "interrupt"}


@dataclass(frozen=True)
class RecordedSchema:
    """The version and the fingerprint of a graph as they are recorded."""

    version: int
    fingerprint: Fingerprint


def read_records(path: Path) -> dict[str, RecordedSchema]:
    """Return the recorded schemas by the place of the graph; none if there is no file.

    Raises:
        BadSetting: The file is not a record.
    """
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise BadSetting(f"{path} has the format {data['format']!r}; this release reads {FORMAT!r}")
        graphs: Mapping[str, Any] = data["graphs"]
        return {
            place: RecordedSchema(int(each["version"]), dict(each["fingerprint"]))
            for place, each in graphs.items()
        }
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadSetting(
            f"{path} is not a record of schemas ({type(error).__name__}); restore it, or remove it and run "
            "`perdure schema check --write`"
        ) from error


def write_records(path: Path, records: Mapping[str, RecordedSchema]) -> None:
    """Replace the file as a whole.

    Raises:
        BadSetting: The file cannot be written.
    """
    data = {
        "format": FORMAT,
        "graphs": {
            place: {"version": each.version, "fingerprint": each.fingerprint}
            for place, each in sorted(records.items())
        },
    }
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BadSetting(f"{path} cannot be written: {error.strerror}; it is as it was") from error


def differences(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Return the differences between two fingerprints, a line each."""
    out: list[str] = []
    for section, what in _SECTIONS.items():
        old, new = _to_dict(before.get(section, ())), _to_dict(now.get(section, ()))
        out += [f"{what} {name} is gone" for name in old if name not in new]
        out += [f"{what} {name} is new" for name in new if name not in old]
        for name in old:
            if name in new and old[name] != new[name]:
                out += _list_changes(f"{what} {name}", old[name], new[name])
    return out


def _list_changes(name: str, old: Any, new: Any) -> Iterator[str]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        yield f"{name} was {old!r} and is {new!r}"
        return
    yield from (f"{name}: field {field} is gone" for field in old if field not in new)
    yield from (f"{name}: field {field} is new" for field in new if field not in old)
    yield from (
        f"{name}: field {field} was {old[field]!r} and is {new[field]!r}"
        for field in old
        if field in new and old[field] != new[field]
    )


def _to_dict(data: Any) -> dict[str, Any]:
    if isinstance(data, dict):
        return dict(data)
    return dict.fromkeys(data)


def verdict(recorded: RecordedSchema | None, version: int, now: Fingerprint) -> list[str]:
    """Return why a graph does not agree with its record, a line each; empty if it does.

    Args:
        recorded: The record, ``None`` if there is none.
        version: The version of the graph's schema.
        now: The fingerprint of the graph.
    """
    if recorded is None:
        return ["it is not recorded yet"]
    changes = differences(recorded.fingerprint, now)
    if version < recorded.version:
        return [f"its schema version is {version}, and version {recorded.version} is recorded", *changes]
    if version > recorded.version:
        return [f"version {recorded.version} is recorded, its schema version is {version}", *changes]
    return changes


def contradictions(schema: Schema, now: Fingerprint) -> list[str]:
    """Return the steps that do not lead to the graph as it is, a line each."""
    channels, nodes = _list_last_names(now["channels"]), _list_last_names(now["nodes"])
    out: list[str] = []
    for at, step in enumerate(schema.steps):
        later = Schema(schema.version, schema.steps[at + 1 :]).since(0)
        if isinstance(step, ChannelRenamed | ChannelConverted):
            name = later.rename_channel(step.new if isinstance(step, ChannelRenamed) else step.channel)
            if name is not None and name not in channels:
                out.append(f"{step}: the graph has no channel {name!r}")
        elif isinstance(step, NodeRenamed):
            if (name := later.rename_node(step.new)) not in nodes:
                out.append(f"{step}: the graph has no node {name!r}")
        elif isinstance(step, ChannelDropped) and step.channel in channels:
            given = [s.new for s in schema.steps[at + 1 :] if isinstance(s, ChannelRenamed)]
            if step.channel not in given:
                out.append(f"{step}: the graph still has the channel {step.channel!r}")
    return out


def _list_last_names(names: Any) -> set[str]:
    """Return names of channels or nodes without the path of their subgraph."""
    return {name.rpartition("/")[2] for name in names}
