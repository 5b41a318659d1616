"""Times of nodes over all threads: how often each node ran since a time, how long it took, and how often it
failed.

Times are those of the tasks of stored steps, so no further counts are stored. A node's failures are the
failed runs whose error it raised, because the steps of a failed run may be removed; in a thread without runs,
its failed tasks. Threads are read one after the other, the latest activity first where the database can do
that, and of each only the steps since that time.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from math import floor, log2
from typing import Any, NamedTuple

from perdure.errors import BadSetting, Contention, Corrupt
from perdure.langgraph.reading.thread_steps import StepTask, ThreadStep, load_steps
from perdure.model.records import Partition
from perdure.model.runs.messages import FAILED
from perdure.runtime.operations.run_search import RunQuery, load_runs
from perdure.runtime.operations.thread_search import ThreadQuery, find_graph, search
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.threads.rows import ThreadRow

CLASSES = 8
"""Classes of durations for each doubling: a percentile is at most 4.5 percent off."""

_CURSOR_MAX = 4096


@dataclass(slots=True)
class _Node:
    """Count of the tasks of a node by the class of their duration, and of its failures. ``longest`` is in
    microseconds."""

    classes: Counter[int] = field(default_factory=Counter[int])
    failed: int = 0
    longest: int = 0


class NodeTimes:
    """Durations by graph and node. A node of a subgraph has the nodes that lead to it before its name, as in
    a namespace: ``team|writer``."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str | None, str], _Node] = {}

    def add(
        self,
        graph: str | None,
        steps: Iterable[ThreadStep],
        since: int,
        above: str = "",
        *,
        with_failures: bool = True,
    ) -> None:
        """Add those tasks of steps that ended since a time in microseconds since 1970.

        Args:
            graph: The graph.
            steps: The steps.
            since: The time.
            above: The nodes that lead to these, with "|" at the end.
            with_failures: Count failed tasks as failures, for a thread without runs.
        """
        for step in steps:
            for task in step.tasks:
                if task.node is None:
                    continue
                name = f"{above}{task.node}"
                self._add_task(graph, name, task, since, with_failures)
                self.add(graph, task.steps, since, f"{name}|", with_failures=with_failures)

    def add_failure(self, graph: str | None, name: str) -> None:
        """Add a failed run to the node that raised its error."""
        self._nodes.setdefault((graph, name), _Node()).failed += 1

    def _add_task(
        self, graph: str | None, name: str, task: StepTask, since: int, with_failures: bool
    ) -> None:
        if task.began_at is None or task.ended_at is None or task.ended_at < since:
            return
        if task.state not in ("done", "failed"):
            return
        took = task.ended_at - task.began_at
        node = self._nodes.setdefault((graph, name), _Node())
        node.classes[floor(CLASSES * log2(max(1, took)))] += 1
        node.failed += with_failures and task.state == "failed"
        node.longest = max(node.longest, took)

    def merge(self, other: NodeTimes) -> None:
        """Add the times of another part of the threads."""
        for key, theirs in other._nodes.items():
            node = self._nodes.setdefault(key, _Node())
            node.classes.update(theirs.classes)
            node.failed += theirs.failed
            node.longest = max(node.longest, theirs.longest)

    def entries(self) -> list[dict[str, Any]]:
        """Return ``graph``, ``node``, ``count``, ``failed`` and, in microseconds, ``p50``, ``p95`` and
        ``longest`` of each node as JSON data, the greatest ``p95`` first. ``classes`` are the counts by
        class: of durations from ``2 ** (class / CLASSES)`` microseconds on."""
        found = [
            {
                "graph": graph,
                "node": name,
                "count": node.classes.total(),
                "failed": node.failed,
                "p50": _find_percentile(node.classes, 0.5, node.longest),
                "p95": _find_percentile(node.classes, 0.95, node.longest),
                "longest": node.longest,
                "classes": {str(place): count for place, count in sorted(node.classes.items())},
            }
            for (graph, name), node in self._nodes.items()
        ]
        return sorted(found, key=lambda each: (-each["p95"], each["graph"] or "", each["node"]))


def _find_percentile(classes: Mapping[int, int], part: float, longest: int) -> int:
    """Return the middle of the class with a percentile, in microseconds, and no more than the longest."""
    wanted, passed = part * sum(classes.values()), 0
    for place in sorted(classes):
        passed += classes[place]
        if passed >= wanted:
            return min(longest, round(2 ** ((place + 0.5) / CLASSES)))
    return longest


class NodeTimesPart(NamedTuple):
    """Times of nodes in some threads, how many threads were examined, how many cannot be read, and the
    ``cursor`` of the next part, ``None`` at the end."""

    times: NodeTimes
    examined: int
    unreadable: int
    cursor: str | None


async def read_part(walk: ThreadWalk, since: int, cursor: str, seconds: float) -> NodeTimesPart:
    """Read the times of nodes in the next threads, for some seconds.

    Args:
        walk: the threads.
        since: the time from which on tasks count, in microseconds since 1970.
        cursor: the cursor of the part before, empty for the first.
        seconds: the time after which reading ends, at the next page of a thread's steps.

    Raises:
        BadSetting: the cursor is not one of this walk.
    """
    place, thread_id, before = _read_cursor(cursor)
    times = NodeTimes()
    examined = unreadable = 0
    until = time.monotonic() + seconds
    async with aclosing(search(walk, ThreadQuery(since=since), place)) as finds:
        async for found in finds:
            # If the part before ended within a thread, the search finds that thread first, unless the thread
            # has changed since: then ``before`` does not apply.
            if found.row is not None and found.row.thread_id != thread_id:
                before = None
            if found.row is not None and found.row.run is not None and before is None:
                try:
                    await _read_failures(walk, found.row, since, times)
                except (Corrupt, Contention):
                    unreadable += 1
            while found.row is not None and found.row.has_state:
                try:
                    before = await _read_page(walk, found.row, since, before, times)
                except (Corrupt, Contention):
                    unreadable += 1
                    break
                if before is None:
                    break
                if time.monotonic() > until:
                    rest = json.dumps([place, found.row.thread_id, before])
                    return NodeTimesPart(times, examined, unreadable, rest)
            thread_id = before = None
            examined += found.examined
            place = found.cursor
            if time.monotonic() > until:
                return NodeTimesPart(times, examined, unreadable, json.dumps([place, None, None]))
    return NodeTimesPart(times, examined, unreadable, None)


async def _read_page(
    walk: ThreadWalk, row: ThreadRow, since: int, before: int | None, times: NodeTimes
) -> int | None:
    """Add the times of a page of a thread's steps; return where the next page begins, ``None`` if all earlier
    steps are too old."""
    partition = Partition(walk.tenant, row.thread_id)
    program = load_steps(partition, walk.database.digest, before=before, with_messages=False)
    page = await walk.database.arun(program)
    times.add(find_graph(row), page.steps, since, with_failures=row.run is None)
    ended = [step.ended_at for step in page.steps if step.ended_at is not None]
    if ended and min(ended) < since:
        return None
    return page.cursor


async def _read_failures(walk: ThreadWalk, row: ThreadRow, since: int, times: NodeTimes) -> None:
    """Add the failed runs of a thread."""
    query = RunQuery(state=FAILED, since=since)
    for found in await walk.database.arun(load_runs(Partition(walk.tenant, row.thread_id), row, query)):
        if found.failure is not None and found.failure.node is not None:
            times.add_failure(found.run.graph, found.failure.node)


def _read_cursor(cursor: str) -> tuple[str, str | None, int | None]:
    if not cursor:
        return "", None, None
    try:
        parts = json.loads(cursor) if len(cursor) <= _CURSOR_MAX else None
    except (ValueError, RecursionError):
        parts = None
    match parts:
        case [str() as place, None, None]:
            return place, None, None
        case [str() as place, str() as thread_id, int() as before] if before > 0:
            return place, thread_id, before
        case _:
            raise BadSetting(f"the cursor has to come from an earlier part, not {cursor[:40]!r}")
