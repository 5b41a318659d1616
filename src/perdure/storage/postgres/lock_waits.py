"""What a session waits for: it is reported while it waits, and named when the wait has been too long.

A migration changes tables, and cannot while another session has an open transaction that uses them, or that
creates the same schema. PostgreSQL says nothing to a session that waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import psycopg

LOOK_S = 2.0
"""Seconds after which it is looked what a session waits for, and again as long as it waits."""
REPORT_S = 10.0
"""Seconds between two reports of the same wait."""

_log = logging.getLogger("perdure.storage")

_BLOCKING = b"""
SELECT found.pid, coalesce(held.usename, '?'), coalesce(held.application_name, ''),
       coalesce(held.state, 'unknown'), coalesce(extract(epoch FROM now() - held.xact_start)::bigint, 0)
FROM unnest(pg_blocking_pids(%s)) AS found(pid)
LEFT JOIN pg_stat_activity AS held ON held.pid = found.pid
ORDER BY found.pid
"""

Connect = Callable[[], AbstractContextManager[psycopg.Connection]]


class Blocker(NamedTuple):
    """A session for which another one waits. ``seconds`` is the age of its transaction."""

    pid: int
    user: str
    application: str
    state: str
    seconds: int

    def __str__(self) -> str:
        of = f", {self.application}" if self.application else ""
        since = f"its transaction began {self.seconds} s ago"
        return f"session {self.pid} of {self.user}{of} ({self.state}, {since})"


class LockWait:
    """The sessions for which one was last seen to wait."""

    def __init__(self) -> None:
        self.blockers: tuple[Blocker, ...] = ()

    def __str__(self) -> str:
        return " and ".join(map(str, self.blockers)) or "another session"

    @property
    def end(self) -> str:
        """The statement that ends the sessions."""
        pids = [str(one.pid) for one in self.blockers] or ["PID"]
        return "; ".join(f"SELECT pg_terminate_backend({pid})" for pid in pids)


@contextmanager
def report_waits(connect: Connect, pid: int, what: str, wait: LockWait) -> Iterator[None]:
    """Report for what a session waits, as long as the block lasts, as warnings.

    Args:
        connect: opens a connection of its own to the same server. It is called only if the block takes long.
        pid: the session.
        what: what waits, for the reports.
        wait: what is seen.
    """
    is_over = threading.Event()
    looking = threading.Thread(target=_look, args=(connect, pid, what, wait, is_over), daemon=True)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()


def _look(connect: Connect, pid: int, what: str, wait: LockWait, is_over: threading.Event) -> None:
    if is_over.wait(LOOK_S):
        return
    try:
        with connect() as connection:
            quiet = REPORT_S
            while True:
                found = tuple(Blocker(*row) for row in connection.execute(_BLOCKING, (pid,)).fetchall())
                is_new = [one.pid for one in found] != [one.pid for one in wait.blockers]
                if found:
                    wait.blockers = found
                    if is_new or quiet >= REPORT_S:
                        _log.warning("%s waits for %s", what, wait)
                        quiet = 0.0
                if is_over.wait(LOOK_S):
                    return
                quiet += LOOK_S
    except Exception as error:
        # The wait itself is bounded all the same.
        _log.warning("what %s waits for cannot be seen: %s", what, type(error).__name__)
