"""Routes of a thread's state: current, past, and edited."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

from fastapi import Response
from langchain_core.runnables import RunnableConfig

from perdure.errors import PerdureError, RunInProgress
from perdure.langgraph.reading.readable_states import aread_history, aread_state, aupdate_state
from perdure.model.thread_agents import name_editor
from perdure.runtime.failures.unfit_updates import describe_unfitness
from perdure.runtime.json_encoding import to_json
from perdure.runtime.threads.rows import ThreadRow
from perdure.server import requests, responses
from perdure.server.auth.identity import Refusal
from perdure.server.openapi import make_router
from perdure.server.resources import Caller, CallerNow, GatedRoute, QueriedNames, ThreadId
from perdure.server.responses import Json
from perdure.server.runs.checkpoint_references import NoCheckpoint, choose_id, require
from perdure.server.state_snapshots import config_of, graph_id_of, show_snapshot
from perdure.server.streaming.json_list import json_list
from perdure.server.thread_ids import require_same

router = make_router("threads", GatedRoute)


async def _show(
    caller: CallerNow, row: ThreadRow, config: RunnableConfig, subgraphs: bool, select: list[str] | None
) -> Json:
    state = await show_snapshot(caller, row, config, subgraphs=subgraphs)
    checkpoint_id = config.get("configurable", {}).get("checkpoint_id")
    if state.created_at is None and checkpoint_id is not None:
        raise NoCheckpoint(row.thread_id, checkpoint_id)
    return Json(responses.with_waits(responses.state(state, select), row))


@router.get("/threads/{thread_id}/state")
async def get(
    caller: CallerNow, thread_id: ThreadId, subgraphs: bool = False, select: QueriedNames = None
) -> Json:
    """Return a thread's current state."""
    row = await caller.authorize_thread(thread_id, "read")
    return await _show(caller, row, config_of(thread_id), subgraphs, select)


@router.get("/threads/{thread_id}/state/{checkpoint_id}")
async def get_at(
    caller: CallerNow,
    thread_id: ThreadId,
    checkpoint_id: str,
    subgraphs: bool = False,
    select: QueriedNames = None,
) -> Json:
    """Return a thread's state at a checkpoint."""
    row = await caller.authorize_thread(thread_id, "read")
    return await _show(caller, row, config_of(thread_id, None, checkpoint_id), subgraphs, select)


@router.post("/threads/{thread_id}/state/checkpoint")
async def get_checkpoint(caller: CallerNow, thread_id: ThreadId, asked: requests.StateAt) -> Json:
    """Return a thread's state at a checkpoint, which may be a subgraph's."""
    row = await caller.authorize_thread(thread_id, "read")
    return await _show(caller, row, config_of(thread_id, asked.checkpoint), asked.subgraphs, asked.select)


@router.post("/threads/{thread_id}/state")
async def update(caller: CallerNow, thread_id: ThreadId, asked: requests.StateUpdate) -> Json:
    """Write new values to a state, as if a node had returned them; at a past checkpoint this creates a
    fork."""
    conditions = await caller.may("threads", "update", {"thread_id": thread_id, "metadata": {}})
    row = await caller.find_visible_thread(thread_id, conditions)
    ref = asked.checkpoint or requests.Ref()
    chosen = {"checkpoint_id": choose_id(ref.checkpoint_id, asked.checkpoint_id)}
    ref = ref.model_copy(update=chosen)
    await require(caller, thread_id, ref)
    if row.status == "busy":
        raise RunInProgress(f"Thread {thread_id!r} has a run under way; wait for it, or cancel it.")
    if await caller.runtime.list_postponed(thread_id, limit=1):
        raise RunInProgress(f"Thread {thread_id!r} has a run that comes later; wait for it, or cancel it.")
    graph_id = graph_id_of(caller, row)
    if graph_id is None:
        raise Refusal(
            400, f"Thread {thread_id!r} has no graph; set metadata.graph_id, or run one on it first."
        )
    config = config_of(thread_id, ref)
    config["metadata"] = {**name_editor(row.metadata, graph_id)}
    async with caller.open_graph(graph_id, "threads.update", thread_id) as graph:
        nodes = (*graph.nodes, "__input__", "__copy__", "__end__")
        if asked.as_node is not None and asked.as_node not in nodes:
            raise Refusal(400, f"Node {asked.as_node} does not exist")
        try:
            updated = await aupdate_state(graph, config, asked.values, as_node=asked.as_node)
        except PerdureError:
            raise
        except Exception as error:
            raise Refusal(400, describe_unfitness(error)) from error
        latest = await aread_state(graph, config_of(thread_id))
    run_id = None if row.run is None else row.run.id
    await caller.threads.note_edit(thread_id, run_id, goes_on=bool(latest.next))
    return Json(responses.checkpoint(updated))


@router.get("/threads/{thread_id}/history")
async def history_of(
    caller: CallerNow, thread_id: ThreadId, limit: requests.Page = 10, before: str | None = None
) -> Response:
    """List a thread's states of all branches, newest first."""
    return await history(caller, thread_id, requests.History(limit=limit, before=before))


@router.post("/threads/{thread_id}/history")
async def history(caller: CallerNow, thread_id: ThreadId, asked: requests.History) -> Response:
    """List a thread's states of all branches, newest first, with filters."""
    row = await caller.authorize_thread(thread_id, "read")
    graph_id = graph_id_of(caller, row)
    config, before = config_of(thread_id, asked.checkpoint), _parse_before(thread_id, asked.before)
    # It is shown with each state, and not stored with any.
    is_of_thread = asked.metadata.pop("thread_id", thread_id) == thread_id
    if graph_id is None or not is_of_thread:
        return Json([])
    return await json_list(_stream_past_states(caller, row, graph_id, asked, (config, before)))


async def _stream_past_states(
    caller: Caller,
    row: ThreadRow,
    graph_id: str,
    asked: requests.History,
    configs: tuple[RunnableConfig, RunnableConfig | None],
) -> AsyncGenerator[str, None]:
    config, before = configs
    async with caller.open_graph(graph_id, "threads.read", row.thread_id) as graph:
        found = aread_history(
            graph,
            config,
            filter=asked.metadata or None,
            before=before,
            limit=asked.limit,
        )
        async for state in found:
            yield to_json(responses.with_waits(responses.state(state, asked.select), row))


def _parse_before(thread_id: str, given: str | dict[str, Any] | None) -> RunnableConfig | None:
    if given is None:
        return None
    if isinstance(given, str):
        return config_of(thread_id, None, given)
    ref = given.get("configurable", given)
    if not isinstance(ref, dict) or not isinstance(ref.get("checkpoint_id"), str):
        raise Refusal(422, "before names no checkpoint: give its id, a reference to it, or a config of it")
    require_same(thread_id, ref.get("thread_id"))
    return cast(RunnableConfig, {"configurable": {**ref, "thread_id": thread_id}})
