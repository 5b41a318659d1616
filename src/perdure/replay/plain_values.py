"""Comparison of values as plain data, up to what differs from run to run anyway.

Noise is: the ids of messages and interrupts, two different UUIDs in the same place, and two different times
in the same place. It is counted, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from langgraph.types import Interrupt, Overwrite, Send

from perdure.runtime.json_encoding import to_plain

_UUID = re.compile(r"(?:[a-z_]+-{1,2})*[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}(?:-\d+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?")


def snapshot(value: Any) -> Any:
    """Return the present state of a value as plain data."""
    match value:
        case Send():
            return {"node": value.node, "arg": snapshot(value.arg)}
        case Overwrite():
            return {"overwrite": snapshot(value.value)}
        case Interrupt():
            return {"interrupt": to_plain(value.value)}
        case BaseException():
            # The form in which a checkpoint has it.
            return repr(value)
        case list() | tuple() if value and isinstance(value[0], Send | Interrupt):
            return [snapshot(each) for each in value]
        case _:
            return to_plain(value)


def align(expected: Any, found: Any) -> tuple[Any, int]:
    """Return the found value with its noise replaced by the expected values, and the number of replacements.

    The result equals ``expected`` exactly if nothing but noise differs.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        out: dict[str, Any] = {}
        count = 0
        for key, value in found.items():
            if key not in expected:
                out[key] = value
            elif key == "id" and expected[key] != value and _has_own_id(expected) and _has_own_id(found):
                out[key], count = expected[key], count + 1
            else:
                out[key], more = align(expected[key], value)
                count += more
        return out, count
    if isinstance(expected, list) and isinstance(found, list):
        pairs = [align(a, b) for a, b in zip(expected, found, strict=False)]
        return [*(each for each, _ in pairs), *found[len(pairs) :]], sum(count for _, count in pairs)
    if isinstance(expected, str) and isinstance(found, str) and expected != found:
        for kind in (_UUID, _TIME):
            if kind.fullmatch(expected) and kind.fullmatch(found):
                return expected, 1
    return found, 0


def _has_own_id(value: Mapping[str, Any]) -> bool:
    """Return True for a message whose id only names itself; the id of a removal names another message."""
    return "content" in value and "type" in value and value["type"] != "remove"
