"""Differences between two states of plain JSON data, with which the second can be made from the first.

Lists are compared item by item. Messages are recognised by their ids, so that an edited message is one change
and not a removal beside an addition; other items are recognised by their content.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

Change = dict[str, Any]
"""Change of one value. ``change`` is its kind: ``added`` (``after``), ``removed`` (``before``), ``value``
(``before``, ``after``), ``dict`` (``added``, ``removed`` and ``edited`` by key) or ``list``.

A ``list`` has ``removed`` (``index``, ``item``), ``added`` (``index``, ``item``), ``edited`` (``from``,
``to``, ``before``, ``after``) and ``moved`` (``from``, ``to``, ``item``). Indexes of removed items and
``from`` refer to the first list, the others to the second. ``length`` is that of the second list, ``kept``
the number of items that neither changed nor moved.
"""

_Key = tuple[str, str | bytes, int]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Change]:
    """Return the changes from one state to another by channel, without unchanged channels."""
    out: dict[str, Change] = {}
    for name in sorted({*before, *after}):
        if name not in after:
            out[name] = {"change": "removed", "before": before[name]}
        elif name not in before:
            out[name] = {"change": "added", "after": after[name]}
        elif canonical(before[name]) != canonical(after[name]):
            out[name] = _compare(before[name], after[name])
    return out


def _compare(before: Any, after: Any) -> Change:
    if isinstance(before, list) and isinstance(after, list):
        return _compare_lists(before, after)
    if isinstance(before, dict) and isinstance(after, dict):
        both = [key for key in before if key in after]
        return {
            "change": "dict",
            "added": {key: value for key, value in after.items() if key not in before},
            "removed": {key: value for key, value in before.items() if key not in after},
            "edited": {
                key: {"before": before[key], "after": after[key]}
                for key in both
                if canonical(before[key]) != canonical(after[key])
            },
        }
    return {"change": "value", "before": before, "after": after}


def _compare_lists(before: Sequence[Any], after: Sequence[Any]) -> Change:
    texts, new_texts = list(map(canonical, before)), list(map(canonical, after))
    keys, new_keys = _make_keys(before, texts), _make_keys(after, new_texts)
    old_indexes = {key: index for index, key in enumerate(keys)}
    pairs = [(old_indexes[key], index) for index, key in enumerate(new_keys) if key in old_indexes]
    in_order = _find_longest_rising([old for old, new in pairs if texts[old] == new_texts[new]])
    edited: list[Change] = []
    moved: list[Change] = []
    for old, new in pairs:
        if texts[old] != new_texts[new]:
            edited.append({"from": old, "to": new, "before": before[old], "after": after[new]})
        elif old not in in_order:
            moved.append({"from": old, "to": new, "item": after[new]})
    matched_old, matched_new = {old for old, _ in pairs}, {new for _, new in pairs}
    return {
        "change": "list",
        "removed": [{"index": i, "item": x} for i, x in enumerate(before) if i not in matched_old],
        "added": [{"index": i, "item": x} for i, x in enumerate(after) if i not in matched_new],
        "edited": edited,
        "moved": moved,
        "length": len(after),
        "kept": len(pairs) - len(edited) - len(moved),
    }


def _make_keys(items: Sequence[Any], texts: Sequence[bytes]) -> list[_Key]:
    """Return a unique key of each item: a message's id if no other item has it, else the content with the
    number of its earlier occurrences."""
    ids = [message_id(item) for item in items]
    counts = Counter(ids)
    seen: Counter[bytes] = Counter()
    out: list[_Key] = []
    for name, text in zip(ids, texts, strict=True):
        if name is not None and counts[name] == 1:
            out.append(("id", name, 0))
        else:
            out.append(("text", text, seen[text]))
            seen[text] += 1
    return out


def message_id(item: Any) -> str | None:
    """Return the id of a message in plain data, ``None`` for anything else."""
    if isinstance(item, dict) and isinstance(item.get("value"), dict):
        item = item["value"]
    is_message = isinstance(item, dict) and "type" in item and "content" in item
    if is_message and isinstance(name := item.get("id"), str):
        return name
    return None


def _find_longest_rising(numbers: Sequence[int]) -> set[int]:
    """Return the numbers of a longest rising subsequence of distinct numbers."""
    tails: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for index, number in enumerate(numbers):
        length = bisect_left(tails, number)
        previous.append(ends[length - 1] if length else -1)
        if length == len(tails):
            tails.append(number)
            ends.append(index)
        else:
            tails[length] = number
            ends[length] = index
    out: set[int] = set()
    last = ends[-1] if ends else -1
    while last >= 0:
        out.add(numbers[last])
        last = previous[last]
    return out


def canonical(value: Any) -> bytes:
    """Return JSON data as text, the same for equal data."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        # orjson refuses a lone surrogate, and a number beyond 64 bits.
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
