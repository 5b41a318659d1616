"""Queries across partitions in SQL, for each database with its syntax.

In all of them ``p`` is the table of threads, ``l`` the listing of threads, and ``i`` the table of items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perdure.model.ops import Bound, FindItems, FindListed, FindThreads, end_of
from perdure.model.records import INTERNAL, INTERNAL_END, RESERVED, STORE
from perdure.storage.sql.listing import NOT_IDLE

ORDER = "i.updated_at DESC, p.thread, i.key"
"""Order of the found items: the latest written first."""

_LISTED = "SELECT p.tenant, p.thread, p.space, l.created_at, l.updated_at, l.status"


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


def select_threads(effect: FindThreads, threads: str, listing: str, bind: Callable[[str | int], str]) -> str:
    """Return the query for a page of the catalogue, in its order, with each thread's listing."""
    where, after = [f"p.space = {bind(effect.space)}"], effect.after
    if effect.tenant is not None:
        where.append(f"p.tenant = {bind(effect.tenant)}")
        if after is not None:
            where.append(f"p.thread > {bind(after.thread)}")
    elif after is not None:
        where.append(f"(p.tenant, p.thread) > ({bind(after.tenant)}, {bind(after.thread)})")
    where += _names(effect.prefix, bind)
    if effect.space == RESERVED.space:
        where.append("NOT (p.tenant = '' AND p.thread = '')")
    return (
        f"{_LISTED} FROM {threads} p LEFT JOIN {listing} l ON l.t = p.pk WHERE {' AND '.join(where)}"
        f" ORDER BY p.space, p.tenant, p.thread LIMIT {bind(effect.limit)}"
    )


def select_listed(effect: FindListed, threads: str, listing: str, bind: Callable[[str | int], str]) -> str:
    """Return the query for a page of the listing, ordered by a time."""
    where = [
        f"l.tenant = {bind(effect.tenant or '')}",
        f"NOT (p.thread >= {bind(INTERNAL)} AND p.thread < {bind(INTERNAL_END)})",
    ]
    if effect.status:
        where.append(f"l.status = {bind(effect.status)}")
        if effect.status != "idle":
            # So that the database knows that the index has these rows.
            where.append(f"l.{NOT_IDLE}")
    direction = "DESC" if effect.reverse else "ASC"
    return (
        f"{_LISTED} FROM {listing} l JOIN {threads} p ON p.pk = l.t WHERE {' AND '.join(where)}"
        f" ORDER BY l.{effect.by} {direction}, l.t {direction}"
        f" LIMIT {bind(effect.limit)} OFFSET {bind(effect.skip)}"
    )


def item_conditions(effect: FindItems, syntax: ItemSyntax) -> str:
    """Return the conditions of a find of items."""
    bind = syntax.bind
    where = [f"p.space = {bind(STORE)}", f"p.tenant = {bind(effect.tenant or '')}"]
    where += _names(effect.prefix, bind)
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


def _names(prefix: str, bind: Callable[[str | int], str]) -> list[str]:
    return [f"p.thread >= {bind(prefix)} AND p.thread < {bind(end_of(prefix))}"] if prefix else []
