"""Removal of facts from chains of corrections: the neighbours of a removed fact are linked with each other,
so that a later correction, or an undo, finds its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perdure.memory.facts import Fact


def relink(facts: Sequence[Fact], gone: set[str]) -> list[Fact]:
    """Return the facts that stay and are changed by a removal, as they are after it.

    Args:
        facts: All facts.
        gone: The ids of those that are removed.
    """
    known = {fact.id: fact for fact in facts}
    return [
        replace(
            fact,
            superseded_by=_past(known, gone, fact.superseded_by),
            supersedes=_before(known, gone, fact.supersedes),
        )
        for fact in facts
        if fact.id not in gone and {fact.superseded_by, *fact.supersedes} & gone
    ]


def _past(facts: Mapping[str, Fact], gone: set[str], key: str | None) -> str | None:
    """Return the first successor that is not removed, if there is one."""
    passed: set[str] = set()
    while key in gone and key not in passed:
        passed.add(key)
        key = facts[key].superseded_by if key in facts else None
    if key in gone:
        return None
    return key


def _before(facts: Mapping[str, Fact], gone: set[str], keys: Sequence[str]) -> tuple[str, ...]:
    """Return corrected facts, those that a removed one corrected in its place."""
    out: dict[str, None] = {}
    passed: set[str] = set()
    left = list(reversed(keys))
    while left:
        key = left.pop()
        if key not in gone:
            out[key] = None
        elif key not in passed and key in facts:
            passed.add(key)
            left += reversed(facts[key].supersedes)
    return tuple(out)
