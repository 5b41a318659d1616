"""How it is going: the numbers of a tenant's work as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import NotAllowed
from perdure.inspector.access import Access
from perdure.runtime.operations.overview import read


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
