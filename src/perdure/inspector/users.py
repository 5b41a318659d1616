"""Users of a tenant's threads: a user's usage, and the removal of everything of a user."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from perdure.errors import BadSetting, Contention, Corrupt, NotAllowed, NotFound
from perdure.inspector import actions, audit_log
from perdure.inspector.access import Access
from perdure.inspector.listing import PAGE, describe_thread
from perdure.inspector.requests import read_text
from perdure.langgraph.reading.thread_calls import load_all_calls
from perdure.memory import Memory
from perdure.memory.memory import afind_roots
from perdure.memory.users import ROOT, list_tool_roots, namespace_of
from perdure.model.model_calls import total
from perdure.model.records import Partition
from perdure.runtime.operations import user_removal
from perdure.runtime.operations.thread_search import ThreadQuery, search
from perdure.runtime.operations.walk_by_activity import ThreadWalk

_SECONDS = 0.4
_KINDS = ("threads", "shared", "crons", "assistants", "entries")


async def user(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of a user's threads, each with the usage of models.

    Args:
        access: The viewer's rights.
        asked: ``user``, and ``cursor`` of the previous page, optional.

    Returns:
        ``threads``, each with its ``usage`` as for a thread (``None`` if it cannot be read); the number of
        threads ``examined``; and the ``cursor`` to go on from, ``None`` at the end.

    Raises:
        BadSetting: No user is named.
    """
    name = _read_user(asked.get("user"))
    walk = ThreadWalk(access.handle, access.tenant, await access.authorize_listing())
    found: list[dict[str, Any]] = []
    examined = 0
    until = time.monotonic() + _SECONDS
    query = ThreadQuery(user=name)
    async with aclosing(search(walk, query, asked.get("cursor") or "", PAGE)) as steps:
        async for step in steps:
            examined += step.examined
            if step.row is not None:
                about = {**describe_thread(step.row), "usage": await _load_usage(access, step.row.thread_id)}
                found.append(about)
            if len(found) == PAGE or time.monotonic() > until:
                return {"threads": found, "examined": examined, "cursor": step.cursor}
    return {"threads": found, "examined": examined, "cursor": None}


async def _load_usage(access: Access, thread_id: str) -> dict[str, Any] | None:
    program = load_all_calls(Partition(access.tenant, thread_id), access.handle.digest)
    try:
        return total(await access.handle.arun(program), access.prices)
    except (Corrupt, Contention):
        return None


async def delete_user(access: Access, given: Mapping[str, Any]) -> dict[str, Any]:
    """Remove everything of a user, a part in each request: with the first, crons, assistants and the turns
    from which memories are still to be extracted; then threads, each by an action of its own; at the end
    memories.

    Args:
        access: The viewer's rights.
        given: ``user``; ``confirm``, the same; and ``cursor`` of the previous part, optional.

    Returns:
        The counts of removed ``threads``, ``crons``, ``assistants`` and ``entries`` of memories, the numbers
        of threads that stay because other users have runs in them (``shared``), or because the viewer may not
        remove them (``refused``), and the ``cursor`` to go on from, ``None`` at
        the end.

    Raises:
        NotAllowed: The permission was not granted.
        BadSetting: A value cannot be used.
    """
    name = _read_user(given.get("user"))
    if given.get("confirm") != name:
        raise BadSetting("confirm has to be the user's id: what is removed cannot be brought back")
    if not isinstance(cursor := given.get("cursor") or "", str):
        raise BadSetting("cursor has to be text")
    await actions.require_any(access, "delete")
    if await access.authorize_listing() is not None:
        raise NotAllowed("everything of a user is more than the threads that you may see")
    memories = await _find_memories(access, name)
    own_crons = await user_removal.find_crons(access.handle, access.tenant, name)
    own_assistants = await user_removal.find_assistants(access.handle, access.tenant, name)
    await access.authorize_user_removal(
        [cron.id for cron in own_crons], own_assistants, [memory.namespace for memory in memories]
    )
    done: dict[str, Any] = {**dict.fromkeys((*_KINDS, "refused"), 0), "cursor": None}

    async def remove_thread(thread_id: str) -> bool:
        try:
            await actions.act(access, "delete", {"id": thread_id, "confirm": thread_id})
        except NotFound:
            return False  # The thread was removed meanwhile.
        except NotAllowed:
            done["refused"] += 1
            return False
        return True

    async def remove_unlisted(thread_id: str) -> bool:
        if access.runtime is None:
            return False
        await access.runtime.delete(thread_id)
        return True

    terms = user_removal.RemovalTerms(
        own_crons,
        own_assistants,
        memories,
        remove_thread,
        remove_unlisted,
        # This entry names no user: it stays in the log, and the removed user must not be remembered.
        record=partial(audit_log.record_action, access, "delete-user", "", {}),
    )
    until = time.monotonic() + _SECONDS
    walk = ThreadWalk(access.handle, access.tenant)
    async with aclosing(user_removal.remove_user(walk, name, terms, cursor)) as steps:
        async for step in steps:
            for kind in _KINDS:
                done[kind] += getattr(step, kind)
            if step.cursor is not None and time.monotonic() > until:
                return {**done, "cursor": step.cursor}
    return done


def _read_user(user_id: Any) -> str:
    if not isinstance(user_id, str) or not user_id:
        raise BadSetting("user has to be the id of a user")
    return read_text({"user": user_id}, "user") or ""


async def _find_memories(access: Access, name: str) -> list[Memory]:
    """Return the memories of a user, including those that graphs and tools may have; an empty list if the id
    is not valid for a memory."""
    if access.runtime is None:
        return []
    try:
        namespace_of(name)
    except ValueError:
        return []
    agent_roots = {agent.memory.root for agent in access.agents if agent.memory is not None}
    store = access.runtime.store()
    roots = {ROOT, *list_tool_roots(), *agent_roots, *await afind_roots(store, name)}
    return [Memory(store, name, root=root) for root in sorted(roots)]
