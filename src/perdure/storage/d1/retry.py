"""The retries of a batch: their conditions, their pauses and their end."""

from __future__ import annotations

import random
import re
import shlex
import time
from collections.abc import Callable, Sequence

from perdure.errors import Corrupt, MigrationRequired, PerdureError, StatementRefused, TooLarge, Unavailable
from perdure.storage.d1.columns import Rows, Statement
from perdure.storage.d1.rest import AnswerLost, Rejected, Transport
from perdure.storage.outage import PATIENCE_S, Outage
from perdure.storage.sql.checksums import ADVICE
from perdure.storage.sql.refusals import describe_refusal, exceeds_limit
from perdure.storage.sql.schema import PREFIX, SCHEMA_VERSION

ATTEMPTS = 7
PATIENCE = 30.0
_PAUSE = 0.2
_NO_TABLES = re.compile(rf"no such table: {PREFIX}|no such column|has no column named")
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_OF_STATEMENTS = ("SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_RANGE")


class Tries:
    """The attempts at one request. ``unsure`` is True if an attempt whose answer was lost may have arrived.
    ``outage`` limits the wait for a service that refuses connections or does not respond."""

    def __init__(
        self,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], object] = time.sleep,
        outage: Outage | None = None,
    ) -> None:
        self._sleep = sleep
        self._left = attempts - 1
        self._pause = _PAUSE
        self._deadline = time.monotonic() + PATIENCE
        self._outage = outage or Outage(PATIENCE_S)
        self._began = time.monotonic()
        self.unsure = False

    def wait_for_next(self, lost: AnswerLost) -> bool:
        """Wait before the next attempt, at least as long as the service asked for; return False if no attempt
        is left."""
        self.unsure = self.unsure or lost.sent
        pause = max(lost.after, self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        self._pause *= 2
        self._left -= 1
        until = self._deadline
        if lost.is_away:
            until = self._outage.note(lost, self._began)
        if self._left < 0 or time.monotonic() + pause > until:
            return False
        self._sleep(pause)
        return True


def run_batch(transport: Transport, statements: Sequence[Statement], name: str, tries: Tries) -> list[Rows]:
    """Return the rows of a batch that may be carried out any number of times.

    Args:
        transport: Runs the batch.
        statements: The batch.
        name: The database's name for errors.
        tries: The attempts that are left.

    Raises:
        Rejected: The database refused a statement.
        PerdureError: No attempt succeeded.
    """
    while True:
        try:
            return transport.batch(statements)
        except AnswerLost as lost:
            if not tries.wait_for_next(lost):
                raise give_up_error(lost, name, unsure=False) from lost


def give_up_error(lost: AnswerLost, name: str, *, unsure: bool) -> PerdureError:
    """Return the error for the caller after the last attempt.

    Args:
        lost: The last failure.
        name: The database's name.
        unsure: True if a write may have been carried out.
    """
    if unsure:
        outcome = (
            "and whether the last write was stored could not be found out; load the thread before going on"
        )
    else:
        outcome = (
            "nothing of the request was stored; check the network and Cloudflare's status, and try again"
        )
    return Unavailable(f"{name} does not answer: {lost}; {outcome}")


def translate(error: Rejected, name: str) -> PerdureError:
    """Translate a refusal of the database; the only place that does so."""
    message = str(error)
    new: PerdureError
    if _NO_TABLES.search(message):
        new = MigrationRequired(
            f"{name} has no tables of schema version {SCHEMA_VERSION}: a newer release has migrated it since "
            "this process opened it, and the process needs that release; or they were removed: run "
            f"`perdure migrate --db {shlex.quote(name)}`"
        )
    elif "too big" in message or "TOOBIG" in message:
        new = TooLarge(f"{name}: a value or a request is too large for D1 ({message}); write smaller values")
    elif "maximum DB size" in message or "SQLITE_FULL" in message:
        new = Unavailable(f"{name} is full; nothing of this write was stored. Prune threads and try again")
    elif exceeds_limit(message):
        new = TooLarge(f"{name}: the request has more parts than D1 takes ({message}); make it smaller")
    elif any(sign in message for sign in _DAMAGE):
        new = Corrupt(f"{name} is damaged ({message}); {ADVICE}")
    elif any(sign in message for sign in _OF_STATEMENTS):
        new = StatementRefused(describe_refusal(name, message))
    else:
        new = Unavailable(f"{name}: D1 refused the request: {message}; nothing of it was stored")
    new.__cause__ = error
    return new
