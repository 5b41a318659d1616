"""The JSON API of the inspector: one function for each address, the same on this machine and on a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from perdure.errors import NotFound
from perdure.inspector import actions, audit_log, listing, queue, scan, states, timeline
from perdure.inspector.access import Access

View = Callable[[Access, Mapping[str, str]], Awaitable[dict[str, Any]]]
"""Answers a request for a view, from its parameters."""


async def about(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the tenant and what the viewer may do."""
    return {"tenant": access.tenant, "permissions": sorted(await access.permissions())}


VIEWS: Mapping[str, View] = {
    "about": about,
    "threads": listing.threads,
    "thread": timeline.thread,
    "timeline": timeline.timeline,
    "branches": timeline.branches,
    "checkpoint": states.checkpoint,
    "channel": states.channel,
    "diff": states.difference,
    "messages": queue.messages,
    "queue": queue.queue,
    "care": scan.care,
    "scan": scan.scan,
    "log": audit_log.entries,
}
"""Views by the last part of their address."""


async def view(access: Access, name: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a view.

    Args:
        access: The viewer's rights.
        name: The view's name.
        asked: The request's parameters.

    Raises:
        NotFound: There is no such view, or no such thread.
        BadSetting: A parameter cannot be used.
    """
    if name not in VIEWS:
        raise NotFound(f"the inspector has no view {name!r}")
    return await VIEWS[name](access, asked)


act = actions.act
