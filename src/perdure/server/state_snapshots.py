"""A thread's state as LangGraph reads it: by which graph, and at which checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import StateSnapshot

from perdure.errors import MigrationRequired, Unavailable
from perdure.langgraph.reading.readable_states import aread_state
from perdure.langgraph.reading.shown_questions import aread_with_questions
from perdure.model.write_records import INTERRUPT
from perdure.runtime.threads.rows import ThreadRow
from perdure.server import requests, thread_ids
from perdure.server.resources import Caller
from perdure.server.thread_graphs import owner_of


def config_of(
    thread_id: str, ref: requests.Ref | None = None, checkpoint_id: str | None = None
) -> RunnableConfig:
    """Return LangGraph's config for a thread. ``Refusal`` if the reference names another thread.

    Args:
        thread_id: the thread.
        ref: a checkpoint of the thread or of a subgraph; by default the latest.
        checkpoint_id: the checkpoint, if ``ref`` names none.
    """
    ref = ref or requests.Ref()
    thread_ids.require_same(thread_id, ref.thread_id)
    configurable: dict[str, Any] = {"thread_id": thread_id}
    if ref.checkpoint_ns:
        configurable["checkpoint_ns"] = ref.checkpoint_ns
    if chosen := ref.checkpoint_id or checkpoint_id:
        configurable["checkpoint_id"] = chosen
    return {"configurable": configurable}


def graph_id_of(caller: Caller, row: ThreadRow) -> str | None:
    """Return the graph of a thread: the one that ran on it, or for a thread without runs the only graph of
    the server. None if it is not served, or cannot be known."""
    graphs = caller.host.runtime.graphs
    named = owner_of(row)
    if named in graphs:
        return named
    if row.graph_id is None and len(graphs) == 1:
        return next(iter(graphs))
    return None


async def snapshot(
    caller: Caller, row: ThreadRow, config: RunnableConfig | None = None, *, subgraphs: bool = False
) -> StateSnapshot:
    """Return a thread's state, empty if no graph that is served belongs to the thread. Its metadata lists,
    under ``REFUSED``, the values that the graph refuses to read.

    Args:
        caller: the authenticated user of the request.
        row: the thread.
        config: the checkpoint; by default the latest.
        subgraphs: include the states of subgraphs.
    """
    graph_id = graph_id_of(caller, row)
    if graph_id is None:
        return StateSnapshot({}, (), config or config_of(row.thread_id), None, None, None, (), ())
    async with caller.open_graph(graph_id, "threads.read", row.thread_id) as graph:
        return await aread_state(graph, config or config_of(row.thread_id), subgraphs=subgraphs)


async def show_snapshot(
    caller: Caller, row: ThreadRow, config: RunnableConfig | None = None, *, subgraphs: bool = False
) -> StateSnapshot:
    """Return a state as ``snapshot`` does. The latest state has only the interrupts that may be answered:
    none while the thread is busy, otherwise all of them, including those that LangGraph leaves out."""
    config = config or config_of(row.thread_id)
    configurable = config.get("configurable", {})
    is_latest = "checkpoint_id" not in configurable and not configurable.get("checkpoint_ns")
    graph_id = graph_id_of(caller, row)
    if not is_latest or graph_id is None:
        return await snapshot(caller, row, config, subgraphs=subgraphs)
    async with caller.open_graph(graph_id, "threads.read", row.thread_id) as graph:
        state = await aread_with_questions(graph, config, subgraphs=subgraphs)
    if row.status == "busy":
        return _without_questions(state)
    return state


def _without_questions(state: StateSnapshot) -> StateSnapshot:
    tasks = [
        task._replace(
            interrupts=(),
            state=_without_questions(task.state) if isinstance(task.state, StateSnapshot) else task.state,
        )
        for task in state.tasks
    ]
    return state._replace(tasks=tuple(tasks), interrupts=())


def list_messages(values: Any) -> list[Any]:
    """Return the messages of a state; none if it has none."""
    if isinstance(values, Mapping) and isinstance(messages := values.get("messages"), list):
        return messages
    return []


def list_asked(values: Any) -> Sequence[Any]:
    """Return the interrupts among the values that a run left, as JSON data; none if it asks nothing."""
    asked: Sequence[Any] = ()
    if isinstance(values, Mapping):
        asked = values.get(INTERRUPT, ())
    return asked


def is_of_thread(error: Exception) -> bool:
    """Return True if an error concerns the thread that was read, so that others may be read; False if it
    concerns the database."""
    return not isinstance(error, Unavailable | MigrationRequired)
