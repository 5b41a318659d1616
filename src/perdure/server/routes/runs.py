"""Routes of runs: create, await, stream and cancel them."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote, urlencode

from fastapi import Query, Request, Response
from pydantic import Field

from perdure.database.base import handle_of
from perdure.errors import Conflict, NotFound, PerdureError, RunInProgress, Unavailable
from perdure.langgraph.reading.readable_states import select_outputs
from perdure.model.runs.messages import FAILED, OPEN, WAITING, Run
from perdure.runtime import Standing
from perdure.runtime.events.publisher import Ended
from perdure.runtime.json_encoding import to_json
from perdure.runtime.operations.stops import find_unfinished
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.options import StreamMode, describe_unknown_modes
from perdure.server import responses, thread_ids
from perdure.server.auth.identity import Refusal
from perdure.server.error_handlers import make_public_message
from perdure.server.openapi import make_router
from perdure.server.requests import RUN_MODES, Body, Contents, NewRun, Page, RunId, RunIds
from perdure.server.resources import Caller, CallerNow, GatedRoute, QueriedNames, ThreadId
from perdure.server.responses import Json
from perdure.server.runs.disconnects import cancel_left, note_request
from perdure.server.runs.run_creation import AcceptedRun, accept, check, require_storable, submit
from perdure.server.runs.run_values import read_left
from perdure.server.runs.temporary_threads import remove_after_run, remove_thread, wait_for_end
from perdure.server.state_snapshots import graph_id_of
from perdure.server.streaming import streams
from perdure.server.streaming.end_frames import wants_end
from perdure.server.streaming.late_response import LateResponse
from perdure.server.streaming.reading_rights import RunRights
from perdure.server.thread_ids import NAMES

router = make_router("runs", GatedRoute)

_PAGE = 100
_NAMED_MAX = 10
"""Maximum number of ids in the text of an error."""
_ID_LENGTH = 36
_DEFAULT_MODES: tuple[StreamMode, ...] = ("values",)

Action = Literal["interrupt", "rollback"]
Status = Literal["pending", "running", "error", "success", "timeout", "interrupted"]


class _CancelMany(Body):
    thread_id: str | None = None
    context_id: str | None = None
    run_ids: RunIds | None = None
    status: Literal["pending", "running", "all"] | None = None


class _RetryMany(Body):
    thread_id: str | None = None
    context_id: str | None = None
    run_ids: RunIds | None = None
    status: Literal["error"] | None = None
    metadata: Contents = Field(default_factory=dict[str, Any])
    limit: int = Field(default=100, ge=1, le=1000)


def path_of(thread_id: str, run_id: str) -> str:
    """Return the path of a run."""
    quoted = quote(thread_id, safe="")
    if quoted in (".", ".."):
        # Clients resolve these as relative path segments.
        quoted = quoted.replace(".", "%2E")
    return f"/threads/{quoted}/runs/{run_id}"


def _parse_modes(new: NewRun) -> tuple[StreamMode, ...]:
    if new.stream_mode:
        return tuple(dict.fromkeys(new.stream_mode))
    return _DEFAULT_MODES


# Creating runs


@router.post("/threads/{thread_id}/runs")
async def create(caller: CallerNow, request: Request, thread_id: ThreadId, new: NewRun) -> Json:
    """Accept a run, which is executed in the background."""
    return await _create(caller, request, thread_id, new)


@router.post("/runs")
async def create_alone(caller: CallerNow, request: Request, new: NewRun) -> Json:
    """Accept a run on a given thread or one of its own. The body or the query may name the thread."""
    return await _create(caller, request, _find_thread(request, new), new)


@router.post("/runs/batch")
async def create_batch(
    caller: CallerNow, request: Request, runs: Annotated[list[NewRun], Field(max_length=100)]
) -> Json:
    """Accept several runs, each on the thread that it names, or on one of its own. All of them are checked
    before the first one is accepted."""
    threads = [_find_thread(request, new) for new in runs]
    checked = [
        await check(caller, request.headers, thread_id, new, modes=_parse_modes(new), is_kept=True, part=part)
        for part, (thread_id, new) in enumerate(zip(threads, runs, strict=True))
    ]
    for run in checked:
        require_storable(run)
    answers = [await _respond_accepted(caller, await accept(caller, run)) for run in checked]
    return Json([json.loads(bytes(answer.body)) for answer in answers])


def _find_thread(request: Request, new: NewRun) -> str | None:
    """Return the thread that the query or the body names, for a run whose path has none."""
    return thread_ids.require_same_thread(
        [*thread_ids.read_from_query(request), *thread_ids.read_from_body(new.model_dump(include=set(NAMES)))]
    )


async def _create(caller: Caller, request: Request, thread_id: str | None, new: NewRun) -> Json:
    accepted = await submit(caller, request.headers, thread_id, new, modes=_parse_modes(new), is_kept=True)
    return await _respond_accepted(caller, accepted)


async def _respond_accepted(caller: Caller, accepted: AcceptedRun) -> Json:
    """Return a run that was accepted, even if another request has rolled it back since: a "not found"
    would be taken for that of the thread or the assistant. A temporary thread is removed after the run."""
    try:
        standing = await caller.runtime.find(accepted.thread_id, accepted.run_id)
    finally:
        # A short run may have ended already: its thread is removed only after the run was read here.
        if accepted.is_temporary:
            caller.host.run_in_background(remove_after_run(caller, accepted))
    if standing is None:
        raise _make_missing_error(accepted.run_id)
    return Json(
        _show_accepted(standing, accepted.thread_id, is_new=accepted.is_new),
        headers={"Content-Location": path_of(accepted.thread_id, accepted.run_id)},
    )


def _show_accepted(standing: Standing, thread_id: str, *, is_new: bool) -> dict[str, Any]:
    shown = responses.run(standing, thread_id)
    # The status of a new run when it was accepted: a worker may have begun it since.
    return {**shown, "status": "pending" if is_new else shown["status"] or "interrupted"}


@router.post("/threads/{thread_id}/runs/stream")
async def stream(caller: CallerNow, request: Request, thread_id: ThreadId, new: NewRun) -> Response:
    """Accept a run and stream its events."""
    return await _stream_run(caller, request, thread_id, new)


@router.post("/runs/stream")
async def stream_alone(caller: CallerNow, request: Request, new: NewRun) -> Response:
    """Accept a run on a given thread or one of its own, and stream its events. The body or the query may
    name the thread."""
    return await _stream_run(caller, request, _find_thread(request, new), new)


async def _stream_run(caller: Caller, request: Request, thread_id: str | None, new: NewRun) -> Response:
    is_kept = bool(new.stream_resumable)
    with caller.host.throttle.count_arrival():
        accepted = await submit(
            caller, request.headers, thread_id, new, modes=_parse_modes(new), is_kept=is_kept
        )
    if accepted.is_temporary:
        caller.host.run_in_background(remove_after_run(caller, accepted, linger=True))
    return streams.respond(
        caller,
        accepted,
        modes=_parse_modes(new),
        after=0,
        has_ids=is_kept,
        cancels=new.on_disconnect == "cancel",
        # For a client that is cut off before its first event id, the Location contains a cursor.
        headers=_make_addresses(accepted, "stream", streams.ALL if is_kept else None),
        has_end=wants_end(request),
        rights=RunRights(request, caller, accepted.thread_id),
    )


@router.post("/threads/{thread_id}/runs/wait")
async def wait(caller: CallerNow, request: Request, thread_id: ThreadId, new: NewRun) -> Response:
    """Accept a run and return the values that it ends with."""
    return await _wait_for_run(caller, request, thread_id, new)


@router.post("/runs/wait")
async def wait_alone(caller: CallerNow, request: Request, new: NewRun) -> Response:
    """Accept a run on a given thread or one of its own, and return its values. The body or the query may
    name the thread."""
    return await _wait_for_run(caller, request, _find_thread(request, new), new)


async def _wait_for_run(caller: Caller, request: Request, thread_id: str | None, new: NewRun) -> Response:
    # Subscribers of the thread receive this run's events too; a temporary thread has no subscribers.
    modes = () if thread_id is None else _DEFAULT_MODES
    with caller.host.throttle.count_arrival():
        accepted = await submit(caller, request.headers, thread_id, new, modes=modes, is_kept=False)
    work = _await_outcome(caller, accepted.thread_id, accepted.run_id, removes=accepted.is_temporary)
    rights = RunRights(request, caller, accepted.thread_id)
    return _respond_late(caller, rights, accepted, work, cancels=new.on_disconnect == "cancel")


# Reading and cancelling runs


@router.get("/threads/{thread_id}/runs")
async def list_runs(
    caller: CallerNow,
    thread_id: ThreadId,
    limit: Page = 10,
    offset: Annotated[int, Query(ge=0, le=1 << 53)] = 0,
    status: Status | None = None,
    select: QueriedNames = None,
) -> Json:
    """List a thread's runs, newest first."""
    await caller.authorize_thread(thread_id, "read")
    shown: list[dict[str, Any]] = []
    after: int | None = None
    if status in (None, "pending"):
        postponed = await caller.runtime.list_postponed(thread_id, limit=offset + limit)
        shown += [responses.run(Standing(message, None), thread_id) for message in postponed]
    while len(shown) < offset + limit:
        page = await caller.runtime.messages(thread_id, limit=_PAGE, before=after)
        for standing in page:
            # Coalesced messages are one run, which is listed with the first of them.
            is_first = standing.run is None or standing.run.first == standing.message.seq
            is_first = standing.joins is None and (is_first or responses.is_taken_up(standing))
            entry = responses.run(standing, thread_id)
            if is_first and entry["status"] and status in (None, entry["status"]):
                shown.append(entry)
        if len(page) < _PAGE:
            break
        after = page[-1].message.seq
    found = shown[offset : offset + limit]
    if select:
        found = [responses.select_parts(one, _parse_list(select)) for one in found]
    return Json(found)


@router.get("/threads/{thread_id}/runs/{run_id}")
async def get(caller: CallerNow, thread_id: ThreadId, run_id: RunId) -> Json:
    """Return a run with its current status."""
    await caller.authorize_thread(thread_id, "read")
    return Json(responses.run(await _find_standing(caller, thread_id, run_id), thread_id))


@router.get("/threads/{thread_id}/runs/{run_id}/join")
async def join(
    caller: CallerNow,
    request: Request,
    thread_id: ThreadId,
    run_id: RunId,
    cancel_on_disconnect: bool = False,
) -> Response:
    """Wait for a run's end and return its values."""
    await caller.authorize_thread(thread_id, "read")
    if cancel_on_disconnect:
        await caller.authorize_thread(thread_id, "update", run_id=run_id, action="interrupt")
    await _find_standing(caller, thread_id, run_id)
    joined = await _join(caller, thread_id, run_id, cancels=cancel_on_disconnect)
    work = _await_outcome(caller, thread_id, run_id)
    rights = RunRights(request, caller, thread_id, could_read=True)
    return _respond_late(caller, rights, joined, work, cancels=cancel_on_disconnect)


@router.get("/threads/{thread_id}/runs/{run_id}/stream")
async def join_stream(
    caller: CallerNow,
    request: Request,
    thread_id: ThreadId,
    run_id: RunId,
    *,
    stream_mode: QueriedNames = None,
    cancel_on_disconnect: bool = False,
    last_event_id: Annotated[str | None, Query()] = None,
) -> Response:
    """Stream a run's events from now on, or from a given event. If the run's stream is resumable, it
    starts after the event in ``Last-Event-ID`` or else in the parameter ``last_event_id``."""
    try:
        await caller.authorize_thread(thread_id, "read")
        if cancel_on_disconnect:
            await caller.authorize_thread(thread_id, "update", run_id=run_id, action="interrupt")
        standing = await _find_standing(caller, thread_id, run_id)
    except NotFound as error:
        # Clients retry a stream that fails to open; this one will never exist.
        return streams.respond_not_found(caller.host, str(error))
    is_kept = bool(standing.message.options.get("about", {}).get("kwargs", {}).get("stream_resumable"))
    after = None
    if is_kept:
        after = streams.cursor_of(request, last_event_id)
    else:
        last_event_id = None
    if after is None:
        after = await caller.runtime.latest_event(thread_id)
    # Clients send an empty value for an absent one.
    modes = [mode for mode in _parse_list(stream_mode or []) if mode] or None
    if unknown := [mode for mode in modes or () if mode not in RUN_MODES]:
        raise Refusal(422, describe_unknown_modes(unknown, RUN_MODES))
    joined = await _join(caller, thread_id, run_id, cancels=cancel_on_disconnect)
    return streams.respond(
        caller,
        joined,
        modes=modes,
        after=after,
        has_ids=is_kept,
        cancels=cancel_on_disconnect,
        headers=_make_addresses(joined, "stream", last_event_id),
        has_end=wants_end(request),
        rights=RunRights(request, caller, thread_id, could_read=True),
    )


@router.post("/threads/{thread_id}/runs/{run_id}/cancel")
async def cancel(
    caller: CallerNow,
    request: Request,
    thread_id: ThreadId,
    run_id: RunId,
    wait: bool = False,
    action: Action = "interrupt",
) -> Response:
    """Cancel a run, and keep its checkpoints or roll them back."""
    await caller.authorize_thread(thread_id, "update", run_id=run_id, action=action)
    _require_own_run(await _find_standing(caller, thread_id, run_id))
    if not await _cancel(caller, thread_id, run_id, action):
        raise NotFound(f"Run {run_id!r} has ended; there is nothing to cancel.")
    if not wait:
        return Response(status_code=202)
    work = _await_outcome(caller, thread_id, run_id)
    rights = RunRights(request, caller, thread_id)
    return _respond_late(caller, rights, AcceptedRun(thread_id, run_id), work, cancels=False)


@router.post("/runs/cancel", status_code=204)
async def cancel_many(
    caller: CallerNow, request: Request, asked: _CancelMany, action: Action = "interrupt"
) -> Response:
    """Cancel several runs: those of a thread by their ids, or all with a status. Nothing is cancelled if the
    thread does not have all of them; those that have ended stay as they are."""
    thread_id = thread_ids.require_same_thread(await thread_ids.read_from_request(request))
    if (named := _find_named_runs(thread_id, asked, "a status")) is not None:
        thread_id, run_ids = named
        await caller.authorize_thread(thread_id, "update", action=action)
        await _require_runs(caller, thread_id, run_ids)
        for run_id in run_ids:
            await _cancel(caller, thread_id, run_id, action)
        return Response(status_code=204)
    conditions = await caller.may("threads", "update", {"action": action})
    runtime = caller.host.runtime
    walk = ThreadWalk(handle_of(runtime.database), caller.user.tenant, caller.make_filter(conditions))
    async with aclosing(find_unfinished(walk, settings=runtime.settings)) as found:
        async for each in found:
            if asked.status in ("all", "running" if each.is_open else "pending"):
                await _cancel(caller, each.thread_id, each.run_id, action)
    return Response(status_code=204)


def _find_named_runs(
    thread_id: str | None, asked: _CancelMany | _RetryMany, status: str
) -> tuple[str, list[str]] | None:
    """Return the thread and the ids of the runs that a request names; ``None`` if it names a status.

    A request that names both, or only a part of one, is refused: a list of runs without its thread could
    otherwise be taken for all runs of the status.
    """
    if thread_id is not None and asked.run_ids is not None and asked.status is None:
        return thread_id, asked.run_ids
    if thread_id is None and asked.run_ids is None and asked.status is not None:
        return None
    raise Refusal(422, f"name a thread_id and its run_ids, or {status}, and not both")


@router.post("/threads/{thread_id}/runs/{run_id}/retry")
async def retry(caller: CallerNow, thread_id: ThreadId, run_id: RunId) -> Json:
    """Run a failed run again from its last stored step, as a run of its own. The record of the failure
    stays."""
    await caller.authorize_thread(thread_id, "create_run", run_id=run_id)
    ticket = await caller.runtime.retry(thread_id, run_id)
    return Json(_show_accepted(await caller.runtime.look(ticket), thread_id, is_new=not ticket.is_duplicate))


@router.post("/runs/retry")
async def retry_many(caller: CallerNow, request: Request, asked: _RetryMany) -> Json:
    """Run failed runs again: those of a thread by their ids, or the latest one of each thread in error."""
    thread_id = thread_ids.require_same_thread(await thread_ids.read_from_request(request))
    failed: list[tuple[str, str]] = []
    if (named := _find_named_runs(thread_id, asked, "the status 'error'")) is not None:
        thread_id, run_ids = named
        await caller.authorize_thread(thread_id, "create_run")
        failed = [(thread_id, run_id) for run_id in run_ids]
    else:
        conditions = await caller.may("threads", "create_run", {})
        async for row in caller.threads.index.search(status="error", metadata=asked.metadata):
            if row.run is not None and row.run.state == FAILED and caller.sees(conditions, row.metadata):
                failed.append((row.thread_id, row.run.id))
            if len(failed) == asked.limit:
                break
    return Json([await _retry_one(caller, *each) for each in failed])


async def _retry_one(caller: Caller, thread_id: str, run_id: str) -> dict[str, Any]:
    """Run one of several failed runs again. An error is returned as its result, so that the others go on."""
    names = {"thread_id": thread_id, "retry_of": run_id}
    try:
        return {**names, "run_id": (await caller.runtime.retry(thread_id, run_id)).id, "error": None}
    except Unavailable:
        raise
    except PerdureError as error:
        return {
            **names,
            "run_id": None,
            "error": {"error": type(error).__name__, "message": make_public_message(error)},
        }


@router.delete("/threads/{thread_id}/runs/{run_id}", status_code=204)
async def delete(
    caller: CallerNow, thread_id: ThreadId, run_id: RunId, checkpoints: Literal["keep", "delete"] = "keep"
) -> Response:
    """Remove a run. Its checkpoints stay by default."""
    await caller.authorize_thread(thread_id, "delete", run_id=run_id)
    standing = await _find_standing(caller, thread_id, run_id)
    _require_own_run(standing)
    if not standing.is_over or standing.run is None or standing.run.state == OPEN:
        raise RunInProgress(f"Run {run_id!r} has not ended; cancel it first.")
    if standing.run.state == WAITING and await caller.runtime.waiting_run(thread_id) == standing.run.id:
        raise RunInProgress(
            f"Thread {thread_id!r} waits for an answer to run {run_id!r}; give it, or end its step with "
            "goto='__end__', first."
        )
    await caller.runtime.remove_run(thread_id, standing.run, rollback=checkpoints == "delete")
    return Response(status_code=204)


async def _cancel(caller: Caller, thread_id: str, run_id: str, action: Action) -> bool:
    return await caller.runtime.cancel(thread_id, run_id, rollback=action == "rollback")


async def _find_standing(caller: Caller, thread_id: str, run_id: str) -> Standing:
    standing = await caller.runtime.find(thread_id, run_id)
    if standing is None or not responses.run_status(standing):
        raise _make_missing_error(run_id)
    return standing


def _make_missing_error(run_id: str) -> NotFound:
    return NotFound(f"Run {run_id!r} not found.")


async def _require_runs(caller: Caller, thread_id: str, run_ids: Sequence[str]) -> None:
    """Raise ``NotFound``, with their ids, if a thread does not have some of the runs that a request names."""
    missing: list[str] = []
    for run_id in run_ids:
        standing = await caller.runtime.find(thread_id, run_id)
        if standing is None or not responses.run_status(standing):
            missing.append(run_id)
        else:
            _require_own_run(standing)
    if missing:
        named = ", ".join(repr(run_id[:_ID_LENGTH]) for run_id in missing[:_NAMED_MAX])
        raise NotFound(
            f"Thread {thread_id!r} does not have {len(missing)} of these runs: {named}; nothing was "
            "cancelled. Leave their ids out"
        )


def _require_own_run(standing: Standing) -> None:
    """Raise ``Conflict`` if a message was taken up by an open run, so that it has no run of its own."""
    if responses.is_taken_up(standing) and standing.run is not None:
        raise Conflict(
            f"Run {standing.message.id!r} steered run {standing.run.id!r}, which has taken it up; "
            "name that run."
        )


async def _join(caller: Caller, thread_id: str, run_id: str, *, cancels: bool) -> AcceptedRun:
    """Return a run that a further request follows; with ``cancels``, its client's disconnection ends it."""
    if not cancels:
        return AcceptedRun(thread_id, run_id)
    return AcceptedRun(thread_id, run_id, request=await note_request(caller, thread_id, run_id))


async def _await_outcome(caller: Caller, thread_id: str, run_id: str, *, removes: bool = False) -> bytes:
    """Wait for a run's end and return its result as JSON: its values, or its error. If the run is removed
    meanwhile, the JSON has an error, too, as the response has begun by then."""
    try:
        return await _read_outcome(caller, thread_id, run_id, removes=removes)
    except NotFound as error:
        return to_json({"__error__": {"error": "NotFound", "message": str(error)}}).encode()


async def _read_outcome(caller: Caller, thread_id: str, run_id: str, *, removes: bool) -> bytes:
    standing = await wait_for_end(caller, thread_id, run_id)
    if (error := responses.end_error(standing)) is not None:
        result = to_json({"__error__": error})
    elif isinstance(standing, Ended) and standing.values is not None:
        result = standing.values
    else:
        # A run without an error has begun.
        result = to_json(await _read_values(caller, thread_id, cast(Run, standing.run)))
    if removes and standing.message.channel:
        caller.host.run_in_background(remove_thread(caller, standing, thread_id))
    elif removes:
        await remove_thread(caller, standing, thread_id)
    return result.encode()


async def _read_values(caller: Caller, thread_id: str, run: Run) -> Any:
    """Return the outputs that a run left."""
    row = await caller.threads.get(thread_id)
    # By now the thread may belong to another graph.
    graph_id = run.graph if run.graph in caller.host.runtime.graphs else graph_id_of(caller, row)
    if graph_id is None:
        return {}
    async with caller.open_graph(graph_id, "threads.read", thread_id) as graph:
        return select_outputs(graph, await read_left(caller.runtime, graph, thread_id, run))


def _respond_late(
    caller: Caller,
    rights: RunRights,
    accepted: AcceptedRun,
    work: Coroutine[Any, Any, bytes],
    *,
    cancels: bool,
) -> Response:
    def note_disconnect() -> None:
        if caller.host.closing.is_set():
            return
        if cancels and not rights.is_lost:
            caller.host.run_in_background(
                cancel_left(caller, accepted.thread_id, accepted.run_id, accepted.request)
            )
        if accepted.is_temporary:
            caller.host.run_in_background(remove_after_run(caller, accepted))

    return rights.guard(LateResponse(work, note_disconnect, _make_addresses(accepted, "join")))


def _make_addresses(
    accepted: AcceptedRun, then: Literal["stream", "join"], after: str | None = None
) -> dict[str, str]:
    """Return headers with the path of a run, and with the URL at which a client that lost its connection
    resumes. The URL names the event ``after`` which to resume; the client's own header takes precedence."""
    path = path_of(accepted.thread_id, accepted.run_id)
    query = ""
    if after is not None:
        query = f"?{urlencode({'last_event_id': after})}"
    return {"Content-Location": path, "Location": f"{path}/{then}{query}"}


def _parse_list(given: list[str]) -> list[str]:
    """Return a list that was sent as several values, or as JSON in one of them."""
    listed: list[str] = []
    for text in given:
        if text.startswith("["):
            try:
                listed += map(str, json.loads(text))
                continue
            except (ValueError, RecursionError):
                raise Refusal(422, "a list in the query is several values, or JSON") from None
        listed.append(text)
    return listed
