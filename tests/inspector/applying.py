"""Application of the inspector's changes: with them the second state can be made from the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.inspector.diff import Change


def apply(before: Mapping[str, Any], found: Mapping[str, Change]) -> dict[str, Any]:
    """Return the second state, made from the first one and the changes."""
    out = dict(before)
    for name, change in found.items():
        if change["change"] == "removed":
            del out[name]
        else:
            out[name] = _apply(before.get(name), change)
    return out


def _apply(before: Any, change: Change) -> Any:
    match change["change"]:
        case "dict":
            kept = {key: value for key, value in before.items() if key not in change["removed"]}
            edited = {key: each["after"] for key, each in change["edited"].items()}
            return {**kept, **edited, **change["added"]}
        case "list":
            return _apply_list(before, change)
        case _:
            return change["after"]


def _apply_list(before: Sequence[Any], change: Change) -> list[Any]:
    placed = {each["index"]: each["item"] for each in change["added"]}
    placed |= {each["to"]: each["after"] for each in change["edited"]}
    placed |= {each["to"]: before[each["from"]] for each in change["moved"]}
    gone = {each["index"] for each in change["removed"]}
    gone |= {each["from"] for each in (*change["edited"], *change["moved"])}
    rest = (item for index, item in enumerate(before) if index not in gone)
    return [placed[index] if index in placed else next(rest) for index in range(change["length"])]
