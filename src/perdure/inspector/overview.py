"""A tenant's work as a whole: its numbers, its limits over all processes, and the names of tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import NotAllowed
from perdure.inspector.access import Access
from perdure.inspector.requests import read_text
from perdure.model.ops import FindThreads
from perdure.model.program import Program, ask
from perdure.model.records import Partition
from perdure.runtime.operations import limit_states
from perdure.runtime.operations.overview import read

_PAGE = 100
_MOST = 100
_PAST_THREADS = "\U0010ffff" * 4
"""Name of a thread that comes after those of a tenant. One that comes after it costs a request of its own."""


async def overview(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the state of a tenant's work, as ``runtime.operations.overview`` does.

    Args:
        access: The viewer's rights.
        asked: Nothing.

    Raises:
        NotAllowed: The viewer may see some of the tenant's threads only, and the numbers are of all.
    """
    if await access.authorize_listing() is not None:
        raise NotAllowed("these numbers are of all threads, and you may see some of them only")
    return await read(access.handle, access.tenant)


async def limits(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the keys of limits that are in use.

    A viewer who may not see every thread of the tenant sees no keys of users.

    Args:
        access: The viewer's rights.
        asked: ``limit``, the name of one, and ``cursor``, both optional.

    Returns:
        ``limits``, an entry for each key as ``limit_states.entry_of``; the amounts that are ``set`` in place
        of the configured ones; and the ``cursor`` to go on from, ``None`` at the end.

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
    names = await access.handle.arun(_names(asked.get("beginning") or ""))
    return {"tenants": names[:_MOST], "is_whole": len(names) <= _MOST}


def _names(beginning: str) -> Program[list[str]]:
    names: list[str] = []
    after = Partition(beginning, "") if beginning else None
    while len(names) <= _MOST:
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
