"""Reports of the sessions that a session waits for, during the wait and in the error after it.

A migration cannot change tables while another session has an open transaction that uses them, or that creates
the same schema. PostgreSQL does not tell a session what it waits for, so another connection asks for that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import psycopg

CHECK_S = 2.0
"""Seconds between two checks of what a session waits for."""
REPORT_S = 10.0
"""Seconds between two reports of the same wait."""

_log = logging.getLogger("perdure.storage")

_BLOCKING = b"""
SELECT found.pid, coalesce(blocker.usename, '?'), coalesce(blocker.application_name, ''),
       coalesce(blocker.state, 'unknown'), coalesce(extract(epoch FROM now() - blocker.xact_start)::bigint, 0)
FROM unnest(pg_blocking_pids(%s)) AS found(pid)
LEFT JOIN pg_stat_activity AS blocker ON blocker.pid = found.pid
ORDER BY found.pid
"""

Connect = Callable[[], AbstractContextManager[psycopg.Connection]]


class Blocker(NamedTuple):
    """A session that another session waits for. ``seconds`` is the age of its transaction."""

    pid: int
    user: str
    application: str
    state: str
    seconds: int

    def __str__(self) -> str:
        application = f", {self.application}" if self.application else ""
        since = f"its transaction began {self.seconds} s ago"
        return f"session {self.pid} of {self.user}{application} ({self.state}, {since})"


class LockWait:
    """The sessions that a session was waiting for at the last check."""

    def __init__(self) -> None:
        self.blockers: tuple[Blocker, ...] = ()

    def __str__(self) -> str:
        return " and ".join(map(str, self.blockers)) or "another session"

    @property
    def end(self) -> str:
        """The SQL that terminates the sessions."""
        pids = [str(blocker.pid) for blocker in self.blockers] or ["PID"]
        return "; ".join(f"SELECT pg_terminate_backend({pid})" for pid in pids)


@contextmanager
def report_waits(connect: Connect, pid: int, what: str, wait: LockWait) -> Iterator[None]:
    """Log warnings about what a session waits for, as long as the block lasts.

    Args:
        connect: opens a separate connection to the same server. It is called only if the block takes long.
        pid: the process id of the session.
        what: name of the waiting operation, for the warnings.
        wait: receives the sessions that are waited for.
    """
    is_over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(connect, pid, what, wait, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _watch(connect: Connect, pid: int, what: str, wait: LockWait, is_over: threading.Event) -> None:
    if is_over.wait(CHECK_S):
        return
    try:
        with connect() as connection:
            unreported_s = REPORT_S
            while True:
                blockers = tuple(Blocker(*row) for row in connection.execute(_BLOCKING, (pid,)).fetchall())
                is_new = [blocker.pid for blocker in blockers] != [blocker.pid for blocker in wait.blockers]
                if blockers:
                    wait.blockers = blockers
                    if is_new or unreported_s >= REPORT_S:
                        _log.warning("%s waits for %s", what, wait)
                        unreported_s = 0.0
                if is_over.wait(CHECK_S):
                    return
                unreported_s += CHECK_S
    except Exception as error:
        # The wait itself still ends at its timeout.
        _log.warning("what %s waits for cannot be determined: %s", what, type(error).__name__)
