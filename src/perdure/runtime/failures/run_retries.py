"""Repetition of a failed run, as the runtime and the command line ask for it."""

from __future__ import annotations

import uuid

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue.inbox import Accepted
from perdure.engine.queue.questions import ReadAsked
from perdure.engine.queue.retries import Retry
from perdure.model.program import Program
from perdure.model.records import Partition


def retry_run(
    database: DatabaseHandle,
    partition: Partition,
    run_id: str,
    now: int,
    max_pending: int,
    read_asked: ReadAsked,
) -> Program[Accepted]:
    """Return the program that stores the messages of a repetition; it raises the errors of ``Retry.store``.

    Args:
        database: The database.
        partition: The thread.
        run_id: The failed run.
        now: The database's time in microseconds.
        max_pending: Maximum number of messages that may wait on the thread.
        read_asked: Reads what the thread asks.
    """
    fresh = database.draw_version()
    return Retry(partition, run_id, now, max_pending, fresh, lambda: str(uuid.uuid4()), read_asked).store()
