"""Open questions of a thread's latest checkpoint: their ids, which are read without the graph or its types,
and the state with all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver
from langgraph.checkpoint.base import PendingWrite as LangGraphWrite
from langgraph.pregel import Pregel
from langgraph.types import Interrupt, PregelTask, StateSnapshot

from perdure.engine.queue.questions import Asked
from perdure.engine.threads import chunk_reads
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.langgraph.reading.plain_serde import PlainSerde
from perdure.langgraph.reading.readable_states import aread_state
from perdure.model.heads import ROOT
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import HEAD, WRITE, Partition, Record
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree
from perdure.model.write_records import (
    ERROR_SOURCE,
    INTERRUPT,
    NULL_TASK,
    RESUME,
    find_asking_tasks,
    read_writes,
)

_CONTROL = frozenset(WRITES_IDX_MAP) | {ERROR_SOURCE}
_BRANCH = "branch:to:"
_INTERRUPT = "langgraph.types.Interrupt"
_serde = PlainSerde()


def read(partition: Partition, digest: Digester) -> Program[Asked]:
    """Return the open questions of a thread's latest checkpoint; none if it has no checkpoint.

    Raises:
        Corrupt: a question cannot be read.
    """
    return (yield from read_undisturbed(partition, lambda: _read(partition, digest)))


def _read(partition: Partition, digest: Digester) -> Program[Asked]:
    head, values = yield from _read_open(partition, digest)
    if head is None:
        return Asked()
    return Asked(head.version, tuple(dict.fromkeys(name for name, _ in values)))


class AskedValues(NamedTuple):
    """The latest checkpoint of a thread, ``None`` if there is none, and the values of its unanswered
    interrupts as plain data, by the ids of the interrupts."""

    checkpoint_id: str | None
    values: Mapping[str, Any]


def read_values(partition: Partition, digest: Digester) -> Program[AskedValues]:
    """Return the open questions of a thread's latest checkpoint, with the values of its interrupts.

    Raises:
        Corrupt: a question cannot be read.
    """
    head, values = yield from read_undisturbed(partition, lambda: _read_open(partition, digest))
    return AskedValues(None if head is None else head.fields["checkpoint_id"], dict(values))


def _read_open(
    partition: Partition, digest: Digester
) -> Program[tuple[Record | None, list[tuple[str, Any]]]]:
    """Return the record that names the latest checkpoint, and the ids and values of its unanswered
    interrupts."""
    (heads,) = yield from ask(Fetch(partition, (Get(HEAD, (ROOT,)),)))
    if not heads:
        return None, []
    (head,) = heads
    (records,) = yield from ask(Fetch(partition, (Range(WRITE, (ROOT, head.fields["checkpoint_id"])),)))
    tasks = find_asking_tasks(records)
    asking = [
        write
        for write in read_writes(records)
        if write.task_id in tasks and write.channel == INTERRUPT and not write.is_aside
    ]
    if not asking:
        return head, []
    wanted = {write.task_id: write.ref for write in asking}
    trees, _ = yield from chunk_reads.resolve(partition, wanted, digest)
    return head, [
        found for tree in trees.values() for found in _read_interrupts(_serde.value(*join_tree(tree)))
    ]


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


def interrupt_id(place: str, number: int) -> str:
    """Return LangGraph's id of a task's interrupt, which depends on the number of answers before it.

    Args:
        place: the namespace of the task: the names and ids, ``node:id``, of its parents and its own.
        number: the number of answers that the task has.
    """
    return Interrupt.from_ns(None, f"{place}|{number}" if number else place).id


def _read_interrupts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the id and the value of each interrupt in the plain form of a task's write."""
    if isinstance(value, list | tuple):
        interrupts: Iterable[Any] = value
    else:
        interrupts = (value,)
    for each in interrupts:
        if isinstance(each, dict) and each.get("type") == _INTERRUPT and isinstance(each["value"], dict):
            yield str(each["value"]["id"]), each["value"].get("value")
