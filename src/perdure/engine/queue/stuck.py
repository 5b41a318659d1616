"""Survey of work that no worker does: queues that are overdue, and work that fails each time.

A worker takes what is due within seconds. Work that stays due is for a graph or channel that no running
worker serves, or no worker runs at all; the database cannot tell which. The survey shows one moment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from perdure.engine.queue.due_pages import DuePages
from perdure.engine.queue.inbox import try_read_postponed
from perdure.engine.requests import first_of, read_lane
from perdure.model.ops import Fetch, Get, Now, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, INBOX, OUTBOX, RUN, Partition
from perdure.model.runs.queue import IN, LATER, OUT, WAITS, Lane

_AHEAD = 3_600_000_000
"""Queues that are due within this many microseconds are examined, too: one that fails is due again later."""
_AGAIN = 2
"""Attempts from which work counts as failing."""

Problem = Literal["waiting", "failing", "damaged"]


@dataclass(frozen=True, slots=True)
class Stuck:
    """Threads that are blocked for one reason.

    Attributes:
        problem: ``waiting`` (due, and taken by no worker), ``failing`` (tried again and again) or ``damaged``
            (the next record is not stored or cannot be read).
        what: ``graph`` or ``channel``; for damage ``inbox``, ``outbox`` or ``later``; ``waits`` for deadlines
            and reminders, which every worker looks after.
        name: name of the graph or channel; empty for damage and for ``waits``.
        threads: count of the threads.
        since: earliest time from which one of them waits, in microseconds of the database's clock.
        attempts: most attempts that one of them has had.
        example: the thread that waits longest.
    """

    problem: Problem
    what: str
    name: str
    threads: int
    since: int
    attempts: int
    example: Partition


class Survey(NamedTuple):
    """Stuck work, longest first. ``is_whole`` is false if more queues exist than were examined."""

    stuck: tuple[Stuck, ...]
    is_whole: bool


def survey(tenant: str | None, older: int, most: int) -> Program[Survey]:
    """Find the stuck work of a tenant, or of all tenants without one.

    Args:
        tenant: the tenant, ``None`` for all.
        older: microseconds for which work must have been due to count as waiting, and have been under way to
            count as failing.
        most: most queues to examine, those due longest first.
    """
    now = yield from ask(Now())
    groups: dict[tuple[Problem, str, str], Stuck] = {}
    pages = DuePages(tenant, until=now + _AHEAD)
    examined = 0
    while not pages.is_last:
        for partition, name, _ in (yield from pages.read_next()):
            if examined >= most:
                return Survey(_sort(groups), False)
            examined += 1
            one = yield from _examine(partition, name, now, now - older)
            if one is not None:
                key = (one.problem, one.what, one.name)
                groups[key] = _join(groups[key], one) if key in groups else one
    return Survey(_sort(groups), True)


def _join(group: Stuck, one: Stuck) -> Stuck:
    oldest = min(group, one, key=lambda stuck: stuck.since)
    return replace(oldest, threads=group.threads + 1, attempts=max(group.attempts, one.attempts))


def _sort(groups: dict[tuple[Problem, str, str], Stuck]) -> tuple[Stuck, ...]:
    return tuple(sorted(groups.values(), key=lambda stuck: (stuck.since, stuck.what, stuck.name)))


def _examine(partition: Partition, name: str, now: int, overdue_at: int) -> Program[Stuck | None]:
    """Return the stuck work of a queue, ``None`` if it is not stuck."""
    if name not in (IN, OUT, LATER, WAITS):
        return None
    lane = yield from read_lane(partition, name)
    due_at = lane.due_at
    # Work that is not overdue can only be failing, and attempts are counted only for runs and replies.
    if due_at is None or (due_at > overdue_at and name != OUT and lane.run_id is None):
        return None
    is_overdue = due_at <= overdue_at
    if name == WAITS:
        # Any worker looks after it, whatever it serves.
        if is_overdue:
            return Stuck("waiting", WAITS, "", 1, due_at, 0, partition)
        return None
    (rows,) = yield from ask(Fetch(partition, (_next_item(lane),)))
    row = first_of(rows)
    if name == LATER and row is not None and (message := try_read_postponed(row)) is not None:
        return Stuck("waiting", "graph", message.graph, 1, due_at, 0, partition)
    if row is None or name == LATER:
        if is_overdue:
            return Stuck("damaged", name, "", 1, due_at, 0, partition)
        return None
    what = {IN: "graph", OUT: "channel"}[name]
    attempts: int = row.fields.get("attempts", 0)
    if is_overdue:
        return Stuck("waiting", what, row.fields[what], 1, due_at, attempts, partition)
    began: int = row.fields.get("started_at") or row.fields["created_at"]
    if attempts >= _AGAIN and began <= overdue_at:
        return Stuck("failing", what, row.fields[what], 1, began, attempts, partition)
    return None


def _next_item(lane: Lane) -> Get | Range:
    """Return the read of the next record of a queue."""
    if lane.name == LATER:
        return Range(DOCUMENT, (LATER,), by="updated_at", limit=1)
    if lane.run_id is not None:
        return Get(RUN, (lane.run_id,))
    kind = {IN: INBOX, OUT: OUTBOX}[lane.name]
    return Range(kind, after=(lane.bound,), limit=1, bodies=False)
