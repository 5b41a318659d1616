"""Distinguishes a server that is unavailable, though its connections are open, from one that works on a long
statement.

While a statement runs, nothing arrives on its connection, and nothing would if the server were paused. So the
server is asked something that costs it nothing, on a connection of its own.
"""

from __future__ import annotations

import select
import threading
import time
from math import inf

import psycopg
from psycopg import pq

from perdure.storage.outage import Outage
from perdure.storage.postgres.url import PostgresUrl

SILENT = psycopg.OperationalError("the server takes connections and says nothing")
"""The reason of an outage in which connections stay open."""

_EVENTS = {
    pq.PollingStatus.READING: select.POLLIN,
    pq.PollingStatus.WRITING: select.POLLOUT,
}


class LivenessCheck:
    """Asks a server whether it is there. The OS threads that wait for the server share the answer."""

    def __init__(self, settings: PostgresUrl, outage: Outage) -> None:
        self._conninfo = settings.conninfo.encode()
        self._outage = outage
        self._lock = threading.Lock()
        self._answered_at = -inf

    @property
    def after_s(self) -> float:
        """The seconds of silence after which to ask: half of those after which the server is unavailable."""
        return self._outage.silence_s / 2

    def is_away(self, since: float) -> bool:
        """Ask a server that has been silent on a connection since ``since`` (``time.monotonic``). If it is
        silent on another connection, too, until it is not waited for any longer, note the outage and return
        True."""
        with self._lock:
            if self._outage.get_current_failure() is not None:
                return True
            if self._answered_at > since + self.after_s:
                return False
            if _does_answer(self._conninfo, since + self._outage.silence_s):
                self._answered_at = time.monotonic()
                return False
            self._outage.note(SILENT, since)
            return True


def _does_answer(conninfo: bytes, until: float) -> bool:
    """Connect and send a query; return False if nothing is heard until ``until``. A refusal is an answer."""
    pgconn = pq.PGconn.connect_start(conninfo)
    try:
        while (event := _EVENTS.get(state := pq.PollingStatus(pgconn.connect_poll()))) is not None:
            if not _wait(pgconn.socket, event, until):
                return False
        if state != pq.PollingStatus.OK:
            return True
        pgconn.send_query(b"SELECT 1")
        while pgconn.is_busy():
            if not _wait(pgconn.socket, select.POLLIN, until):
                return False
            pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    else:
        return True
    finally:
        pgconn.finish()


def _wait(socket: int, event: int, until: float) -> bool:
    poll = select.poll()
    poll.register(socket, event)
    return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))
