"""Pages of a tenant's threads: searched by id, metadata and status, ordered by activity or age."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from perdure.errors import BadSetting
from perdure.inspector.access import Access
from perdure.model.messages import Run
from perdure.model.ops import Find, ListedThread
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.runtime.encoding import plain
from perdure.runtime.threads.index import ThreadIndex, contains
from perdure.runtime.threads.order import Order, SortedThread, rows
from perdure.runtime.threads.rows import Status, ThreadRow

PAGE = 50
_ASCII = 128
SORTS = {"activity": Order("updated_at"), "age": Order("created_at", descending=False)}


async def threads(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of threads and the cursor of the next one.

    Args:
        access: The viewer's rights.
        asked: ``id`` (the beginning of an id), ``metadata`` (JSON object that a thread's metadata contains),
            ``status``, ``sort`` (``activity`` or ``age``) and ``cursor``, all optional.

    Raises:
        BadSetting: A value cannot be used.
    """
    sees = await access.listed()
    status = _status(asked.get("status") or None)
    metadata = _metadata(asked.get("metadata") or "")
    sort = asked.get("sort") or "activity"
    if sort not in SORTS:
        raise BadSetting(f"sort is one of {sorted(SORTS)}, not {sort!r}")
    if asked.get("id"):

        def wanted(row: ThreadRow) -> bool:
            return (
                status in (None, row.status)
                and contains(row.metadata, metadata)
                and (sees is None or sees(row.metadata))
            )

        found, cursor = await _by_id(access, asked["id"], asked.get("cursor") or "")
        return {"threads": [shown(row) for row in found if wanted(row)], "cursor": cursor}
    skip = _number(asked.get("cursor") or "0")
    index = ThreadIndex(access.handle, access.tenant, None)
    page: list[ThreadRow] = []
    search = index.search(metadata=metadata or None, status=status, sees=sees, order=SORTS[sort], skip=skip)
    async for row in search:
        page.append(row)
        if len(page) > PAGE:
            break
    await search.aclose()  # type: ignore[attr-defined]
    more = len(page) > PAGE
    return {
        "threads": [shown(row) for row in page[:PAGE]],
        "cursor": str(skip + PAGE) if more else None,
    }


def shown(row: ThreadRow) -> dict[str, Any]:
    """Return a thread of a listing as JSON data."""
    return {
        "thread_id": row.thread_id,
        "status": row.status,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "metadata": plain(row.metadata),
        "graph_id": row.graph_id,
        "run": None if row.run is None else run_shown(row.run),
        "has_state": row.has_state,
        "fault": None if row.fault is None else str(row.fault),
    }


def run_shown(run: Run) -> dict[str, Any]:
    """Return a run as JSON data, without what it was given."""
    return {
        "run_id": run.id,
        "state": run.state,
        "graph": run.graph,
        "channel": run.channel,
        "attempts": run.attempts,
        "epoch": run.epoch,
        "first": run.first,
        "last": run.last,
        "base": run.base,
        "started_at": run.started_at,
        "updated_at": run.updated_at,
        "error": run.note.get("error"),
    }


async def _by_id(access: Access, beginning: str, after: str) -> tuple[list[ThreadRow], str | None]:
    """Return the threads whose ids begin with a text, by id, and the cursor of the next page."""
    # The index takes prefixes that end in an ASCII character.
    prefix = beginning
    while prefix and ord(prefix[-1]) >= _ASCII - 1:
        prefix = prefix[:-1]
    place = Partition(access.tenant, after) if after else None
    find = Find("threads", access.tenant, after=place, limit=PAGE, prefix=prefix)
    hits = await access.handle.arun(ask(find))
    found = [
        SortedThread(hit.partition, ListedThread(0, 0, ""))
        for hit in hits
        if hit.partition.thread.startswith(beginning)
    ]
    cursor = hits[-1].partition.thread if len(hits) == PAGE else None
    return await rows(access.handle, found), cursor


def _status(text: str | None) -> Status | None:
    if text is None:
        return None
    for status in get_args(Status):
        if status == text:
            found: Status = status
            return found
    raise BadSetting(f"status is one of {list(get_args(Status))}, not {text!r}")


def _metadata(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        raise BadSetting('metadata has to be a JSON object, such as {"graph_id": "agent"}') from None
    if not isinstance(found, dict):
        raise BadSetting('metadata has to be a JSON object, such as {"graph_id": "agent"}')
    return found


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise BadSetting(f"the cursor {text[:40]!r} is not one of this listing")
    return int(text)
