"""Routes of threads: create, find, change, copy, prune and remove them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from typing import Any, Literal, TypeVar

from fastapi import Header, Request, Response
from langgraph.pregel import Pregel
from langgraph.types import Command, StateSnapshot, StateUpdate

from perdure.errors import Conflict, Corrupt, NotFound, PerdureError
from perdure.langgraph.loop_state import mark_scan
from perdure.langgraph.reading.readable_states import aread_state
from perdure.runtime.agents.agent import describe_unknown_nodes, parse_command
from perdure.runtime.failures.unfit_updates import describe_unfitness
from perdure.runtime.json_encoding import to_json, to_plain
from perdure.runtime.threads.index import contains
from perdure.runtime.threads.order import Order
from perdure.runtime.threads.rows import ThreadRow
from perdure.server import requests, responses
from perdure.server import thread_ids as naming
from perdure.server.auth.filters import Filter, find_patterns
from perdure.server.auth.identity import Refusal, require_stamp
from perdure.server.auth.reserved_names import with_verified
from perdure.server.openapi import make_router
from perdure.server.requests import Body
from perdure.server.resources import Caller, CallerNow, GatedRoute, ThreadId
from perdure.server.responses import Json
from perdure.server.state_snapshots import config_of, graph_id_of, is_of_thread, show_snapshot, snapshot
from perdure.server.streaming.json_list import json_list
from perdure.server.thread_graphs import keeps_apart, require_owner_kept

R = TypeVar("R")

router = make_router("threads", GatedRoute)

_CONCURRENT_READS = 8
SEARCH_S = 30
"""Seconds after which a search that reads threads, and has no answer yet, is refused."""
_NARROWED = ("metadata", "values", "status", "limit", "offset")
"""Conditions of a search that an authorization handler may change."""
_log = logging.getLogger("perdure.server")


class _Prune(Body):
    thread_ids: requests.ThreadIds
    strategy: Literal["delete", "keep_latest"] | None = None


@router.post("/threads")
async def create(caller: CallerNow, request: Request, new: requests.NewThread) -> Json:
    """Create a thread."""
    named = naming.require_same_thread(filter(None, await naming.read_from_request(request)))
    value: dict[str, Any] = {
        "thread_id": named or str(uuid.uuid4()),
        "metadata": with_verified(caller.user, new.metadata),
        "if_exists": new.if_exists or "raise",
        "ttl": _dump_ttl(new.ttl),
    }
    conditions = await caller.may("threads", "create", value)
    thread_id, metadata = naming.thread_id_of(value["thread_id"]), value["metadata"]
    caller.refuse_to_create(thread_id)
    ttl = value["ttl"]
    if isinstance(ttl, requests.Ttl):
        ttl = _dump_ttl(ttl)
    require_stamp(conditions, metadata)
    graph_id = metadata.get("graph_id")
    steps = _parse_supersteps(caller, new.supersteps or [], graph_id)
    row = await caller.threads.create(thread_id, metadata, ttl)
    if row is None:
        await caller.find_visible_thread(thread_id, conditions)
        # The response contains the existing thread, so the user has to be permitted to read it.
        existing = await caller.authorize_thread(thread_id, "read")
        if value["if_exists"] != "do_nothing":
            raise Conflict(f"Thread {thread_id!r} already exists.")
        await caller.threads.adopt(existing)
        return Json(await _show(caller, existing))
    if steps:
        try:
            async with caller.open_graph(str(graph_id), "threads.update", thread_id) as graph:
                _require_nodes(graph, steps)
                await graph.abulk_update_state(config_of(thread_id), steps)
                made = await aread_state(graph, config_of(thread_id))
        except Exception as error:
            # A refused state leaves no thread behind, unless a message was accepted for it meanwhile.
            await caller.threads.remove_resting(thread_id, only_unused=True)
            if isinstance(error, PerdureError | Refusal):
                raise
            raise Refusal(400, describe_unfitness(error)) from error
        await caller.threads.note_edit(thread_id, None, goes_on=bool(made.next))
        row = await caller.threads.get(thread_id)
    return Json(await _show(caller, row))


def _dump_ttl(ttl: requests.Ttl | None) -> dict[str, Any] | None:
    if ttl is None:
        return None
    return ttl.model_dump()


def _parse_supersteps(
    caller: Caller, given: list[requests.Superstep], graph_id: Any
) -> list[list[StateUpdate]]:
    """Return the updates with which a thread begins, by step. ``Refusal`` if there are too many, or if the
    graph that they are for is not served."""
    if given and graph_id is None:
        raise Refusal(422, "supersteps need metadata.graph_id, to know which graph they are for")
    if given and (not isinstance(graph_id, str) or graph_id not in caller.host.runtime.graphs):
        raise Refusal(422, f"metadata.graph_id is the name of a graph that is served, not {graph_id!r}")
    if (count := sum(len(step.updates) for step in given)) > requests.ITEMS_MAX:
        raise Refusal(422, f"supersteps hold {count} updates, and a request has at most {requests.ITEMS_MAX}")
    return [[_parse_update(update) for update in step.updates] for step in given]


def _require_nodes(graph: Pregel[Any, Any, Any, Any], steps: Sequence[Sequence[StateUpdate]]) -> None:
    """Raise ``Refusal`` if a command of the steps goes to a node that the graph does not have."""
    for update in (each for step in steps for each in step):
        command: Any = update.values
        if isinstance(command, Command) and (unknown := describe_unknown_nodes(graph, command)) is not None:
            raise Refusal(400, unknown)


def _parse_update(given: requests.SuperstepUpdate) -> StateUpdate:
    # LangGraph takes a command here, too, which the type of an update does not say.
    values: Any = given.values
    if given.command is not None:
        values = parse_command(given.command.dump_sent())
    return StateUpdate(values=values, as_node=given.as_node)


@router.post("/threads/search")
async def search(caller: CallerNow, asked: requests.ThreadSearch) -> Response:
    """Find threads, the ones with the latest activity first. Unreadable threads are marked."""
    rows, end, has_more = await _limit_time(_find(caller, asked))
    headers = responses.make_page_headers(end + has_more, end if has_more else None)
    return await json_list(_list_entries(caller, rows, asked), headers)


async def _list_entries(
    caller: Caller, rows: Sequence[ThreadRow], asked: requests.ThreadSearch
) -> AsyncGenerator[str, None]:
    for first in range(0, len(rows), _CONCURRENT_READS):
        for entry in await asyncio.gather(
            *(_make_entry(caller, row, asked) for row in rows[first : first + _CONCURRENT_READS])
        ):
            yield entry


async def _make_entry(caller: Caller, row: ThreadRow, asked: requests.ThreadSearch) -> str:
    """Return a thread of a listing as JSON text. Each thread is encoded separately, so that the values of
    one cannot fail the others."""
    needs_state = asked.select is None or {"values", "interrupts"} & {s.split(".")[0] for s in asked.select}
    try:
        state = None
        if needs_state or asked.extract:
            state = await _state(caller, row)
        return to_json(_select_parts(responses.thread(row, state), asked))
    except Exception as error:
        return to_json(_select_parts(responses.thread(row, None, _require_thread_fault(row, error)), asked))


def _select_parts(shown: dict[str, Any], asked: requests.ThreadSearch) -> dict[str, Any]:
    if asked.extract:
        shown["extracted"] = {name: _extract(shown, path) for name, path in asked.extract.items()}
    if asked.select is None:
        return shown
    # A part that the thread does not have is left out.
    return responses.select_parts(shown, [*asked.select, "extracted"])


def _require_thread_fault(row: ThreadRow, error: Exception) -> Exception:
    """Return an error that concerns this thread's values alone; raise any other, which concerns the
    database."""
    if not is_of_thread(error):
        raise error
    _log.warning("thread %r is listed without values: %s", row.thread_id, type(error).__name__)
    return error


@router.post("/threads/count")
async def count(caller: CallerNow, asked: requests.ThreadSearch) -> Json:
    """Count threads."""
    return Json(await _limit_time(_count(caller, asked)))


async def _count(caller: Caller, asked: requests.ThreadSearch) -> int:
    asked, conditions = await caller.narrow("threads", asked, _NARROWED)
    if not asked.values:
        return await caller.threads.index.count(
            metadata=asked.metadata,
            ids=asked.ids,
            status=asked.status,
            sees=caller.make_filter(conditions),
            holding=find_patterns(conditions),
        )
    return len([True async for _ in _find_matching(caller, asked, conditions)])


async def _limit_time(work: Coroutine[Any, Any, R]) -> R:
    """Return the result of a search. ``Refusal`` if it takes more than ``SEARCH_S`` seconds: its client may
    be gone by then."""
    limit = asyncio.timeout(SEARCH_S)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise Refusal(
            422,
            f"the search read threads for {SEARCH_S} seconds and was ended; narrow it, by ids, status or "
            "metadata rather than by values",
        ) from None


@router.post("/threads/prune")
async def prune(caller: CallerNow, asked: _Prune) -> Json:
    """Remove threads, or all of their history but the latest state."""
    pruned = 0
    for thread_id in dict.fromkeys(asked.thread_ids):
        conditions = await caller.may("threads", "delete", {"thread_id": thread_id})
        row = await caller.threads.find(thread_id)
        if row is None or not caller.sees(conditions, row.metadata):
            continue
        if asked.strategy == "keep_latest":
            await caller.threads.keep_latest(thread_id)
        else:
            await caller.threads.remove(thread_id)
        pruned += 1
    return Json({"pruned_count": pruned})


@router.get("/threads/{thread_id}")
async def get(caller: CallerNow, thread_id: ThreadId, include: str | None = None) -> Json:
    """Return a thread with its current state."""
    row = await caller.authorize_thread(thread_id, "read")
    shown = await _show(caller, row)
    if include and "ttl" in include.split(","):
        shown["ttl"] = responses.ttl(row)
    return Json(shown)


@router.patch("/threads/{thread_id}")
async def patch(
    caller: CallerNow, thread_id: ThreadId, asked: requests.ThreadPatch, prefer: str | None = Header(None)
) -> Response:
    """Merge into a thread's metadata."""
    stated = with_verified(caller.user, asked.metadata)
    value: dict[str, Any] = {"thread_id": thread_id, "metadata": stated}
    conditions = await caller.may("threads", "update", value)
    row = await caller.find_visible_thread(thread_id, conditions)
    metadata = value["metadata"]
    require_stamp(conditions, {**row.metadata, **metadata})
    require_owner_kept(caller, row, metadata)
    # The change is refused if the thread has changed since its owner was checked.
    seen = None
    if "graph_id" in metadata and keeps_apart(caller):
        seen = row.version
    row = await caller.threads.change(thread_id, metadata, _dump_ttl(asked.ttl), seen=seen)
    if prefer == "return=minimal":
        return Response(status_code=204)
    return Json(await _show(caller, row))


@router.delete("/threads/{thread_id}", status_code=204)
async def delete(caller: CallerNow, thread_id: ThreadId) -> Response:
    """Remove a thread with everything in it."""
    await caller.authorize_thread(thread_id, "delete")
    await caller.threads.remove(thread_id)
    return Response(status_code=204)


@router.post("/threads/{thread_id}/copy")
async def copy(caller: CallerNow, thread_id: ThreadId) -> Json:
    """Copy a thread with its whole history to a new one."""
    try:
        row = await caller.authorize_thread(thread_id, "read")
    except NotFound:
        # LangGraph's server answers so, too: the same for another user's thread as for a missing one.
        raise Conflict(f"Thread {thread_id!r} cannot be copied: it is not found.") from None
    kept = with_verified(caller.user, row.metadata)
    value: dict[str, Any] = {"thread_id": str(uuid.uuid4()), "metadata": kept}
    conditions = await caller.may("threads", "create", value)
    require_stamp(conditions, value["metadata"])
    target = naming.thread_id_of(value["thread_id"])
    if await caller.threads.create(target, value["metadata"]) is None:
        raise Conflict(f"Thread {target!r} already exists.")
    try:
        await caller.threads.copy(thread_id, target)
        # Read afterwards: of each checkpoint that was copied, the graph is known by now.
        if (source := await caller.threads.find(thread_id)) is not None:
            await caller.threads.change(target, {}, agents=source.agents)
    except Exception:
        # A failed copy leaves no thread behind.
        await caller.threads.remove(target)
        raise
    return Json(await _show(caller, await caller.threads.get(target)))


async def _find(caller: Caller, asked: requests.ThreadSearch) -> tuple[Sequence[ThreadRow], int, bool]:
    """Return a page of threads, the offset of its end, and True if there are more."""
    asked, conditions = await caller.narrow("threads", asked, _NARROWED)
    by = asked.sort_by or "updated_at"
    order = Order("updated_at" if by == "state_updated_at" else by, asked.sort_order != "asc")
    # With a condition on values each thread has to be read to know whether it matches.
    skip = 0 if asked.values else asked.offset
    end = asked.offset + asked.limit - skip
    rows: list[ThreadRow] = []
    enough = None if asked.values else end + 1
    async for row in _find_matching(caller, asked, conditions, order, skip, enough):
        rows.append(row)
        if len(rows) > end:
            break
    found = rows[asked.offset - skip : end]
    return found, asked.offset + len(found), len(rows) > end


async def _find_matching(
    caller: Caller,
    asked: requests.ThreadSearch,
    conditions: Filter | None,
    order: Order | None = None,
    skip: int = 0,
    enough: int | None = None,
) -> AsyncIterator[ThreadRow]:
    found = caller.threads.index.search(
        metadata=asked.metadata,
        ids=asked.ids,
        status=asked.status,
        sees=caller.make_filter(conditions),
        holding=find_patterns(conditions),
        order=order,
        skip=skip,
        enough=enough,
    )
    async for row in found:
        if asked.values:
            try:
                state = await _state(caller, row, is_scan=True)
                if state is None or not contains(to_plain(state.values), asked.values):
                    continue
            except Exception as error:
                _require_thread_fault(row, error)
                continue
        yield row


async def _show(caller: Caller, row: ThreadRow) -> dict[str, Any]:
    try:
        return responses.thread(row, await _state(caller, row))
    except Exception as error:
        return responses.thread(row, None, _require_thread_fault(row, error))


async def _state(caller: Caller, row: ThreadRow, *, is_scan: bool = False) -> StateSnapshot | None:
    if not row.has_state:
        return None
    config = config_of(mark_scan(row.thread_id)) if is_scan else None
    found = await show_snapshot(caller, row, config)
    if found.created_at is None and graph_id_of(caller, row) is not None:
        # The state was removed meanwhile, or the thread's head names a checkpoint that is not stored.
        current = await caller.threads.find(row.thread_id)
        if current is not None and current.has_state and (await snapshot(caller, current)).created_at is None:
            raise Corrupt(
                f"thread {row.thread_id!r}: its head names a checkpoint that is not stored; "
                "run `perdure fsck`"
            )
    return found


def _extract(shown: dict[str, Any], path: str) -> Any:
    """Return the value at a path such as ``values.messages[-1].content``, or None."""
    value: Any = to_plain(shown)
    for part in path.replace("[", ".[").split("."):
        try:
            if part.startswith("["):
                value = value[int(part.strip("[]"))]
            else:
                value = value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value
