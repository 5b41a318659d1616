"""Plans of agents, and their subagents: who they are, what they were asked, and how far they are.

A subagent is a subgraph with checkpoints of its own, as a deep agent's are. Its name is the one that
LangChain gives its agents (``lc_agent_name``), or else that of the calling node. All is read as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from perdure.engine.threads import chunk_reads, history
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.langgraph.reading.plain_serde import PlainSerde
from perdure.langgraph.reading.step_authors import TaskAuthor
from perdure.langgraph.reading.thread_files import find_state
from perdure.langgraph.reading.thread_messages import load_title
from perdure.langgraph.reading.thread_steps import load_steps
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, HEAD, LANE, WRITE, Partition
from perdure.model.runs.queue import IN, Lane
from perdure.model.times import time_of
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree
from perdure.model.write_records import read_writes

TODOS = 200
"""To-dos that are returned."""
SUBAGENTS = 10
"""Subagents of one page."""
_CHANNEL = "todos"
_TEXT_MAX = 1000
_NAME = "lc_agent_name"
_serde = PlainSerde()


class Todo(NamedTuple):
    """An item of an agent's plan. ``status`` is the agent's own word, such as ``in_progress``."""

    content: str
    status: str


class Subagent(NamedTuple):
    """A subagent of a thread. Times are microseconds since 1970, ``None`` where they are not known.

    Attributes:
        namespace: The namespace of its steps, files and transcript.
        name: Its name.
        task: The beginning of what it was asked.
        state: ``running``; ``asked``, if it waits for an answer; ``failed``; ``open``, if it is not over and
            nothing works on it; or ``done``.
        began_at: The time of its first stored checkpoint.
        changed_at: The time of its latest checkpoint.
        step: The number of its latest step.
        nodes: The nodes that run now or are next; none if it is done.
    """

    namespace: str
    name: str
    task: str
    state: str
    began_at: int | None
    changed_at: int | None
    step: int | None
    nodes: tuple[str, ...]


class SubagentsPage(NamedTuple):
    """Subagents by their namespaces. If ``cursor`` is not ``None``, further agents are on the next page."""

    subagents: list[Subagent]
    cursor: str | None


def load_todos(
    partition: Partition, digest: Digester, *, namespace: str = "", checkpoint_id: str | None = None
) -> Program[list[Todo]]:
    """Return the plan of a thread's agent, in order; the first ``TODOS`` items.

    Args:
        partition: The thread.
        digest: Names the chunks.
        namespace: The namespace of a subagent, the agent's own by default.
        checkpoint_id: The checkpoint, the latest by default.

    Raises:
        NotFound: There is no such checkpoint.
    """

    def read() -> Program[list[Todo]]:
        record = yield from find_state(partition, namespace, checkpoint_id)
        ref = None if record is None else record.refs.get(_CHANNEL)
        if ref is None:
            return []
        trees, _ = yield from chunk_reads.resolve(partition, {_CHANNEL: ref}, digest)
        value: object = _serde.value(*join_tree(trees[_CHANNEL]))
        if isinstance(value, list):
            items = cast("list[object]", value)[:TODOS]
        else:
            items = []
        found = (cast("dict[str, object]", each) for each in items if isinstance(each, dict))
        return [
            Todo(str(each["content"])[:_TEXT_MAX], str(each.get("status", ""))[:_TEXT_MAX])
            for each in found
            if "content" in each
        ]

    return (yield from read_undisturbed(partition, read))


def load_subagents(
    partition: Partition, digest: Digester, *, after: str = "", limit: int = SUBAGENTS
) -> Program[SubagentsPage]:
    """Return a page of the subagents of a thread.

    Args:
        partition: The thread.
        digest: Names the chunks.
        after: The cursor of the page before.
        limit: Maximum number of subagents to return.
    """

    def read() -> Program[SubagentsPage]:
        # The root is the first namespace, as its name is empty.
        heads, lanes = yield from ask(
            Fetch(partition, (Range(HEAD, after=(after,), limit=limit + 1), Get(LANE, (IN,))))
        )
        lane = Lane.read(IN, lanes)
        found: list[Subagent] = []
        for head in heads[:limit]:
            name = head.key[0]
            record = yield from history.find(partition, name, head.fields["checkpoint_id"])
            if record is not None:
                found.append((yield from _describe(partition, digest, record, lane)))
        return SubagentsPage(found, heads[limit - 1].key[0] if len(heads) > limit else None)

    return (yield from read_undisturbed(partition, read))


def _describe(
    partition: Partition, digest: Digester, record: CheckpointRecord, lane: Lane
) -> Program[Subagent]:
    namespace = record.namespace
    (first,) = yield from ask(
        Fetch(partition, (Range(CHECKPOINT, (namespace,), by="seq", limit=1, bodies=False),))
    )
    page = yield from load_steps(partition, digest, namespace, limit=1)
    metadata: Mapping[str, Any] = _serde.unpack(record.metadata)
    name = metadata.get(_NAME)
    last = page.steps[0] if page.steps else None
    state, nodes = "done", tuple[str, ...]()
    if last is not None and last.checkpoint_id is None:
        is_over = yield from _is_caller_done(partition, namespace, metadata.get("parents"))
        if not is_over:
            nodes = last.nodes
            is_worked_on = lane.owner is not None and lane.run_id is not None and record.run_id == lane.run_id
            state = _state_of({task.state for task in last.tasks}, is_worked_on=is_worked_on)
    return Subagent(
        namespace,
        name if isinstance(name, str) else namespace.rpartition("|")[2].partition(":")[0],
        (yield from load_title(partition, digest, namespace)),
        state,
        time_of(first[0].key[1]) if first else None,
        record.made_at,
        record.step,
        nodes,
    )


def _state_of(tasks: set[str], *, is_worked_on: bool) -> str:
    if "asked" in tasks:
        return "asked"
    if is_worked_on:
        return "running"
    if "failed" in tasks:
        return "failed"
    return "open"


def _is_caller_done(partition: Partition, namespace: str, parents: object) -> Program[bool]:
    """Return True if the task that called a subgraph is done. Then the subgraph is, too, even if its last
    step is open: a command to the parent graph ended it."""
    above, _, place = namespace.rpartition("|")
    if place.isdigit():
        above, _, place = above.rpartition("|")
    task_id = place.partition(":")[2]
    if isinstance(parents, dict):
        checkpoint_id = cast("dict[str, object]", parents).get(above)
    else:
        checkpoint_id = None
    if not task_id or not isinstance(checkpoint_id, str):
        return False
    (records,) = yield from ask(Fetch(partition, (Range(WRITE, (above, checkpoint_id, task_id)),)))
    return TaskAuthor(task_id, "", writes=list(read_writes(records))).state == "done"
