"""Work of a tenant that begins by itself at a time: crons, postponed messages, repeated attempts, and ends of
waits.

The queue records name the threads, so those without such work are not read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.engine.queue import crons
from perdure.engine.queue.due_pages import DuePages
from perdure.engine.queue.scheduled import list_postponed
from perdure.errors import Corrupt
from perdure.model.ops import Fetch, Get
from perdure.model.program import ask
from perdure.model.records import INTERNAL, LANE, THREADS, Partition
from perdure.model.runs.queue import IN, LATER, WAITS, Lane
from perdure.model.users import name_user
from perdure.runtime.operations.open_questions import load_questions
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.threads.rows import ThreadRow, load_row
from perdure.runtime.threads.user_and_title import find_user, user_of_options

_QUEUES_MAX = 1000
_MESSAGES_MAX = 100
"""Maximum number of postponed messages of a thread that are read."""


async def find_upcoming(walk: ThreadWalk, now: int, until: int) -> tuple[list[dict[str, Any]], bool]:
    """Return what begins by itself until a time, the earliest first, as JSON data.

    Args:
        walk: The threads. A viewer of some of them sees no crons.
        now: The database's time, in microseconds since 1970.
        until: The time.

    Returns:
        The entries, and whether they are all: the first 1,000 queues are read. An entry has the time ``at``
        which it begins, its ``kind`` and ``id``, its ``thread_id``, ``graph`` and ``user``, each ``None`` if
        there is none or it is not known, and what it ``repeats``:

        - ``cron``: the next start of a cron, which repeats its schedule, and by that may start again.
        - ``message``: a message that was postponed, or that waits for further ones, without an ``id``.
        - ``retry``: the next attempt of a run.
        - ``sleep``, ``signal`` and ``question``: the end of a wait, after which the graph goes on.
    """
    found: list[dict[str, Any]] = []
    if walk.sees is None:
        found += await _find_crons(walk, until)
    pages, count = DuePages(walk.tenant, until=until), 0
    while not pages.is_last and count < _QUEUES_MAX:
        for partition, name in await walk.database.arun(pages.read_next()):
            if partition.space == THREADS and not partition.thread.startswith(INTERNAL):
                count += 1
                found += await _find_in_thread(walk, partition, name, now, until)
    return sorted(found, key=lambda entry: (entry["at"], entry["kind"], entry["id"] or "")), pages.is_last


async def _find_crons(walk: ThreadWalk, until: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page = await walk.database.arun(crons.list_by_time(crons.place(walk.tenant), until, crons.MOST + 1))
    for cron in page.crons:
        schedule, payload = cron.body.get("schedule") or {}, cron.body.get("payload") or {}
        user = name_user((cron.body.get("user") or {}).get("identity")) or user_of_options(payload)
        found.append(
            {
                "at": cron.due_at,
                "kind": "cron",
                "id": cron.id,
                "thread_id": cron.body.get(crons.THREAD_ID),
                "graph": cron.body.get("graph_id"),
                "user": user,
                "repeats": " ".join(filter(None, (schedule.get("expression"), schedule.get("timezone")))),
            }
        )
    return found


async def _find_in_thread(
    walk: ThreadWalk, partition: Partition, queue: str, now: int, until: int
) -> Iterable[dict[str, Any]]:
    if queue not in (IN, LATER, WAITS):
        return ()
    row = await walk.database.arun(load_row(partition))
    if walk.sees is not None and (row is None or not walk.sees(row.metadata)):
        return ()
    if queue == LATER:
        return await _find_messages(walk, partition, until)
    if row is None:
        return ()
    if queue == IN:
        return await _find_waiting(walk, partition, row, now)
    return await _find_waits(walk, row, until)


async def _find_messages(walk: ThreadWalk, partition: Partition, until: int) -> list[dict[str, Any]]:
    messages = await walk.database.arun(list_postponed(partition, _MESSAGES_MAX))
    return [
        {
            "at": message.accepted_at,
            "kind": "message",
            "id": message.id,
            "thread_id": partition.thread,
            "graph": message.graph or None,
            "user": user_of_options(message.options),
            "repeats": None,
        }
        for message in messages
        if message.accepted_at <= until
    ]


async def _find_waiting(
    walk: ThreadWalk, partition: Partition, row: ThreadRow, now: int
) -> list[dict[str, Any]]:
    """Return what waits in the inbox of a thread for its time: the next attempt of a run, or messages."""
    (lanes,) = await walk.database.arun(ask(Fetch(partition, (Get(LANE, (IN,)),))))
    lane = Lane.read(IN, lanes)
    if lane.owner is not None or lane.due_at is None or lane.due_at <= now:
        return []
    return [
        {
            "at": lane.due_at,
            "kind": "message" if lane.run_id is None else "retry",
            "id": lane.run_id,
            "thread_id": row.thread_id,
            "graph": row.run.graph if row.run is not None else row.graph_id,
            "user": find_user(row.metadata),
            "repeats": None,
        }
    ]


async def _find_waits(walk: ThreadWalk, row: ThreadRow, until: int) -> list[dict[str, Any]]:
    try:
        waits = await walk.database.arun(load_questions(walk.database, walk.tenant, row, with_waits=True))
    except Corrupt:
        return []  # `perdure fsck` reports it
    return [
        {
            "at": wait.deadline,
            "kind": wait.kind,
            "id": wait.interrupt_id,
            "thread_id": wait.thread_id,
            "graph": wait.graph,
            "user": wait.user,
            "repeats": None,
        }
        for wait in waits
        if wait.deadline is not None and wait.deadline <= until
    ]
