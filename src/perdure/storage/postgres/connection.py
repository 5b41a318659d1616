"""One connection to the server.

A connection belongs to one OS thread. It connects when it is first used and again after it was lost, sends
one statement at a time, and gives up if no answer arrives in time, or if the server is unavailable.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg import errors, pq

from perdure.errors import PerdureError, StatementRefused, Unavailable
from perdure.model.ops import ApplicationStatement
from perdure.model.statement_texts import refusal
from perdure.storage.credentials import PasswordSource
from perdure.storage.outage import Outage
from perdure.storage.postgres.application_statements import BEGIN, COMMIT, ROLLBACK, TIME_S, statement_error
from perdure.storage.postgres.errors import is_transient, is_wrong_password, translate, unreachable_error
from perdure.storage.postgres.functions import NOW, TOO_LATE
from perdure.storage.postgres.liveness import SILENT, LivenessCheck
from perdure.storage.postgres.statements import Statement
from perdure.storage.postgres.url import PostgresUrl

R = TypeVar("R")
S = TypeVar("S")
Answer = TypeVar("Answer", covariant=True)

ANSWER_TIMEOUT_S = 60.0
"""Seconds to wait for an answer while the server is there; after them the connection counts as lost."""

_BACKOFF_S = (0.02, 0.05, 0.1, 0.2, 0.5)
HAS_PIPELINES = pq.version() >= 140_000
"""Older client libraries send one statement at a time."""

_DONE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class ConnectionLost(Exception):
    """The connection broke, or was silent for too long: the statement may have been executed, or not. Handled
    within the driver."""


class StatementRolledBack(Exception):
    """The server rolled a statement back because of concurrent ones; it may be repeated. Handled within the
    driver."""


class StatementCall(NamedTuple, Generic[Answer]):
    """A statement, its parameters, and the function that reads its result."""

    statement: Statement
    values: Sequence[bytes | None]
    unpack: Callable[[pq.abc.PGresult], Answer]


class ServerConnection:
    """A connection that its OS thread may lose and reopen. ``stop`` ends the wait for a server; ``outage``
    and ``liveness`` limit the wait.

    ``distance_s`` is the duration of a query that costs the server nothing, made when it connected; infinite
    while it is not connected.
    """

    def __init__(
        self,
        settings: PostgresUrl,
        stop: threading.Event | None = None,
        outage: Outage | None = None,
        liveness: LivenessCheck | None = None,
    ) -> None:
        self._settings = settings
        self._stop = stop or threading.Event()
        self._outage = outage or Outage(settings.patience)
        self._liveness = liveness or LivenessCheck(settings, self._outage)
        self._connection: psycopg.Connection | None = None
        self._prepared: set[bytes] = set()
        self._poll = select.poll()
        self._socket = -1
        self._clock_lead = 0
        self.distance_s = inf

    def connect(self, *, patiently: bool = False) -> None:
        """Connect unless connected; with ``patiently``, wait for a server that is unavailable or starting."""
        if self._connection is not None:
            return
        if patiently and (failure := self._outage.get_current_failure()) is not None:
            raise unreachable_error(failure, self._settings) from failure
        until = time.monotonic() + self._settings.patience
        attempt = 0
        while True:
            began = time.monotonic()
            try:
                self._connection = sign_in(
                    self._settings.conninfo, self._settings.password, max(0.0, until - began)
                )
                self._prepared.clear()
                self._socket = self._connection.pgconn.socket
                self._poll = select.poll()
                self._poll.register(self._socket, select.POLLIN)
                asked = time.monotonic()
                self._clock_lead = self._measure_clock_lead(self._connection.pgconn)
                self.distance_s = time.monotonic() - asked
                self._outage.end()
                break
            except (psycopg.Error, ConnectionLost) as broken:
                self.drop()
                error: psycopg.Error = SILENT
                if isinstance(broken, psycopg.Error):
                    error = broken
                wait = _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)]
                attempt += 1
                is_hopeless = not is_transient(error)
                if self._settings.password is not None and is_wrong_password(error):
                    # The password may have been changed: the next attempt uses the new one.
                    if attempt == 1:
                        wait = 0.0
                    if time.monotonic() + wait > until:
                        raise Unavailable(
                            f"{self._settings.name}: {self._settings.password.refusal()}"
                        ) from error
                    if self._stop.wait(wait):
                        raise unreachable_error(error, self._settings) from error
                    continue
                if not is_hopeless:
                    until = min(until, self._outage.note(error, began))
                    is_hopeless = time.monotonic() + wait > until
                if not patiently or is_hopeless or self._stop.wait(wait):
                    raise unreachable_error(error, self._settings) from error

    def deadline(self) -> int:
        """Return the time until which a write that is sent now may begin, in microseconds of the server's
        clock. It is not after the end of the wait for the answer: after that, the write may have been sent
        again."""
        within_s = min(ANSWER_TIMEOUT_S, self._outage.silence_s)
        return self._clock_lead + int((time.monotonic() + within_s) * 1_000_000)

    def _measure_clock_lead(self, pgconn: pq.abc.PGconn) -> int:
        """Return the least lead of the server's clock over this process's monotonic one, in microseconds."""
        pgconn.send_query(f"SELECT {NOW}".encode())
        # The query costs the server nothing. If the server is silent for as long as connecting may take, it
        # is unavailable.
        within_s = min(ANSWER_TIMEOUT_S, self._settings.connecting_s)
        result = self._result(pgconn, time.monotonic() + within_s)
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)
        return int(result.get_value(0, 0) or b"0") - int(time.monotonic() * 1_000_000)

    def require_connection(self) -> psycopg.Connection:
        """Return the connection, opened if necessary."""
        self.connect()
        if self._connection is None:
            raise ConnectionLost
        return self._connection

    def drop(self) -> None:
        """Close the connection; the next request opens another."""
        connection, self._connection = self._connection, None
        self.distance_s = inf
        if connection is not None:
            connection.close()

    def ask(self, call: StatementCall[R]) -> R:
        """Send one statement and read its answer.

        Raises:
            ConnectionLost: The statement may have been executed, or not.
            StatementRolledBack: The statement may be repeated.
            PerdureError: The server refused it.
        """
        connection = self.require_connection()
        try:
            result = self._make_roundtrip(connection.pgconn, call.statement, call.values)
        except psycopg.OperationalError as broken:
            self.drop()
            raise ConnectionLost from broken
        except ConnectionLost:
            self.drop()
            raise
        return self._unpack(connection, result, call.unpack)

    def ask_both(self, first: StatementCall[R], second: StatementCall[S]) -> tuple[R, S | None]:
        """Send two statements at once, the second of which only reads, and read both answers. Each is a
        transaction of its own.

        Returns:
            Both answers; ``None`` for the second if it could not be read, for whatever reason.

        Raises:
            ConnectionLost: The first statement may have been executed, or not; also the other errors of
                ``ask``.
        """
        if not HAS_PIPELINES:
            return self.ask(first), None
        connection = self.require_connection()
        results: list[pq.abc.PGresult] = []
        try:
            self._send_pipeline(connection.pgconn, (first, second), results)
        except (psycopg.OperationalError, ConnectionLost) as broken:
            self.drop()
            if not results:
                raise ConnectionLost from broken
        answer = self._unpack(connection, results[0], first.unpack)
        if len(results) == 1 or results[1].status != pq.ExecStatus.TUPLES_OK:
            return answer, None
        try:
            return answer, second.unpack(results[1])
        except Exception:
            # The first statement is done. The caller sends the second by itself, and gets the error then.
            return answer, None

    def transact(self, call: StatementCall[R], then: Callable[[R], Sequence[ApplicationStatement]]) -> R:
        """Send a statement and, in the same transaction, the application's statements that ``then`` returns
        for its answer; return that answer when the transaction is committed.

        Raises:
            StatementRefused: One of the application's statements was refused, and nothing was done.
            ConnectionLost: The transaction may have been executed, or not; also the other errors of ``ask``.
        """
        connection = self.require_connection()
        pgconn = connection.pgconn
        until = time.monotonic() + TIME_S
        try:
            begun = self._execute(pgconn, BEGIN)
            if begun.status not in _DONE:
                self._execute(pgconn, ROLLBACK)
                return self._unpack(connection, begun, call.unpack)
            result = self._make_roundtrip(pgconn, call.statement, call.values)
            if result.status not in _DONE:
                self._roll_back(pgconn)
                return self._unpack(connection, result, call.unpack)
            answer = call.unpack(result)
            for statement in then(answer):
                if time.monotonic() > until:
                    self._roll_back(pgconn)
                    took = f"all of its step took more than {TIME_S} seconds"
                    raise StatementRefused(refusal(statement.text, None, took))
                deadline = time.monotonic() + ANSWER_TIMEOUT_S
                pgconn.send_query_params(
                    statement.sql.encode(), statement.values, statement.types, statement.formats
                )
                answered = self._result(pgconn, deadline)
                if answered.status not in _DONE:
                    self._roll_back(pgconn)
                    raise self._to_error(connection, answered, partial(statement_error, statement=statement))
            ended = self._execute(pgconn, COMMIT)
            if ended.status not in _DONE:
                raise self._to_error(connection, ended, partial(statement_error, statement=None))
            if ended.command_status != COMMIT:
                raise ConnectionLost
        except psycopg.OperationalError as broken:
            self.drop()
            raise ConnectionLost from broken
        except (PerdureError, StatementRolledBack):
            raise
        except BaseException:
            # The next request must not find an open transaction on this connection.
            self.drop()
            raise
        return answer

    def _execute(self, pgconn: pq.abc.PGconn, text: bytes) -> pq.abc.PGresult:
        pgconn.send_query(text)
        return self._result(pgconn, time.monotonic() + ANSWER_TIMEOUT_S)

    def _roll_back(self, pgconn: pq.abc.PGconn) -> None:
        """End a transaction with a refused statement; a lost connection has already ended it."""
        if pgconn.status == pq.ConnStatus.OK:
            self._execute(pgconn, ROLLBACK)

    def _unpack(
        self, connection: psycopg.Connection, result: pq.abc.PGresult, unpack: Callable[[pq.abc.PGresult], R]
    ) -> R:
        if result.status in _DONE:
            return unpack(result)
        raise self._to_error(connection, result, partial(translate, settings=self._settings))

    def _to_error(
        self,
        connection: psycopg.Connection,
        result: pq.abc.PGresult,
        refused: Callable[[psycopg.Error], PerdureError],
    ) -> Exception:
        """Return the error for a statement that failed; ``refused`` returns that of a refusal."""
        error = errors.error_from_result(result)
        state = error.sqlstate or ""
        new: Exception
        if connection.pgconn.status != pq.ConnStatus.OK or state.startswith(("08", "57P")):
            self.drop()
            new = ConnectionLost()
        elif state in ("40001", "40P01", TOO_LATE):
            if state == TOO_LATE:
                self.drop()  # the clocks diverged; the next connection compares them again
            new = StatementRolledBack()
        else:
            new = refused(error)
        new.__cause__ = error
        return new

    def _make_roundtrip(
        self, pgconn: pq.abc.PGconn, statement: Statement, values: Sequence[bytes | None]
    ) -> pq.abc.PGresult:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        if (refused := self._prepare(pgconn, statement, deadline)) is not None:
            return refused
        self._send(pgconn, statement, values)
        return self._result(pgconn, deadline)

    def _send_pipeline(
        self,
        pgconn: pq.abc.PGconn,
        calls: Sequence[StatementCall[Any]],
        results: list[pq.abc.PGresult],
    ) -> None:
        """Send statements without waiting for the answers in between, and add the result of each to
        ``results`` when its transaction has ended. If one cannot be prepared, only the first one is sent."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        for call in calls:
            if self._prepare(pgconn, call.statement, deadline) is not None:
                results.append(self._make_roundtrip(pgconn, calls[0].statement, calls[0].values))
                return
        pgconn.enter_pipeline_mode()
        for call in calls:
            self._send(pgconn, call.statement, call.values)
            pgconn.pipeline_sync()
        self._flush(pgconn, deadline)
        result_so_far: pq.abc.PGresult | None = None
        is_silent = False
        while len(results) < len(calls):
            while pgconn.is_busy():
                self._wait(pgconn, deadline)
            result = pgconn.get_result()
            if result is None:
                # One ``None`` comes between two statements; further ones come only from a lost connection.
                if is_silent:
                    raise ConnectionLost
                is_silent = True
                continue
            is_silent = False
            if result.status != pq.ExecStatus.PIPELINE_SYNC:
                result_so_far = _choose_worse(result_so_far, result)
                continue
            if result_so_far is None:
                raise ConnectionLost
            results.append(result_so_far)
            result_so_far = None
        pgconn.exit_pipeline_mode()

    def _prepare(
        self, pgconn: pq.abc.PGconn, statement: Statement, deadline: float
    ) -> pq.abc.PGresult | None:
        """Prepare a statement unless it is prepared, or the URL forbids that; return the result if it was
        refused."""
        if not self._settings.prepare or statement.name in self._prepared:
            return None
        pgconn.send_prepare(statement.name, statement.sql, statement.types)
        prepared = self._result(pgconn, deadline)
        if prepared.status != pq.ExecStatus.COMMAND_OK:
            return prepared
        self._prepared.add(statement.name)
        return None

    def _send(self, pgconn: pq.abc.PGconn, statement: Statement, values: Sequence[bytes | None]) -> None:
        formats = [int(statement.binary)] * len(values)
        if self._settings.prepare:
            pgconn.send_query_prepared(statement.name, values, formats, pq.Format.BINARY)
        else:
            pgconn.send_query_params(statement.sql, values, statement.types, formats, pq.Format.BINARY)

    def _flush(self, pgconn: pq.abc.PGconn, deadline: float) -> None:
        while pgconn.flush():
            self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
            self._wait(pgconn, deadline)
            self._poll.modify(self._socket, select.POLLIN)

    def _result(self, pgconn: pq.abc.PGconn, deadline: float) -> pq.abc.PGresult:
        self._flush(pgconn, deadline)
        result_so_far = None
        while True:
            while pgconn.is_busy():
                self._wait(pgconn, deadline)
            result = pgconn.get_result()
            if result is None:
                break
            result_so_far = _choose_worse(result_so_far, result)
        if result_so_far is None:
            raise ConnectionLost
        return result_so_far

    def _wait(self, pgconn: pq.abc.PGconn, deadline: float) -> None:
        silent_since = time.monotonic()
        while True:
            until = min(deadline, silent_since + self._liveness.after_s)
            if ready := self._poll.poll(max(0.0, until - time.monotonic()) * 1000):
                break
            if until == deadline or self._liveness.is_away(silent_since):
                raise ConnectionLost
            silent_since = time.monotonic()
        if ready[0][1] & ~select.POLLOUT:
            pgconn.consume_input()
            self._outage.end()


def sign_in(conninfo: str, password: PasswordSource | None, within_s: float) -> psycopg.Connection:
    """Connect; note a password that the server refuses, so that the next attempt uses another one.

    Args:
        conninfo: The connection string.
        password: The source of the password, ``None`` if it is in ``conninfo`` or not needed.
        within_s: The seconds to wait for a password.

    Raises:
        Unavailable: The source had no password.
        psycopg.Error: The server is unavailable, or refused the connection.
    """
    if password is None:
        return psycopg.Connection.connect(conninfo, autocommit=True, prepare_threshold=None)
    token = password.current(within_s)
    try:
        connection = psycopg.Connection.connect(
            conninfo, password=token.value, autocommit=True, prepare_threshold=None
        )
    except psycopg.Error as error:
        if is_wrong_password(error):
            password.refuse(token)
        raise
    return connection


def _choose_worse(earlier: pq.abc.PGresult | None, result: pq.abc.PGresult) -> pq.abc.PGresult:
    """Return that of two results of a statement which counts: the error, if one of them is. It follows the
    rows if the transaction could not be committed."""
    if earlier is None or earlier.status in _DONE:
        return result
    return earlier
