"""A tenant's work as a whole: its numbers, its limits over all processes, and the names of tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import NotAllowed
from perdure.inspector.access import Access
from perdure.inspector.requests import read_text, read_time
from perdure.model.ops import FindThreads
from perdure.model.program import Program, ask
from perdure.model.records import Partition
from perdure.runtime.operations import limit_states, node_times
from perdure.runtime.operations.growth import read as read_growth
from perdure.runtime.operations.overview import read
from perdure.runtime.operations.walk_by_activity import ThreadWalk

_PAGE = 100
_TENANTS_MAX = 100
_SECONDS = 0.4
_PAST_THREADS = "\U0010ffff" * 4
"""An id greater than those of a tenant's threads, to skip to the next tenant; a thread with a greater id
would cost one more request."""


async def overview(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the state of a tenant's work, as ``runtime.operations.overview`` does, with the ``currency`` of
    the prices that are known here, ``None`` without prices.

    Args:
        access: The viewer's rights.
        asked: Nothing.

    Raises:
        NotAllowed: The viewer may see only some of the tenant's threads, and the numbers cover all.
    """
    await _require_all_threads(access)
    return {**await read(access.handle, access.tenant), "currency": _find_currency(access)}


def _find_currency(access: Access) -> str | None:
    if access.prices.models:
        return access.prices.currency
    return None


async def growth(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return how the database and the tenant's threads grew, as ``runtime.operations.growth`` does, without
    the size of the database for a viewer of one of several tenants.

    Args:
        access: The viewer's rights.
        asked: Nothing.

    Raises:
        NotAllowed: The viewer may see only some of the tenant's threads, and the numbers cover all.
    """
    await _require_all_threads(access)
    found = await read_growth(access.handle, access.tenant)
    if not sees_database(access):
        found["samples"] = [{**each, "bytes": None} for each in found["samples"]]
    return found


def sees_database(access: Access) -> bool:
    """Return True if the viewer may know what concerns the threads of all tenants together."""
    return not access.tenant or access.all_tenants


async def _require_all_threads(access: Access) -> None:
    if await access.authorize_listing() is not None:
        raise NotAllowed("these numbers are of all threads, and you may see some of them only")


async def nodes(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the times of nodes in a part of the threads that the viewer may see.

    Args:
        access: The viewer's rights.
        asked: ``since`` (a span such as ``1h``, or a time in microseconds since 1970), by default ``1d``, and
            ``cursor`` of the previous part, both optional.

    Returns:
        ``nodes``, as ``node_times.NodeTimes.entries``, whose ``classes`` can be added up over several parts;
        the number of threads ``examined`` and how many of them are ``unreadable``; and the ``cursor`` to go
        on from, ``None`` at the end.

    Raises:
        BadSetting: A value cannot be used.
    """
    walk = ThreadWalk(access.handle, access.tenant, await access.authorize_listing())
    since = await read_time(access, {"since": "1d", **asked}, "since") or 0
    part = await node_times.read_part(walk, since, asked.get("cursor") or "", _SECONDS)
    return {
        "nodes": part.times.entries(),
        "examined": part.examined,
        "unreadable": part.unreadable,
        "cursor": part.cursor,
    }


async def limits(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the keys of limits that are in use.

    A viewer who may not see every thread of the tenant sees no keys of users.

    Args:
        access: The viewer's rights.
        asked: ``limit``, the name of a limit, and ``cursor``, both optional.

    Returns:
        ``limits``, an entry for each key as ``limit_states.entry_of``; the amounts that are ``set`` in place
        of the configured ones; the ``currency`` of budgets, as for ``overview``; and the ``cursor`` to go on
        from, ``None`` at the end.

    Raises:
        BadSetting: A value cannot be used.
    """
    sees = await access.authorize_listing()
    name, after = read_text(asked, "limit"), read_text(asked, "cursor")
    found, cursor = await limit_states.read_entries(access.handle, access.tenant, name, _PAGE, after)
    shown = [entry for entry in found if sees is None or "user" not in entry["key"]]
    changed = await limit_states.read_amounts(access.handle, access.tenant)
    return {
        "limits": shown,
        "set": [{"limit": each, **amounts} for each, amounts in sorted(changed.items())],
        "currency": _find_currency(access),
        "cursor": cursor,
    }


async def tenants(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the names of the first 100 tenants that have threads, in order.

    Args:
        access: The viewer's rights.
        asked: ``beginning`` of the names, optional.

    Returns:
        ``tenants``, and ``is_whole``, false if there are more.

    Raises:
        NotAllowed: The viewer may see one tenant only.
    """
    access.require_all_tenants()
    names = await access.handle.arun(_list_tenants(asked.get("beginning") or ""))
    return {"tenants": names[:_TENANTS_MAX], "is_whole": len(names) <= _TENANTS_MAX}


def _list_tenants(beginning: str) -> Program[list[str]]:
    names: list[str] = []
    after = None
    if beginning:
        after = Partition(beginning, "")
    while len(names) <= _TENANTS_MAX:
        hits = yield from ask(FindThreads(None, after=after, limit=1))
        if not hits or not hits[0].partition.tenant.startswith(beginning):
            break
        found = hits[0].partition
        if names and names[-1] == found.tenant:
            after = found
        else:
            names.append(found.tenant)
            after = Partition(found.tenant, _PAST_THREADS)
    return names
