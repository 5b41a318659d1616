"""LangChain rate limiter that is shared by all processes that use a database."""

from __future__ import annotations

import math
from collections.abc import Callable

from langchain_core.rate_limiters import BaseRateLimiter

from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.errors import LimitReached
from perdure.model.limits import SharedLimit
from perdure.runtime.limits.call_limits import CALLER
from perdure.runtime.limits.limiter import CallTurn, limiter_of


class RateLimiter(BaseRateLimiter):
    """Rate limiter for LangChain's models: ``init_chat_model(…, rate_limiter=RateLimiter(db, "openai"))``.

    All rate limiters with the same name on one database share the limit, in any number of processes, OS
    threads and event loops. Users take turns.

    Args:
        database: The database, which stays open as long as the models are used.
        name: Name of the limit.
        limit: The limit; by default the one that was declared under the name.
        user: The user who takes turns with others, or a function that returns the user; by default the user
            of the run.
        timeout: Maximum seconds to wait; ``None`` for no limit.

    Raises:
        ValueError: The limit has no rate, or has another amount, for which the end of a call has to be
            known: a rate limiter learns only of its start. ``Settings(limits=…)`` supports all amounts.
    """

    def __init__(
        self,
        database: Database | SyncDatabase,
        name: str,
        limit: SharedLimit | None = None,
        *,
        user: str | Callable[[], str] | None = None,
        timeout: float | None = None,
    ) -> None:
        if limit is not None and (
            limit.rate is None or (limit.concurrency, limit.tokens, limit.budget) != (None, None, None)
        ):
            raise ValueError(
                f"limit {name!r}: a rate limiter learns when a call begins, not when it ends, so it needs a "
                "rate and supports nothing else; declare concurrency, tokens and budgets with "
                "Settings(limits=…)"
            )
        if limit is not None and (limit.of != "model" or limit.graphs or limit.names):
            raise ValueError(
                f"limit {name!r}: a rate limiter counts the calls of the models that use it; leave of, names "
                "and graphs out"
            )
        if limit is not None and limit.by:
            raise ValueError(
                f"limit {name!r}: a rate limiter has one key; make one for each key instead of by={limit.by}"
            )
        handle = handle_of(database)
        self._tenant, self._name, self._user = database.tenant, name, user
        self._timeout = math.inf if timeout is None else timeout
        self._limiter = limiter_of(handle)
        if limit is not None:
            self._limiter.declare({name: limit})

    def _make_turn(self) -> CallTurn:
        user = CALLER.get() if self._user is None else self._user
        return CallTurn([(self._name, {}, user() if callable(user) else user)])

    def acquire(self, *, blocking: bool = True) -> bool:
        """Block the OS thread until a call may begin. Return False if it may not begin at once and
        ``blocking`` is False; raise ``LimitReached`` after the timeout."""
        turn = self._make_turn()
        try:
            self._limiter.acquire_blocking(turn, self._tenant, self._timeout if blocking else 0)
        except LimitReached:
            if blocking:
                raise
            return False
        self._limiter.end(turn)
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Wait like ``acquire``, in an event loop."""
        turn = self._make_turn()
        try:
            await self._limiter.acquire(turn, self._tenant, self._timeout if blocking else 0)
        except LimitReached:
            if blocking:
                raise
            return False
        self._limiter.end(turn)
        return True
