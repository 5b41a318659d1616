"""Runs that are open or wait, ended for an operator: one, those of a user, or all of a tenant."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue import inbox, runs, scheduled
from perdure.engine.queue.inbox import Standing
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.model.runs.messages import OPEN
from perdure.model.runs.queue import INTERRUPT_RUN, ROLLBACK, Stop
from perdure.runtime.notifications import Notifications
from perdure.runtime.operations.thread_users import UsersOfRow
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.settings import Settings
from perdure.runtime.threads.rows import load_row
from perdure.runtime.threads.user_and_title import user_of_options

_PAGE = 100


class Unfinished(NamedTuple):
    """A run that is open or waits."""

    thread_id: str
    run_id: str
    user: str | None
    is_open: bool


class Stopped(NamedTuple):
    """A run that was stopped, and whether it was open: one that waited never begins."""

    thread_id: str
    run_id: str
    user: str | None
    was_open: bool


async def find_unfinished(
    walk: ThreadWalk,
    *,
    user: str | None = None,
    run_id: str | None = None,
    most: int | None = None,
    settings: Settings = Settings(),  # noqa: B008 - frozen
) -> AsyncGenerator[Unfinished, None]:
    """Yield the open and waiting runs of a tenant that were not stopped yet. The runs of a thread come
    newest message first: if they are ended in this order, no waiting one begins meanwhile.

    Args:
        walk: the threads.
        user: only runs of this user, as a search for runs finds them.
        run_id: only this run, by its id or that of a message that was joined with it.
        most: maximum number of busy threads that are examined.
        settings: those of the workers, which say how many messages one run takes.
    """
    database = walk.database
    # All are listed first: a thread whose runs the caller ends leaves the listing of busy threads.
    users_by_thread: dict[str, UsersOfRow] = {}
    async with aclosing(walk._replace(status="busy").steps()) as steps:
        async for step in steps:
            if step.row is not None:
                users_by_thread[step.row.thread_id] = UsersOfRow.read(step.row)
            if len(users_by_thread) == most:
                break
    for partition in await database.arun(scheduled.find_threads(walk.tenant)):
        if partition.thread.startswith(walk.prefix) and partition.thread not in users_by_thread:
            row = await database.arun(load_row(partition))
            # A thread without a run may not exist yet.
            metadata = {} if row is None else row.metadata
            if walk.sees is None or walk.sees(metadata):
                users_by_thread[partition.thread] = UsersOfRow.read(row)
    for thread_id, thread_users in users_by_thread.items():
        for standing in await _list_unfinished(database, Partition(walk.tenant, thread_id), settings):
            message, its_run = standing.message, standing.run
            run_user = thread_users.choose_for(user_of_options(message.options))
            unfinished_id = message.id if its_run is None else its_run.id
            if user in (None, run_user) and run_id in (None, unfinished_id, message.id):
                yield Unfinished(thread_id, unfinished_id, run_user, its_run is not None)


async def stop_runs(
    walk: ThreadWalk, *, user: str | None = None, run_id: str | None = None, rollback: bool = False
) -> AsyncGenerator[Stopped, None]:
    """End the runs that ``find_unfinished`` finds. An open run ends when its worker is notified; with
    ``rollback`` its checkpoints are removed."""
    how = ROLLBACK if rollback else INTERRUPT_RUN
    async with aclosing(find_unfinished(walk, user=user, run_id=run_id)) as found:
        async for each in found:
            was_open = await _end_run(walk.database, Partition(walk.tenant, each.thread_id), each.run_id, how)
            if was_open is not None:
                yield Stopped(each.thread_id, each.run_id, each.user, was_open)


async def _list_unfinished(
    database: DatabaseHandle, partition: Partition, settings: Settings
) -> list[Standing]:
    """Return the messages whose runs have not ended and are not ending, the newest first."""
    postponed = await database.arun(scheduled.list_postponed(partition, settings.max_pending))
    unfinished = [Standing(message, None) for message in postponed]
    after: int | None = None
    while True:
        page = await database.arun(inbox.read_latest(partition, _PAGE, after, settings.max_batch))
        for standing in page:
            if standing.run is not None and standing.run.state != OPEN and standing.run.attempts:
                return unfinished  # All before it have ended.
            if not standing.is_over and standing.joins is None and standing.stop is None:
                unfinished.append(standing)
        if len(page) < _PAGE:
            return unfinished
        after = page[-1].message.seq


async def _end_run(database: DatabaseHandle, partition: Partition, run_id: str, how: Stop) -> bool | None:
    """End a run; return whether it was open, ``None`` if it ended meanwhile."""
    now, most = await database.arun(ask(Now())), Settings().max_batch
    withdraw = partial(inbox.withdraw, partition, run_id, how, now, most)
    withdraw_postponed = partial(scheduled.withdraw, partition, run_id, how, now, database.draw_version())
    stop = partial(runs.stop, partition, run_id, how, now)
    # Meanwhile a waiting run may begin, and an open one may be postponed until its next attempt.
    for end, was_open in ((withdraw, False), (withdraw_postponed, False), (stop, True), (withdraw, False)):
        if await database.arun(end()):
            Notifications(database, None).notify_due(partition)
            return was_open
    return None
