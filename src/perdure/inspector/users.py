"""Users of a tenant's threads: a user's usage, and the removal of everything of a user."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from perdure.engine import limits
from perdure.errors import BadSetting, Contention, Corrupt, NotAllowed, NotFound
from perdure.inspector import actions, audit_log
from perdure.inspector.access import Access, DataRight, UserDataNames
from perdure.inspector.listing import PAGE, describe_thread
from perdure.inspector.requests import read_text, read_time
from perdure.langgraph.reading.thread_calls import load_all_calls
from perdure.langgraph.store import PerdureStore
from perdure.memory import Memory
from perdure.memory.memory import afind_roots
from perdure.memory.users import ROOT, list_tool_roots, namespace_of
from perdure.model.model_calls import total
from perdure.model.ops import Check
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.runtime.operations import user_removal
from perdure.runtime.operations.thread_search import ThreadQuery, search
from perdure.runtime.operations.walk_by_activity import ThreadWalk

_SECONDS = 0.4
_LIMITS = 20
"""Number of limits whose states are looked for."""
_LAST = "\U0010ffff"
_KINDS = ("threads", "shared", "crons", "assistants", "entries")


async def user(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of a user's threads, each with the usage of models, and on the first page what else is
    stored of the user. What is shown is found as for the removal of the user.

    Args:
        access: The viewer's rights.
        asked: ``user``; and ``since``, ``before``, for threads that changed in a time, and ``cursor`` of the
            previous page, all optional.

    Returns:
        ``threads``, each with its ``runs``; its ``bytes`` and ``usage`` as for a thread (``None`` if they
        cannot be read); and the ``others`` who have runs in it, for whom it stays; the number of threads
        ``examined``; the ``cursor`` to go on from, ``None`` at the end; and ``stored``, on the first page
        only, if the viewer may see all of it: the ids of the ``crons``, ``assistants`` and ``unlisted``
        threads that wait to begin, and the numbers of ``entries`` of memories, of ``turns`` that they are
        extracted from and of empty ``names`` in the store, which go with the user, the number of chats with
        ``sessions``, which go if no thread of the chat is left; and what stays: the number of ``items`` in
        the store and their ``namespaces``, and the names of ``limits`` of which the user has used something.

    Raises:
        BadSetting: No user is named, or a value cannot be used.
    """
    name = _read_user(asked.get("user"))
    sees = await access.authorize_listing()
    walk = ThreadWalk(access.handle, access.tenant, sees)
    found: list[dict[str, Any]] = []
    examined = 0
    until = time.monotonic() + _SECONDS
    since, before = await read_time(access, asked, "since"), await read_time(access, asked, "before")
    query = ThreadQuery(user=name, since=since, before=before)
    cursor, stored = asked.get("cursor") or "", None
    if not cursor and sees is None:
        stored = await _describe_stored(access, walk, name)
    async with aclosing(search(walk, query, cursor, PAGE)) as steps:
        async for step in steps:
            examined += step.examined
            if step.row is not None:
                thread_id, others = step.row.thread_id, step.users - {name}
                about = await user_removal.describe_user_thread(walk, thread_id, others)
                usage = await _load_usage(access, thread_id)
                found.append({**describe_thread(step.row), **about, "usage": usage})
            if len(found) == PAGE or time.monotonic() > until:
                return {"threads": found, "examined": examined, "cursor": step.cursor, "stored": stored}
    return {"threads": found, "examined": examined, "cursor": None, "stored": stored}


async def _describe_stored(access: Access, walk: ThreadWalk, name: str) -> dict[str, Any] | None:
    """Return what is stored of a user beside the listed threads, ``None`` if the viewer may not see it."""
    store = _open_store(access)
    data = await user_removal.find_user_data(walk, name, await _find_memories(access, store, name))
    try:
        await _authorize(access, "read", data, (name,))
    except NotAllowed:
        return None
    found = await user_removal.describe_user_data(walk, name, data, store)
    return {**found, "limits": await access.handle.arun(_list_limits(access, name))}


def _list_limits(access: Access, name: str) -> Program[list[str]]:
    """Return the names of the limits by user of which a user has used something."""
    found: list[str] = []
    after: Partition | None = None
    for _ in range(_LIMITS):
        page, _ = yield from limits.read_states(access.tenant, 1, after=after)
        if not page:
            break
        limit, key = page[0].place.limit, page[0].place.key
        if list(key) == ["user"]:
            place = limits.place(access.tenant, access.handle.alias, limit, {"user": name})
            if (yield from limits.read_state(place.partition)) is not None:
                found.append(limit)
        past = limits.prefix_of(access.handle.alias, limit) + _LAST
        after = limits.partition_of(access.tenant, past)
    return found


async def _authorize(
    access: Access, right: DataRight, data: user_removal.UserData, *more: tuple[str, ...]
) -> None:
    """Raise unless the viewer has a right to a user's data, and to ``more`` namespaces of the store."""
    namespaces = [*(memory.namespace for memory in data.memories), *more]
    names = UserDataNames([cron.id for cron in data.crons], data.assistants, namespaces)
    await access.authorize_user_data(right, names)


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
        remove them (``refused``), the ``cursor`` to go on from, ``None`` at the end, and ``is_in_log``, true
        if the database's log may hold what was removed, as other processes use it.

    Raises:
        NotAllowed: The permission was not granted.
        BadSetting: A value cannot be used.
    """
    name, cursor = _read_deletion(given)
    await actions.require_any(access, "delete")
    if await access.authorize_listing() is not None:
        raise NotAllowed("everything of a user is more than the threads that you may see")
    walk = ThreadWalk(access.handle, access.tenant)
    memories: list[Memory] = []
    if access.runtime is not None:
        memories = await _find_memories(access, access.runtime.store(), name)
    data = await user_removal.find_user_data(walk, name, memories)
    await _authorize(access, "delete", data)
    done: dict[str, Any] = {**dict.fromkeys((*_KINDS, "refused"), 0), "cursor": None, "is_in_log": False}

    async def remove_thread(thread_id: str, checks: Sequence[Check]) -> bool | None:
        async def remove(request: actions.ActionRequest) -> dict[str, Any]:
            if not await request.runtime.threads.remove_unchanged(thread_id, checks):
                raise Contention(f"thread {thread_id!r} has changed")
            return {}

        try:
            await actions.act(access, "delete", {"id": thread_id}, remove)
        except NotFound:
            return False  # The thread was removed meanwhile.
        except NotAllowed:
            done["refused"] += 1
            return False
        except Contention:
            return None
        return True

    async def remove_unlisted(thread_id: str, checks: Sequence[Check]) -> bool | None:
        if access.runtime is None:
            return False
        return await access.runtime.threads.remove_unchanged(thread_id, checks) or None

    terms = user_removal.RemovalTerms(
        data,
        remove_thread,
        remove_unlisted,
        # This entry names no user: it stays in the log, and the removed user must not be remembered.
        record=partial(audit_log.record_action, access, "delete-user", "", {}),
    )
    until = time.monotonic() + _SECONDS
    async with aclosing(user_removal.remove_user(walk, name, terms, cursor)) as steps:
        async for step in steps:
            for kind in _KINDS:
                done[kind] += getattr(step, kind)
            done["is_in_log"] = step.is_in_log
            if step.cursor is not None and time.monotonic() > until:
                return {**done, "cursor": step.cursor}
    return done


def _read_deletion(given: Mapping[str, Any]) -> tuple[str, str]:
    """Return the user to remove, and the cursor of the previous part."""
    name = _read_user(given.get("user"))
    if given.get("confirm") != name:
        raise BadSetting("confirm has to be the user's id: what is removed cannot be brought back")
    if not isinstance(cursor := given.get("cursor") or "", str):
        raise BadSetting("cursor has to be text")
    return name, cursor


def _read_user(user_id: Any) -> str:
    if not isinstance(user_id, str) or not user_id:
        raise BadSetting("user has to be the id of a user")
    return read_text({"user": user_id}, "user") or ""


def _open_store(access: Access) -> PerdureStore:
    """Return the store of the graphs or, where none is known, that of the database."""
    if access.runtime is None:
        return PerdureStore(access.handle.driver, tenant=access.tenant)
    return access.runtime.store()


async def _find_memories(access: Access, store: PerdureStore, name: str) -> list[Memory]:
    """Return the memories of a user, including those that graphs and tools may have; an empty list if the id
    is not valid for a memory."""
    try:
        namespace_of(name)
    except ValueError:
        return []
    agent_roots = {agent.memory.root for agent in access.agents if agent.memory is not None}
    roots = {ROOT, *list_tool_roots(), *agent_roots, *await afind_roots(store, name)}
    return [Memory(store, name, root=root) for root in sorted(roots)]
