"""Reads from a thread what a replay needs: its steps, and for each the tasks with their writes and calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.types import Overwrite

from perdure.engine.threads import history
from perdure.engine.threads.thread_state import load_view
from perdure.langgraph.call_records import MODEL, TOOL, CallRecord
from perdure.langgraph.saver import PerdureSaver
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.missing_thread import missing_thread
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.write_records import NULL_TASK, count_answers, is_of_calls
from perdure.replay.plain_values import snapshot

TaskKey = tuple[Any, ...]
"""Place of a task below a step, which is the same in every replay: for each level of graphs the number of the
step and the path of the task, and LangGraph's count of calls if one task calls several graphs."""

_PULL = "__pregel_pull"
_PUSH = "__pregel_push"
_START = -(2**63)


@dataclass(slots=True)
class TaskRecord:
    """A task with what it wrote.

    Attributes:
        key: Its place.
        node: Its node.
        namespace: Names of the nodes on the way to its graph, empty in the outermost graph.
        writes: Values by channel, in order.
        answers: Answers to its interrupts, in order.
        interrupts: Values of the interrupts at which it stopped last.
        error: The error with which it ended, as it is stored.
        calls: Recorded calls by the number of answers that it had when it made them.
    """

    key: TaskKey
    node: str
    namespace: tuple[str, ...] = ()
    writes: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    answers: list[Any] = field(default_factory=list[Any])
    interrupts: list[Any] | None = None
    error: Any = None
    calls: dict[int, list[CallRecord]] = field(default_factory=dict[int, list[CallRecord]])

    @property
    def is_finished(self) -> bool:
        """True if it returned."""
        return bool(self.writes)

    def derive_calls(self) -> list[CallRecord]:
        """Return the calls that its messages show, without digests: a model's for each message of an
        assistant, a tool's for each message of a tool."""
        out: list[CallRecord] = []
        for values in self.writes.values():
            for message in _find_messages(values):
                if isinstance(message, AIMessage):
                    out.append(CallRecord(MODEL, "", {}, message, is_over=True))
                elif isinstance(message, ToolMessage):
                    out.append(CallRecord(TOOL, message.name or "", {}, message, is_over=True))
        return out


class StoredTask(NamedTuple):
    """A task as a saver stores it: the place, and its writes."""

    namespace: str
    step: int
    task_id: str
    path: str
    writes: Sequence[tuple[str, Any]]


def _number_after(record: CheckpointRecord) -> int:
    """Return LangGraph's number of the step that starts from a checkpoint."""
    if record.step is None:
        return _START + 1
    return record.step + 1


@dataclass(slots=True, kw_only=True)
class Step:
    """A step of a thread: from a checkpoint to its child.

    Attributes:
        record: The checkpoint from which its tasks started.
        child: The checkpoint that it led to; ``None`` if the thread waits in it, or ended.
        tasks: Its tasks and those of subgraphs, by key.
        commanded: Writes of a command that was given with the step, without answers to interrupts.
        stateful: Checkpoints, by namespace, at which subgraphs with a state of their own began.
        skipped: Reason why the step cannot be replayed, if there is one.
    """

    record: CheckpointRecord
    child: CheckpointRecord | None
    tasks: Mapping[TaskKey, TaskRecord] = field(default_factory=dict[TaskKey, TaskRecord])
    commanded: Sequence[tuple[str, Any]] = ()
    stateful: Mapping[str, str] = field(default_factory=dict[str, str])
    skipped: str | None = None

    @property
    def number(self) -> int:
        """LangGraph's number of the step."""
        return _number_after(self.record)


class Recording:
    """A thread's steps. Nothing is written.

    Args:
        partition: The thread.
        saver: The checkpointer that builds the values of the thread's graph.
    """

    def __init__(self, partition: Partition, saver: PerdureSaver) -> None:
        self._partition = partition
        self._saver = saver
        self._by_root: dict[str, list[CheckpointRecord]] = {}
        self._by_name: dict[str, list[CheckpointRecord]] = {}

    def load_chain(self) -> Program[list[tuple[CheckpointRecord, CheckpointRecord | None]]]:
        """Return the checkpoints that lead to the head, oldest first, each with the next; raise ``NotFound``
        if there is no thread."""
        found = {record.id: record for record in (yield from self._load_all(""))}
        view = yield from load_view(self._partition, "")
        if view.head is None:
            raise missing_thread(self._partition)
        line: list[CheckpointRecord] = []
        checkpoint: CheckpointRecord | None = found.get(view.head.checkpoint_id)
        while checkpoint is not None:
            line.append(checkpoint)
            checkpoint = found.get(checkpoint.parent_id or "")
        line.reverse()
        for namespace in (yield from history.read_namespaces(self._partition)):
            if namespace:
                yield from self._load_subgraph(namespace)
        return [(record, after) for record, after in zip(line, [*line[1:], None], strict=True)]

    def load_step(self, record: CheckpointRecord, child: CheckpointRecord | None) -> Program[Step]:
        """Return the step that began at a checkpoint."""
        if child is not None and (record.step is None or child.step != record.step + 1):
            return Step(record=record, child=child, skipped="the checkpoints between were not kept")
        if self._saver.is_of_older_schema(record):
            return Step(record=record, child=child, skipped="an older schema version stored it")
        stored = yield from self._load_tasks([record])
        below = self._by_root.get(record.id, [])
        for namespace in dict.fromkeys(each.namespace for each in below):
            stored += yield from self._load_tasks([each for each in below if each.namespace == namespace])
        commanded = [
            (channel, value)
            for task in stored
            if task.task_id == NULL_TASK and not task.namespace
            for channel, value in task.writes
            if channel != RESUME
        ]
        tasks = by_key(task for task in stored if task.task_id != NULL_TASK)
        is_replayable = any(task.writes or task.interrupts is not None for task in tasks.values())
        reason = None
        if child is not None and not is_replayable:
            reason = "the writes of its tasks were not kept"
        return Step(
            record=record,
            child=child,
            tasks=tasks,
            commanded=commanded,
            stateful=self._find_stateful(record),
            skipped=reason,
        )

    def _load_all(self, namespace: str) -> Program[list[CheckpointRecord]]:
        out: list[CheckpointRecord] = []
        below: int | None = None
        while page := (
            yield from history.read_page(self._partition, namespace, below=below, limit=history.PAGE)
        ):
            out += page
            below = page[-1].seq
        return out

    def _load_subgraph(self, namespace: str) -> Program[None]:
        """Remember the checkpoints of a subgraph's namespace, oldest first, by their root checkpoint."""
        records = (yield from self._load_all(namespace))[::-1]
        for record in records:
            if record.root is not None:
                self._by_root.setdefault(record.root, []).append(record)
        if all(":" not in part for part in namespace.split("|")):
            self._by_name[namespace] = records

    def _find_stateful(self, record: CheckpointRecord) -> dict[str, str]:
        """Return the checkpoints at which subgraphs with a state of their own began a step: for each subgraph
        its latest one of earlier steps."""
        out: dict[str, str] = {}
        for namespace, records in self._by_name.items():
            before = [each for each in records if each.root != record.id]
            own = next((each.seq for each in records if each.root == record.id), None)
            earlier = [each for each in before if own is None or each.seq < own]
            if earlier and own is not None:
                out[namespace] = earlier[-1].id
        return out

    def _load_tasks(self, records: Sequence[CheckpointRecord]) -> Program[list[StoredTask]]:
        """Return the tasks that wrote on checkpoints of one namespace."""
        if not records:
            return []
        namespace = records[0].namespace
        ids = [record.id for record in records]
        steps = {record.id: _number_after(record) for record in records}
        out: list[StoredTask] = []
        found = yield from self._saver.stored_writes(self._partition, namespace, ids)
        for name, writes in found.items():
            by_task: dict[str, list[tuple[PendingWrite, Any]]] = {}
            for write, value in writes:
                by_task.setdefault(write.task_id, []).append((write, value))
            for task_id, own in by_task.items():
                given = [(write.channel, value) for write, value in own]
                out.append(StoredTask(namespace, steps[name], task_id, own[0][0].task_path, given))
        return out


def name_sent(tasks: Mapping[TaskKey, TaskRecord], sends: Sequence[Any]) -> None:
    """Set the nodes of the outermost graph's tasks that were started by ``Send``."""
    for key, task in tasks.items():
        if len(key) == 1 and _PUSH in key[0][1]:
            number = "".join(c for c in key[0][1].split(", ")[1] if c.isdigit())
            if number and int(number) < len(sends):
                task.node = sends[int(number)].node


def config_of(thread_id: str, namespace: str, checkpoint_id: str) -> Any:
    """Return the config that names a checkpoint."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }


def by_key(stored: Iterable[StoredTask]) -> dict[TaskKey, TaskRecord]:
    """Return the tasks of a step and of its subgraphs by their keys, in their order."""
    out: dict[TaskKey, TaskRecord] = {}
    for key, task in pair_with_keys(stored):
        record = TaskRecord(key, node_of(task.path), names_of(task.namespace))
        for channel, value in task.writes:
            if is_of_calls(channel):
                record.calls[count_answers(channel)] = [CallRecord.read(each) for each in value]
            elif channel == RESUME:
                record.answers = list(value) if isinstance(value, list) else [value]
            elif channel == INTERRUPT:
                record.interrupts = snapshot(value)
            elif channel == ERROR:
                record.error = value
            else:
                record.writes.setdefault(channel, []).append(value)
        if record.writes:
            if not record.answers:
                record.interrupts = None
            record.error = None
        out[key] = record
    return out


def pair_with_keys(stored: Iterable[StoredTask]) -> Iterator[tuple[TaskKey, StoredTask]]:
    """Yield tasks with their keys. Writes that no task made, such as those of an update, are left out."""
    tasks = list(stored)
    places = {task.task_id: task for task in tasks}
    for task in tasks:
        above = _find_key(task.namespace, places)
        if above is not None and task.path:
            yield (*above, (task.step, task.path)), task


def _find_key(namespace: str, places: Mapping[str, StoredTask]) -> TaskKey | None:
    """Return the key of a namespace; ``None`` if a task on the way to it has stored nothing."""
    out: list[Any] = []
    for part in filter(None, namespace.split("|")):
        _, has_id, task_id = part.rpartition(":")
        if not has_id:
            out.append(part)
            continue
        task = places.get(task_id)
        if task is None:
            return None
        out.append((task.step, task.path))
    return tuple(out)


def names_of(namespace: str) -> tuple[str, ...]:
    """Return the nodes on the way to a namespace."""
    return tuple(part.partition(":")[0] for part in namespace.split("|") if part and not part.isdigit())


def node_of(path: str) -> str:
    """Return the node in the path of a task that an edge has triggered; the path itself for any other
    task."""
    kind, _, name = path.removeprefix("~").partition(", ")
    if kind == _PULL:
        return name
    return path


def _find_messages(value: Any) -> Iterator[BaseMessage]:
    match value:
        case BaseMessage():
            yield value
        case list() | tuple():
            for item in value:
                yield from _find_messages(item)
        case Mapping():
            for item in value.values():
                yield from _find_messages(item)
        case Overwrite():
            yield from _find_messages(value.value)
        case _:
            return
