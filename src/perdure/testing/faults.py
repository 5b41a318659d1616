"""Fault injection: a driver that fails, or ends its process, before or after a chosen storage effect.

Everything above the port uses storage through effects, so failing at every effect in turn covers every state
that a crash can leave behind. First count an undisturbed run, then repeat it once for each effect:

>>> with faulty("sqlite:///threads.db") as (db, driver):
...     run_my_agent(db)
...     effects = driver.count
>>> for at in range(1, effects + 1):
...     with faulty("sqlite:///other.db", Fault(at, fail("unavailable")), migrate=True) as (db, driver):
...         with pytest.raises(perdure.Unavailable):
...             run_my_agent(db)

``kill`` ends the whole process, so run it in a child process of the test.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, TypeVar, cast

from perdure.database.blocking import SyncDatabase
from perdure.database.opening import open_database
from perdure.errors import Contention, Fenced, HeadConflict, PerdureError, Unavailable
from perdure.model.ops import Commit, Committed, Drop, Expect, Fetch, Find, Refused, Stage
from perdure.model.program import Effect
from perdure.storage.key_providers import EncryptionKey
from perdure.storage.port import Answers, Driver, WrappingDriver, acommit_and_fetch

__all__ = [
    "ALL",
    "READS",
    "WRITES",
    "Action",
    "ErrorName",
    "Fault",
    "FaultyDriver",
    "fail",
    "faulty",
    "kill",
    "refuse",
]

R = TypeVar("R")

READS: tuple[type[Effect[Any]], ...] = (Fetch, Find)
WRITES: tuple[type[Effect[Any]], ...] = (Stage, Commit, Drop)
ALL = READS + WRITES

Action = Callable[[Effect[Any]], object]
"""Action of a fault on its effect. An error that it raises reaches the caller of the driver."""

ErrorName = Literal["unavailable", "conflict", "fenced", "contention"]
_ERRORS: dict[ErrorName, type[PerdureError]] = {
    "unavailable": Unavailable,
    "conflict": HeadConflict,
    "fenced": Fenced,
    "contention": Contention,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: ``action`` is called at the counted effect with the number ``at``, from 1: before the effect
    is performed, or after it is durable and before it is answered."""

    at: int
    action: Action
    when: Literal["before", "after"] = "before"

    def __post_init__(self) -> None:
        if self.at < 1:
            raise ValueError(f"effects are counted from 1, so a fault cannot be at {self.at}")


def kill(effect: Effect[Any]) -> None:
    """End this process at once, as a crash would: nothing is flushed, closed or answered."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(error: ErrorName | Exception) -> Action:
    """Return an action that raises an error: one of Perdure's by name, or any other as it is.

    Before an effect the error means "not done"; after one the caller sees a failure of something that was
    done, as when the connection breaks while the answer travels.
    """

    def action(effect: Effect[Any]) -> None:
        # A name makes a new error each time, as an exception collects notes and frames.
        raise error if isinstance(error, Exception) else _ERRORS[error](f"a fault made for a test: {error}")

    return action


def refuse(effect: Effect[Any]) -> object:
    """Answer a commit as if another writer had changed its first guarded record: nothing is written, and the
    caller plans again. Only for a fault before a commit."""
    if not isinstance(effect, Commit):
        raise TypeError(f"only a commit can be refused, not {type(effect).__name__}; count commits only")
    guarded = next((op for op in effect.ops if op.expect is not Expect.ANY), effect.ops[0])
    return Refused(guarded.kind, guarded.key)


class FaultyDriver(WrappingDriver):
    """A driver around another one that adds faults. Safe to share between OS threads.

    ``counts`` names the kinds of effect that count; the others pass. ``count`` is the number of those that
    have begun, and ``on_effect`` is called with the number and the effect before any fault.
    """

    def __init__(
        self,
        inner: Driver,
        *faults: Fault,
        counts: Collection[type[Effect[Any]]] = ALL,
        on_effect: Callable[[int, Effect[Any]], None] | None = None,
    ) -> None:
        super().__init__(inner)
        self.capabilities = inner.capabilities
        self._faults = faults
        self._counts = tuple(counts)
        self._on_effect = on_effect
        self._lock = Lock()
        self.count = 0

    def perform(self, effect: Effect[R]) -> R:
        at = self._begin(effect)
        refused = self._apply_faults(at, "before", effect)
        if refused is not None:
            return cast(R, refused)
        answer = self._inner.perform(effect)
        self._apply_faults(at, "after", effect)
        return answer

    async def aperform(self, effect: Effect[R]) -> R:
        at = self._begin(effect)
        refused = self._apply_faults(at, "before", effect)
        if refused is not None:
            return cast(R, refused)
        answer = await self._inner.aperform(effect)
        self._apply_faults(at, "after", effect)
        return answer

    async def acommit_and_fetch(
        self, commit: Commit, fetch: Fetch
    ) -> tuple[Committed | Refused, Answers | None]:
        """See ``storage.port.acommit_and_fetch``: one effect, a commit."""
        at = self._begin(commit)
        refused = self._apply_faults(at, "before", commit)
        if refused is not None:
            return refused, None
        answer = await acommit_and_fetch(self._inner, commit, fetch)
        self._apply_faults(at, "after", commit)
        return answer

    def _begin(self, effect: Effect[Any]) -> int:
        """Return the number of an effect, 0 if its kind does not count."""
        if not isinstance(effect, self._counts):
            return 0
        with self._lock:
            self.count += 1
            at = self.count
        if self._on_effect is not None:
            self._on_effect(at, effect)
        return at

    def _apply_faults(self, at: int, when: str, effect: Effect[Any]) -> Refused | None:
        """Apply the faults of this moment; before an effect, a refusal replaces its answer."""
        for fault in self._faults:
            if fault.at == at and fault.when == when:
                answer = fault.action(effect)
                if isinstance(answer, Refused):
                    return answer
        return None


@contextmanager
def faulty(
    url: str,
    *faults: Fault,
    counts: Collection[type[Effect[Any]]] = ALL,
    on_effect: Callable[[int, Effect[Any]], None] | None = None,
    migrate: bool = False,
    tenant: str = "",
    encryption_key: EncryptionKey | None = None,
) -> Iterator[tuple[SyncDatabase, FaultyDriver]]:
    """Open a database as ``perdure.connect_sync`` does, with faults; yields the database and the driver that
    makes them. Arguments are those of ``connect_sync`` and ``FaultyDriver``."""
    made: list[FaultyDriver] = []

    def wrap(driver: Driver) -> Driver:
        made.append(FaultyDriver(driver, *faults, counts=counts, on_effect=on_effect))
        return made[0]

    database = open_database(url, migrate=migrate, tenant=tenant, encryption_key=encryption_key, wrap=wrap)
    try:
        yield database, made[0]
    finally:
        database.close()
