"""Runs of a tenant's threads: pages of them, one in detail, and repeating the failed ones.

A request examines threads for a moment, and returns where to go on. So its memory and its time do not depend
on the number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from perdure.errors import BadSetting, NotAllowed, NotFound
from perdure.inspector import actions
from perdure.inspector.access import Access
from perdure.inspector.listing import is_text_hidden
from perdure.inspector.requests import read_flag, read_text, read_time
from perdure.inspector.timeline import read_thread, require_parameter
from perdure.runtime.operations import entries, failures, reruns, run_search, stops
from perdure.runtime.operations.run_search import STATES, FoundRun, RunQuery
from perdure.runtime.operations.walk_by_activity import ThreadWalk

_SECONDS = 0.4
_PAGE = 50
_BUSY_MAX = 200


async def runs(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of runs.

    Args:
        access: The viewer's rights.
        asked: ``state``, ``user``, ``since`` (a span such as ``1h``, or a time in microseconds since 1970),
            ``error`` (a part of its type or text), ``group`` of errors, ``graph``, ``version`` of the
            graph, ``id`` (the beginning of a thread's id), ``stands`` (``1`` for failed runs that still need
            attention) and ``cursor``, all optional.

    Returns:
        ``runs``, newest first within the page, and the ``groups`` of their errors, both with whether the text
        of an error ``is_hidden`` from the viewer; the number of threads ``examined``, and how many of them
        are ``unreadable``; and the ``cursor`` to go on from, ``None`` at the end.

    Raises:
        BadSetting: A value cannot be used.
    """
    walk = ThreadWalk(
        access.handle, access.tenant, await access.authorize_listing(), prefix=read_text(asked, "id") or ""
    )
    query = await query_of(access, asked)
    found: list[FoundRun] = []
    examined = unreadable = 0
    until = time.monotonic() + _SECONDS
    async with aclosing(run_search.search(walk, query, asked.get("cursor") or "", _PAGE)) as steps:
        async for step in steps:
            if step.is_last:
                break
            examined += step.examined
            unreadable += step.fault is not None
            found += step.runs
            if len(found) >= _PAGE or time.monotonic() > until:
                return _page(found, examined, unreadable, step.cursor)
    return _page(found, examined, unreadable, None)


def _page(found: list[FoundRun], examined: int, unreadable: int, cursor: str | None) -> dict[str, Any]:
    found.sort(key=lambda each: -each.run.updated_at)
    failed = [
        (each.thread_id, each.run.id, each.run.updated_at, each.failure)
        for each in found
        if each.failure is not None
    ]
    groups = [entries.group_entry(group) for group in failures.group_failures(failed)]
    return {
        "runs": [_mark_hidden(entries.run_entry(each)) for each in found],
        "groups": [{**each, "is_hidden": is_text_hidden(each["kind"])} for each in groups],
        "examined": examined,
        "unreadable": unreadable,
        "cursor": cursor,
    }


async def run(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a run with its error and its traceback, and from where it can be run again.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread, ``run`` of the run.
    """
    partition, row = await read_thread(access, asked)
    run_id = require_parameter(asked, "run")
    found = await access.handle.arun(run_search.read_detail(partition, run_id, row))
    if found is None:
        raise NotFound(f"thread {partition.thread!r} has no run {run_id!r}")
    entry = _mark_hidden(entries.make_detail_entry(found))
    return {**entry, "permissions": sorted(await access.permissions())}


def _mark_hidden(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a run whose error says whether its text and its traceback are hidden here (``is_hidden``)."""
    if entry["error"] is None:
        return entry
    return {**entry, "error": {**entry["error"], "is_hidden": is_text_hidden(entry["error"]["kind"])}}


async def rerun_failed(access: Access, given: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat the next failed runs that still need attention, for a moment. Each is an action of its own, with
    its entry in the log.

    Args:
        access: The viewer's rights.
        given: ``user``, ``since``, ``error``, ``group``, ``graph``, ``version`` and ``cursor``, as for
            ``runs``.

    Returns:
        The ``reruns`` with their outcomes, and the ``cursor`` to go on from, ``None`` at the end.

    Raises:
        NotAllowed: The permission was not granted.
        BadSetting: A value cannot be used.
    """
    texts = {name: value for name, value in given.items() if isinstance(value, str)}
    if wrong := [name for name in (*_CONDITIONS, "cursor") if name in given and name not in texts]:
        raise BadSetting(f"{wrong[0]} has to be text")
    sees = await access.authorize_listing()
    query = (await query_of(access, texts))._replace(state=None)
    await actions.require_any(access, "retry")

    async def repeat(found: FoundRun) -> tuple[str, bool]:
        result = await actions.act(access, "rerun", {"id": found.thread_id, "run_id": found.run.id})
        return result["run_id"], result["was_repeated"]

    walk = ThreadWalk(access.handle, access.tenant, sees, prefix=read_text(texts, "id") or "")
    done: list[dict[str, Any]] = []
    until = time.monotonic() + _SECONDS
    async with aclosing(reruns.rerun_standing(walk, query, repeat, texts.get("cursor") or "")) as steps:
        async for step in steps:
            done += map(entries.rerun_entry, step.reruns)
            if time.monotonic() > until:
                return {"reruns": done, "cursor": step.cursor}
    return {"reruns": done, "cursor": None}


async def stop_runs(access: Access, given: Mapping[str, Any]) -> dict[str, Any]:
    """End open and waiting runs, for a moment. Each is an action of its own, with its entry in the log.

    Args:
        access: The viewer's rights.
        given: ``user`` and ``id``, as for ``runs``, both optional.

    Returns:
        The runs that were ``stopped``, the number of those that the viewer may not stop (``refused``), and
        ``more``, true if there may be others.

    Raises:
        NotAllowed: The permission was not granted.
        BadSetting: A value cannot be used.
    """
    if wrong := [name for name in ("user", "id") if not isinstance(given.get(name, ""), str)]:
        raise BadSetting(f"{wrong[0]} has to be text")
    sees = await access.authorize_listing()
    await actions.require_any(access, "cancel")
    walk = ThreadWalk(access.handle, access.tenant, sees, prefix=read_text(given, "id") or "")
    stopped: list[dict[str, Any]] = []
    refused = 0
    until = time.monotonic() + _SECONDS
    found = stops.find_unfinished(walk, user=read_text(given, "user"), most=_BUSY_MAX)
    async with aclosing(found) as unfinished:
        async for each in unfinished:
            try:
                await actions.act(access, "cancel", {"id": each.thread_id, "run_id": each.run_id})
            except NotFound:
                continue  # The run ended meanwhile.
            except NotAllowed:
                refused += 1
                continue
            stopped.append(each._asdict())
            if time.monotonic() > until:
                return {"stopped": stopped, "refused": refused, "more": True}
    return {"stopped": stopped, "refused": refused, "more": len(stopped) >= _BUSY_MAX}


_CONDITIONS = ("state", "user", "since", "error", "group", "graph", "version", "stands", "id")


async def query_of(access: Access, asked: Mapping[str, str]) -> RunQuery:
    """Return the conditions of a request on runs; raise ``BadSetting`` if one cannot be used."""
    state = read_text(asked, "state")
    if state is not None and state not in STATES:
        raise BadSetting(f"state is one of {list(STATES)}, not {state[:40]!r}")
    return RunQuery(
        state=state,
        user=read_text(asked, "user"),
        since=await read_time(access, asked, "since"),
        error=read_text(asked, "error"),
        group=read_text(asked, "group"),
        graph=read_text(asked, "graph"),
        version=read_text(asked, "version"),
        stands=read_flag(asked, "stands"),
    )
