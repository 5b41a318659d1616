"""Tasks whose shown question is older than the records of their subgraphs.

The question of a subgraph is shown by the task that runs it, once the subgraph has stopped. If a run ends
before that, because it failed or was stopped, the task still shows the question that the run has answered,
while the subgraph has gone past it: the next answer would be given to another question. The same happens to a
task that calls other tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.heads import belongs
from perdure.model.runs.next_step import NO_SENDS
from perdure.model.write_records import BRANCH, INTERRUPT, NULL_TASK, SENDS

_NODE = "~__pregel_pull, "
"""Beginning of the path of a task that an edge, or the goto of a command, leads to, before the name of its
node."""
_SENT = "~__pregel_push, "
"""Beginning of the path of a task that a ``Send`` has made, before its number."""
_CALL = "~__pregel_push, {path}, "
"""Beginning of the path of a task that another task calls, with the path of the calling task."""


@dataclass(frozen=True, slots=True)
class StaleQuestions:
    """Tasks of a checkpoint that still ask what they asked before a run.

    Attributes:
        tasks: their ids.
        called: ids of the tasks that ``tasks`` call.
        nodes: names of the nodes of ``tasks``.
        others: names of the nodes of the checkpoint's other tasks.
        has_unnamed: the node of one of ``tasks`` is not known, as a ``Send`` leads to it.
    """

    tasks: frozenset[str]
    called: frozenset[str]
    nodes: frozenset[str]
    others: frozenset[str]
    has_unnamed: bool

    @classmethod
    def of(cls, writes: Sequence[PendingWrite], asking: set[str], run_id: str) -> StaleQuestions:
        """Return the stale questions after a run.

        Args:
            writes: the writes on the checkpoint.
            asking: the tasks that have an interrupt without an answer.
            run_id: the run; a task that asked in it is not stale.
        """
        current = [w for w in writes if not w.is_aside]
        asked_in_run = {w.task_id for w in current if w.channel == INTERRUPT and belongs(w.nonce, (run_id,))}
        tasks = frozenset(asking - asked_in_run)
        paths = {w.task_path for w in current if w.task_id in tasks}
        call_prefixes = tuple(_CALL.format(path=path) for path in paths if path)
        called = frozenset(w.task_id for w in current if w.task_path.startswith(call_prefixes))
        nodes = frozenset(map(_read_node_name, paths))
        others = frozenset(_read_node_name(w.task_path) for w in current if w.task_id not in tasks | called)
        return cls(tasks, called, nodes - {""}, others - {""}, "" in nodes)

    def holds(self, namespace: str) -> bool:
        """Return True for the namespace of a subgraph that one of the tasks runs. The namespace of a subgraph
        that keeps its state from run to run has only the name of the node."""
        first, _, task = namespace.partition("|")[0].partition(":")
        if task:
            return task in self.tasks or task in self.called
        return bool(first) and (first in self.nodes or (self.has_unnamed and first not in self.others))


def find_added_questions(
    gone: Collection[PendingWrite], writes: Sequence[PendingWrite], checkpoint: CheckpointRecord
) -> list[PendingWrite]:
    """Return the questions of the tasks that only a command has added to the step of a checkpoint.

    Args:
        gone: what the command wrote, which is to be removed.
        writes: all writes on the checkpoint.
        checkpoint: the checkpoint.
    """
    left = {write.channel for write in writes if write.task_id == NULL_TASK and write not in gone}
    triggered = {name for name, ref in checkpoint.refs.items() if ref != NO_SENDS}
    channels = {write.channel for write in gone if write.task_id == NULL_TASK} - left - triggered

    def is_added(path: str) -> bool:
        if path.startswith(_NODE):
            return BRANCH + path.removeprefix(_NODE) in channels
        return SENDS in channels and path.removeprefix(_SENT)[:1].isdigit()

    added = {write.task_path for write in writes if is_added(write.task_path)}
    return [
        write
        for write in writes
        if write.channel == INTERRUPT
        and any(write.task_path == path or f", {path}, " in write.task_path for path in added)
    ]


def _read_node_name(path: str) -> str:
    if path.startswith(_NODE):
        return path.removeprefix(_NODE)
    return ""
