"""The queue of a tenant: work that is due, runs with their leases, replies to send, and abandoned work."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from perdure.engine.decoding import read_each
from perdure.engine.queue import inbox, outbox
from perdure.engine.queue.scheduled import list_postponed
from perdure.engine.queue.stuck import Survey, survey
from perdure.errors import NotAllowed
from perdure.inspector.access import Access, Sees
from perdure.inspector.listing import describe_optional_run, describe_thread
from perdure.inspector.timeline import (
    describe_lane,
    number,
    read_inbox,
    read_thread,
    waits_of,
)
from perdure.model.ops import Fetch, FindDue, Get, IndexHit, Now
from perdure.model.program import Program, ask
from perdure.model.records import LANE, RUN, Partition
from perdure.model.runs.messages import Message, Reply, Run, encode
from perdure.model.runs.queue import IN, OUT, Lane
from perdure.runtime.json_encoding import to_plain
from perdure.runtime.operations import entries
from perdure.runtime.operations.upcoming import Upcoming, find_upcoming
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.threads.index import ThreadIndex
from perdure.runtime.threads.rows import load_row

_DUE = 500
_AHEAD_US = 24 * 3_600_000_000
_THREADS = 100
_SECONDS = 0.4
_PAGE = 50
_QUEUES = (IN, OUT)
_EVER = 2**62
_OVERDUE_US = 60_000_000


async def queue(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the threads with work now or within a day, what runs by itself later (``upcoming``, as
    ``find_upcoming`` describes it), the threads that wait for an answer, those that sleep or wait for a
    signal, those that failed, and, for a viewer of all threads, what has been ``stuck`` for over a minute.

    At most 100 entries of a kind are returned, those that are found in less than half a second. ``cut`` names
    the lists of which more may exist: ``stuck``, ``work``, ``upcoming``, ``interrupted`` (with ``waiting``)
    and ``failed``. ``is_surveyed`` is false where the viewer is not shown what is stuck, and ``has_crons``
    where the viewer may not see crons.

    Args:
        access: The viewer's rights.
        asked: Nothing.
    """
    sees = await access.authorize_listing()
    now, hits = await access.handle.arun(_find_due(access.tenant))
    names = list(dict.fromkeys(hit.partition for hit in hits if hit.record and hit.record.key[0] in _QUEUES))
    looked = await asyncio.gather(*(_load_work(access, partition, sees) for partition in names[:_THREADS]))
    work = [each for each in looked if each is not None]
    interrupted, has_all_interrupted = await _find_with_status(access, "interrupted", sees)
    failed, has_all_failed = await _find_with_status(access, "error", sees)
    surveyed = Survey((), True)
    if sees is None:  # The survey covers threads that other viewers may not see.
        surveyed = await access.handle.arun(survey(access.tenant, _OVERDUE_US, _THREADS))
    upcoming, has_crons = await _find_upcoming(access, sees, now)
    is_whole = {
        "stuck": surveyed.is_whole,
        "work": len(hits) < _DUE and len(names) <= _THREADS,
        "upcoming": upcoming.is_whole,
        "interrupted": has_all_interrupted,
        "failed": has_all_failed,
    }
    holders = Counter(each["queue"]["owner"] for each in work if each["queue"]["owner"])
    return {
        "now": now,
        "stuck": [entries.make_stuck_entry(each) for each in surveyed.stuck],
        "work": work,
        "workers": [{"name": name, "runs": count} for name, count in sorted(holders.items())],
        "upcoming": upcoming.entries,
        "interrupted": [each for each in interrupted if each["asks"]],
        "waiting": [each for each in interrupted if each["waits"]],
        "failed": failed,
        "cut": [name for name, has_all in is_whole.items() if not has_all],
        "is_surveyed": sees is None,
        "has_crons": has_crons,
    }


async def _find_upcoming(access: Access, sees: Sees | None, now: int) -> tuple[Upcoming, bool]:
    """Return what the viewer may see of what runs by itself, and whether the viewer may see crons."""
    sees_crons, has_crons = None, True
    try:
        sees_crons = await access.authorize_crons()
    except NotAllowed:
        has_crons = False
    walk = ThreadWalk(access.handle, access.tenant, sees)
    found = await find_upcoming(walk, now, _EVER, _THREADS, has_crons=has_crons, sees_crons=sees_crons)
    return found, has_crons


async def _load_work(access: Access, partition: Partition, sees: Sees | None) -> dict[str, Any] | None:
    """Return a thread with its queues, ``None`` if the viewer may not see it."""
    row = await access.handle.arun(load_row(partition))
    if row is None or (sees is not None and not sees(row.metadata)):
        return None
    return {**describe_thread(row), **await access.handle.arun(_load_queues(partition))}


async def messages(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of a thread's messages, newest first, each with its run, and its newest replies.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread; ``before``, the number of the last message of the previous page.
    """
    partition, _ = await read_thread(access, asked)
    found = await access.handle.arun(inbox.read_latest(partition, _PAGE, number(asked, "before")))
    replies = await access.handle.arun(outbox.read_replies(partition, _PAGE))
    later = await access.handle.arun(list_postponed(partition, _PAGE))
    cursor = None
    if len(found) == _PAGE:
        cursor = found[-1].message.seq
    return {
        "messages": [
            {**_describe_message(each.message), "run": describe_optional_run(each.run)} for each in found
        ],
        "later": [_describe_message(message) for message in later],
        "replies": [_describe_reply(reply) for reply in replies],
        "cursor": cursor,
    }


def _describe_message(message: Message) -> dict[str, Any]:
    return {
        "number": message.seq,
        "id": message.id,
        "accepted_at": message.accepted_at,
        "graph": message.graph,
        "channel": message.channel,
        "mode": message.mode,
        "bytes": len(encode(message.payload, "message")),
        "payload": to_plain(message.payload),
    }


def _describe_reply(reply: Reply) -> dict[str, Any]:
    return {
        "number": reply.seq,
        "key": reply.id,
        "run_id": reply.run_id,
        "channel": reply.channel,
        "state": reply.state,
        "attempts": reply.attempts,
        "provider_id": reply.provider_id,
        "created_at": reply.created_at,
        "error": reply.error,
        "payload": to_plain(reply.payload),
    }


def _find_due(tenant: str) -> Program[tuple[int, tuple[IndexHit, ...]]]:
    now = yield from ask(Now())
    return now, (yield from ask(FindDue(tenant, until=now + _AHEAD_US, limit=_DUE)))


def _load_queues(partition: Partition) -> Program[dict[str, Any]]:
    lanes = yield from ask(Fetch(partition, tuple(Get(LANE, (name,)) for name in _QUEUES)))
    inbound, outbound = Lane.read(IN, lanes[0]), Lane.read(OUT, lanes[1])
    run: Run | None = None
    if inbound.run_id is not None:
        (found,) = yield from ask(Fetch(partition, (Get(RUN, (inbound.run_id,)),)))
        run = next(read_each(partition, Run.read, found), None)
    replies = yield from outbox.read_replies(partition, _PAGE)
    return {
        "queue": (yield from read_inbox(partition, inbound)),
        "outbox": {**describe_lane(outbound), "states": dict(Counter(reply.state for reply in replies))},
        "open_run": describe_optional_run(run),
    }


async def _find_with_status(
    access: Access, status: Any, sees: Sees | None
) -> tuple[list[dict[str, Any]], bool]:
    """Return threads with a status, and whether they are all: the search may have to read every thread, so it
    ends after a moment."""
    index = ThreadIndex(access.handle, access.tenant)
    out: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(_SECONDS):
            async for row in index.search(status=status, sees=sees, enough=_THREADS):
                out.append({**describe_thread(row), **await waits_of(access, row)})
                if len(out) == _THREADS:
                    return out, False
    except TimeoutError:
        return out, False
    return out, True
