"""The audit log of the inspector: who did what to which thread, stored before the action, updated after.

An entry holds no text of messages. Entries belong to the tenant and stay when their thread is deleted. The
newest ``MOST`` of a tenant are kept; every action is also reported by the logger ``perdure.audit``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.errors import BadSetting
from perdure.inspector.access import Access, Sees
from perdure.model.ops import Commit, Delete, Expect, Fetch, Now, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, SERVER, Partition
from perdure.runtime.threads.rows import load_row
from perdure.runtime.threads.walk_by_id import WalkPlace

_COLLECTION = "action"
_PAGE = 100
MOST = 10_000
"""Number of a tenant's newest entries that are always kept; older ones are removed from time to time."""
_TRIM_ONE_IN = 100
"""On average, one in this number of actions removes the oldest entries."""
_TRIMMED = 25
_log = logging.getLogger("perdure.audit")


def _make_partition(tenant: str) -> Partition:
    return Partition(tenant, "audit", SERVER)


@asynccontextmanager
async def record_action(
    access: Access, action: str, thread_id: str, details: Mapping[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Record an action around a block: as ``started`` before it, as ``done`` or ``failed`` after it.

    An entry stays ``started`` if the process ended during the action.

    Args:
        access: The rights of the user who acts.
        action: The action's name.
        thread_id: The thread.
        details: Ids and names that the action is about.

    Yields:
        A dict, to which the block may add details.
    """
    at = await access.handle.arun(ask(Now()))
    body: dict[str, Any] = {
        "who": access.who,
        "action": action,
        "thread_id": thread_id,
        "details": dict(details),
        "outcome": "started",
        "at": at,
    }
    name = f"{at:020d}-{secrets.token_hex(8)}"
    await _put(access, name, body, at)
    if not secrets.randbelow(_TRIM_ONE_IN):
        await access.handle.arun(_trim(access.tenant))
    more: dict[str, Any] = {}
    try:
        yield more
    except BaseException as error:
        await _put(access, name, {**body, "outcome": f"failed: {type(error).__name__}"}, at)
        _log.warning("%s: %s of thread %r failed: %s", access.who, action, thread_id, type(error).__name__)
        raise
    await _put(access, name, {**body, "details": {**body["details"], **more}, "outcome": "done"}, at)
    _log.info("%s: %s of thread %r", access.who, action, thread_id)


async def entries(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the entries of threads that the viewer may see, newest first.

    Of deleted threads, a viewer who may not see all threads gets only the entries of the viewer's own
    actions.

    Args:
        access: The viewer's rights.
        asked: ``cursor``, where the last page ended.

    Returns:
        ``entries``, and the ``cursor`` to go on from, ``None`` at the end.

    Raises:
        BadSetting: The cursor is not one of this log.
    """
    sees = await access.authorize_listing()
    found: list[dict[str, Any]] = []
    place = WalkPlace.read(asked.get("cursor") or "")
    if place.passed > 2 * MOST:
        raise BadSetting("the cursor is not one of this log")
    page = await access.handle.arun(_list_older(access.tenant, place))
    names = {body["thread_id"] for entry in page if (body := entry.body).get("who") != access.who}
    visible_names: Collection[str] = names
    if sees is not None:
        visible_names = await _find_visible(access, names, sees)
    for entry in page:
        body = dict(entry.body)
        if body.get("who") != access.who and body["thread_id"] not in visible_names:
            place = place._replace(passed=place.passed + 1)
            continue
        found.append(body)
        place = WalkPlace(entry.name)
    return {"entries": found, "cursor": place.cursor if len(page) == _PAGE else None}


async def _find_visible(access: Access, names: Collection[str], sees: Sees) -> set[str]:
    """Return the names of the threads that the viewer may see."""
    looks = (access.handle.arun(load_row(Partition(access.tenant, name))) for name in names)
    rows = await asyncio.gather(*looks)
    return {row.thread_id for row in rows if row is not None and sees(row.metadata)}


async def _put(access: Access, name: str, body: Mapping[str, Any], now: int) -> None:
    handle = access.handle
    program = documents.put(
        _make_partition(access.tenant), _COLLECTION, name, body, now, Expect.ANY, fresh=handle.draw_version()
    )
    await handle.arun(program)


def _list_older(tenant: str, place: WalkPlace) -> Program[list[Document]]:
    # Names begin with the time, so their order is that of the entries.
    after = (_COLLECTION, place.after) if place.after else None
    wanted = Range(DOCUMENT, (_COLLECTION,), reverse=True, after=after, limit=place.passed + _PAGE)
    (records,) = yield from ask(Fetch(_make_partition(tenant), (wanted,)))
    return [Document.read(record) for record in records[place.passed :]]


def _trim(tenant: str) -> Program[None]:
    """Remove the entries beyond the newest ``MOST``."""
    stubs = Range(DOCUMENT, (_COLLECTION,), reverse=True, limit=MOST, bodies=False)
    (kept,) = yield from ask(Fetch(_make_partition(tenant), (stubs,)))
    while len(kept) == MOST:
        oldest = stubs._replace(after=kept[-1].key, limit=_TRIMMED)
        (beyond,) = yield from ask(Fetch(_make_partition(tenant), (oldest,)))
        if not beyond:
            return
        gone = tuple(Delete(DOCUMENT, record.key) for record in beyond)
        yield from ask(Commit(_make_partition(tenant), gone))
