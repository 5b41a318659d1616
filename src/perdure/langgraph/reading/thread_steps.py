"""Steps of a thread: the nodes that ran in each, their tasks with times, subgraphs and calls of models.

A step's tasks are the authors of the writes on the checkpoint with which the step began. Tokens are counted
in the answers of models. A task has the time that is stored with its writes, or else the time between the two
checkpoints of its step, which includes everything in between. No type is built, and no graph is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from langgraph.constants import START

from perdure.engine.threads import chunk_reads, history
from perdure.engine.threads.chunk_reads import ChunkReader
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.langgraph.reading.plain_serde import PlainSerde
from perdure.langgraph.reading.step_authors import (
    MessageReader,
    TaskAuthor,
    WrittenMessage,
    is_of_node,
    load_authors,
    may_have_messages,
)
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.heads import is_loop
from perdure.model.model_calls import ModelCall, Prices, dedupe_calls, show_call, total, with_inner
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import HEAD, Partition
from perdure.model.values.chunks import Digester
from perdure.schema.changes import BRANCH

STEPS = 50
"""Steps of one page."""
_STEPS_OF_CALL = 50
"""Maximum number of steps that are shown of one call of a subgraph, the newest."""
_SUBGRAPHS = 40
"""Calls of subgraphs whose steps one page contains."""
_DEPTH = 8
_NAMESPACES = 500
"""Namespaces that one request lists. If a thread has more, they are asked for by name."""
_TASKS = 100
"""Maximum number of a step's tasks that are shown, beside the number of all."""
_AT_ONCE = 10
"""Checkpoints whose writes are in memory at once."""
_KEPT_PAGES = 4
"""Pages of checkpoints in which the steps of a call are looked for, if a subgraph keeps its state."""
_INNER = ("__input__", START)
_serde = PlainSerde()
_STEPPED = ("loop", "update")


@dataclass(frozen=True, slots=True)
class StepTask:
    """A task of a step. Times are microseconds since 1970, ``None`` where they are not known.

    Attributes:
        node: The node, ``None`` if its name is not stored.
        state: ``done``; ``asked``, if it waits for an answer; ``failed``; or ``open``, if it has no result.
        is_call: A task of the functional API that another task called: it may have begun at any time of the
            step.
        caller: The id of that other task, if it is known.
        place: Its own namespace, below which its subgraphs are.
        namespaces: The namespaces of the subgraphs that it called.
        steps: The newest steps of each of these subgraphs, oldest first.
        is_cut: True if some of these steps are missing.
    """

    task_id: str
    node: str | None
    state: str
    is_call: bool = False
    caller: str | None = None
    place: str = ""
    began_at: int | None = None
    ended_at: int | None = None
    calls: tuple[ModelCall, ...] = ()
    namespaces: tuple[str, ...] = ()
    steps: tuple[ThreadStep, ...] = ()
    is_cut: bool = False

    @property
    def all_calls(self) -> list[ModelCall]:
        """Its calls of models and those of its subgraphs."""
        return with_inner(self.calls, (call for step in self.steps for call in step.calls))


@dataclass(frozen=True, slots=True)
class ThreadStep:
    """A step: from the checkpoint that it began with, to the one that it made.

    Attributes:
        checkpoint_id: The checkpoint that it made, ``None`` if the step is not over.
        source: ``loop``, or what made the checkpoint instead of a step: ``input``, ``update`` or ``fork``.
        nodes: The nodes that ran, in the order in which their results are applied.
    """

    namespace: str
    checkpoint_id: str | None
    parent_id: str | None
    seq: int | None
    run_id: str | None
    source: str | None
    step: int | None
    nodes: tuple[str, ...]
    tasks: tuple[StepTask, ...]
    began_at: int | None
    ended_at: int | None

    @property
    def calls(self) -> list[ModelCall]:
        """The calls of models of its tasks."""
        return dedupe_calls(call for task in self.tasks for call in task.all_calls)


class TaskMessages(NamedTuple):
    """Messages that a task wrote, their time, and the task's node, ``None`` for a run's input or if it is
    unknown."""

    at: int
    node: str | None
    messages: Sequence[WrittenMessage]


class StepsPage(NamedTuple):
    """Steps of a namespace, newest first, and the ``cursor`` of the next page, ``None`` at the end.
    ``written`` are the messages of each task, newest first."""

    steps: list[ThreadStep]
    cursor: int | None
    written: Sequence[TaskMessages]


def load_steps(
    partition: Partition,
    digest: Digester,
    namespace: str = "",
    before: int | None = None,
    limit: int = STEPS,
    *,
    with_messages: bool = True,
) -> Program[StepsPage]:
    """Return a page of a namespace's steps, newest first; subgraphs' steps are with the tasks that called
    them.

    Args:
        partition: The thread.
        digest: Names the chunks.
        namespace: The namespace, the graph's own by default.
        before: The cursor of an earlier page.
        limit: Maximum number of steps to return.
        with_messages: Read the results of tasks, too, for their messages and calls of models.
    """

    def read() -> Program[StepsPage]:
        (heads,) = yield from ask(Fetch(partition, (Range(HEAD, limit=_NAMESPACES),)))
        if len(heads) < _NAMESPACES:
            namespaces = tuple(head.key[0] for head in heads)
        else:
            namespaces = None
        reading = _Reading(partition, digest, namespaces, ChunkReader(partition, digest), with_messages)
        return (yield from reading.read_page(namespace, before, limit, 0))

    return (yield from read_undisturbed(partition, read))


def load_step(
    partition: Partition, digest: Digester, namespace: str, checkpoint_id: str
) -> Program[ThreadStep | None]:
    """Return the step that made a checkpoint, without messages and subgraphs; ``None`` if the checkpoint is
    not stored."""

    def read() -> Program[ThreadStep | None]:
        record = yield from history.find(partition, namespace, checkpoint_id)
        if record is None:
            return None
        reading = _Reading(partition, digest, (), ChunkReader(partition, digest), with_messages=False)
        page = yield from reading.read_page(namespace, record.seq + 1, 1, _DEPTH)
        return next((step for step in page.steps if step.checkpoint_id == checkpoint_id), None)

    return (yield from read_undisturbed(partition, read))


@dataclass(slots=True)
class _Reading:
    """One read of a page. ``namespaces`` are all of the thread, ``None`` if there are too many. ``chunks``
    keeps the packs that were read: in a long thread each new reader has to search them from the newest on."""

    partition: Partition
    digest: Digester
    namespaces: tuple[str, ...] | None
    chunks: ChunkReader
    with_messages: bool = True
    subgraphs_left: int = _SUBGRAPHS
    reader: MessageReader = field(default_factory=MessageReader)
    kept: dict[str, list[tuple[int, frozenset[object]]]] = field(default_factory=dict)
    """Checkpoints of the subgraphs that keep their state, newest first: the number of each, and the
    checkpoints above it."""

    def read_page(self, namespace: str, before: int | None, limit: int, depth: int) -> Program[StepsPage]:
        # One more checkpoint than steps: it is the parent of the last one.
        found = yield from history.read_page(self.partition, namespace, below=before, limit=limit + 1)
        by_id = {record.id: record for record in found}
        records = found[:limit]
        wanted = {r.parent_id for r in records if r.parent_id is not None} - by_id.keys()
        for record in (yield from history.find_all(self.partition, namespace, sorted(wanted))):
            by_id[record.id] = record
        names = tuple(dict.fromkeys(node for r in by_id.values() for node in r.versions_seen))
        parents = [by_id.get(record.parent_id or "") for record in records if record.source in _STEPPED]
        ids = list(dict.fromkeys(parent.id for parent in parents if parent is not None))
        if records and before is None and records[0].id not in ids:
            open_parent = records[0]
        else:
            open_parent = None
        if open_parent is not None:
            ids.insert(0, open_parent.id)
        tasks: dict[str, dict[str, TaskAuthor]] = {}
        reader = self.reader if self.with_messages else None
        for at in range(0, len(ids), _AT_ONCE):
            some = [by_id[name] for name in ids[at : at + _AT_ONCE]]
            tasks |= yield from load_authors(self.partition, self.digest, some, names, self.chunks, reader)
        steps: list[ThreadStep] = []
        if (
            open_parent is not None
            and (open_step := _make_open_step(open_parent, tasks[open_parent.id])) is not None
        ):
            steps.append(open_step)
        steps += [_make_step(record, by_id.get(record.parent_id or ""), tasks) for record in records]
        is_rest = len(found) > limit
        steps = yield from self._drop_repeated_calls(steps, by_id, tasks, is_rest=is_rest)
        subgraphs = yield from self._find_subgraphs(
            task.place for step in steps for task in step.tasks if task.place
        )
        filled: list[ThreadStep] = []
        for step in steps:
            filled.append((yield from self._add_subgraphs(step, subgraphs, depth)))  # noqa: PERF401 - it yields
        return StepsPage(filled, records[-1].seq if is_rest else None, _date_messages(steps, by_id, tasks))

    def _drop_repeated_calls(
        self,
        steps: Sequence[ThreadStep],
        records: Mapping[str, CheckpointRecord],
        tasks: Mapping[str, Mapping[str, TaskAuthor]],
        *,
        is_rest: bool,
    ) -> Program[list[ThreadStep]]:
        """Return steps, newest first, without calls of models that belong to earlier steps: a node may write
        again messages that the state has already, as one that calls a subgraph does."""
        earlier: set[str] = set()
        out: list[ThreadStep] = []
        for step in reversed(steps):
            authors = tasks.get(step.parent_id or "", {}).values()
            most_calls = max((len(dedupe_calls(author.calls)) for author in authors), default=0)
            if is_rest and most_calls > 1:
                # A task may have repeated messages of steps before this page: the state has their ids.
                earlier |= yield from self._read_stored_ids(records[step.parent_id or ""])
                is_rest = False
            new = [
                replace(task, calls=tuple(call for call in task.calls if call.id not in earlier))
                for task in step.tasks
            ]
            earlier |= {call.id for author in authors for call in author.calls if call.id is not None}
            out.append(replace(step, tasks=tuple(new)))
        return out[::-1]

    def _read_stored_ids(self, record: CheckpointRecord) -> Program[set[str]]:
        """Return the ids of the models' answers in the state at a checkpoint."""
        refs = {name: ref for name, ref in record.refs.items() if may_have_messages(name)}
        trees, _ = yield from chunk_reads.resolve(self.partition, refs, self.digest, self.chunks)
        calls = (call for tree in trees.values() for call in self.reader.read(tree)[0])
        return {call.id for call in calls if call.id is not None}

    def _add_subgraphs(
        self, step: ThreadStep, subgraphs: Mapping[str, Sequence[str]], depth: int
    ) -> Program[ThreadStep]:
        tasks: list[StepTask] = []
        for task in step.tasks:
            names = subgraphs.get(task.place, ())
            tasks.append((yield from self._add_steps(task, step.parent_id, names, depth)))
        return replace(step, tasks=tuple(tasks))

    def _add_steps(
        self, task: StepTask, began_with: str | None, subgraphs: Sequence[str], depth: int
    ) -> Program[StepTask]:
        steps: list[ThreadStep] = []
        called: list[str] = []
        is_cut = False
        for number, name in enumerate(subgraphs):
            if self.subgraphs_left <= 0 or depth >= _DEPTH:
                is_cut = True
                called += subgraphs[number:]
                break
            before, count, keeps_state = None, _STEPS_OF_CALL, not name.startswith(task.place)
            if keeps_state:
                before, count = yield from self._locate_call(name, began_with)
                if not count:
                    continue
            self.subgraphs_left -= 1
            page = yield from self.read_page(name, before, min(count, _STEPS_OF_CALL), depth + 1)
            called.append(name)
            steps += (_end_with_caller(step, task) for step in reversed(page.steps))
            is_cut = is_cut or (count > _STEPS_OF_CALL if keeps_state else page.cursor is not None)
        return replace(task, namespaces=tuple(called), steps=tuple(steps), is_cut=is_cut)

    def _locate_call(self, namespace: str, began_with: str | None) -> Program[tuple[int | None, int]]:
        """Return where the checkpoints of one call of a subgraph are that keeps its state between calls: the
        cursor of their page, and their number.

        Args:
            namespace: The subgraph's namespace.
            began_with: The checkpoint with which the step of the call began.
        """
        if namespace not in self.kept:
            kept: list[tuple[int, frozenset[object]]] = []
            for _ in range(_KEPT_PAGES):
                below = kept[-1][0] if kept else None
                found = yield from history.read_page(
                    self.partition, namespace, below=below, limit=history.PAGE
                )
                kept += ((record.seq, _list_above(record)) for record in found)
                if len(found) < history.PAGE:
                    break
            self.kept[namespace] = kept
        kept = self.kept[namespace]
        part = [seq for seq, above in kept if began_with in above]
        if not part:
            return None, 0
        return None if part[0] == kept[0][0] else part[0] + 1, len(part)

    def _find_subgraphs(self, places: Iterable[str]) -> Program[dict[str, list[str]]]:
        """Return the namespaces of the subgraphs that tasks called, by the tasks' own namespaces."""
        wanted = list(dict.fromkeys(places))
        keeping: dict[str, list[str]] = {}
        for place in wanted:
            # The namespace of the subgraphs of a task that keep their state between calls.
            shared = "|".join(part.partition(":")[0] for part in place.split("|") if not part.isdigit())
            keeping.setdefault(shared, []).append(place)
        namespaces = self.namespaces
        if namespaces is None and wanted:
            names = (*wanted, *keeping)
            answers = yield from ask(Fetch(self.partition, tuple(Get(HEAD, (name,)) for name in names)))
            namespaces = tuple(head.key[0] for answer in answers for head in answer)
        out: dict[str, list[str]] = {place: [] for place in wanted}
        for name in namespaces or ():
            start, _, number = name.rpartition("|")
            if name in out:
                out[name].append(name)
            elif start in out and number.isdigit():
                # A further subgraph that the same task called.
                out[start].append(name)
            else:
                # A subgraph that keeps its state between calls.
                for place in keeping.get(start if number.isdigit() else name, ()):
                    out[place].append(name)
        return out


def _list_above(record: CheckpointRecord) -> frozenset[object]:
    """Return the checkpoints of the graphs above at which a subgraph's checkpoint was made."""
    parents: object = _serde.unpack(record.metadata).get("parents")
    if isinstance(parents, dict):
        return frozenset(cast("dict[str, object]", parents).values())
    return frozenset()


def _is_own(write: PendingWrite, child: CheckpointRecord) -> bool:
    """Return True if a write is part of the history of a checkpoint: a run that lost the race for it may have
    left other writes on the same parent."""
    return not child.nonce or not is_loop(write.nonce) or write.nonce in (child.nonce, *child.seen)


def _make_step(
    record: CheckpointRecord,
    parent: CheckpointRecord | None,
    tasks: Mapping[str, Mapping[str, TaskAuthor]],
) -> ThreadStep:
    start, end = None if parent is None else parent.made_at, record.made_at
    authors: Collection[TaskAuthor] = ()
    if record.source == "loop" and parent is not None:
        authors = [
            author
            for author in tasks.get(parent.id, {}).values()
            if any(_is_own(write, record) for write in author.writes)
        ]
    shown = tuple(_make_task(author, start, end) for author in authors if is_of_node(author.path))
    begin_times = [task.began_at for task in shown if not task.is_call]
    if not begin_times:
        began = start
    elif None in begin_times:
        began = None
    else:
        began = min(at for at in begin_times if at is not None)
    if began is not None and end is not None and end < began:
        began = None  # The clocks of two writers differ.
    nodes = [task.node for task in shown if task.node is not None and not task.is_call]
    if not authors and parent is not None and record.source == "loop":
        nodes = [
            node
            for node, seen in record.versions_seen.items()
            if node not in _INNER and parent.versions_seen.get(node) != seen
        ]
    return ThreadStep(
        record.namespace,
        record.id,
        record.parent_id,
        record.seq,
        record.run_id,
        record.source,
        record.step,
        tuple(nodes),
        shown,
        began if record.source == "loop" else None,
        end,
    )


def _make_task(author: TaskAuthor, start: int | None, end: int | None) -> StepTask:
    """Return the task of a step that began and ended at these times."""
    began, ended = author.times(start, end)
    return StepTask(
        author.task_id,
        author.node,
        author.state,
        author.is_call,
        author.caller,
        author.place,
        began,
        ended,
        tuple(dedupe_calls(author.calls)),
    )


def _make_open_step(head: CheckpointRecord, authors: Mapping[str, TaskAuthor]) -> ThreadStep | None:
    """Return the step that follows a namespace's latest checkpoint and is not over, ``None`` if there is
    none."""
    start = head.made_at
    tasks = [_make_task(author, start, None) for author in authors.values() if is_of_node(author.path)]
    begun = {task.node for task in tasks}
    tasks += [
        StepTask("", node, "open", began_at=start) for node in _find_triggered(head) if node not in begun
    ]
    if not tasks:
        return None
    nodes = tuple(task.node for task in tasks if task.node is not None and not task.is_call)
    step = None if head.step is None else head.step + 1
    return ThreadStep(
        head.namespace, None, head.id, None, head.run_id, "loop", step, nodes, tuple(tasks), start, None
    )


def _date_messages(
    steps: Iterable[ThreadStep],
    records: Mapping[str, CheckpointRecord],
    tasks: Mapping[str, Mapping[str, TaskAuthor]],
) -> list[TaskMessages]:
    """Return the times and tasks of written messages, newest first: a run's input with its first checkpoint,
    others with their tasks' results."""
    out: list[TaskMessages] = []
    for step in steps:
        for author in reversed(list(tasks.get(step.parent_id or "", {}).values())):
            if author.node == START:
                at = records[author.writes[0].checkpoint_id].made_at
            else:
                at = step.ended_at
            if at is not None and author.messages:
                node = None if author.node == START else author.node
                out.append(TaskMessages(at, node, author.messages))
    return out


def _end_with_caller(step: ThreadStep, caller: StepTask) -> ThreadStep:
    """Return a step of a subgraph. If the calling task is done, the open tasks of the step are done, too: a
    command to the parent graph ended them, and LangGraph stores that only with the parent."""
    if caller.state != "done" or step.checkpoint_id is not None:
        return step
    tasks = (replace(task, state="done") if task.state == "open" else task for task in step.tasks)
    return replace(step, tasks=tuple(tasks))


def _find_triggered(head: CheckpointRecord) -> list[str]:
    """Return the nodes that edges trigger next, by the channel versions that they have not seen."""
    nodes = [channel.removeprefix(BRANCH) for channel in head.refs if channel.startswith(BRANCH)]
    return [
        node
        for node in nodes
        if head.versions_seen.get(node, {}).get(f"{BRANCH}{node}") != head.versions.get(f"{BRANCH}{node}")
    ]


def way_of(steps: Iterable[ThreadStep]) -> list[list[str]]:
    """Return the path of steps through the nodes, oldest first: the nodes of each step that had any,
    concurrent ones together."""
    return [list(step.nodes) for step in steps if step.nodes and step.source != "fork"]


def show_step(step: ThreadStep, prices: Prices) -> dict[str, Any]:
    """Return a step as JSON data, with tokens, and with costs by a table of prices."""
    return {
        "checkpoint_id": step.checkpoint_id,
        "parent_id": step.parent_id,
        "namespace": step.namespace,
        "run_id": step.run_id,
        "source": step.source,
        "step": step.step,
        "nodes": list(step.nodes),
        "began_at": step.began_at,
        "ended_at": step.ended_at,
        "usage": total(step.calls, prices),
        "tasks": [_show_task(task, prices) for task in step.tasks[:_TASKS]],
        "task_count": len(step.tasks),
    }


def _show_task(task: StepTask, prices: Prices) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "node": task.node,
        "state": task.state,
        "is_call": task.is_call,
        "caller": task.caller,
        "began_at": task.began_at,
        "ended_at": task.ended_at,
        "calls": [show_call(call, prices) for call in task.calls],
        "usage": total(task.all_calls, prices),
        "namespaces": list(task.namespaces),
        "steps": [show_step(step, prices) for step in task.steps],
        "is_cut": task.is_cut,
    }
