"""Limits over all processes: what is used, what waits, and when there is more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.inspector.access import Access
from perdure.inspector.requests import read_text
from perdure.runtime.operations import limit_states

_PAGE = 100


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
