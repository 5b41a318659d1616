"""Histories of sessions for applications: load, add a turn on the condition that nothing changed, remove.

The time, the versions of new sessions and the form of messages are decided here, what is stored and how in
``engine.session_histories``. ``Histories`` is awaited, ``SyncHistories`` blocks; both run the same programs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

from langchain_core.messages import BaseMessage

from perdure.engine import session_histories
from perdure.engine.complete_reads import list_all_partitions
from perdure.engine.items import items
from perdure.engine.session_histories import Session, Terms, Turn
from perdure.engine.transact import Budget
from perdure.errors import Conflict, Contention
from perdure.history.neutral_messages import NeutralMessage, to_neutral
from perdure.model.arguments import require_text, require_whole
from perdure.model.program import Program
from perdure.model.records import SESSIONS, Partition
from perdure.storage.port import Driver, arun, run

ATTEMPTS = 16
"""Times that ``update`` makes a turn before it gives up with ``Contention``."""

Messages = Iterable[BaseMessage | Mapping[str, Any]]
"""Messages of a turn: LangChain's, or neutral ones."""


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """Work that was spent on a task of a session, over all its requests. ``task`` is the application's name
    for the task."""

    task: str = ""
    used: int = 0

    def rest_of(self, most: int) -> int:
        """Return how much of ``most`` is not used yet, at least 0 and at most ``most``."""
        return max(0, most - max(0, self.used))

    def spend(self, count: int = 1) -> TaskBudget:
        """Return the budget after ``count`` more was used."""
        return TaskBudget(self.task, self.used + count)

    def of(self, task: str | None) -> TaskBudget:
        """Return the budget of a task: this one for ``None`` or its own task, an unused one for another
        task."""
        if task is None or task == self.task:
            return self
        return TaskBudget(task)


@dataclass(frozen=True, slots=True)
class SessionHistory:
    """A session as it was read: all its messages, oldest first, and what a change is conditional on.

    ``version`` is 0 for a session that is not stored or has expired. ``updated_at`` is in microseconds since
    the epoch.
    """

    session_id: str
    messages: list[NeutralMessage]
    version: int
    budget: TaskBudget
    updated_at: int
    held: Session = field(repr=False)

    def with_budget(self, budget: TaskBudget) -> SessionHistory:
        """Return the history as if its task had this budget; nothing is stored."""
        return replace(self, budget=budget)

    def has_turn(self, key: str) -> bool:
        """Return True if one of the latest 64 turns was stored under this key."""
        return session_histories.digest_of(key) in self.held.keys


@dataclass(frozen=True, slots=True)
class NewTurn:
    """Messages to add to a session, and the budget of its task afterwards, unchanged if ``None``."""

    messages: Messages
    budget: TaskBudget | None = None


class _Programs:
    """Programs that ``Histories`` and ``SyncHistories`` run."""

    def __init__(self, driver: Driver, *, tenant: str, ttl: timedelta | None) -> None:
        if ttl is not None and ttl <= timedelta():
            raise ValueError(f"ttl has to be above 0, not {ttl}; None means no end")
        self._driver = driver
        self._tenant = tenant
        if ttl is None:
            self._ttl = None
        else:
            self._ttl = ttl // timedelta(microseconds=1)
        self._limits = Budget(driver.limits.ops, driver.limits.bytes)

    def _partition(self, session_id: str) -> Partition:
        if not isinstance(cast("object", session_id), str) or not session_id:
            raise ValueError("a session id has to be text, and not empty")
        return Partition(self._tenant, session_id, SESSIONS)

    def _load(self, session_id: str) -> Program[SessionHistory]:
        return _to_history(
            session_id, (yield from session_histories.load(self._partition(session_id), _now()))
        )

    def _commit(
        self, history: SessionHistory, turn: NewTurn, key: str | None, *, replaces: bool = False
    ) -> Program[SessionHistory]:
        if turn.budget is None:
            budget = None
        else:
            budget = _dump_budget(turn.budget)
        added = cast("list[Mapping[str, Any]]", to_neutral(turn.messages))
        fresh = (1 + secrets.randbelow(1 << 30)) << 22
        terms = Terms(_now(), self._ttl, fresh, self._limits)
        after = yield from session_histories.append(
            self._partition(history.session_id), history.held, Turn(added, budget, key or "", replaces), terms
        )
        if after is None:
            raise Conflict(
                f"session {history.session_id!r}: another request changed the history since it was read, and "
                "nothing of this turn was stored; load it again and repeat the turn"
            )
        return _to_history(history.session_id, after)

    def _delete(self, session_id: str, version: int | None) -> Program[None]:
        if not (yield from session_histories.remove(self._partition(session_id), version)):
            raise Conflict(
                f"session {session_id!r}: the history is not at version {version}; it was left as it is"
            )

    def _page(self, after: Partition | None) -> Program[tuple[list[Partition], Partition | None]]:
        return (yield from session_histories.read_names(self._tenant, after, _now()))

    def _sweep(self) -> Program[int]:
        now = _now()
        removed = yield from items.sweep(self._tenant, now, self._limits)
        for partition in (yield from list_all_partitions(self._tenant, SESSIONS)):
            removed += yield from session_histories.sweep(partition, now, self._limits)
        return removed


class Histories(_Programs):
    """Histories of sessions, awaited. Make it with ``Database.history``; it may be shared."""

    async def load(self, session_id: str) -> SessionHistory:
        """Return the history of a session, empty at version 0 if there is none.

        One read returns the last acknowledged state; a second one follows if the session has more than 128 KB
        of messages.

        Raises:
            Corrupt: a part of the history is missing or damaged.
        """
        return await arun(self._load(session_id), self._driver)

    async def commit(
        self,
        history: SessionHistory,
        messages: Messages,
        *,
        budget: TaskBudget | None = None,
        key: str | None = None,
    ) -> SessionHistory:
        """Add messages to a history that is still as it was loaded: one conditional write.

        Args:
            history: what ``load`` or ``commit`` returned.
            messages: LangChain's messages, or neutral ones.
            budget: budget of the task from now on; unchanged if ``None``.
            key: key of the request, by which ``SessionHistory.has_turn`` recognises a repetition.

        Returns:
            The history with the messages.

        Raises:
            Conflict: another request changed the history; nothing was stored.
            Unserialisable: a message has no neutral form.
            TooLarge: a message has more than 256 KB.
            TypeError: a part of the budget is of another type.
            ValueError: what was used is below 0.
        """
        return await arun(self._commit(history, NewTurn(messages, budget), key), self._driver)

    async def update(
        self,
        session_id: str,
        turn: Callable[[SessionHistory], Awaitable[NewTurn | None]],
        *,
        key: str | None = None,
        attempts: int = ATTEMPTS,
    ) -> SessionHistory:
        """Load a history, make a turn of it, and commit it. If another request was first, do so again
        with the new history.

        Args:
            session_id: the session.
            turn: returns the turn, or ``None`` to store nothing. It may be called several times.
            key: key of the request. If its turn is stored already, ``turn`` is not called.
            attempts: maximum number of calls of ``turn``.

        Raises:
            Contention: every attempt lost to another request.
        """
        for _ in range(attempts):
            history = await self.load(session_id)
            if key and history.has_turn(key):
                return history
            made = await turn(history)
            if made is None:
                return history
            try:
                return await self.commit(history, made.messages, budget=made.budget, key=key)
            except Conflict:
                continue
        raise _contention_error(session_id, attempts)

    async def replace(
        self, history: SessionHistory, messages: Messages, *, budget: TaskBudget | None = None
    ) -> SessionHistory:
        """Replace a session by messages and a budget, if it was not changed since it was read; raises as
        ``commit`` does."""
        return await arun(self._commit(history, NewTurn(messages, budget), None, replaces=True), self._driver)

    async def delete(self, session_id: str, *, version: int | None = None) -> None:
        """Remove a session with its history; a turn that was begun on it is refused when it is committed.

        Raises:
            Conflict: ``version`` is given, and the history has another one.
        """
        await arun(self._delete(session_id, version), self._driver)

    async def sessions(self) -> AsyncIterator[str]:
        """Iterate over the ids of the tenant's sessions, in order. The database reads an index for it."""
        page, after = await arun(self._page(None), self._driver)
        while True:
            for partition in page:
                yield partition.thread
            if after is None:
                return
            page, after = await arun(self._page(after), self._driver)

    async def sweep(self) -> int:
        """Remove expired items, also of the tenant's store, and the remains of sessions that dead processes
        left a day ago or earlier; return the number of items. Answers do not depend on this. DynamoDB removes
        expired items itself, so there this finds none."""
        return await arun(self._sweep(), self._driver)


class SyncHistories(_Programs):
    """Histories of sessions, blocking. Make it with the ``history`` of a database; OS threads may share
    it."""

    def load(self, session_id: str) -> SessionHistory:
        """See ``Histories.load``."""
        return run(self._load(session_id), self._driver)

    def commit(
        self,
        history: SessionHistory,
        messages: Messages,
        *,
        budget: TaskBudget | None = None,
        key: str | None = None,
    ) -> SessionHistory:
        """See ``Histories.commit``."""
        return run(self._commit(history, NewTurn(messages, budget), key), self._driver)

    def update(
        self,
        session_id: str,
        turn: Callable[[SessionHistory], NewTurn | None],
        *,
        key: str | None = None,
        attempts: int = ATTEMPTS,
    ) -> SessionHistory:
        """See ``Histories.update``."""
        for _ in range(attempts):
            history = self.load(session_id)
            if key and history.has_turn(key):
                return history
            made = turn(history)
            if made is None:
                return history
            try:
                return self.commit(history, made.messages, budget=made.budget, key=key)
            except Conflict:
                continue
        raise _contention_error(session_id, attempts)

    def replace(
        self, history: SessionHistory, messages: Messages, *, budget: TaskBudget | None = None
    ) -> SessionHistory:
        """See ``Histories.replace``."""
        return run(self._commit(history, NewTurn(messages, budget), None, replaces=True), self._driver)

    def delete(self, session_id: str, *, version: int | None = None) -> None:
        """See ``Histories.delete``."""
        run(self._delete(session_id, version), self._driver)

    def sessions(self) -> Iterator[str]:
        """See ``Histories.sessions``."""
        page, after = run(self._page(None), self._driver)
        while True:
            for partition in page:
                yield partition.thread
            if after is None:
                return
            page, after = run(self._page(after), self._driver)

    def sweep(self) -> int:
        """See ``Histories.sweep``."""
        return run(self._sweep(), self._driver)


def _dump_budget(budget: TaskBudget) -> dict[str, Any]:
    """Return a budget as it is stored; raise ``TypeError`` or ``ValueError`` for one that cannot be used."""
    require_text("task of a budget", budget.task)
    require_whole("used of a budget", budget.used)
    if budget.used < 0:
        raise ValueError(f"used of a budget is {budget.used}; it is 0 or more")
    return {"task": budget.task, "used": budget.used}


def _to_history(session_id: str, held: Session) -> SessionHistory:
    return SessionHistory(
        session_id,
        cast("list[NeutralMessage]", list(held.messages)),
        held.version,
        TaskBudget(**held.budget),
        held.updated_at,
        held,
    )


def _contention_error(session_id: str, attempts: int) -> Contention:
    return Contention(
        f"session {session_id!r}: {attempts} attempts lost to other requests and nothing was stored; try "
        "again later"
    )


def _now() -> int:
    return time.time_ns() // 1000
