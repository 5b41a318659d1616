"""PostgreSQL's ``LISTEN`` and ``NOTIFY`` as the connection of a notifier: one connection for both.

Notifications are never part of a transaction that stores something, because transactions that notify wait for
each other at their end. Channels belong to a database, so the schema is part of the channel's name.
"""

from __future__ import annotations

import select
import time
from hashlib import sha256

import psycopg
from psycopg import errors, pq

from perdure.storage.notify import wait
from perdure.storage.postgres.connection import sign_in
from perdure.storage.postgres.url import PostgresUrl

_ANSWER_S = 5.0


class PostgresListener:
    """The connection of a notifier to the server that the URL names for notifications."""

    def __init__(self, settings: PostgresUrl, conninfo: str) -> None:
        self._conninfo = conninfo
        self._password = settings.notify_password
        # Letters and digits: within the length of a name, and the same quoted or not.
        self._channel = f"perdure_{sha256(settings.schema.encode()).hexdigest()[:16]}"
        self._connection: psycopg.Connection | None = None

    def open(self, *, listens: bool) -> None:
        self._connection = sign_in(self._conninfo, self._password, _ANSWER_S)
        if listens:
            self._ask(f"LISTEN {self._channel}", ())

    def send(self, text: str) -> None:
        self._ask("SELECT pg_notify($1, $2)", (self._channel.encode(), text.encode()))

    def receive(self, within: float, waker: int) -> list[str]:
        pgconn = self._get_pgconn()
        if not (received := self._take_notifications(pgconn)):
            wait(within, pgconn.socket, waker)
            pgconn.consume_input()
            received = self._take_notifications(pgconn)
        return received

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _get_pgconn(self) -> pq.abc.PGconn:
        if self._connection is None:
            raise psycopg.OperationalError("the connection is not open")
        return self._connection.pgconn

    def _take_notifications(self, pgconn: pq.abc.PGconn) -> list[str]:
        found: list[str] = []
        while (note := pgconn.notifies()) is not None:
            found.append(note.extra.decode(errors="replace"))
        return found

    def _ask(self, statement: str, values: tuple[bytes, ...]) -> None:
        """Send a statement and wait up to 5 seconds for its answer; notifications that arrive are kept."""
        pgconn = self._get_pgconn()
        deadline = time.monotonic() + _ANSWER_S
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN)
        pgconn.send_query_params(statement.encode(), values)
        while True:
            while pgconn.is_busy():
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise psycopg.OperationalError("the server does not answer")
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return
            if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
                raise errors.error_from_result(result)
