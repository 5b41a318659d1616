"""Removal of everything of a user: what is found, and the order in which it is removed. Its caller decides
who may do that, and how a thread is removed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any, NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue import crons, scheduled
from perdure.memory import Memory
from perdure.runtime.agent_memory.memory_turns import lane_of
from perdure.runtime.operations.thread_search import ThreadMatch, ThreadQuery, search
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.settings import Settings
from perdure.runtime.threads.rows import load_row
from perdure.runtime.threads.user_and_title import user_of_options


async def find_crons(database: DatabaseHandle, tenant: str, user: str) -> list[crons.Cron]:
    """Return a user's crons."""
    all_crons = await database.arun(crons.read_all_crons(crons.place(tenant)))
    return [cron for cron in all_crons if cron.body["user"]["identity"] == user]


async def find_threads(walk: ThreadWalk, user: str, cursor: str = "") -> AsyncGenerator[ThreadMatch, None]:
    """Yield the threads of a tenant by their ids, those of a user with their rows, as ``search`` does."""
    by_id = walk._replace(is_by_id=True)
    async with aclosing(search(by_id, ThreadQuery(user=user), cursor)) as steps:
        async for step in steps:
            yield step


async def find_unlisted(walk: ThreadWalk, user: str) -> set[str]:
    """Return the threads that have messages of a user, and are in no listing, as none of their runs has
    begun."""
    database, found = walk.database, set[str]()
    for partition in await database.arun(scheduled.find_threads(walk.tenant)):
        if await database.arun(load_row(partition)) is not None:
            continue
        waiting = await database.arun(scheduled.list_postponed(partition, Settings().max_pending))
        if any(user_of_options(message.options) == user for message in waiting):
            found.add(partition.thread)
    return found


class RemovalTerms(NamedTuple):
    """Terms of a removal: its parts beside the listed threads, and how the caller removes a thread.

    Attributes:
        own_crons: The user's crons.
        memories: The user's memories.
        remove_thread: Removes a listed thread; returns False if it stays.
        remove_unlisted: Removes a thread that is in no listing; returns False if it stays.
        unlisted: Threads in no listing that were found before ``end_runs``, which may end the messages that
            show whose threads they are.
        end_runs: Ends the user's runs; called once nothing of the user can begin another.
        record: Returns a context around the last step, with a dict that receives the number of ``entries``.
    """

    own_crons: Sequence[crons.Cron]
    memories: Sequence[Memory]
    remove_thread: Callable[[str], Awaitable[bool]]
    remove_unlisted: Callable[[str], Awaitable[bool]]
    unlisted: Collection[str] = ()
    end_runs: Callable[[], Awaitable[None]] | None = None
    record: Callable[[], AbstractAsyncContextManager[dict[str, Any]]] = lambda: nullcontext({})


class Removed(NamedTuple):
    """Numbers of threads, crons and entries of memories that a step removed. A later call can
    continue from ``cursor``, which is set after each thread that was examined. ``is_in_log`` is True if the
    database's log may hold what was removed."""

    threads: int = 0
    crons: int = 0
    entries: int = 0
    cursor: str | None = None
    is_in_log: bool = False


async def remove_user(
    walk: ThreadWalk, user: str, terms: RemovalTerms, cursor: str = ""
) -> AsyncGenerator[Removed, None]:
    """Remove everything of a user, and yield each step: first what would begin, or learn, something new, then
    the threads, and then what is known of the user. At the end it empties the database's log."""
    if not cursor:
        for cron in terms.own_crons:
            await walk.database.arun(crons.remove(crons.place(walk.tenant), cron.id))
        await terms.remove_unlisted(lane_of(user))
        if terms.end_runs is not None:
            await terms.end_runs()
        yield Removed(crons=len(terms.own_crons))
    listed = set[str]()
    async with aclosing(find_threads(walk, user, cursor)) as steps:
        async for step in steps:
            removed = False
            if step.row is not None:
                listed.add(step.row.thread_id)
                removed = await terms.remove_thread(step.row.thread_id)
            yield Removed(threads=int(removed), cursor=step.cursor)
    async with terms.record() as record:
        threads = 0
        # A thread whose messages were ended may be listed by now, and so was removed above.
        for thread_id in sorted({*terms.unlisted, *await find_unlisted(walk, user)} - listed):
            threads += await terms.remove_unlisted(thread_id)
        record["entries"] = entries = sum([await memory.aforget() for memory in terms.memories])
    is_cut = await walk.database.acut_log()
    yield Removed(threads=threads, entries=entries, is_in_log=not is_cut)
