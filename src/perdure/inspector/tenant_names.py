"""Names of the tenants that have threads, found without reading the threads of any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.inspector.access import Access
from perdure.model.ops import FindThreads
from perdure.model.program import Program, ask
from perdure.model.records import Partition

_MOST = 100
_PAST_THREADS = "\U0010ffff" * 4
"""Name of a thread that comes after those of a tenant. One that comes after it costs a request of its own."""


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
