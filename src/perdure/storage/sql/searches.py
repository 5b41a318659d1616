"""Queries across partitions in SQL, for each database with its syntax.

In all of them ``p`` is the table of threads, ``l`` the listing of threads, ``i`` the table of items, and
``d`` that of documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from perdure.model.ops import Bound, CopyCondition, FindItems, FindListed, FindThreads, end_of
from perdure.model.records import INTERNAL, INTERNAL_END, LISTED, RESERVED, STORE
from perdure.storage.sql.listing import NOT_IDLE

ORDER = "i.updated_at DESC, p.thread, i.key"
"""Order of the found items: the latest written first."""

_COLUMNS = ("tenant", "thread", "space", "created_at", "updated_at", "status", "serial")
_LISTED = "SELECT p.tenant, p.thread, p.space, l.created_at, l.updated_at, l.status, l.t AS serial"


class Tables(NamedTuple):
    """Names of the tables that searches for threads read."""

    threads: str
    listing: str
    documents: str


@dataclass(frozen=True, slots=True)
class BodySyntax:
    """Syntax in which the databases differ.

    Attributes:
        bind: Adds a parameter and returns its expression.
        holds: Returns the condition that a body, given as an expression, contains some bytes.
        ends: Returns the condition that a body ends with some bytes.
        within: Returns the condition that an item's value is within a bound; ``None`` for a database that
            finds all items regardless of the bounds.
    """

    bind: Callable[[str | int], str]
    holds: Callable[[str, bytes], str]
    ends: Callable[[str, bytes], str]
    within: Callable[[Bound], str] | None = None


def select_threads(effect: FindThreads, tables: Tables, bind: Callable[[str | int], str]) -> str:
    """Return the query for a page of the catalogue, in its order, with each thread's listing."""
    where, after = [f"p.space = {bind(effect.space)}"], effect.after
    if effect.tenant is not None:
        where.append(f"p.tenant = {bind(effect.tenant)}")
        if after is not None:
            where.append(f"p.thread > {bind(after.thread)}")
    elif after is not None:
        where.append(f"(p.tenant, p.thread) > ({bind(after.tenant)}, {bind(after.thread)})")
    where += _write_prefix_condition(effect.prefix, bind)
    if effect.space == RESERVED.space:
        where.append("NOT (p.tenant = '' AND p.thread = '')")
    return (
        f"{_LISTED} FROM {tables.threads} p LEFT JOIN {tables.listing} l ON l.t = p.pk"
        f" WHERE {' AND '.join(where)}"
        f" ORDER BY p.space, p.tenant, p.thread LIMIT {bind(effect.limit)}"
    )


def select_listed(effect: FindListed, tables: Tables, syntax: BodySyntax) -> str:
    """Return the query for a page of the listing, ordered by a time."""
    bind, by = syntax.bind, effect.by
    where = [
        f"l.tenant = {bind(effect.tenant or '')}",
        f"NOT (p.thread >= {bind(INTERNAL)} AND p.thread < {bind(INTERNAL_END)})",
    ]
    if effect.status:
        where.append(f"l.status = {bind(effect.status)}")
        if effect.status != "idle":
            # This follows from the status; the database needs it to use the index, which has these rows only.
            where.append(f"l.{NOT_IDLE}")
    if effect.last is not None:
        sign, place = "<" if effect.reverse else ">", effect.last
        where.append(f"(l.{by}, l.t) {sign} ({bind(place.time)}, {bind(place.serial)})")
    direction = "DESC" if effect.reverse else "ASC"
    page = (
        f"{_LISTED} FROM {tables.listing} l JOIN {tables.threads} p ON p.pk = l.t WHERE {' AND '.join(where)}"
        f" ORDER BY l.{by} {direction}, l.t {direction}"
        f" LIMIT {bind(effect.limit)} OFFSET {bind(effect.skip)}"
    )
    if effect.copies is None:
        return page
    number = f"row_number() OVER (ORDER BY f.{by} {direction}, f.serial {direction})"
    return (
        f"SELECT {', '.join(_COLUMNS)}, number FROM (SELECT f.*, {number} AS number FROM ({page}) f) g"
        f" WHERE g.number = {bind(effect.limit)}"
        f" OR {_write_copy_condition(effect.copies, effect.tenant or '', tables, syntax)} ORDER BY g.number"
    )


def _write_copy_condition(copies: CopyCondition, tenant: str, tables: Tables, syntax: BodySyntax) -> str:
    """Return the condition that the copy of the thread in row ``g``, if there is one, meets the condition on
    copies. It is a subquery with one value, so that each copy is found by its key."""
    bind = syntax.bind
    name, space = LISTED
    index = (
        f"SELECT c.pk FROM {tables.threads} c WHERE c.space = {bind(space)} AND c.tenant = {bind(tenant)}"
        f" AND c.thread = {bind(name)}"
    )
    groups = [
        f"({' OR '.join(syntax.holds('d.body', part) for part in any_of)})" for any_of in copies.holding
    ]
    return (
        f"coalesce((SELECT NOT ({syntax.ends('d.body', copies.ending)}) OR {' AND '.join(groups)}"
        f" FROM {tables.documents} d"
        f" WHERE d.t = ({index}) AND d.collection = {bind(name)} AND d.name = g.thread), true)"
    )


def write_item_conditions(effect: FindItems, syntax: BodySyntax) -> str:
    """Return the conditions of a find of items."""
    bind = syntax.bind
    where = [f"p.space = {bind(STORE)}", f"p.tenant = {bind(effect.tenant or '')}"]
    where += _write_prefix_condition(effect.prefix, bind)
    where.append(f"(i.expires_at IS NULL OR i.expires_at > {bind(effect.until)})")
    where += [
        f"({' OR '.join(syntax.holds('i.body', part) for part in any_of)})" for any_of in effect.holding
    ]
    if syntax.within is not None:
        where += map(syntax.within, effect.bounds)
    if effect.last is not None:
        time, thread, key = (bind(part) for part in effect.last)
        where.append(
            f"(i.updated_at < {time} OR i.updated_at = {time} AND (p.thread, i.key) > ({thread}, {key}))"
        )
    return " AND ".join(where)


def _write_prefix_condition(prefix: str, bind: Callable[[str | int], str]) -> list[str]:
    if prefix:
        return [f"p.thread >= {bind(prefix)} AND p.thread < {bind(end_of(prefix))}"]
    return []
