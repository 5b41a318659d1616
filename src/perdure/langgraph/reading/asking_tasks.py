"""Stored tasks that wait for answers, by the interrupts that they have left, and whether a question is a
task's own or that of a graph without checkpoints in it.

LangGraph computes the id of an interrupt from the place of the task that asks, and from the number of its
answers. A stored task is in the same place when the answer comes, and no other task is. Everything is read
from what is stored: a graph does not know the graphs that its tools and functions call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from langgraph.constants import START

from perdure.engine.threads import chunk_reads, history
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.errors import Corrupt
from perdure.langgraph.migration.schema_task_ids import SENDS
from perdure.langgraph.reading.open_interrupts import interrupt_id, read_interrupts
from perdure.langgraph.reading.plain_serde import PlainSerde
from perdure.langgraph.reading.step_authors import TaskAuthor, load_authors
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT, are_of_one_run, belongs, is_of_run
from perdure.model.ops import Fetch, Range
from perdure.model.program import Program, ask
from perdure.model.records import HEAD, Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree
from perdure.model.write_records import ERROR_SOURCE, INTERRUPT, RESUME
from perdure.schema.changes import BRANCH

_TRIGGERS = (BRANCH, "join:", START)
_ANSWERS_MAX = 100
"""Number of questions of a task among which one is looked for, whatever number of answers the task has."""
_serde = PlainSerde()


class AskingTask(NamedTuple):
    """The innermost stored task that has left an open interrupt.

    Attributes:
        node: Its node, or that of the task that called it; empty if neither is known.
        is_own: True if the task itself asks, false if a graph without checkpoints in it does; ``None`` if its
            name is not stored, as that of a task of the functional API.
        has_answers: It has taken answers before.
        is_sole: Nothing else can take an answer that is given without an id: nothing else is asked, and all
            other graphs that were called by the tasks on the way to it had ended when it asked, and have
            stored nothing since.
    """

    task_id: str
    node: str
    is_own: bool | None
    has_answers: bool
    is_sole: bool


def read(
    partition: Partition,
    digest: Digester,
    moved: Mapping[str, str],
    run_id: str,
    names: Collection[str] | None = None,
) -> Program[dict[str, AskingTask]]:
    """Return the tasks that wait for answers, by the ids of their interrupts. An interrupt that a task has
    answered is left out, also if the tasks that called it still have it.

    Args:
        partition: The thread.
        digest: Names the chunks.
        moved: The interrupts whose ids changed when a node was renamed, old to present.
        run_id: The run that gives the answers.
        names: The present ids of the interrupts to find; ``None`` for all.
    """

    def read_tasks() -> Program[dict[str, AskingTask]]:
        return _Reading(partition, digest, moved, run_id).read(names)

    return (yield from read_undisturbed(partition, read_tasks))


@dataclass(slots=True)
class _Task:
    """A task with the interrupts that it has left, open or not, and the number of its answers. ``scope`` is
    the place below which the graphs in it are."""

    author: TaskAuthor
    left: frozenset[str]
    answers: int
    scope: str

    @property
    def is_ended(self) -> bool:
        """True if it has output: LangGraph's rule (``langgraph.pregel._task_status``)."""
        return any(write.idx >= 0 and write.channel != ERROR_SOURCE for write in self.author.writes)

    @property
    def questions(self) -> frozenset[str]:
        """The interrupts that are open."""
        return frozenset() if self.is_ended else self.left

    def find_nonce(self, channel: str) -> str | None:
        """Return the name of the loop that wrote to a channel, ``None`` if none did."""
        return next((write.nonce for write in self.author.writes if write.channel == channel), None)

    def calls(self, namespace: str) -> bool:
        """Return True if a namespace is that of a graph in the task. One that keeps its state between calls
        has only the names of nodes in its namespace."""
        if ":" in namespace:
            return f":{self.author.task_id}|" in f"{namespace}|"
        by_name = "|".join(part.partition(":")[0] for part in self.scope.split("|") if not part.isdigit())
        return bool(by_name) and f"{namespace}|".startswith(f"{by_name}|")


@dataclass(slots=True)
class _Level:
    """The latest checkpoint of a namespace, with its tasks, callers first."""

    checkpoint: CheckpointRecord
    tasks: list[_Task]
    has_sends: bool

    @property
    def is_over(self) -> bool:
        """True if its graph has ended."""
        is_triggered = any(name.startswith(_TRIGGERS) for name in self.checkpoint.refs)
        return not is_triggered and not self.has_sends and all(task.is_ended for task in self.tasks)

    @property
    def nonces(self) -> set[str]:
        """Names of the loops that have stored the checkpoint and the writes on it."""
        return {self.checkpoint.nonce, *(write.nonce for task in self.tasks for write in task.author.writes)}


@dataclass(slots=True)
class _Reading:
    """One read of a thread. ``levels`` are those of the graph and of the subgraphs that may ask, outer ones
    first."""

    partition: Partition
    digest: Digester
    moved: Mapping[str, str]
    run_id: str
    levels: list[_Level] = field(default_factory=list[_Level])

    def read(self, names: Collection[str] | None) -> Program[dict[str, AskingTask]]:
        (heads,) = yield from ask(Fetch(self.partition, (Range(HEAD),)))
        latest = {head.key[0]: head.fields["checkpoint_id"] for head in heads}
        if ROOT not in latest:
            return {}
        yield from self._read_level(ROOT, latest.pop(ROOT))
        wanted = frozenset(name for task in self.levels[0].tasks for name in task.questions)
        if names is not None:
            wanted &= frozenset(names)
        callers = self._list_callers(wanted)
        for namespace in sorted(latest, key=lambda each: (each.count("|"), each)):
            if any(task.calls(namespace) for task in callers):
                yield from self._read_level(namespace, latest[namespace])
                callers += self._list_callers(wanted)
        answered = frozenset(self._list_answered())
        found = {name: self._find_task(name) for name in sorted(wanted - answered)}
        return {name: task for name, task in found.items() if task is not None}

    def _read_level(self, namespace: str, checkpoint_id: str) -> Program[None]:
        record = yield from history.find(self.partition, namespace, checkpoint_id)
        if record is None:
            raise Corrupt(f"thread {self.partition.thread!r} has no checkpoint {checkpoint_id!r}")
        found = yield from load_authors(self.partition, self.digest, [record], list(record.versions_seen))
        authors = found[record.id]
        wanted = {
            f"{name}{write.channel}": write.ref
            for name, author in authors.items()
            for write in author.writes
            if write.channel in (INTERRUPT, RESUME)
        }
        if SENDS in record.refs:
            wanted[SENDS] = record.refs[SENDS]
        trees, _ = yield from chunk_reads.resolve(self.partition, wanted, self.digest)
        values = {name: _serde.value(*join_tree(tree)) for name, tree in trees.items()}
        tasks: list[_Task] = []
        for name, author in sorted(authors.items(), key=lambda each: len(each[1].path)):
            left = frozenset(
                self._rename(one) for one, _ in read_interrupts(values.get(f"{name}{INTERRUPT}", ()))
            )
            answers = values.get(f"{name}{RESUME}", ())
            # Old releases of LangGraph stored a single answer, not a list.
            count = len(answers) if isinstance(answers, list | tuple) else 1
            caller = authors.get(author.caller or "")
            tasks.append(_Task(author, left, count, author.place or (caller.place if caller else "")))
        self.levels.append(_Level(record, tasks, bool(values.get(SENDS))))

    def _list_callers(self, wanted: frozenset[str]) -> list[_Task]:
        """Return the tasks of the latest level in which one of the interrupts may have been left."""
        tasks = self.levels[-1].tasks
        return [
            task for task in tasks if any(not self._is_own(task, name) for name in task.questions & wanted)
        ]

    def _rename(self, name: str) -> str:
        return self.moved.get(name, name)

    def _is_own(self, task: _Task, name: str) -> bool | None:
        """Return True if a task itself has left an interrupt, ``None`` if that is not known."""
        if not task.author.place:
            return None
        # An attempt that failed may have stored fewer answers than the task had when it asked.
        for number in (task.answers, *range(_ANSWERS_MAX)):
            if self._rename(interrupt_id(task.author.place, number)) == name:
                return True
        # What is below a renamed node has the former place in storage.
        return None if self.moved else False

    def _list_answered(self) -> Iterator[str]:
        """Yield the interrupts whose answers the tasks have taken."""
        for task in (task for level in self.levels for task in level.tasks if task.author.place):
            yield from (self._rename(interrupt_id(task.author.place, n)) for n in range(task.answers))

    def _find_task(self, name: str) -> AskingTask | None:
        """Return the innermost task that has left an interrupt, ``None`` if it has gone on since."""
        way = [task for level in self.levels for task in level.tasks if name in task.left]
        task, is_own = way[-1], self._is_own(way[-1], name)
        nonce, answered = task.find_nonce(INTERRUPT) or "", task.find_nonce(RESUME)
        has_taken = is_own is None and answered is not None and not are_of_one_run(answered, nonce)
        if task.is_ended or has_taken:
            return None
        node = task.author.node or task.scope.rpartition("|")[2].partition(":")[0]
        asked = {one for level in self.levels for each in level.tasks for one in each.questions}
        called = self._list_called(way)
        others = [level for level in called if not any(name in each.left for each in level.tasks)]
        is_sole = asked == {name} and not any(self._may_take(level, nonce) for level in others)
        return AskingTask(task.author.task_id, node, is_own, task.answers > 0, is_sole)

    def _list_called(self, tasks: Sequence[_Task]) -> list[_Level]:
        """Return the levels of the graphs that tasks have called, without those that these graphs called."""
        ids = {task.author.task_id for task in tasks}
        out: list[_Level] = []
        for level in self.levels[1:]:
            namespace = level.checkpoint.namespace
            *_, last = (part for part in namespace.split("|") if not part.isdigit())
            _, has_id, task_id = last.partition(":")
            if task_id in ids or (not has_id and any(task.calls(namespace) for task in tasks)):
                out.append(level)
        return out

    def _may_take(self, level: _Level, nonce: str) -> bool:
        """Return True if a graph may take an answer, or may have taken it, to a question that this loop
        stored. A graph that keeps its state between calls has it from earlier runs."""
        if not level.is_over:
            return True
        if ":" in level.checkpoint.namespace:
            return not is_of_run(nonce) or not all(are_of_one_run(nonce, other) for other in level.nonces)
        return any(belongs(other, (self.run_id,)) for other in level.nonces)
