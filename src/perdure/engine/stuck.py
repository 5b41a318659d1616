"""Finding work that no worker does: lanes that have been due for long, and those that fail each time.

A worker takes what is due within seconds. What stays due is for a graph or a channel that no running worker
has, or no worker runs at all; the database does not know which. What is found here is a report of one moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from perdure.engine.inbox import readable
from perdure.model.ops import Fetch, Find, Get, IndexHit, Now, Range
from perdure.model.program import Program, ask
from perdure.model.queue import IN, LATER, OUT, Lane
from perdure.model.records import DOCUMENT, INBOX, LANE, OUTBOX, RUN, Partition, Record

_PAGE = 1000
_AHEAD = 3_600_000_000
"""Lanes that are due within this many microseconds are examined, too: one that fails is due again later."""
_AGAIN = 2
"""From how many attempts on something fails again and again."""

Problem = Literal["waiting", "failing", "damaged"]


@dataclass(frozen=True, slots=True)
class Stuck:
    """Threads in which nothing goes on, for one reason.

    ``problem`` is ``waiting`` (due, and taken by no worker), ``failing`` (tried again and again) or
    ``damaged`` (what is to be done next is not stored or cannot be read). ``what`` and ``name`` say for which
    ``graph`` or ``channel``; of damage the ``inbox``, ``outbox`` or ``later``, and the name is empty.
    ``threads`` is how many, ``since`` the earliest time from which one waits, in microseconds of the
    database's clock, ``attempts`` the most that one has had, ``example`` the thread that waits longest.
    """

    problem: Problem
    what: str
    name: str
    threads: int
    since: int
    attempts: int
    example: Partition


class Survey(NamedTuple):
    """The stuck work, longest first. ``is_whole`` is false when there are more lanes than were examined."""

    stuck: tuple[Stuck, ...]
    is_whole: bool


def survey(tenant: str | None, older: int, most: int) -> Program[Survey]:
    """Find what is stuck of a tenant, or of all tenants without one. Work that was due ``older``
    microseconds ago and was not taken since counts as waiting. At most ``most`` lanes are looked at, those
    due longest first."""
    now = yield from ask(Now())
    groups: dict[tuple[Problem, str, str], Stuck] = {}
    seen: set[tuple[Partition, str]] = set()
    since: int | None = None
    limit = _PAGE
    while True:
        find = Find("due", tenant, until=now + _AHEAD, since=since, limit=limit)
        page = yield from ask(find)
        for found, name in _unseen(page, seen):
            if len(seen) >= most:
                return Survey(_sorted(groups), False)
            seen.add((found.partition, name))
            one = yield from _look(found.partition, name, now, now - older)
            if one is not None:
                key = (one.problem, one.what, one.name)
                groups[key] = one if key not in groups else _joined(groups[key], one)
        last = page[-1].record if page else None
        if len(page) < limit or last is None:
            return Survey(_sorted(groups), True)
        # The next page begins at the time at which this one ended, and has to go beyond it.
        limit = limit * 4 if last.fields["due_at"] == since else _PAGE
        since = last.fields["due_at"]


def _unseen(page: tuple[IndexHit, ...], seen: set[tuple[Partition, str]]) -> Iterator[tuple[IndexHit, str]]:
    for found in page:
        if found.record is not None and (found.partition, found.record.key[0]) not in seen:
            yield found, found.record.key[0]


def _joined(group: Stuck, one: Stuck) -> Stuck:
    oldest = min(group, one, key=lambda stuck: stuck.since)
    return replace(oldest, threads=group.threads + 1, attempts=max(group.attempts, one.attempts))


def _sorted(groups: dict[tuple[Problem, str, str], Stuck]) -> tuple[Stuck, ...]:
    return tuple(sorted(groups.values(), key=lambda stuck: (stuck.since, stuck.what, stuck.name)))


def _look(partition: Partition, name: str, now: int, before: int) -> Program[Stuck | None]:
    """Return the stuck work of a lane, if there is any."""
    if name not in (IN, OUT, LATER):
        return None
    (lanes,) = yield from ask(Fetch(partition, (Get(LANE, (name,)),)))
    lane = Lane.read(name, lanes)
    due_at = lane.due_at
    # Only of a run or a reply it is known how often it was tried.
    if due_at is None or (due_at > before and name != OUT and lane.run_id is None):
        return None
    (rows,) = yield from ask(Fetch(partition, (_next(lane),)))
    is_overdue = due_at <= before
    message = readable(rows[0]) if name == LATER and rows else None
    if message is not None:
        return Stuck("waiting", "graph", message.graph, 1, due_at, 0, partition)
    if not rows or name == LATER:
        return Stuck("damaged", name, "", 1, due_at, 0, partition) if is_overdue else None
    row = rows[0]
    what = "graph" if name == IN else "channel"
    attempts: int = row.fields.get("attempts", 0)
    if is_overdue:
        return Stuck("waiting", what, row.fields[what], 1, due_at, attempts, partition)
    if attempts >= _AGAIN:
        return Stuck("failing", what, row.fields[what], 1, _began(row), attempts, partition)
    return None


def _next(lane: Lane) -> Get | Range:
    """What is to be done next on a lane."""
    if lane.name == LATER:
        return Range(DOCUMENT, (LATER,), by="updated_at", limit=1)
    if lane.run_id is not None:
        return Get(RUN, (lane.run_id,))
    kind = INBOX if lane.name == IN else OUTBOX
    return Range(kind, after=(lane.bound,), limit=1, bodies=False)


def _began(row: Record) -> int:
    began: int = row.fields["started_at" if row.kind is RUN else "created_at"]
    return began
