"""The JSON API of the inspector: one function for each address, the same on this machine and on a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from perdure.errors import BadSetting, NotFound
from perdure.inspector import (
    actions,
    agents,
    audit_log,
    listing,
    overview,
    questions,
    queue,
    replaying,
    runs,
    states,
    steps,
    thread_health,
    timeline,
    users,
)
from perdure.inspector.access import Access, ReplayGraphs

View = Callable[[Access, Mapping[str, str]], Awaitable[dict[str, Any]]]
"""Answers a request for a view, from its parameters."""


async def about(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the tenant, whether other tenants can be chosen, what the viewer may do, and the graphs to
    replay threads with."""
    permissions, graphs = await access.permissions(), ReplayGraphs()
    if "replay" in permissions:
        graphs = access.replay_graphs
    return {
        "tenant": access.tenant,
        "all_tenants": access.all_tenants,
        "permissions": sorted(permissions),
        "graphs": list(graphs.names),
        "compared": graphs.compared,
    }


VIEWS: Mapping[str, View] = {
    "about": about,
    "tenants": overview.tenants,
    "threads": listing.threads,
    "thread": timeline.thread,
    "timeline": timeline.timeline,
    "steps": steps.steps,
    "usage": steps.usage,
    "conversation": steps.conversation,
    "picture": steps.picture,
    "todos": agents.todos,
    "subagents": agents.subagents,
    "files": agents.files,
    "file": agents.file,
    "branches": timeline.branches,
    "checkpoint": states.checkpoint,
    "channel": states.channel,
    "diff": states.find_difference,
    "messages": queue.messages,
    "overview": overview.overview,
    "nodes": overview.nodes,
    "growth": overview.growth,
    "queue": queue.queue,
    "questions": questions.questions,
    "limits": overview.limits,
    "runs": runs.runs,
    "run": runs.run,
    "user": users.user,
    "care": thread_health.care,
    "scan": thread_health.scan,
    "log": audit_log.entries,
}
"""Views by the last part of their address."""


_ON_MANY: Mapping[str, Callable[[Access, Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
    "rerun-failed": runs.rerun_failed,
    "stop-runs": runs.stop_runs,
    "delete-user": users.delete_user,
}
"""Actions on many threads by name."""


async def view(access: Access, name: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a view.

    Args:
        access: The viewer's rights.
        name: The view's name.
        asked: The request's parameters; ``tenant`` chooses another tenant than the viewer's own.

    Raises:
        NotFound: There is no such view, thread or tenant.
        BadSetting: A parameter cannot be used.
    """
    if name not in VIEWS:
        raise NotFound(f"the inspector has no view {name!r}")
    return await VIEWS[name](_choose_tenant(access, asked), asked)


async def act(access: Access, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out an action. ``given`` may name a ``tenant``; its other arguments are those of ``actions.act``,
    except for the actions on many threads: ``rerun-failed``, ``stop-runs`` and ``delete-user``."""
    access = _choose_tenant(access, given)
    if name in _ON_MANY:
        return await _ON_MANY[name](access, given)
    return await actions.act(access, name, given)


async def replay(access: Access, given: Mapping[str, Any]) -> dict[str, Any]:
    """Replay steps of a thread. ``given`` may name a ``tenant``; its other arguments are those of
    ``replaying.part``."""
    return await replaying.part(_choose_tenant(access, given), given)


def _choose_tenant(access: Access, given: Mapping[str, Any]) -> Access:
    tenant = given.get("tenant")
    if tenant is None:
        return access
    if not isinstance(tenant, str):
        raise BadSetting("tenant has to be the name of a tenant")
    return access.of_tenant(tenant)
