"""New ids of the tasks of a stored checkpoint, for nodes that were renamed since.

LangGraph finds the writes of a task, and the answers to its interrupts, by an id that it computes from the
checkpoint, the namespace, the step, the node's name and the channels that trigger the node. The
namespace of a subgraph's task contains the ids of the tasks above it. So writes and questions of a renamed
node, or below one, get the id that LangGraph will look for.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha1
from itertools import chain, combinations
from typing import Any, NamedTuple

from langgraph.constants import START
from xxhash import xxh3_128_hexdigest

from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.write_records import NULL_TASK
from perdure.schema.changes import BRANCH, Changes

PULL, PUSH = "__pregel_pull", "__pregel_push"
SENDS = "__pregel_tasks"
"""LangGraph's channel of the tasks that ``Send`` starts."""
_PULLED, _PUSHED = f"~{PULL}, ", f"~{PUSH}, "
_STARTING = (BRANCH, "join:")
_JOINS_MAX = 6
_ANSWERS_MAX = 64


class TaskPlace(NamedTuple):
    """A task of a checkpoint by the parts from which LangGraph computes its id: its node, and the channels
    that trigger it or the number of its ``Send``. For a task that another task called, ``send`` is its number
    among the calls of that task, whose path is in ``caller``."""

    node: str
    triggers: tuple[str, ...] = ()
    send: int | None = None
    caller: str = ""

    def rename(self, changes: Changes) -> TaskPlace:
        """Return the place of the same task under the present names."""
        triggers = tuple(sorted(changes.rename_channel(trigger) or trigger for trigger in self.triggers))
        return TaskPlace(changes.rename_node(self.node), triggers, self.send)

    def task_id(self, record: CheckpointRecord, namespace: str) -> str:
        """Return the id of the task.

        Args:
            record: The checkpoint that it starts from.
            namespace: The namespace of the checkpoint, by the names, old or new, that the id is to have.
        """
        if namespace:
            level = f"{namespace}|{self.node}"
        else:
            level = self.node
        step = str((-1 if record.step is None else record.step) + 1)
        if self.send is None:
            last = (PULL, *self.triggers)
        else:
            last = (PUSH, self.caller, str(self.send))
        text = "".join((level, step, self.node, *last)).encode()
        start = binascii.unhexlify(record.id.replace("-", ""))
        if record.v > 1:
            found = xxh3_128_hexdigest(start + text)
        else:
            found = sha1(start + text, usedforsecurity=False).hexdigest()
        return f"{found[:8]}-{found[8:12]}-{found[12:16]}-{found[16:20]}-{found[20:32]}"


class TaskMoves:
    """The tasks of a checkpoint that have other ids by now.

    Args:
        record: The checkpoint.
        changes: The changes since.
        old: The namespace of the checkpoint when its tasks were made.
        new: The namespace by its present name.
        sends: The checkpoint's pending ``Send`` objects, with the names of that time.
    """

    def __init__(
        self, record: CheckpointRecord, changes: Changes, *, old: str, new: str, sends: Sequence[object]
    ) -> None:
        self._record = record
        self._changes = changes
        self._old, self._new = old, new
        self._sends = _list_nodes(sends)
        self.ids: dict[str, str] = {}
        self.interrupts: dict[str, str] = {}
        """Ids of interrupts, old to new."""
        self.namespaces: dict[str, str] = {}
        """Namespaces of the tasks' subgraphs, old to new."""

    def with_sends(self, sends: Sequence[object]) -> TaskMoves:
        """Take the checkpoint's pending ``Send`` objects, and return this object."""
        self._sends = _list_nodes(sends)
        return self

    def add_writes(self, writes: Iterable[PendingWrite]) -> None:
        """Find the new ids of the tasks that made writes."""
        for task_id, path in dict.fromkeys((write.task_id, write.task_path) for write in writes):
            if task_id != NULL_TASK:
                self._add(task_id, self._list_possible_nodes(path))

    def add_namespaces(self, namespaces: Iterable[str]) -> None:
        """Find the new ids of the tasks that wrote nothing, but whose subgraphs have stored something."""
        start = f"{self._old}|" if self._old else ""
        for namespace in namespaces:
            node, _, task_id = namespace.removeprefix(start).partition("|")[0].partition(":")
            if namespace.startswith(start) and task_id:
                self._add(task_id, [node])

    def write_path(self, path: str) -> str:
        """Return a write's task path under the present names."""
        if not path.startswith(_PULLED):
            return path
        return _PULLED + self._changes.rename_node(path.removeprefix(_PULLED))

    def rename_interrupts(self, value: Any) -> Any:
        """Return the value of an interrupt's write with the present ids."""
        from langgraph.types import Interrupt

        if not isinstance(value, list | tuple):
            return value
        return [
            Interrupt(one.value, self.interrupts[one.id], response_schema=one.response_schema)
            if isinstance(one, Interrupt) and one.id in self.interrupts
            else one
            for one in value
        ]

    def _list_possible_nodes(self, path: str) -> Iterable[str]:
        """Return the nodes to which a task's path may belong."""
        if path.startswith(_PULLED):
            return [path.removeprefix(_PULLED)]
        if path.startswith(_PUSHED):
            number = path.removeprefix(_PUSHED).partition(",")[0]
            if number.isdigit():
                at = int(number)
            else:
                at = len(self._sends)
            return self._sends[at : at + 1]
        started = (name.rpartition(":")[2] for name in self._record.versions if name.startswith(_STARTING))
        return dict.fromkeys((*self._record.versions_seen, *started, *self._sends))

    def _add(self, task_id: str, nodes: Iterable[str]) -> None:
        if task_id in self.ids:
            return
        place = next(
            (p for p in self._list_places(nodes) if p.task_id(self._record, self._old) == task_id), None
        )
        if place is None:
            return
        moved = place.rename(self._changes)
        new_id = moved.task_id(self._record, self._new)
        self.ids[task_id] = new_id
        start, target = (f"{ns}|" if ns else "" for ns in (self._old, self._new))
        before, now = f"{start}{place.node}:{task_id}", f"{target}{moved.node}:{new_id}"
        self.namespaces[before] = now
        for answered in range(_ANSWERS_MAX):
            self.interrupts[_interrupt_id(before, answered)] = _interrupt_id(now, answered)

    def _list_places(self, nodes: Iterable[str]) -> Iterable[TaskPlace]:
        for node in nodes:
            yield TaskPlace(node, (START,) if node == START else (f"{BRANCH}{node}",))
            for number, sent in enumerate(self._sends):
                if sent == node:
                    yield TaskPlace(node, (), number)
            joins = [name for name in _list_channels(self._record) if _is_join_of(name, node)][:_JOINS_MAX]
            sizes = range(1, len(joins) + 1)
            for some in chain.from_iterable(combinations(joins, size) for size in sizes):
                yield TaskPlace(node, tuple(sorted((*some, f"{BRANCH}{node}"))))
                yield TaskPlace(node, tuple(sorted(some)))


def _list_nodes(sends: Sequence[object]) -> list[str]:
    from langgraph.types import Send

    return [send.node if isinstance(send, Send) else "" for send in sends]


def _list_channels(record: CheckpointRecord) -> list[str]:
    seen: Iterable[Mapping[str, object]] = record.versions_seen.values()
    return list(dict.fromkeys(chain(record.versions, *seen)))


def _is_join_of(channel: str, node: str) -> bool:
    return channel.startswith("join:") and channel.rpartition(":")[2] == node


def _interrupt_id(namespace: str, answered: int) -> str:
    """Return LangGraph's id of a task's interrupt, by the number of answers that the task has."""
    return xxh3_128_hexdigest((f"{namespace}|{answered}" if answered else namespace).encode())
