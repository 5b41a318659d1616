"""Work of a tenant that begins by itself at a time: crons, postponed messages, repeated attempts, and ends of
waits.

The queue records name the threads, so those without such work are not read.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from perdure.engine.queue import crons
from perdure.engine.queue.crons import Cron
from perdure.engine.queue.due_pages import DuePages, DueQueue
from perdure.engine.queue.scheduled import list_postponed
from perdure.errors import Corrupt
from perdure.model.ops import Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import INTERNAL, LANE, THREADS, Partition
from perdure.model.runs.queue import IN, LATER, WAITS, Lane
from perdure.model.users import name_user
from perdure.runtime.operations.open_questions import load_questions
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.threads.index import Sees
from perdure.runtime.threads.rows import ThreadRow, load_row
from perdure.runtime.threads.user_and_title import find_title, find_user, user_of_options

_PAGES_MAX = 10
"""Maximum number of pages of queue records that are read to find the queues."""
_QUEUES_MAX = 1000
_TOGETHER = 100
"""Queues that are read at the same time."""

Entry = dict[str, Any]


class Upcoming(NamedTuple):
    """Entries of what begins by itself, the earliest first. ``is_whole`` is False if there may be more."""

    entries: list[Entry]
    is_whole: bool


async def find_upcoming(
    walk: ThreadWalk, now: int, until: int, limit: int, *, sees_crons: Sees | None, has_crons: bool = True
) -> Upcoming:
    """Return what begins by itself until a time, as JSON data.

    An entry has the time ``at`` which it begins, its ``kind`` and ``id``, its ``thread_id``, ``None`` for a
    new thread, whether that thread ``is_listed``, its ``title``, the ``user`` and the ``graph``, ``None`` if
    it is not known, and ``what``: a cron's schedule, or a signal's name. The kinds are:

    - ``cron``: the next start of a cron, which may start again by its schedule.
    - ``message``: a message that was postponed, or that waits for further ones; these have no ``id``.
    - ``retry``: the next attempt of a run.
    - ``sleep``, ``signal`` and ``question``: the end of a wait, after which the graph goes on.

    At most 1,000 queues are read, the first that are due.

    Args:
        walk: The threads.
        now: The database's time, in microseconds since 1970.
        until: The time.
        limit: Maximum number of entries.
        sees_crons: Whether the viewer may see a cron, by its metadata; ``None`` for all.
        has_crons: False for a viewer who may see no cron.
    """
    found: list[Entry] = []
    if has_crons:
        found += await _find_crons(walk, until, limit, sees_crons)
    queues, has_all = await _list_queues(walk, now, until)
    for start in range(0, len(queues), _TOGETHER):
        together = queues[start : start + _TOGETHER]
        looked = await asyncio.gather(*(_find_in_queue(walk, queue, now, until, limit) for queue in together))
        found += [entry for entries in looked for entry in entries]
        # What the further queues have comes after these are due.
        if sum(entry["at"] <= together[-1].due_at for entry in found) > limit:
            break
    found.sort(key=lambda entry: (entry["at"], entry["kind"], entry["thread_id"] or "", entry["id"] or ""))
    return Upcoming(found[:limit], has_all and len(found) <= limit)


async def _find_crons(walk: ThreadWalk, until: int, limit: int, sees: Sees | None) -> list[Entry]:
    """Return the crons that the viewer may see: all, or more than ``limit`` of the first."""
    place = crons.place(walk.tenant)
    found: dict[str, Cron] = {}
    since: int | None = None
    while True:
        page = await walk.database.arun(crons.list_by_time(place, until, min(limit, crons.MOST) + 1, since))
        for cron in page.crons:
            if sees is None or sees(cron.body.get("metadata") or {}):
                found[cron.id] = cron
        since = page.next_since
        if since is None or len(found) > limit:
            return [_describe_cron(cron) for cron in found.values()]


def _describe_cron(cron: Cron) -> Entry:
    body = cron.body
    schedule, thread_id = body.get("schedule") or {}, body.get(crons.THREAD_ID)
    return {
        "at": cron.due_at,
        "kind": "cron",
        "id": cron.id,
        "thread_id": thread_id,
        "is_listed": thread_id is not None,
        "title": "",
        "user": name_user((body.get("user") or {}).get("identity"))
        or user_of_options(body.get("payload") or {})
        or find_user(body.get("metadata") or {}),
        "graph": body.get("graph_id"),
        "what": " ".join(filter(None, (schedule.get("expression"), schedule.get("timezone")))),
    }


async def _list_queues(walk: ThreadWalk, now: int, until: int) -> tuple[list[DueQueue], bool]:
    """Return the queues of threads that may have something to list, and whether they are all."""
    found: list[DueQueue] = []
    pages = DuePages(walk.tenant, until=until)
    for _ in range(_PAGES_MAX):
        for queue in await walk.database.arun(pages.read_next()):
            partition = queue.partition
            is_thread = partition.space == THREADS and not partition.thread.startswith(INTERNAL)
            # What is due already in an inbox waits for a worker.
            if is_thread and (queue.name in (LATER, WAITS) or (queue.name == IN and queue.due_at > now)):
                found.append(queue)
        if pages.is_last or len(found) > _QUEUES_MAX:
            break
    return found[:_QUEUES_MAX], pages.is_last and len(found) <= _QUEUES_MAX


async def _find_in_queue(walk: ThreadWalk, queue: DueQueue, now: int, until: int, limit: int) -> list[Entry]:
    """Return what a queue has until a time, nothing if the viewer may not see its thread."""
    row = await walk.database.arun(load_row(queue.partition))
    if walk.sees is not None and (row is None or not walk.sees(row.metadata)):
        return []
    if queue.name == LATER:
        found = await walk.database.arun(_read_messages(queue.partition, row, limit))
    elif row is None:
        return []
    elif queue.name == IN:
        found = await walk.database.arun(_read_inbox(queue.partition, row, now))
    else:
        found = await walk.database.arun(_read_waits(walk, row))
    return [entry for entry in found if entry["at"] <= until]


def _read_messages(partition: Partition, row: ThreadRow | None, limit: int) -> Program[list[Entry]]:
    metadata = {} if row is None else row.metadata
    return [
        {
            "at": message.accepted_at,
            "kind": "message",
            "id": message.id,
            "thread_id": partition.thread,
            "is_listed": row is not None,
            "title": find_title(metadata),
            "user": find_user(metadata) or user_of_options(message.options),
            "graph": message.graph or None,
            "what": "",
        }
        for message in (yield from list_postponed(partition, limit + 1))
    ]


def _read_inbox(partition: Partition, row: ThreadRow, now: int) -> Program[list[Entry]]:
    """Return what waits in the inbox of a thread for its time: the next attempt of a run, or messages."""
    (lanes,) = yield from ask(Fetch(partition, (Get(LANE, (IN,)),)))
    lane = Lane.read(IN, lanes)
    if lane.owner is not None or lane.due_at is None or lane.due_at <= now:
        return []
    return [
        {
            "at": lane.due_at,
            "kind": "message" if lane.run_id is None else "retry",
            "id": lane.run_id,
            "thread_id": row.thread_id,
            "is_listed": True,
            "title": find_title(row.metadata),
            "user": find_user(row.metadata),
            "graph": row.run.graph if row.run is not None else row.graph_id,
            "what": "",
        }
    ]


def _read_waits(walk: ThreadWalk, row: ThreadRow) -> Program[list[Entry]]:
    """Return the times at which a thread that waits goes on at the latest."""
    try:
        waits = yield from load_questions(walk.database, walk.tenant, row, with_waits=True)
    except Corrupt:
        return []  # `perdure fsck` reports it
    return [
        {
            "at": wait.deadline,
            "kind": wait.kind,
            "id": wait.interrupt_id,
            "thread_id": wait.thread_id,
            "is_listed": True,
            "title": wait.title,
            "user": wait.user,
            "graph": wait.graph,
            "what": wait.signal or "",
        }
        for wait in waits
        if wait.deadline is not None
    ]
