"""Keeps forks of the process out of SQLite's calls, and SQLite's knowledge of the parent out of the child.

A child that is forked while another thread is inside SQLite inherits locks that nothing releases, and hangs
when it opens a database. It also inherits SQLite's list of the file locks of its parent, but not the locks:
it would read and write without any. So a fork waits for the calls that are under way and holds new ones up,
and the child closes the connections that it inherited before it opens any.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

import apsw

_PATIENCE_S = 5.0
"""Maximum seconds for which a fork waits; a commit may wait for another process for longer than this."""


class Calls:
    """The calls to SQLite that are under way in this process, and its connections."""

    def __init__(self) -> None:
        # Entered in place of the condition, whose methods an exception of a signal handler may interrupt.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._under_way = 0
        self._forks = 0
        self._is_quiet = False
        self._connections: WeakSet[apsw.Connection] = WeakSet()
        os.register_at_fork(
            before=self._prepare_fork, after_in_parent=self._end_fork, after_in_child=self._close_inherited
        )

    def add_connection(self, connection: apsw.Connection) -> apsw.Connection:
        """Note a connection, which a forked child will close, and return it. Called between ``enter`` and
        ``leave``."""
        with self._lock:
            self._connections.add(connection)
        return connection

    def enter(self) -> None:
        """Begin a call, after every fork that waits or is under way. Calls are not nested."""
        with self._lock:
            while self._forks:
                self._changed.wait()
            self._under_way += 1

    def leave(self) -> None:
        """End a call."""
        with self._lock:
            self._under_way -= 1
            if self._forks:
                self._changed.notify_all()

    def _prepare_fork(self) -> None:
        self._changed.acquire()
        self._forks += 1
        self._is_quiet = self._changed.wait_for(lambda: not self._under_way, _PATIENCE_S)

    def _end_fork(self) -> None:
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()

    def _close_inherited(self) -> None:
        inherited: list[apsw.Connection] = []
        if self._is_quiet:
            inherited += self._connections
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._under_way = self._forks = 0
        self._connections = WeakSet()
        for connection in inherited:
            connection.close(True)


CALLS = Calls()
