"""Pages of a tenant's threads: searched by id, title, metadata and status, ordered by activity or age."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, get_args

from perdure.errors import BadSetting
from perdure.inspector.access import Access, Sees
from perdure.inspector.visible_threads import WalkPlace, number, walk
from perdure.model.messages import Run
from perdure.runtime.json_encoding import plain
from perdure.runtime.threads.index import ThreadIndex, contains
from perdure.runtime.threads.order import Order
from perdure.runtime.threads.rows import Status, ThreadRow

PAGE = 50
_SECONDS = 0.4
_ASCII = 128
SORTS = {
    "activity": Order("updated_at"),
    "age": Order("created_at", descending=False),
    "newest": Order("created_at"),
}
_TITLES = ("title", "name")
"""Keys of the metadata that may have a thread's title, the first one that is there."""


async def threads(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of threads and the cursor of the next one.

    Args:
        access: The viewer's rights.
        asked: ``id`` (the beginning of an id), ``metadata`` (JSON object that a thread's metadata contains),
            ``title`` (a part of a thread's title, in either case), ``status``, ``sort`` (``activity``,
            ``age`` or ``newest``) and ``cursor``, all optional.

    Raises:
        BadSetting: A value cannot be used.
    """
    sees = await access.listed()
    status = _status(asked.get("status") or None)
    metadata, title = _metadata(asked.get("metadata") or ""), (asked.get("title") or "").casefold()
    sort = asked.get("sort") or "activity"
    if sort not in SORTS:
        raise BadSetting(f"sort is one of {sorted(SORTS)}, not {sort!r}")
    if asked.get("id"):

        def wanted(row: ThreadRow) -> bool:
            fits = status in (None, row.status) and contains(row.metadata, metadata)
            return fits and title in title_of(row.metadata).casefold()

        place = WalkPlace.read(asked.get("cursor") or "")
        found, cursor = await _by_id(access, sees, asked["id"], place, wanted)
        return {"threads": [shown(row) for row in found], "cursor": cursor}
    skip = number(asked.get("cursor") or "0", "the cursor")
    index = ThreadIndex(access.handle, access.tenant)
    page: list[ThreadRow] = []

    def is_seen(held: Mapping[str, Any]) -> bool:
        return title in title_of(held).casefold() and (sees is None or sees(held))

    may_show = is_seen if title else sees
    search = index.search(
        metadata=metadata or None, status=status, sees=may_show, order=SORTS[sort], skip=skip
    )
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


def title_of(metadata: Mapping[str, Any]) -> str:
    """Return the title that a thread's metadata has, ``""`` without one."""
    found = next((metadata[key] for key in _TITLES if metadata.get(key) is not None), "")
    return found if isinstance(found, str) else ""


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


async def _by_id(
    access: Access, sees: Sees | None, beginning: str, place: WalkPlace, wanted: Callable[[ThreadRow], bool]
) -> tuple[list[ThreadRow], str | None]:
    """Return the wanted threads whose ids begin with a text, by id, and the cursor of the next page. A page
    has fewer threads than ``PAGE`` if finding them takes long."""
    # The index takes prefixes that end in an ASCII character.
    prefix = beginning
    while prefix and ord(prefix[-1]) >= _ASCII - 1:
        prefix = prefix[:-1]
    until = time.monotonic() + _SECONDS
    found: list[ThreadRow] = []
    async with aclosing(walk(access, sees, place, prefix=prefix, with_rows=True)) as steps:
        async for step in steps:
            row = step.row
            if row is not None and row.thread_id.startswith(beginning) and wanted(row):
                found.append(row)
            if len(found) == PAGE or time.monotonic() > until:
                return found, step.place.cursor
    return found, None


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
    except (ValueError, RecursionError):
        raise BadSetting('metadata has to be a JSON object, such as {"graph_id": "agent"}') from None
    if not isinstance(found, dict):
        raise BadSetting('metadata has to be a JSON object, such as {"graph_id": "agent"}')
    return found
