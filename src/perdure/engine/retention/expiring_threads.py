"""Index of the threads with a time to live of their own, by the time at which it is over.

A thread's entry is stored with the copy of its document in the index of a server (``LISTED``), and removed
with it. It is a hint: the time of an entry may have passed although its thread lives on, because it is
tagged, busy or was created again. So a thread is read before it counts as expired.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.engine import documents
from perdure.model.ops import Delete, Expect, Fetch, Now, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, EXPIRING, LISTED, Partition

_FEW = 64
_GROWTH = 8


class Overdue(NamedTuple):
    """The names of threads whose time to live is over, and the time at which that was read."""

    names: frozenset[str]
    now: int


def plan_entry(name: str, ttl: Mapping[str, Any] | None, fresh: int) -> tuple[Op, ...]:
    """Return the operation that stores a thread's entry, none if no time to live of its own removes it.

    Args:
        name: the thread.
        ttl: its time to live as it is stored.
        fresh: a number that was never used before.
    """
    if ttl is None or ttl.get("strategy") != "delete":
        return ()
    return (documents.plan_put(EXPIRING, name, {}, int(ttl["expires_at"]), Expect.ANY, fresh),)


def plan_change(
    name: str, before: Mapping[str, Any] | None, ttl: Mapping[str, Any] | None, fresh: int
) -> tuple[Op, ...]:
    """Return the operation that replaces or removes a thread's entry, if there is one, after a change of its
    time to live. ``before`` is the previous one; the other arguments are those of ``plan_entry``."""
    entry = plan_entry(name, ttl, fresh)
    if before is not None and not entry:
        return (plan_removal(name),)
    return entry


def plan_removal(name: str) -> Delete:
    """Return the operation that removes a thread's entry, if there is one."""
    return Delete(DOCUMENT, (EXPIRING, name), Expect.ANY)


def find_overdue(tenant: str) -> Program[Overdue]:
    """Return the threads of a tenant whose time to live is over, by the database's clock: one request if no
    thread has one, two if few are over."""
    limit = _FEW
    now: int | None = None
    while True:
        # A damaged entry is taken as it is, as the thread is read anyway.
        page = Range(DOCUMENT, (EXPIRING,), "updated_at", limit=limit, bodies=False, verify=False)
        (found,) = yield from ask(Fetch(Partition(tenant, *LISTED), (page,)))
        if not found:
            return Overdue(frozenset(), 0)
        if now is None:
            now = yield from ask(Now())
        if len(found) < limit or found[-1].fields["updated_at"] > now:
            names = frozenset(each.key[1] for each in found if each.fields["updated_at"] <= now)
            return Overdue(names, now)
        limit *= _GROWTH
