"""The audit log of the inspector: who did what to which thread, stored before it is done and after.

An entry holds no text that people wrote. Entries belong to the tenant and stay when their thread is deleted.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.inspector.access import Access
from perdure.model.ops import Expect, Fetch, Now, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, SERVER, Partition
from perdure.runtime.threads.rows import look

_COLLECTION = "action"
_PAGE = 100
_log = logging.getLogger("perdure.audit")


def _place(tenant: str) -> Partition:
    return Partition(tenant, "audit", SERVER)


@asynccontextmanager
async def recorded(
    access: Access, action: str, thread_id: str, details: Mapping[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Record an action around a block: as ``started`` before it, as ``done`` or ``failed`` after it.

    An entry that stays ``started`` is of a process that ended within the action.

    Args:
        access: The rights of the one who acts.
        action: The action's name.
        thread_id: The thread.
        details: Ids and names that the action is about.

    Yields:
        A dict, to which the block may add details.
    """
    at, name = await _now(access), secrets.token_hex(8)
    body: dict[str, Any] = {
        "who": access.who,
        "action": action,
        "thread_id": thread_id,
        "details": dict(details),
        "outcome": "started",
        "at": at,
    }
    name = f"{at:020d}-{name}"
    await _put(access, name, body, at)
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
    """Return the newest entries, newest first: of the threads that the viewer may see.

    A viewer who may not see all threads gets no entries of deleted ones but the own.

    Args:
        access: The viewer's rights.
        asked: Nothing.
    """
    sees = await access.listed()
    found: list[dict[str, Any]] = []
    for entry in await access.handle.arun(_newest(access.tenant)):
        body = dict(entry.body)
        if sees is not None and body.get("who") != access.who:
            row = await access.handle.arun(look(Partition(access.tenant, body["thread_id"])))
            if row is None or not sees(row.metadata):
                continue
        found.append(body)
    return {"entries": found}


async def _now(access: Access) -> int:
    return await access.handle.arun(ask(Now()))


async def _put(access: Access, name: str, body: Mapping[str, Any], now: int) -> None:
    handle = access.handle
    program = documents.put(
        _place(access.tenant), _COLLECTION, name, body, now, Expect.ANY, fresh=handle.fresh()
    )
    await handle.arun(program)


def _newest(tenant: str) -> Program[list[Document]]:
    wanted = Range(DOCUMENT, (_COLLECTION,), by="updated_at", reverse=True, limit=_PAGE)
    (records,) = yield from ask(Fetch(_place(tenant), (wanted,)))
    return [Document.read(record) for record in records]
