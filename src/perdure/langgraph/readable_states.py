"""Reads the states of threads by their graphs, without what a graph refuses to read.

LangGraph stores what a task returned before it applies it. An update that a reducer refuses stays beside the
checkpoint, and every read of the state applies it again, and raises. So does a value that a channel does not
take, and one that the next nodes do not take as input. Here such parts are left out, each is named in the
metadata of the state, and everything else is read. Which parts they are is found by reading the state with
more and more of them: only the graph knows what it refuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.types import ERROR, TASKS
from langgraph.errors import InvalidUpdateError
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot, StateUpdate

from perdure.errors import PerdureError, Unreadable

REFUSED = "refused"
"""Key of a state's metadata with the list of what was left out: objects with ``message``, ``error``, the name
of the exception's type, ``channels``, ``namespace``, and for an update ``node`` and ``task_id``."""

_NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""Task id under which LangGraph stores updates of commands."""

_INTERNAL = ("__", "branch:")
"""Prefixes of LangGraph's own channels."""

Graph = Pregel[Any, Any, Any, Any]


class _Part(NamedTuple):
    """A part of a checkpoint: the value of a channel, the tasks that come next, or the update of a task."""

    namespace: str
    checkpoint_id: str
    kind: Literal["value", "tasks", "update"]
    name: str


class _Found(NamedTuple):
    """A state without the parts that the graph refuses, and the error that each of them raises."""

    state: StateSnapshot
    refused: Mapping[_Part, Exception]


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
        return (await _afind(graph, config, subgraphs, error)).state


def read_state(graph: Graph, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
    """See ``aread_state``."""
    try:
        return graph.get_state(config, subgraphs=subgraphs)
    except PerdureError:
        raise
    except Exception as error:
        search = _search(graph, error)
        partial = next(search)
        try:
            while True:
                try:
                    outcome: StateSnapshot | Exception = partial.get_state(config, subgraphs=subgraphs)
                except PerdureError:
                    raise
                except Exception as failure:
                    outcome = failure
                partial = search.send(outcome)
        except StopIteration as end:
            found: _Found = end.value
            return found.state


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
        before: start after this checkpoint.
        limit: the most states to yield.
    """
    yielded: set[str] = set()
    try:
        async for state in graph.aget_state_history(config, filter=filter, before=before, limit=limit):
            yield state
            yielded.add(_id_of(state))
        return
    except PerdureError:
        raise
    except Exception as error:
        partial, saver = _with_parts(graph, error, lambda part: False)
        bare = [
            state
            async for state in partial.aget_state_history(config, filter=filter, before=before, limit=limit)
        ]
        if not saver.parts:
            raise
    for state in bare:
        if _id_of(state) not in yielded:
            yield await aread_state(graph, state.config)


async def aupdate_state(
    graph: Graph, config: RunnableConfig, values: Any, as_node: str | None = None
) -> RunnableConfig:
    """Write values to a state as LangGraph's method of this name does, also if the graph refuses the update
    of a task that is stored beside it, or its next tasks; these are left out of the new state.

    Messages that a run had taken up after its last checkpoint are written first: the state shows them, and
    LangGraph's method would drop them.

    Args:
        graph: the graph, with its saver.
        config: the thread, and optionally the checkpoint.
        values: the values.
        as_node: the node whose update they are.

    Raises:
        Exception: the graph refuses the values, or a stored value, which must not be lost. Of the values
            nothing is stored.
    """
    try:
        taken_up = [] if values is None else await _taken_up(graph, config)
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
            found = await _afind(graph, config, False, unreadable)
        else:
            raise
        if any(part.kind == "value" for part in found.refused):
            raise
        partial, _ = _with_parts(graph, error, lambda part: part not in found.refused)
        return await partial.aupdate_state(config, values, as_node=as_node)


async def _taken_up(graph: Graph, config: RunnableConfig) -> list[dict[str, Any]]:
    """Return the updates beside a thread's latest checkpoint that no task of it made, in order. The state of
    a checkpoint that is named does not show them."""
    saver = graph.checkpointer
    if not isinstance(saver, BaseCheckpointSaver) or "checkpoint_id" in config.get("configurable", {}):
        return []
    found = await saver.aget_tuple(config)
    updates: list[dict[str, Any]] = []
    for task, channel, value in (found.pending_writes or ()) if found is not None else ():
        if task != _NULL_TASK or channel in WRITES_IDX_MAP:
            continue
        if not updates or channel in updates[-1]:
            updates.append({})
        updates[-1][channel] = value
    return updates


async def _afind(graph: Graph, config: RunnableConfig, subgraphs: bool, error: Exception) -> _Found:
    search = _search(graph, error)
    partial = next(search)
    try:
        while True:
            try:
                outcome: StateSnapshot | Exception = await partial.aget_state(config, subgraphs=subgraphs)
            except PerdureError:
                raise
            except Exception as failure:
                outcome = failure
            partial = search.send(outcome)
    except StopIteration as end:
        found: _Found = end.value
        return found


def _search(graph: Graph, error: Exception) -> Generator[Graph, StateSnapshot | Exception, _Found]:
    """Find the parts of a state that its graph refuses. Yields graphs that load only some parts, and is sent
    the state that each reads, or the error that it raises.

    Args:
        graph: the graph, with its saver.
        error: the error that reading all of the state raised; raised again if no part is the cause.
    """
    admitted: set[_Part] = set()
    refused: dict[_Part, Exception] = {}
    outcome, saver = yield from _attempt(graph, error, admitted)
    if not saver.parts:
        raise error
    if isinstance(outcome, Exception):
        raise _unreadable(error) from error
    # Values come before the tasks that read them, and those before their updates. What a subgraph has is
    # known once its task is admitted.
    while rest := [part for part in saver.parts if part not in admitted and part not in refused]:
        outcome, saver = yield from _attempt(graph, error, {*admitted, *rest})
        low, high = 0, len(rest)
        if isinstance(outcome, Exception):
            cause = outcome
            while high - low > 1:
                middle = (low + high) // 2
                outcome, _ = yield from _attempt(graph, error, {*admitted, *rest[:middle]})
                if isinstance(outcome, Exception):
                    high, cause = middle, outcome
                else:
                    low = middle
            refused[rest[low]] = cause
            high = low
        admitted.update(rest[:high])
    outcome, saver = yield from _attempt(graph, error, admitted, refused)
    if isinstance(outcome, Exception):
        raise _unreadable(error) from error
    nodes = {task.id: task.name for task in _tasks_of(outcome)}
    marks = [_mark(part, refused[part], saver.channels.get(part, ()), nodes) for part in refused]
    metadata: Any = {**(outcome.metadata or {}), REFUSED: marks}
    return _Found(outcome._replace(metadata=metadata) if marks else outcome, refused)


def refusals(state: StateSnapshot) -> Sequence[Mapping[str, Any]]:
    """Return the descriptions of what was left out of a state."""
    metadata: Mapping[str, Any] = state.metadata or {}  # type: ignore[assignment]
    marks: Sequence[Mapping[str, Any]] = metadata.get(REFUSED, ())
    return marks


def _attempt(
    graph: Graph, error: Exception, admitted: set[_Part], refused: Mapping[_Part, Exception] | None = None
) -> Generator[Graph, StateSnapshot | Exception, tuple[StateSnapshot | Exception, _PartialSaver]]:
    partial, saver = _with_parts(graph, error, admitted.__contains__, refused)
    outcome = yield partial
    return outcome, saver


def _unreadable(error: Exception) -> Unreadable:
    return Unreadable(
        f"the graph cannot read the stored state ({type(error).__name__}), not even without values and "
        "updates; the thread is unchanged. Look at it with `perdure threads show`"
    )


def _mark(part: _Part, error: Exception, channels: Sequence[str], nodes: Mapping[str, str]) -> dict[str, Any]:
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
            mark |= {"node": node, "task_id": part.name, "message": _update_refused(by, channels, kind)}
    return mark


def _update_refused(by: str, channels: Sequence[str], kind: str) -> str:
    of = f" of {', '.join(channels)}" if channels else ""
    return f"The graph refused the update{of} by {by} ({kind}); it is left out."


def _tasks_of(state: StateSnapshot) -> Iterable[Any]:
    for task in state.tasks:
        yield task
        if isinstance(task.state, StateSnapshot):
            yield from _tasks_of(task.state)


def _id_of(state: StateSnapshot) -> str:
    return str((state.config.get("configurable") or {}).get("checkpoint_id"))


def _with_parts(
    graph: Graph,
    error: Exception,
    admits: Callable[[_Part], bool],
    refused: Mapping[_Part, Exception] | None = None,
) -> tuple[Graph, _PartialSaver]:
    """Return a graph that loads only some parts of what is stored, and its saver. Raises the error if the
    graph has no saver of its own."""
    if not isinstance(graph.checkpointer, BaseCheckpointSaver):
        raise error
    graphs = [graph, *(below for _, below in graph.get_subgraphs(recurse=True) if isinstance(below, Pregel))]
    nodes = {name for each in graphs for name in each.nodes}
    saver = _PartialSaver(graph.checkpointer, nodes, admits, refused or {})
    return graph.copy({"checkpointer": saver}), saver


class _PartialSaver(BaseCheckpointSaver[Any]):
    """A view of a saver: of the checkpoints that are loaded it shows only the parts that are admitted.

    Attributes:
        parts: the parts of what was loaded, in the order in which a graph uses them.
        channels: the channels of each value and update.

    Args:
        saver: the saver.
        nodes: the nodes of the graph and its subgraphs.
        admits: returns True for a part that is shown.
        refused: the parts that the graph refuses, with the error of each. A task whose update is refused is
            shown as failed.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        nodes: Iterable[str],
        admits: Callable[[_Part], bool],
        refused: Mapping[_Part, Exception],
    ) -> None:
        super().__init__()
        self._saver, self._nodes, self._admits, self._refused = saver, tuple(nodes), admits, refused
        self.parts: list[_Part] = []
        self.channels: dict[_Part, Sequence[str]] = {}

    def get_next_version(self, current: Any, channel: None) -> Any:
        """See the base class."""
        return self._saver.get_next_version(current, channel)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See the base class."""
        found = self._saver.get_tuple(config)
        return None if found is None else self._partial(found)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See the base class."""
        found = await self._saver.aget_tuple(config)
        return None if found is None else self._partial(found)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See the base class."""
        async for found in self._saver.alist(config, filter=filter, before=before, limit=limit):
            yield self._partial(found)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See the base class."""
        return self._saver.get_delta_channel_history(config=config, channels=self._replayed(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See the base class."""
        names = self._replayed(config, channels)
        return await self._saver.aget_delta_channel_history(config=config, channels=names)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See the base class."""
        return await self._saver.aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See the base class."""
        await self._saver.aput_writes(config, writes, task_id, task_path)

    def _partial(self, found: CheckpointTuple) -> CheckpointTuple:
        configurable = found.config.get("configurable") or {}
        namespace, at = configurable.get("checkpoint_ns", ""), found.checkpoint["id"]
        values = {
            name: value
            for name, value in found.checkpoint["channel_values"].items()
            if name == TASKS or self._shows(_Part(namespace, at, "value", name), [name])
        }
        checkpoint = Checkpoint(**{**found.checkpoint, "channel_values": values})
        if not self._shows(_Part(namespace, at, "tasks", "")):
            values.pop(TASKS, None)
            # All nodes have seen all channels.
            checkpoint["versions_seen"] = {name: dict(checkpoint["channel_versions"]) for name in self._nodes}
        pending = list(found.pending_writes or ())
        updates: dict[str, list[str]] = {}
        for task_id, channel, _ in pending:
            if channel not in WRITES_IDX_MAP:
                named = updates.setdefault(task_id, [])
                named += [] if channel.startswith(_INTERNAL) else [channel]
        hidden: dict[str, Exception | None] = {}
        for task_id, channels in updates.items():
            part = _Part(namespace, at, "update", task_id)
            if not self._shows(part, channels):
                hidden[task_id] = self._refused.get(part)
        shown = [each for each in pending if each[0] not in hidden or each[1] in WRITES_IDX_MAP]
        for task_id, error in hidden.items():
            if error is not None and task_id != _NULL_TASK:
                text = _update_refused("this task", updates[task_id], type(error).__name__)
                shown.append((task_id, ERROR, InvalidUpdateError(text)))
        return found._replace(checkpoint=checkpoint, pending_writes=shown)

    def _replayed(self, config: RunnableConfig, channels: Sequence[str]) -> list[str]:
        """Return the channels whose values are admitted, of those that are replayed from writes."""
        configurable = config.get("configurable") or {}
        place = configurable.get("checkpoint_ns", ""), configurable.get("checkpoint_id", "")
        return [name for name in channels if self._shows(_Part(*place, "value", name), [name])]

    def _shows(self, part: _Part, channels: Sequence[str] = ()) -> bool:
        if part not in self.channels:
            self.parts.append(part)
        self.channels[part] = channels
        return self._admits(part)
