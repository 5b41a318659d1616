"""Removal of facts from chains of corrections: the neighbours of a removed fact are linked with each other,
so that a later correction, or an undo, finds its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perdure.memory.facts import Fact


def relink(facts: Sequence[Fact], removed: set[str]) -> list[Fact]:
    """Return the facts that stay and whose links change by a removal, with their new links.

    Args:
        facts: All facts.
        removed: The ids of the facts that are removed.
    """
    by_id = {fact.id: fact for fact in facts}
    return [
        replace(
            fact,
            superseded_by=_find_kept_successor(by_id, removed, fact.superseded_by),
            supersedes=_find_kept_predecessors(by_id, removed, fact.supersedes),
        )
        for fact in facts
        if fact.id not in removed and {fact.superseded_by, *fact.supersedes} & removed
    ]


def _find_kept_successor(by_id: Mapping[str, Fact], removed: set[str], key: str | None) -> str | None:
    """Return the id of the first successor that is not removed, if there is one."""
    visited: set[str] = set()
    while key in removed and key not in visited:
        visited.add(key)
        key = by_id[key].superseded_by if key in by_id else None
    if key in removed:
        return None
    return key


def _find_kept_predecessors(
    by_id: Mapping[str, Fact], removed: set[str], keys: Sequence[str]
) -> tuple[str, ...]:
    """Return the ids of corrected facts; in place of a removed one, of those that it corrected itself."""
    kept: dict[str, None] = {}
    visited: set[str] = set()
    to_visit = list(reversed(keys))
    while to_visit:
        key = to_visit.pop()
        if key not in removed:
            kept[key] = None
        elif key not in visited and key in by_id:
            visited.add(key)
            to_visit += reversed(by_id[key].supersedes)
    return tuple(kept)
