"""Reads the states of threads by their graphs, without what a graph refuses to read.

LangGraph stores what a task returned before it applies it. An update that a reducer refuses stays beside the
checkpoint, and every read of the state applies it again, and raises. A value that a channel or the next nodes
do not accept has the same effect. Here such parts are left out, each is named in the metadata of the state,
and everything else is read. To find these parts, the state is read with more and more of its
parts: only the graph knows what it refuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
)
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot, StateUpdate

from perdure.errors import PerdureError, Unreadable
from perdure.langgraph.reading.partial_saver import NULL_TASK, PartialSaver, StatePart, update_refused
from perdure.model.program import ProgramResult, advance

REFUSED = "refused"
"""Key of a state's metadata with the list of what was left out: objects with ``message``, ``error``, the name
of the exception's type, ``channels``, ``namespace``, and for an update ``node`` and ``task_id``."""


_PAGE = 8
"""Number of states of a history that are read at a time: LangGraph keeps all states of one listing in memory,
and builds their values in the event loop."""

Graph = Pregel[Any, Any, Any, Any]


class _PartialState(NamedTuple):
    """A state without the parts that the graph refuses, and the error that each of them raises."""

    state: StateSnapshot
    refused: Mapping[StatePart, Exception]


async def aread_state(graph: Graph, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
    """Return a thread's state, without the parts that the graph refuses: see ``REFUSED``.

    Args:
        graph: the graph, with its saver.
        config: the thread, and optionally the namespace and checkpoint.
        subgraphs: include the states of subgraphs.

    Raises:
        PerdureError: the state cannot be loaded.
        Unreadable: the graph refuses the state whatever is left out.
    """
    try:
        return await graph.aget_state(config, subgraphs=subgraphs)
    except PerdureError:
        raise
    except Exception as error:
        return (await _afind_refused(graph, config, subgraphs, error)).state


def read_state(graph: Graph, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
    """See ``aread_state``."""
    try:
        return graph.get_state(config, subgraphs=subgraphs)
    except PerdureError:
        raise
    except Exception as error:
        search = _find_refused(graph, error)
        step = advance(search)
        while not isinstance(step, ProgramResult):
            outcome: StateSnapshot | Exception
            try:
                outcome = step.get_state(config, subgraphs=subgraphs)
            except PerdureError:
                raise
            except Exception as failure:
                outcome = failure
            step = advance(search, outcome)
        return step.result.state


async def aread_history(
    graph: Graph,
    config: RunnableConfig,
    *,
    filter: dict[str, Any] | None = None,
    before: RunnableConfig | None = None,
    limit: int | None = None,
) -> AsyncIterator[StateSnapshot]:
    """Yield the states of a thread, newest first, each without the parts that the graph refuses.

    Args:
        graph: the graph, with its saver.
        config: the thread, and optionally the namespace.
        filter: metadata that have to be equal.
        before: yield only states before this checkpoint.
        limit: the most states to yield.
    """
    left = limit
    while left is None or left > 0:
        most = _PAGE if left is None else min(left, _PAGE)
        page = await _read_page(graph, config, filter, before, most)
        for state in page:
            yield state
        if not page or most == left:
            return
        before = page[-1].config
        if left is not None:
            left -= len(page)


async def _read_page(
    graph: Graph,
    config: RunnableConfig,
    filter: dict[str, Any] | None,
    before: RunnableConfig | None,
    limit: int,
) -> list[StateSnapshot]:
    """Return the next states of a history, each without the parts that the graph refuses."""
    states: list[StateSnapshot] = []
    try:
        history = graph.aget_state_history(config, filter=filter, before=before, limit=limit)
        states.extend([state async for state in history])
    except PerdureError:
        raise
    except Exception as error:
        partial, saver = _make_partial_graph(graph, error, lambda part: False)
        stripped = [
            state
            async for state in partial.aget_state_history(config, filter=filter, before=before, limit=limit)
        ]
        if not saver.parts:
            raise
        states += [await aread_state(graph, state.config) for state in stripped[len(states) :]]
    return states


async def aupdate_state(
    graph: Graph, config: RunnableConfig, values: Any, as_node: str | None = None
) -> RunnableConfig:
    """Write values to a state as LangGraph's method of this name does, even if the graph refuses a task's
    update that is stored beside the state, or the state's next tasks; these are left out of the new state.

    Messages that a run had taken up after its last checkpoint are written first: the state shows them, and
    LangGraph's method would drop them.

    Args:
        graph: the graph, with its saver.
        config: the thread, and optionally the checkpoint.
        values: the values.
        as_node: the node whose update they are.

    Raises:
        Exception: the graph refuses the values, or a stored value, which must not be lost. Then nothing is
        stored.
    """
    try:
        if values is None:
            taken_up = []
        else:
            taken_up = await _find_updates(graph, config)
        if taken_up:
            steps = [[StateUpdate(update, as_node)] for update in (*taken_up, values)]
            return await graph.abulk_update_state(config, steps)
        return await graph.aupdate_state(config, values, as_node=as_node)
    except PerdureError:
        raise
    except Exception as error:
        try:
            await graph.aget_state(config)
        except Exception as unreadable:
            partial_state = await _afind_refused(graph, config, False, unreadable)
        else:
            raise
        if any(part.kind == "value" for part in partial_state.refused):
            raise
        partial, _ = _make_partial_graph(graph, error, lambda part: part not in partial_state.refused)
        return await partial.aupdate_state(config, values, as_node=as_node)


async def _find_updates(graph: Graph, config: RunnableConfig) -> list[dict[str, Any]]:
    """Return the updates beside a thread's latest checkpoint that none of its tasks made, in order. There
    are none if the config names a checkpoint, as the state of a named checkpoint does not show them."""
    saver = graph.checkpointer
    if not isinstance(saver, BaseCheckpointSaver) or "checkpoint_id" in config.get("configurable", {}):
        return []
    found = await saver.aget_tuple(config)
    updates: list[dict[str, Any]] = []
    for task, channel, value in (found.pending_writes or ()) if found is not None else ():
        if task != NULL_TASK or channel in WRITES_IDX_MAP:
            continue
        if not updates or channel in updates[-1]:
            updates.append({})
        updates[-1][channel] = value
    return updates


async def amake_graph_without_refused(graph: Graph, config: RunnableConfig) -> Graph:
    """Return a graph that continues from a state without the stored updates that it refuses: their tasks run
    again instead of failing for good. If it refuses none, return the given graph.

    Args:
        graph: the graph, with its saver.
        config: the thread, and optionally the checkpoint.
    """
    try:
        await graph.aget_state(config)
        return graph
    except PerdureError:
        raise
    except Exception as error:
        partial_state = await _afind_refused(graph, config, False, error)
        if any(part.kind != "update" for part in partial_state.refused):
            return graph
        partial, _ = _make_partial_graph(graph, error, lambda part: part not in partial_state.refused)
        return partial


async def _afind_refused(
    graph: Graph, config: RunnableConfig, subgraphs: bool, error: Exception
) -> _PartialState:
    search = _find_refused(graph, error)
    step = advance(search)
    while not isinstance(step, ProgramResult):
        outcome: StateSnapshot | Exception
        try:
            outcome = await step.aget_state(config, subgraphs=subgraphs)
        except PerdureError:
            raise
        except Exception as failure:
            outcome = failure
        step = advance(search, outcome)
    return step.result


def _find_refused(
    graph: Graph, error: Exception
) -> Generator[Graph, StateSnapshot | Exception, _PartialState]:
    """Find the parts of a state that its graph refuses. Yields graphs that load only some parts, and is sent
    the state that each reads, or the error that it raises.

    Args:
        graph: the graph, with its saver.
        error: the error that reading all of the state raised; raised again if no part is the cause.
    """
    admitted: set[StatePart] = set()
    refused: dict[StatePart, Exception] = {}
    outcome, saver = yield from _attempt(graph, error, admitted)
    if not saver.parts:
        raise error
    if isinstance(outcome, Exception):
        raise _make_unreadable_error(error) from error
    # Values come before the tasks that read them, and tasks before their updates. The parts of a subgraph's
    # state are known only when its task is admitted.
    while undecided := [part for part in saver.parts if part not in admitted and part not in refused]:
        outcome, saver = yield from _attempt(graph, error, {*admitted, *undecided})
        low, high = 0, len(undecided)
        if isinstance(outcome, Exception):
            cause = outcome
            while high - low > 1:
                middle = (low + high) // 2
                outcome, _ = yield from _attempt(graph, error, {*admitted, *undecided[:middle]})
                if isinstance(outcome, Exception):
                    high, cause = middle, outcome
                else:
                    low = middle
            refused[undecided[low]] = cause
            high = low
        admitted.update(undecided[:high])
    outcome, saver = yield from _attempt(graph, error, admitted, refused)
    if isinstance(outcome, Exception):
        raise _make_unreadable_error(error) from error
    nodes = {task.id: task.name for task in _tasks_of(outcome)}
    marks = [_describe_refusal(part, refused[part], saver.channels.get(part, ()), nodes) for part in refused]
    metadata: Any = {**(outcome.metadata or {}), REFUSED: marks}
    return _PartialState(outcome._replace(metadata=metadata) if marks else outcome, refused)


def refusals(state: StateSnapshot) -> Sequence[Mapping[str, Any]]:
    """Return the descriptions of the parts that were left out of a state."""
    metadata: Mapping[str, Any] = state.metadata or {}
    marks: Sequence[Mapping[str, Any]] = metadata.get(REFUSED, ())
    return marks


def _attempt(
    graph: Graph,
    error: Exception,
    admitted: set[StatePart],
    refused: Mapping[StatePart, Exception] | None = None,
) -> Generator[Graph, StateSnapshot | Exception, tuple[StateSnapshot | Exception, PartialSaver]]:
    partial, saver = _make_partial_graph(graph, error, admitted.__contains__, refused)
    outcome = yield partial
    return outcome, saver


def _make_unreadable_error(error: Exception) -> Unreadable:
    return Unreadable(
        f"the graph cannot read the stored state ({type(error).__name__}), not even without values and "
        "updates; the thread is unchanged. Look at it with `perdure threads show`"
    )


def _describe_refusal(
    part: StatePart, error: Exception, channels: Sequence[str], nodes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the description of a part that was left out, without the error's text, which may quote users."""
    kind = type(error).__name__
    mark: dict[str, Any] = {"error": kind, "channels": list(channels), "namespace": part.namespace}
    match part.kind:
        case "value":
            mark["message"] = f"The graph refuses the stored value of {part.name!r} ({kind}); it is left out."
        case "tasks":
            mark["message"] = f"The next nodes refuse the state as their input ({kind}); they are left out."
        case "update":
            node = nodes.get(part.name)
            by = "a command" if node is None else f"node {node!r}"
            mark |= {"node": node, "task_id": part.name, "message": update_refused(by, channels, kind)}
    return mark


def _tasks_of(state: StateSnapshot) -> Iterable[Any]:
    for task in state.tasks:
        yield task
        if isinstance(task.state, StateSnapshot):
            yield from _tasks_of(task.state)


def _make_partial_graph(
    graph: Graph,
    error: Exception,
    admits: Callable[[StatePart], bool],
    refused: Mapping[StatePart, Exception] | None = None,
) -> tuple[Graph, PartialSaver]:
    """Return a graph that loads only some parts of the stored state, and its saver. Raises the error if the
    graph has no saver of its own."""
    if not isinstance(graph.checkpointer, BaseCheckpointSaver):
        raise error
    graphs = [graph, *(below for _, below in graph.get_subgraphs(recurse=True) if isinstance(below, Pregel))]
    nodes = {name for each in graphs for name in each.nodes}
    saver = PartialSaver(graph.checkpointer, nodes, admits, refused or {})
    return graph.copy({"checkpointer": saver}), saver


def select_outputs(graph: Pregel[Any, Any, Any, Any], values: Any) -> Any:
    """Return what a call of the graph would return of the values of a state: the fields of its output schema,
    and the interrupts."""
    names = graph.output_channels
    if isinstance(names, str) or not isinstance(values, Mapping):
        return values
    return {name: values[name] for name in (*names, INTERRUPT) if name in values}
