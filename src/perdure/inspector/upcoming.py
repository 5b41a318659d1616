"""What of a tenant will run by itself: crons, messages for a later time, and threads that sleep, by time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.engine.queue import crons
from perdure.engine.queue.crons import Cron
from perdure.engine.queue.scheduled import list_postponed
from perdure.errors import NotAllowed
from perdure.inspector.access import Access, Sees
from perdure.model.records import Partition
from perdure.model.users import name_user
from perdure.runtime.threads.rows import load_row
from perdure.runtime.threads.user_and_title import find_title, find_user, user_of_options

_MOST = 100
_EVER = 2**62


class Upcoming(NamedTuple):
    """Entries of what will run, the earliest first. ``is_whole`` is False if there may be more, and
    ``has_crons`` if the viewer may not see crons."""

    entries: Sequence[Mapping[str, Any]]
    is_whole: bool
    has_crons: bool


async def find_upcoming(
    access: Access, sees: Sees | None, postponed: Sequence[Partition], waiting: Iterable[Mapping[str, Any]]
) -> Upcoming:
    """Return what will run by itself.

    Args:
        access: The viewer's rights.
        sees: The threads that the viewer may see, ``None`` for all.
        postponed: Threads that have messages for a later time, the earliest first.
        waiting: Threads that are interrupted, as the queue has them.

    Returns:
        Entries with the time ``at``, the ``kind`` (``cron``, ``message``, ``sleep``, and ``signal`` or
        ``question`` with a deadline), the ``thread_id``, ``None`` for a new thread, whether that
        ``is_listed``, its ``title`` and ``user``, the ``graph``, and ``what``: a cron's schedule, or a
        signal's name.
    """
    try:
        timed, has_crons = await _list_crons(access), True
    except NotAllowed:
        timed, has_crons = [], False
    looked = await asyncio.gather(*(_list_messages(access, sees, each) for each in postponed[:_MOST]))
    timed += [entry for entries in looked for entry in entries]
    timed += [entry for thread in waiting for entry in _list_wakings(thread)]
    timed.sort(key=lambda entry: int(entry["at"]))
    is_whole = len(timed) <= _MOST and len(postponed) <= _MOST
    return Upcoming(timed[:_MOST], is_whole, has_crons)


async def _list_crons(access: Access) -> list[dict[str, Any]]:
    """Return the crons that the viewer may see, at least the first ones. ``NotAllowed`` if there are none."""
    sees = await access.authorize_crons()
    place = crons.place(access.tenant)
    found: dict[str, Cron] = {}
    since: int | None = None
    while True:
        page = await access.handle.arun(crons.list_by_time(place, _EVER, _MOST + 1, since))
        for cron in page.crons:
            if sees is None or sees(cron.body.get("metadata") or {}):
                found[cron.id] = cron
        since = page.next_since
        if since is None or len(found) > _MOST:
            return [_describe_cron(cron) for cron in found.values()]


def _describe_cron(cron: Cron) -> dict[str, Any]:
    body = cron.body
    payload = body.get("payload") or {}
    schedule = body.get("schedule") or {}
    return {
        "at": cron.due_at,
        "kind": "cron",
        "thread_id": body.get(crons.THREAD_ID),
        "is_listed": body.get(crons.THREAD_ID) is not None,
        "title": "",
        "user": name_user((body.get("user") or {}).get("identity"))
        or user_of_options(payload)
        or find_user(body.get("metadata") or {}),
        "graph": body.get("graph_id"),
        "what": " ".join(filter(None, (schedule.get("expression"), schedule.get("timezone")))),
    }


async def _list_messages(access: Access, sees: Sees | None, partition: Partition) -> list[dict[str, Any]]:
    """Return the messages of a thread that are for a later time, none if the viewer may not see them."""
    row = await access.handle.arun(load_row(partition))
    metadata = {} if row is None else row.metadata
    if sees is not None and (row is None or not sees(metadata)):
        return []
    return [
        {
            "at": message.accepted_at,
            "kind": "message",
            "thread_id": partition.thread,
            "is_listed": row is not None,
            "title": find_title(metadata),
            "user": find_user(metadata) or user_of_options(message.options),
            "graph": message.graph,
            "what": "",
        }
        for message in await access.handle.arun(list_postponed(partition, _MOST))
    ]


def _list_wakings(thread: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the times at which a thread that waits goes on at the latest."""
    times = [(wait["until"], wait["kind"], wait["signal"]) for wait in thread["waits"]]
    times.append((thread["deadline"], "question", None))
    return [
        {
            "at": at,
            "kind": kind,
            "thread_id": thread["thread_id"],
            "is_listed": True,
            "title": thread["title"],
            "user": thread["user"],
            "graph": thread["graph_id"] or (thread["run"] or {}).get("graph"),
            "what": signal or "",
        }
        for at, kind, signal in times
        if at is not None
    ]
