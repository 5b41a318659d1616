"""Values that a run left in its thread, regardless of later runs."""

from __future__ import annotations

from typing import Any, NamedTuple

from langgraph.types import StateSnapshot

from perdure.langgraph.reading.readable_states import Graph, aread_history, aread_state, select_outputs
from perdure.langgraph.reading.shown_questions import aread_with_questions
from perdure.model.runs.messages import Run
from perdure.model.runs.waits import read_waits
from perdure.runtime import Standing
from perdure.runtime.options import Options
from perdure.runtime.tenant import TenantRuntime
from perdure.server import responses
from perdure.server.state_snapshots import config_of

_EARLIER = 20
"""Number of earlier runs that are searched for the values that a run without checkpoints started from."""


async def values_of(runtime: TenantRuntime, thread_id: str, run: Run) -> Any:
    """Return the outputs of the graph that a run left, regardless of later runs: those of its last
    checkpoint, with its questions. A run that stored nothing, or was rolled back, left the values that it
    started from."""
    async with runtime.open_graph(run.graph, "threads.read") as graph:
        return select_outputs(graph, await read_left(runtime, graph, thread_id, run))


class RunResult(NamedTuple):
    """Values after a run, values before the first of the runs that it continues, and the names of the graph's
    outputs."""

    after: Any
    before: Any
    outputs: frozenset[str]


async def result_of(runtime: TenantRuntime, thread_id: str, first: Run, last: Run) -> RunResult:
    """Return the result of a chain of runs, each of which answers the question of the one before."""
    async with runtime.open_graph(last.graph, "threads.read") as graph:
        after = await read_left(runtime, graph, thread_id, last)
        before = await _read_values_before(runtime, graph, thread_id, first)
        named = graph.output_channels
        return RunResult(after, before, frozenset([named] if isinstance(named, str) else named))


async def _read_values_before(runtime: TenantRuntime, graph: Graph, thread_id: str, run: Run) -> Any:
    """Return the values from which a run started."""
    filter_ = {"run_id": run.id, "source": "input"}
    async for first_state in aread_history(graph, config_of(thread_id), filter=filter_, limit=1):
        if first_state.parent_config is None:
            return {}
        parent = await aread_state(graph, first_state.parent_config)
        if parent.created_at is not None:
            return parent.values
    # The checkpoint of the run's input, or the one before, is not stored: the run started from the values
    # that the previous run left.
    for earlier in await runtime.runs(thread_id, limit=1, before=run.first):
        if (left := await last_of(graph, thread_id, earlier.id)) is not None:
            return left.values
    return {}


async def read_left(runtime: TenantRuntime, graph: Graph, thread_id: str, run: Run) -> Any:
    """Return the values that a run left, as ``values_of`` does, with the graph that is given."""
    waits = read_waits(run.note)
    current = await aread_with_questions(graph, config_of(thread_id))
    if (current.metadata or {}).get("run_id") == run.id:
        return responses.outcome(current, waits)
    if (last := await last_of(graph, thread_id, run.id)) is not None:
        return responses.outcome(last, waits)
    if (start := await _read_start(graph, thread_id, await runtime.find(thread_id, run.id))) is not None:
        return responses.outcome(start, waits)
    # The runs are read after the state: if this run is still the latest, the state is not of a later one.
    (latest,) = await runtime.runs(thread_id, limit=1)
    if latest.id == run.id:
        if current.created_at is not None:
            return responses.outcome(current, waits)
        return {}
    for earlier in await runtime.runs(thread_id, limit=_EARLIER, before=run.first):
        if (left := await last_of(graph, thread_id, earlier.id)) is not None:
            return responses.outcome(left, read_waits(earlier.note))
    return {}


async def last_of(graph: Graph, thread_id: str, run_id: str) -> StateSnapshot | None:
    """Return the state of a run's last checkpoint."""
    async for state in aread_history(graph, config_of(thread_id), filter={"run_id": run_id}, limit=1):
        return state
    return None


def start_of(standing: Standing | None) -> str | None:
    """Return the id of the checkpoint from which a run was to start, ``None`` for the thread's latest."""
    if standing is None:
        return None
    return Options.read_if_readable(standing.message.options).checkpoint_id


async def _read_start(graph: Graph, thread_id: str, standing: Standing | None) -> StateSnapshot | None:
    """Return the state of the checkpoint that a run named to start from, with the questions that are open
    there; ``None`` if it named none. If the run ends at a question of that step, it stores no later
    checkpoint, so that this is its state."""
    if (start := start_of(standing)) is None:
        return None
    state = await aread_with_questions(graph, config_of(thread_id, None, start))
    # LangGraph shows the questions of answered tasks, too, in a state that is not the latest.
    asking = [task for task in state.tasks if task.result is None]
    return state._replace(interrupts=tuple(interrupt for task in asking for interrupt in task.interrupts))
