"""Limits of a process: the shares of its keys, in an event loop of their own.

That loop starts with the first limited call. Calls may wait in any OS thread and any event loop, and a node
that blocks its own loop does not prevent the renewal of leases.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from perdure.database.handle import DatabaseHandle
from perdure.engine import limits as stored
from perdure.errors import BadSetting, LimitReached, PerdureError, Unavailable
from perdure.model.budget_days import day_of
from perdure.model.limits import MONEY, SharedLimit, drop_expired
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.limits.shares import KeyShare, make_budget_error
from perdure.runtime.limits.waiting_permits import NOTHING_KNOWN, ExpectedUse, Permit

_log = logging.getLogger("perdure.limits")
_REFRESH_S = 10.0
_SHARES_MAX = 10_000
"""Number of keys at which the idle ones are forgotten."""
_CLOSE_S = 5.0

R = TypeVar("R")


class CallTurn:
    """Turn of one call or run, to be released at its end.

    Args:
        keys: For each limit its name, its key and who takes turns.
        counted: Names of the limits towards whose rates it was counted before.
        within: The turn of an outer call, with which it shares the places of limits that both have.
        expected: Its expected use; nothing is known by default.
    """

    def __init__(
        self,
        keys: Iterable[tuple[str, Mapping[str, str], str]],
        *,
        counted: Collection[str] = (),
        within: Collection[CallTurn] = (),
        expected: ExpectedUse = NOTHING_KNOWN,
    ) -> None:
        outer_keys = [pair for turn in within for pair in turn.keys]
        self._permits = [
            (name, key, Permit(user, name not in counted, (name, key) in outer_keys, expected))
            for name, key, user in keys
        ]
        self._shares: list[KeyShare | None] = [None] * len(self._permits)
        self._limiter: Limiter | None = None
        self.is_over = False

    @property
    def wait_s(self) -> float:
        """Seconds for which it waited."""
        return sum(permit.waited for *_, permit in self._permits)

    @property
    def is_under_way(self) -> bool:
        """True from its turn until it is released."""
        return any(permit.is_granted for *_, permit in self._permits)

    @property
    def set_aside(self) -> int:
        """Money that was set aside for it, in millionths."""
        return max((permit.money for *_, permit in self._permits), default=0)

    @property
    def limits(self) -> list[str]:
        """Names of its limits."""
        return [name for name, *_ in self._permits]

    @property
    def keys(self) -> list[tuple[str, Mapping[str, str]]]:
        """Its limits with their keys."""
        return [(name, key) for name, key, _ in self._permits]

    @contextmanager
    def surround(self, emit: Callable[..., object]) -> Iterator[None]:
        """Surround the call or run with ``limit.waited`` and ``limit.ended``, and release the turn."""
        named = ",".join(self.limits)
        emit("limit.waited", limit=named, waited=round(self.wait_s * 1_000_000))
        try:
            yield
        finally:
            if self._limiter is not None:
                self._limiter.end(self)
            emit("limit.ended", limit=named)

    async def wait_for_all(self, limiter: Limiter, tenant: str, within: float | None) -> None:
        """Wait for the turn in each limit, one after the other, in the loop of the limits."""
        self._limiter = limiter
        for number, (name, key, permit) in enumerate(self._permits):
            share = await limiter.get_share(tenant, name, key)
            self._shares[number] = share
            if self.is_over:
                permit.is_dropped = True
            try:
                most = share.limit.wait if within is None else within
                await share.acquire(permit, None if most == math.inf else most)
            except BaseException:
                self.end(is_used=False)
                raise

    def end(self, tokens: int | None = None, cost: int | None = None, *, is_used: bool = True) -> None:
        """Release the turn, in the loop of the limits; see ``KeyShare.release``."""
        self.is_over = True
        for share, (*_, permit) in zip(self._shares, self._permits, strict=True):
            if share is not None and permit.is_granted:
                share.release(permit, tokens, cost, is_used=is_used)
            elif share is not None:
                share.drop(permit)


class Limiter:
    """Limits of this process on one database; ``limiter_of`` returns those of a database."""

    def __init__(self, handle: DatabaseHandle) -> None:
        if not handle.driver.capabilities.has_threads:
            raise BadSetting(
                "limits over all processes need a thread of their own, which this place does not have; leave "
                "limits out of the configuration here"
            )
        self._handle = handle
        self._limits: dict[str, SharedLimit] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self.owner = f"{socket.gethostname()}:{self._pid}:{secrets.token_hex(3)}"
        self._shares: dict[Partition, KeyShare] = {}
        self._amounts: dict[str, tuple[float, dict[str, Mapping[str, Any]]]] = {}
        self._reading: dict[str, asyncio.Lock] = {}
        self._clock = DatabaseClock(lambda: self._handle.arun(ask(Now())))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._submitted: set[asyncio.Task[Any]] = set()

    def declare(self, limits: Mapping[str, SharedLimit]) -> None:
        """Add limits by their names.

        Raises:
            BadSetting: A name has another limit already.
        """
        for name, limit in limits.items():
            if self._limits.setdefault(name, limit) != limit:
                raise BadSetting(f"limit {name!r} is declared twice, with different amounts; declare it once")

    def submit(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run a coroutine in the loop of the limits, until the database is closed; then raise
        ``Unavailable``."""
        with self._lock:
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(self._run_until_closed(work), self._ensure_loop())
        work.close()
        raise _closed_error()

    async def _run_until_closed(self, work: Coroutine[Any, Any, R]) -> R:
        task = asyncio.current_task()
        if task is not None:
            self._submitted.add(task)
            task.add_done_callback(self._submitted.discard)
        try:
            return await work
        except asyncio.CancelledError:
            if self._is_closed:
                raise _closed_error() from None
            raise

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Call a function in the loop of the limits, unless the database is closed."""
        with self._lock:
            if not self._is_closed:
                self._ensure_loop().call_soon_threadsafe(call, *args)

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():
            # A forked process has no OS threads of its parent, and needs shares of its own.
            self._reset()
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(loop,), name="perdure-limits", daemon=True).start()
        return self._loop

    async def acquire(self, turn: CallTurn, tenant: str, within: float | None = None) -> None:
        """Wait for a turn in the caller's event loop.

        Args:
            turn: A new turn.
            tenant: The tenant.
            within: Seconds to wait at most for each limit, by default the limit's own; 0 asks once,
                infinity waits as long as it takes.

        Raises:
            LimitReached: The turn did not come within that time, or a budget is used up.
            Unavailable: The database is unavailable, or was closed.
        """
        waiting = self.submit(turn.wait_for_all(self, tenant, within))
        try:
            await asyncio.wrap_future(waiting)
        except BaseException:
            self.drop(turn)
            raise

    def acquire_blocking(self, turn: CallTurn, tenant: str, within: float | None = None) -> None:
        """Wait as ``acquire`` does, and block the OS thread."""
        waiting = self.submit(turn.wait_for_all(self, tenant, within))
        try:
            waiting.result()
        except BaseException:
            self.drop(turn)
            raise

    def drop(self, turn: CallTurn) -> None:
        """Release an unused turn, or remove a waiting one from the queue, from any OS thread."""
        self.call_soon(partial(turn.end, is_used=False))

    def end(self, turn: CallTurn, tokens: int | None = None, cost: int | None = None) -> None:
        """Release a turn, from any OS thread; see ``KeyShare.release``."""
        self.call_soon(turn.end, tokens, cost)

    async def get_share(self, tenant: str, name: str, key: Mapping[str, str]) -> KeyShare:
        """Return this process's share in a limit for a key."""
        limit = await self._load_limit(tenant, name)
        place = stored.place(tenant, self._handle.alias, name, key)
        share = self._shares.get(place.partition)
        if share is None:
            if len(self._shares) >= _SHARES_MAX:
                self._shares = {each: one for each, one in self._shares.items() if not one.is_idle}
            share = self._shares[place.partition] = KeyShare(
                place, limit, self.owner, self._handle.arun, self._clock, self._handle.draw_version
            )
        share.change(limit)
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        return share

    async def find_refusal(self, tenant: str, name: str, key: Mapping[str, str]) -> LimitReached | None:
        """Return the error of a call if the budget of a key is used up by the database's record, otherwise
        ``None``; from any event loop."""
        return await asyncio.wrap_future(self.submit(self._find_refusal(tenant, name, key)))

    async def _find_refusal(self, tenant: str, name: str, key: Mapping[str, str]) -> LimitReached | None:
        place = stored.place(tenant, self._handle.alias, name, key)
        found = await self._handle.arun(stored.read_state(place.partition))
        limit = await self._load_limit(tenant, name)
        if found is None or limit.budget is None:
            return None
        now = await self._handle.arun(ask(Now()))
        if drop_expired(limit, found.state, now).spent < limit.budget * MONEY:
            return None
        return make_budget_error(place, limit, (day_of(limit.timezone, now)[1] - now) / 1_000_000)

    async def _watch(self) -> None:
        """Apply amounts that are set while calls or runs wait for a limit, until none waits."""
        try:
            while True:
                await asyncio.sleep(_REFRESH_S)
                waiting = [share for share in self._shares.values() if share.waiting_count]
                if not waiting:
                    return
                for share in waiting:
                    try:
                        share.change(await self._load_limit(share.at.partition.tenant, share.at.limit))
                    except PerdureError as error:
                        kind = type(error).__name__
                        _log.warning("limit %r: its set amounts cannot be read: %s", share.at.limit, kind)
        finally:
            self._watching = None

    async def _load_limit(self, tenant: str, name: str) -> SharedLimit:
        """Return a limit with the amounts that were set for it, which are read again from time to time."""
        async with self._reading.setdefault(tenant, asyncio.Lock()):
            read_at, amounts = self._amounts.get(tenant, (-_REFRESH_S, {}))
            now = asyncio.get_running_loop().time()
            if now - read_at >= _REFRESH_S:
                try:
                    amounts = await self._handle.arun(stored.read_amounts(tenant))
                except PerdureError:
                    if tenant not in self._amounts:
                        raise
                self._amounts[tenant] = now, amounts
        return self.with_amounts(name, amounts.get(name, {}))

    def with_amounts(self, name: str, amounts: Mapping[str, Any]) -> SharedLimit:
        """Return the limit of a name with amounts that were set for it.

        Raises:
            BadSetting: The limit is neither declared, nor were amounts set for it.
        """
        limit = self._limits.get(name)
        try:
            if limit is not None:
                return limit.with_amounts(amounts)
            if amounts:
                return SharedLimit(**amounts)
        except (TypeError, ValueError) as error:
            if limit is not None:
                _log.warning("limit %r: its set amounts are ignored: %s", name, error)
                return limit
        raise BadSetting(
            f"there is no limit {name!r}; declare it with Settings(limits=…) or under "
            f"[runtime.limits] in perdure.toml"
        )

    def close(self) -> None:
        """Fail all that waits, return the unused amounts of this process to the database, and end the
        loop."""
        with self._lock:
            loop, self._loop, self._is_closed = self._loop, None, True
        if loop is None or self._pid != os.getpid():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._close(), loop).result(_CLOSE_S)
        except TimeoutError:
            _log.warning("limits were not given back within %s s; their leases end by themselves", _CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)

    async def _close(self) -> None:
        tasks = [*self._submitted, *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(share.close() for share in list(self._shares.values())))


def _closed_error() -> Unavailable:
    return Unavailable("the database is closed; open it again with perdure.connect")


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


_guard = threading.Lock()


def limiter_of(handle: DatabaseHandle) -> Limiter:
    """Return the limits of this process on a database, the same object at each call.

    Raises:
        BadSetting: The platform has no OS threads.
    """
    with _guard:
        found = next((each for each in handle.closed_first if isinstance(each, Limiter)), None)
        if found is None:
            handle.closed_first.append(found := Limiter(handle))
        return found
