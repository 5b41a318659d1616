"""The latest state of a thread as every client is shown it: with the tasks that a command has added to its
step, and with all open questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph._internal._typing import MISSING
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, Checkpoint, CheckpointTuple
from langgraph.checkpoint.base import PendingWrite as LangGraphWrite
from langgraph.types import Interrupt, PregelTask, StateSnapshot

from perdure.langgraph.reading.partial_saver import PartialSaver
from perdure.langgraph.reading.readable_states import Graph, aread_state
from perdure.model.write_records import BRANCH, ERROR_SOURCE, INTERRUPT, NULL_TASK, SENDS

_CONTROL = frozenset(WRITES_IDX_MAP) | {ERROR_SOURCE}


async def aread_with_questions(
    graph: Graph, config: RunnableConfig, *, subgraphs: bool = False
) -> StateSnapshot:
    """Return a thread's latest state with all tasks of its step, and all open questions.

    LangGraph leaves out a task that the ``goto`` of a command has added to the step. If a task calls several
    others in parallel, LangGraph shows the questions of only one of them; those of the others are added, each
    with a task that has no name.

    Args:
        graph: the graph, with its saver.
        config: the thread, and optionally the checkpoint from which a run starts.
        subgraphs: include the states of subgraphs.
    """
    if not isinstance(graph.checkpointer, BaseCheckpointSaver):
        return await aread_state(graph, config, subgraphs=subgraphs)
    saver = _SaverWithGotos(graph.checkpointer, graph)
    state = await aread_state(graph.copy({"checkpointer": saver}), config, subgraphs=subgraphs)
    shown = {interrupt.id for interrupt in state.interrupts}
    tasks: dict[str, PregelTask] = {}
    for task_id, interrupt in _find_asked(saver.writes):
        if interrupt.id in shown:
            continue
        shown.add(interrupt.id)
        task = tasks.get(task_id) or PregelTask(task_id, "", ())
        tasks[task_id] = task._replace(interrupts=(*task.interrupts, interrupt))
    added = [interrupt for task in tasks.values() for interrupt in task.interrupts]
    return state._replace(tasks=(*state.tasks, *tasks.values()), interrupts=(*state.interrupts, *added))


class _SaverWithGotos(PartialSaver):
    """A view of a saver in which the step of a checkpoint has the tasks to which a command goes: LangGraph
    adds them when it continues, but not when it reads the state. ``writes`` are those of the checkpoint that
    was loaded."""

    def __init__(self, saver: BaseCheckpointSaver[Any], graph: Graph) -> None:
        super().__init__(saver, (), lambda part: True, {})
        self._graph = graph
        self.writes: Sequence[LangGraphWrite] = ()

    def _make_partial(self, found: CheckpointTuple) -> CheckpointTuple:
        if found.config.get("configurable", {}).get("checkpoint_ns"):
            return found
        self.writes = found.pending_writes or ()
        gotos: dict[str, list[object]] = {}
        for task_id, name, value in self.writes:
            is_goto = task_id == NULL_TASK and (name == SENDS or name.startswith(BRANCH))
            if is_goto and name in self._graph.channels:
                gotos.setdefault(name, []).append(value)
        if not gotos:
            return found
        values, versions = found.checkpoint["channel_values"], found.checkpoint["channel_versions"]
        version: str | int | float = self.get_next_version(max(versions.values(), default=None), None)
        checkpoint: Checkpoint = {
            **found.checkpoint,
            "channel_values": {**values, **{name: self._apply(name, values, gotos[name]) for name in gotos}},
            "channel_versions": {**versions, **dict.fromkeys(gotos, version)},
        }
        return found._replace(checkpoint=checkpoint)

    def _apply(self, name: str, values: dict[str, object], given: Sequence[object]) -> object:
        """Return the value that a channel has once it was updated."""
        channel: Any = self._graph.channels[name]
        channel = channel.from_checkpoint(values.get(name, MISSING))
        channel.update(given)
        return channel.checkpoint()


def _find_asked(writes: Sequence[LangGraphWrite]) -> Iterator[tuple[str, Interrupt]]:
    """Yield the unanswered interrupts among the pending writes of a checkpoint, each with its task, by
    LangGraph's own rule."""
    ended = {task_id for task_id, channel, _ in writes if channel not in _CONTROL}
    for task_id, channel, value in writes:
        if channel == INTERRUPT and task_id not in ended:
            for interrupt in value if isinstance(value, Sequence) else (value,):
                yield task_id, interrupt
