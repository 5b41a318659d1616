"""Conditions of a search for the store's items, in the syntax of each SQL database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perdure.model.ops import Bound, Find

ORDER = "i.updated_at DESC, p.thread, i.key"
"""Order of the found items: the latest written first."""


@dataclass(frozen=True, slots=True)
class ItemSyntax:
    """Syntax in which the databases differ.

    Attributes:
        bind: Adds a parameter and returns its expression.
        holds: Returns the condition that an item's body has the bytes.
        within: Returns the condition that an item's value is within a bound; ``None`` for a database that
            finds all items regardless of the bounds.
    """

    bind: Callable[[str | int], str]
    holds: Callable[[bytes], str]
    within: Callable[[Bound], str] | None = None


def item_conditions(effect: Find, syntax: ItemSyntax) -> str:
    """Return the conditions of a find of items: ``p`` is the table of threads, ``i`` that of items."""
    bind = syntax.bind
    where = [f"p.space = {bind(effect.space)}", f"p.tenant = {bind(effect.tenant or '')}"]
    if effect.prefix:
        where.append(f"p.thread >= {bind(effect.prefix)} AND p.thread < {bind(effect.prefix_end)}")
    where.append(f"(i.expires_at IS NULL OR i.expires_at > {bind(effect.until)})")
    where += [f"({' OR '.join(map(syntax.holds, any_of))})" for any_of in effect.holding]
    if syntax.within is not None:
        where += map(syntax.within, effect.bounds)
    if effect.last is not None:
        time, thread, key = (bind(part) for part in effect.last)
        where.append(
            f"(i.updated_at < {time} OR i.updated_at = {time} AND (p.thread, i.key) > ({thread}, {key}))"
        )
    return " AND ".join(where)
