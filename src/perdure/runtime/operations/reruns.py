"""Failed runs run again, one or many. The engine's ``Retry`` decides each: it is repeated once, from the last
stored step, and only if nothing else has happened since."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Literal, NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue.questions import ReadAsked
from perdure.engine.queue.retries import Retry
from perdure.errors import PerdureError, Unavailable
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.model.runs.messages import FAILED
from perdure.runtime.notifications import Notifications
from perdure.runtime.operations.run_search import FoundRun, RunQuery, search
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.settings import Settings
from perdure.runtime.threads.walk_by_id import number
from perdure.runtime.tickets import make_id

Outcome = Literal["accepted", "repeated before", "stays"]


class Rerun(NamedTuple):
    """Attempt to run a failed run again.

    Attributes:
        thread_id: the thread.
        run_id: the failed run.
        outcome: ``accepted``; ``repeated before``; or ``stays``, if it cannot be repeated, for the
            ``reason``.
        again: the run that repeats it.
        reason: why it cannot be repeated.
    """

    thread_id: str
    run_id: str
    outcome: Outcome
    again: str | None = None
    reason: str | None = None


class RerunStep(NamedTuple):
    """A thread that was examined: the cursor from which to continue after it, what was done there, and why
    its runs cannot be read, if they cannot."""

    cursor: str
    reruns: tuple[Rerun, ...] = ()
    fault: str | None = None


Repeat = Callable[[FoundRun], Awaitable[tuple[str, bool]]]
"""Runs a failed run again, and returns the new run's id and whether it had been repeated before."""


async def rerun(
    database: DatabaseHandle, partition: Partition, run_id: str, read_asked: ReadAsked
) -> tuple[str, bool]:
    """Run a failed run again, for a worker in another process to take up.

    Args:
        database: the database.
        partition: the thread.
        run_id: the failed run.
        read_asked: reads what the thread asks.

    Returns:
        The new run's id, and whether it had been repeated before.

    Raises:
        NotFound, Conflict, RunInProgress, NotWaiting, QueueFull: as ``TenantRuntime.retry``.
    """
    now, most = await database.arun(ask(Now())), Settings().max_pending
    retry = Retry(partition, run_id, now, most, database.draw_version(), make_id, read_asked)
    accepted = await database.arun(retry.store())
    if not accepted.is_duplicate:
        Notifications(database, None).notify_due(partition)
    return accepted.id, accepted.is_duplicate


async def rerun_standing(
    walk: ThreadWalk, query: RunQuery, repeat: Repeat, cursor: str = ""
) -> AsyncGenerator[RerunStep, None]:
    """Repeat failed runs that stand, the oldest of a thread first; a run that cannot be repeated does not
    stop the others. A run that fails again meanwhile is not repeated a second time.

    Args:
        walk: the threads.
        query: which of the failed runs.
        repeat: runs one again.
        cursor: where to continue, empty for the beginning.

    Raises:
        BadSetting: the cursor is not one of this walk.
        Unavailable: the database cannot be reached.
    """
    began, _, place = cursor.partition("/")
    if cursor:
        before = number(began, "the cursor's time")
    else:
        before = await walk.database.arun(ask(Now()))
    query = query._replace(state=FAILED, stands=True, before=before)
    accepted_count = 0
    async with aclosing(search(walk, query, place)) as steps:
        async for step in steps:
            done = [await _repeat(found, repeat) for found in reversed(step.runs)]
            accepted_count += any(each.outcome == "accepted" for each in done)
            inner = step.cursor
            if walk.is_by_time:
                # A thread that runs again leaves the listing of failed ones, and those behind it move up.
                order, _, passed = inner.partition(":")
                inner = f"{order}:{int(passed) - accepted_count}"
            yield RerunStep(f"{before}/{inner}", tuple(done), step.fault)


async def _repeat(found: FoundRun, repeat: Repeat) -> Rerun:
    try:
        again, was_repeated = await repeat(found)
    except Unavailable:
        raise
    except PerdureError as error:
        return Rerun(found.thread_id, found.run.id, "stays", reason=str(error))
    outcome: Outcome = "accepted"
    if was_repeated:
        outcome = "repeated before"
    return Rerun(found.thread_id, found.run.id, outcome, again)
