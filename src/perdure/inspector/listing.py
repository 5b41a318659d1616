"""Pages of a tenant's threads: searched by id, title, metadata and status, ordered by activity, age or size.

No database stores the sizes of threads, as keeping them would slow every write. So to order threads by size
they are measured in parts: each request examines the next threads for a moment and returns the largest.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast, get_args

from perdure.engine.threads.measure import measure
from perdure.errors import BadSetting, PerdureError, Unavailable
from perdure.inspector.access import Access, Sees
from perdure.inspector.requests import read_cost, read_text, read_time
from perdure.model.records import Partition
from perdure.model.runs.lifecycle import Status
from perdure.model.runs.messages import Run
from perdure.runtime.failures.failure_location import write_text_for_clients
from perdure.runtime.json_encoding import to_plain
from perdure.runtime.operations import thread_search
from perdure.runtime.operations.thread_search import ThreadQuery
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.threads.index import ThreadIndex, contains
from perdure.runtime.threads.order import Order
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.user_and_title import find_title, find_user
from perdure.runtime.threads.walk_by_id import WalkPlace, WalkStep, number, walk

Wanted = Callable[[ThreadRow], bool]
"""Predicate over a thread's current row."""

PAGE = 50
_SECONDS = 0.4
_MEASURED_AT_ONCE = 8
SORTS = {
    "activity": Order("updated_at"),
    "age": Order("created_at", descending=False),
    "newest": Order("created_at"),
}
_ID, _SIZE = "id", "size"


async def threads(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of threads and the cursor of the next one.

    Args:
        access: The viewer's rights.
        asked: ``id`` (the beginning of an id), ``metadata`` (JSON object that a thread's metadata contains),
            ``title`` (a part of a thread's title, in any case), ``status``, ``sort`` (``activity``,
            ``age``, ``newest``, ``id`` or ``size``) and ``cursor``, all optional. With an ``id`` threads are
            ordered by id or, if ``sort`` says so, by ``size``; other orders are refused. Further
            conditions are ``words`` of the conversation, ``user`` (one of the users of its runs, or its only
            owner), ``graph``, ``error`` of the newest run, ``tag``,
            ``cost`` (the least cost of the calls of models, in the currency of the prices), ``since`` (a span
            such as ``1h``, or a time in microseconds since 1970) and ``before`` (such a time); with one of
            them threads are ordered by activity, on databases without a listing by id.

    Returns:
        ``threads``, and the ``cursor`` of the next page, ``None`` at the end. Ordered by ``size``,
        a page has the largest of the threads that this request ``examined``, each with its ``bytes``
        (``None`` if it cannot be measured), and the ``bytes`` of all matching threads that were examined. So
        the largest threads of all pages are the largest of all, and the sum of the pages' ``bytes`` is the
        size of all threads. With a further condition, a page also has the number of threads ``examined``,
        and each thread an ``excerpt`` of the message with the words and its ``speaker``. If the condition is
        a ``user``, it has all its ``users``, and if it is a ``cost``, its ``cost`` with the ``currency``.

    Raises:
        BadSetting: A value cannot be used.
    """
    sees = await access.authorize_listing()
    status = _read_status(asked.get("status") or None)
    metadata, title = _read_metadata(asked.get("metadata") or ""), (asked.get("title") or "").casefold()
    sort = _choose_sort(asked.get("sort") or None, has_id=bool(asked.get("id")))
    if any(asked.get(name) for name in _SEARCHED):
        return await _search(access, sees, asked, status, metadata, sort)
    if sort in (_ID, _SIZE):

        def is_wanted(row: ThreadRow) -> bool:
            fits = row.thread_id.startswith(asked.get("id") or "") and status in (None, row.status)
            return fits and contains(row.metadata, metadata) and title in find_title(row.metadata).casefold()

        prefix = asked.get("id") or ""
        place = WalkPlace.read(asked.get("cursor") or "")
        steps = walk(access.handle, access.tenant, sees, place, prefix=prefix, with_rows=True)
        if sort == _SIZE:
            return await _list_by_size(access, steps, is_wanted)
        return await _list_by_id(steps, is_wanted)

    def has_title(metadata_of_thread: Mapping[str, Any]) -> bool:
        is_titled = title in find_title(metadata_of_thread).casefold()
        return is_titled and (sees is None or sees(metadata_of_thread))

    is_seen = sees
    if title:
        is_seen = has_title
    passed = number(asked.get("cursor") or "0", "the cursor")
    listed = ThreadIndex(access.handle, access.tenant).steps(
        metadata=metadata or None,
        status=status,
        sees=is_seen,
        order=SORTS[sort],
        skip=passed,
        enough=PAGE + 1,
    )
    return await _list_by_time(listed, passed)


async def _list_by_time(
    steps: AsyncGenerator[tuple[int, ThreadRow | None], None], passed: int
) -> dict[str, Any]:
    """Return a page of threads in the order of a listing, after a place in it. The page has fewer than
    ``PAGE`` threads if finding them takes long."""
    until = time.monotonic() + _SECONDS
    page: list[dict[str, Any]] = []
    cursor = None
    async with aclosing(steps):
        async for place, row in steps:
            if row is not None and len(page) == PAGE:
                cursor = str(passed)
                break
            passed = place
            if row is not None:
                page.append(describe_thread(row))
            if time.monotonic() > until:
                cursor = str(passed)
                break
    return {"threads": page, "cursor": cursor}


_SEARCHED = ("words", "user", "graph", "error", "tag", "cost", "since", "before")


async def _search(
    access: Access,
    sees: Sees | None,
    asked: Mapping[str, str],
    status: Status | None,
    metadata: dict[str, Any],
    sort: str,
) -> dict[str, Any]:
    """Return a page of a search by conditions that no index covers."""
    if sort not in ("activity", _ID):
        raise BadSetting(f"with {', '.join(_SEARCHED)}, threads come by activity; leave sort={sort} out")
    query = ThreadQuery(
        title=read_text(asked, "title"),
        user=read_text(asked, "user"),
        graph=read_text(asked, "graph"),
        metadata=metadata or None,
        error=read_text(asked, "error"),
        tag=read_text(asked, "tag"),
        since=await read_time(access, asked, "since"),
        before=await read_time(access, asked, "before"),
        words=read_text(asked, "words"),
        cost=read_cost(asked),
        prices=access.prices,
    )
    walk = ThreadWalk(
        access.handle, access.tenant, sees, status, read_text(asked, "id") or "", is_by_id=sort == _ID
    )
    found: list[dict[str, Any]] = []
    examined = 0
    until = time.monotonic() + _SECONDS
    async with aclosing(thread_search.search(walk, query, asked.get("cursor") or "", PAGE)) as steps:
        async for step in steps:
            examined += step.examined
            if step.row is not None:
                about = {**describe_thread(step.row), "excerpt": step.excerpt, "speaker": step.speaker}
                if query.user is not None:
                    about["users"] = sorted(step.users)
                if step.cost is not None:
                    about |= {"cost": step.cost, "currency": access.prices.currency}
                found.append(about)
            if len(found) == PAGE or time.monotonic() > until:
                return {"threads": found, "examined": examined, "cursor": step.cursor}
    return {"threads": found, "examined": examined, "cursor": None}


def describe_thread(row: ThreadRow) -> dict[str, Any]:
    """Return a thread of a listing as JSON data."""
    return {
        "thread_id": row.thread_id,
        "status": row.status,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "metadata": to_plain(row.metadata),
        "title": find_title(row.metadata),
        "user": find_user(row.metadata),
        "graph_id": row.graph_id,
        "run": describe_optional_run(row.run),
        "has_state": row.has_state,
        "is_asleep": row.is_asleep,
        "fault": row.fault and str(row.fault),
    }


def _describe_error(run: Run) -> str | None:
    text, kind = run.note.get("error"), str(run.note.get("kind", ""))
    if not isinstance(text, str):
        return None
    if kind and is_text_hidden(kind):
        return f"{kind} (its text is not shown here: perdure runs show {run.id})"
    return write_text_for_clients(kind, text)


def is_text_hidden(kind: str) -> bool:
    """Return True if clients do not get the texts of errors of a kind."""
    return write_text_for_clients(kind, "") != ""


def describe_optional_run(run: Run | None) -> dict[str, Any] | None:
    """Return a run as ``describe_run`` does, ``None`` for ``None``."""
    if run is None:
        return None
    return describe_run(run)


def describe_run(run: Run) -> dict[str, Any]:
    """Return a run as JSON data, without its input."""
    return {
        "run_id": run.id,
        "state": run.state,
        "graph": run.graph,
        "graph_version": run.graph_version,
        "channel": run.channel,
        "attempts": run.attempts,
        "epoch": run.epoch,
        "first": run.first,
        "last": run.last,
        "base": run.base,
        "started_at": run.started_at,
        "updated_at": run.updated_at,
        "error": _describe_error(run),
    }


async def _list_by_id(steps: AsyncGenerator[WalkStep, None], wanted: Wanted) -> dict[str, Any]:
    """Return a page of the wanted threads by id, fewer than ``PAGE`` if finding them takes long."""
    until = time.monotonic() + _SECONDS
    found: list[dict[str, Any]] = []
    async with aclosing(steps):
        async for step in steps:
            if step.row is not None and wanted(step.row):
                found.append(describe_thread(step.row))
            if len(found) == PAGE or time.monotonic() > until:
                return {"threads": found, "cursor": step.place.cursor}
    return {"threads": found, "cursor": None}


async def _list_by_size(
    access: Access, steps: AsyncGenerator[WalkStep, None], wanted: Wanted
) -> dict[str, Any]:
    """Return the largest of the wanted threads, as far as there is time to examine them."""
    until = time.monotonic() + _SECONDS
    found: list[dict[str, Any]] = []
    group: list[ThreadRow] = []
    examined, cursor = 0, None
    async with aclosing(steps):
        async for step in steps:
            examined += step.partition is not None
            if step.row is not None and wanted(step.row):
                group.append(step.row)
            if len(group) == _MEASURED_AT_ONCE:
                found += await _measure(access, group)
                group = []
            if time.monotonic() > until:
                cursor = step.place.cursor
                break
    found += await _measure(access, group)
    found.sort(key=lambda each: each["bytes"] or 0, reverse=True)
    return {
        "threads": found[:PAGE],
        "bytes": sum(each["bytes"] or 0 for each in found),
        "examined": examined,
        "measured": len(found),
        "cursor": cursor,
    }


async def _measure(access: Access, rows: Sequence[ThreadRow]) -> list[dict[str, Any]]:
    sizes = await asyncio.gather(*(_size(access, row.thread_id) for row in rows))
    return [{**describe_thread(row), "bytes": size} for row, size in zip(rows, sizes, strict=True)]


async def _size(access: Access, thread_id: str) -> int | None:
    try:
        found = await access.handle.arun(measure(Partition(access.tenant, thread_id), access.handle.digest))
    except Unavailable:
        raise  # The database is unavailable, not the thread alone.
    except PerdureError:
        return None  # The fault is shown with the thread's row.
    return found.total


def _choose_sort(text: str | None, *, has_id: bool) -> str:
    if text is None and has_id:
        return _ID
    if text is None:
        return "activity"
    if text not in (*SORTS, _ID, _SIZE):
        raise BadSetting(f"sort is one of {sorted((*SORTS, _ID, _SIZE))}, not {text[:40]!r}")
    if has_id and text in SORTS:
        # Threads are found in the order of their ids, so ordering them by time would need all of them first.
        raise BadSetting(f"with an id, sort is {_ID!r} or {_SIZE!r}, not {text!r}")
    return text


def _read_status(text: str | None) -> Status | None:
    if text is not None and text not in get_args(Status):
        raise BadSetting(f"status is one of {list(get_args(Status))}, not {text!r}")
    return cast(Status | None, text)


def _read_metadata(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadSetting('metadata has to be a JSON object, such as {"graph_id": "agent"}')
    return found
