"""The state that a client is shown, with all open questions of the thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver
from langgraph.checkpoint.base import PendingWrite as LangGraphWrite
from langgraph.pregel import Pregel
from langgraph.types import Interrupt, PregelTask, StateSnapshot

from perdure.langgraph.reading.open_interrupts import interrupt_id
from perdure.langgraph.reading.readable_states import aread_state
from perdure.model.write_records import ERROR_SOURCE, INTERRUPT, NULL_TASK, RESUME

_CONTROL = frozenset(WRITES_IDX_MAP) | {ERROR_SOURCE}
_BRANCH = "branch:to:"


async def aread_with_questions(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, *, subgraphs: bool = False
) -> StateSnapshot:
    """Return a thread's latest state with all of its open questions.

    LangGraph leaves out the questions of a task that a command has added to the step. If a task calls several
    others in parallel, LangGraph shows the questions of only one of them. Here all are included, each with a
    task that has the name of its node, or an empty name if the node is not known.

    Args:
        graph: the graph, with its saver.
        config: the thread.
        subgraphs: include the states of subgraphs.
    """
    state, saver = await aread_state(graph, config, subgraphs=subgraphs), graph.checkpointer
    if isinstance(saver, BaseCheckpointSaver):
        found = await saver.aget_tuple(config)
    else:
        found = None
    if found is None:
        writes = []
    else:
        writes = list(found.pending_writes or ())
    shown = {interrupt.id for interrupt in state.interrupts}
    tasks: dict[str, PregelTask] = {}
    for task_id, interrupt in _find_asked(writes):
        if interrupt.id in shown:
            continue
        shown.add(interrupt.id)
        task = tasks.get(task_id) or PregelTask(task_id, _node_of(task_id, interrupt, writes), ())
        tasks[task_id] = task._replace(interrupts=(*task.interrupts, interrupt))
    added = [interrupt for task in tasks.values() for interrupt in task.interrupts]
    return state._replace(tasks=(*state.tasks, *tasks.values()), interrupts=(*state.interrupts, *added))


def _find_asked(writes: Sequence[LangGraphWrite]) -> Iterator[tuple[str, Interrupt]]:
    """Yield the unanswered interrupts among the pending writes of a checkpoint, each with its task, by
    LangGraph's own rule."""
    ended = {task_id for task_id, channel, _ in writes if channel not in _CONTROL}
    for task_id, channel, value in writes:
        if channel == INTERRUPT and task_id not in ended:
            for interrupt in value if isinstance(value, Sequence) else (value,):
                yield task_id, interrupt


def _node_of(task_id: str, interrupt: Interrupt, writes: Sequence[LangGraphWrite]) -> str:
    """Return the node of a task that a command has added; empty if the command does not name the node."""
    answers: Any = next((value for task, name, value in writes if (task, name) == (task_id, RESUME)), ())
    answer_count = len(answers) if isinstance(answers, Sequence) else 1
    for task, channel, _ in writes:
        if task == NULL_TASK and channel.startswith(_BRANCH):
            node = channel.removeprefix(_BRANCH)
            if interrupt.id in {
                interrupt_id(f"{node}:{task_id}", number) for number in range(answer_count + 1)
            }:
                return node
    return ""
