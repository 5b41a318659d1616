"""Makes checkpoints of the states that a server shows: their channels, their next tasks, and the writes.

A state has the values, and the names of the next tasks, but not the channels that start them. Each node of a
graph has a channel ``branch:to:NODE``, which starts it; so the names are enough, unless a task is a ``Send``,
or has finished while others of its step wait. The server does not show the argument of a ``Send``, nor where
a finished task leads, so these are computed with the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.pregel._algo import task_path_str
from langgraph.types import Interrupt
from xxhash import xxh3_128_hexdigest

from perdure.errors import Corrupt, Unserialisable
from perdure.imports.langgraph_server.json_values import revive
from perdure.imports.langgraph_server.steps import GraphSteps
from perdure.imports.source import CheckpointEntry, WriteSlot

BRANCH = "branch:to:"
"""Prefix of the channels that start the nodes of a graph."""

START, ROOT, SENDS = "__start__", "__root__", "__pregel_tasks"
ERROR, INTERRUPT = "__error__", "__interrupt__"
_PULL, _PUSH = "__pregel_pull", "__pregel_push"


class ServerWrite(NamedTuple):
    """A pending write with its value."""

    slot: WriteSlot
    task_path: str
    channel: str
    value: Any


@dataclass(slots=True)
class Built:
    """A checkpoint made of a state, and its pending writes."""

    entry: CheckpointEntry
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[ServerWrite]


@dataclass(slots=True)
class _Known:
    """Facts about a checkpoint that its successors need."""

    versions: dict[str, int]
    digests: dict[str, bytes]
    depth: int
    following: Mapping[str, Any] = field(default_factory=dict[str, Any])


def entry_of(state: Mapping[str, Any]) -> CheckpointEntry:
    """Return the place of a state in its thread's tree."""
    place, parent = state["checkpoint"], state.get("parent_checkpoint")
    return CheckpointEntry(
        place.get("checkpoint_ns") or "",
        str(place["checkpoint_id"]),
        str(parent["checkpoint_id"]) if parent else None,
    )


def find_namespaces(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the namespaces of the subgraphs that the next tasks of a state run."""
    for task in state.get("tasks") or ():
        # Aegra has the subgraph's config in place of its state.
        if place := task.get("checkpoint") or (task.get("state") or {}).get("configurable"):
            yield place.get("checkpoint_ns") or ""


class NamespaceStates:
    """The states of one namespace of a thread, from which checkpoints are made, parents before children.

    Args:
        steps: The graph of the namespace; without it a state that needs it is refused.
    """

    def __init__(self, steps: GraphSteps | None) -> None:
        self._steps = steps
        self._known: dict[str, _Known] = {}

    def build(self, state: Mapping[str, Any], *, is_leaf: bool) -> Built:
        """Return the checkpoint of a state.

        Args:
            state: The state.
            is_leaf: True if no run has gone on from the state.

        Raises:
            Unserialisable: The server does not show what is needed to go on from the state.
        """
        entry = entry_of(state)
        parent = self._known.get(entry.parent_id or "", _Known({}, {}, 0))
        metadata: dict[str, Any] = dict(state.get("metadata") or {})
        tasks = _add_paths(entry, metadata, state.get("tasks") or ())
        values = self._read_values(state.get("values"))
        if self._steps is not None:
            values = self._steps.coerce(values)
        following: Mapping[str, Any] = {}
        if metadata.get("source") == "loop":
            following = parent.following
        hidden = self._find_hidden(entry, tasks, following)
        channels = {**values, **hidden}
        known = self._count_versions(channels, parent)
        checkpoint: dict[str, Any] = {
            "v": 4,
            "ts": state.get("created_at") or "",
            "id": entry.id,
            "channel_values": channels,
            "channel_versions": known.versions,
            "versions_seen": {},
        }
        writes = self._make_writes(entry, tasks, known, checkpoint, is_leaf=is_leaf)
        self._known[entry.id] = known
        return Built(entry, checkpoint, metadata, writes)

    def _read_values(self, values: Any) -> dict[str, Any]:
        made = revive(values)
        if isinstance(made, dict):
            return made
        if made is None:
            return {}
        return {self._steps.output if self._steps is not None else ROOT: made}

    def _find_hidden(
        self, entry: CheckpointEntry, tasks: Sequence[Mapping[str, Any]], following: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the channels that start the next tasks, and those in which a graph waits for several
        tasks."""
        hidden = {name: value for name, value in following.items() if not name.startswith(BRANCH)}
        sends = list(hidden.pop(SENDS, ()))
        pushed = [task["name"] for task in tasks if _get_path(task)[:1] == (_PUSH,)]
        for task in tasks:
            name = task["name"]
            if _get_path(task)[:1] == (_PUSH,):
                continue
            if name == START:
                if task.get("result") is None:
                    raise Unserialisable(
                        f"the input of checkpoint {entry.id} was never run, and the server does not show it; "
                        "let the thread's run end first"
                    )
                hidden[START] = revive(task["result"])
                continue
            channel = BRANCH + name
            hidden[channel] = following.get(channel)
            if channel not in following and self._steps is not None:
                hidden[channel] = self._steps.start_value(channel)
        if pushed:
            if [getattr(send, "node", None) for send in sends] != pushed:
                raise Unserialisable(
                    f"the next step of checkpoint {entry.id} was sent to {', '.join(sorted(set(pushed)))} "
                    "with Send, and a server does not show what was sent; "
                    + (
                        "the graph of --graph does not send it there from its parent"
                        if self._steps is not None
                        else "pass the graph with --graph"
                    )
                )
            hidden[SENDS] = sends
        return hidden

    def _count_versions(self, channels: Mapping[str, Any], parent: _Known) -> _Known:
        """Count the versions: a value that equals the parent's keeps its version."""
        depth = parent.depth + 1
        versions: dict[str, int] = {}
        digests: dict[str, bytes] = {}
        for channel, value in channels.items():
            text = orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS)
            digests[channel] = blake2b(text, digest_size=16).digest()
            is_same = parent.digests.get(channel) == digests[channel]
            versions[channel] = depth
            # A channel that starts a task is always new.
            if is_same and not channel.startswith((BRANCH, START, SENDS)):
                versions[channel] = parent.versions[channel]
        return _Known(versions, digests, depth)

    def _make_writes(
        self,
        entry: CheckpointEntry,
        tasks: Sequence[Mapping[str, Any]],
        known: _Known,
        checkpoint: dict[str, Any],
        *,
        is_leaf: bool,
    ) -> list[ServerWrite]:
        finished = [task for task in tasks if task.get("result") is not None]
        by_task: Mapping[str, list[tuple[str, Any]]] = {}
        if self._steps is not None and tasks and not (is_leaf and not finished):
            # A task that ran may have no result, as it wrote nothing: if the state has a successor, all tasks
            # ran, except those that wait for an answer.
            ran = finished
            if not is_leaf:
                ran = [task for task in tasks if not task.get("interrupts") or task in finished]
            step = self._steps.apply_results(
                checkpoint, [(t["id"], t["name"], revive(t.get("result"))) for t in ran]
            )
            if step is not None:
                by_task = step.writes
                if len(ran) == len(tasks):
                    known.following = step.channels
        elif finished and is_leaf:
            raise Unserialisable(
                f"task {finished[0]['name']!r} of checkpoint {entry.id} has finished while others wait, and "
                "a server does not show where it leads; pass the graph with --graph"
            )
        return [write for task in tasks for write in _make_task_writes(entry, task, by_task.get(task["id"]))]


def _make_task_writes(
    entry: CheckpointEntry, task: Mapping[str, Any], rebuilt: list[tuple[str, Any]] | None
) -> Iterator[ServerWrite]:
    name, path = str(task["id"]), task_path_str(_get_path(task))
    result = task.get("result")
    pairs = rebuilt
    if pairs is None and result is not None:
        made = revive(result)
        if not isinstance(made, dict):
            made = {ROOT: made}
        pairs = list(made.items())
    for idx, (channel, value) in enumerate(pairs or ()):
        yield ServerWrite(WriteSlot(entry.namespace, entry.id, name, idx), path, channel, value)
    if task.get("error") is not None:
        slot = WriteSlot(entry.namespace, entry.id, name, WRITES_IDX_MAP[ERROR])
        yield ServerWrite(slot, path, ERROR, task["error"])
    if task.get("interrupts"):
        interrupts = [_read_interrupt(one) for one in task["interrupts"]]
        slot = WriteSlot(entry.namespace, entry.id, name, WRITES_IDX_MAP[INTERRUPT])
        yield ServerWrite(slot, path, INTERRUPT, interrupts)


def _read_interrupt(shown: Mapping[str, Any]) -> Interrupt:
    name = shown.get("id") or shown.get("interrupt_id")
    if not isinstance(name, str):
        raise Unserialisable(
            "a question has no id, as of LangGraph before 0.4; it cannot be answered elsewhere"
        )
    return Interrupt(value=revive(shown.get("value")), id=name)


def _add_paths(
    entry: CheckpointEntry, metadata: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """Return tasks with their paths. Aegra does not show them, but LangGraph makes a task's id from its path:
    the path of a ``Send`` is found by trying its numbers, and any other task has the path of its node."""
    if all("path" in task for task in tasks):
        return tasks
    start, step = UUID(entry.id).bytes, str(int(metadata.get("step", -1)) + 1)
    pushed: dict[str, tuple[str, int, bool]] = {}
    for name in {str(task["name"]) for task in tasks}:
        inside = f"{entry.namespace}|{name}" if entry.namespace else name
        for number in range(len(tasks)):
            text = "".join((inside, step, name, _PUSH, str(number)))
            pushed[str(UUID(xxh3_128_hexdigest(start + text.encode())))] = (_PUSH, number, False)
    return [{**task, "path": pushed.get(task["id"], (_PULL, task["name"]))} for task in tasks]


def _get_path(task: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(task.get("path") or ())


def check(state: Any) -> None:
    """Raise ``Corrupt`` for anything but a state."""
    if not isinstance(state, dict) or not isinstance(state.get("checkpoint"), dict):
        raise Corrupt("the server sends something else than states; check its URL")
