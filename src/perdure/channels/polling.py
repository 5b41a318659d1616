"""Updates that a bot asks its provider for, in place of a webhook.

An update is confirmed, which removes it at the provider, only after it is durable or refused for good. The
updates of a chat are taken one by one, in their order, and no chat waits for another one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.channels.polling_lease import LEASE_S, PollingLease
from perdure.channels.webhook import RejectedRequest
from perdure.errors import QueueFull, Unavailable
from perdure.runtime import NotSent

_log = logging.getLogger("perdure.channels")

_POLL_S = 5.0
"""Seconds between attempts at a lease that another process holds."""
_ASIDE_S = 1.0
"""Most seconds for which the acceptance of updates is awaited before more are requested."""
_AGAIN_S = 0.5
_AGAIN_MAX_S = 5.0
_PATIENCE_S = 30.0
"""Seconds for which an update that cannot be accepted is tried again, while its database answers."""


class PolledUpdate(NamedTuple):
    """Update of a provider: its number, its chat or "" for none, and its content."""

    number: int
    chat: str
    content: Mapping[str, Any]


class PollingRefused(Exception):
    """The provider refuses requests for updates; the message has the reason and the remedy.

    Args:
        reason: The message.
        pause: Seconds until the next attempt.
    """

    def __init__(self, reason: str, pause: float) -> None:
        super().__init__(reason)
        self.pause = pause


class Polling:
    """Loop that asks for updates and has them accepted.

    Args:
        name: The name of the channel.
        lease: Decides which process asks.
        ask: Returns the updates from a number on, and confirms all before that number; with ``None`` returns
            all unconfirmed updates. It waits for updates for less than half the lease, and raises
            ``PollingRefused`` or another error.
        take: Makes an update durable. ``RejectedRequest`` with a status of 4xx means that it can never be.
        refuse: Notifies a chat that one of its updates was not accepted.
    """

    def __init__(
        self,
        name: str,
        lease: PollingLease,
        *,
        ask: Callable[[int | None], Awaitable[Sequence[PolledUpdate]]],
        take: Callable[[PolledUpdate], Awaitable[None]],
        refuse: Callable[[PolledUpdate], Awaitable[None]],
    ) -> None:
        self._name = name
        self._lease = lease
        self._ask = ask
        self._take = take
        self._refuse = refuse
        self._seen: set[int] = set()
        self._open: set[int] = set()
        self._queues: dict[str, deque[PolledUpdate]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._full_chats: set[str] = set()
        self._status = "not asked yet"
        self._held_until = 0.0

    async def run(self) -> None:
        """Ask and accept until cancelled. Updates whose acceptance is interrupted are delivered again
        later."""
        try:
            while True:
                try:
                    await self._step()
                except PollingRefused as refused:
                    self._log_status(f"{refused}. The next attempt is in {refused.pause:g} s")
                    await asyncio.sleep(refused.pause)
                except NotSent as error:
                    self._log_status(f"{error}; it is asked again")
                    await asyncio.sleep(max(_AGAIN_MAX_S, error.retry_after or 0.0))
                except Exception as error:
                    # The text may quote a user, or contain the token.
                    self._log_status(f"updates are not asked for ({type(error).__name__}); it is tried again")
                    await asyncio.sleep(_AGAIN_MAX_S)
        finally:
            await self._stop()

    async def _step(self) -> None:
        if not await self._hold_lease():
            self._log_status("another process asks for the updates", logging.INFO)
            await asyncio.sleep(_POLL_S)
            return
        before = self._find_first_open()
        updates = await self._ask(before)
        if self._status:
            self._log_status("this process asks for the updates", logging.INFO)
            self._status = ""
        if before is not None:
            self._seen = {number for number in self._seen if number >= before}
        for update in updates:
            if update.number not in self._seen:
                self._seen.add(update.number)
                self._open.add(update.number)
                self._add(update)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=_ASIDE_S)

    async def _hold_lease(self) -> bool:
        now = time.monotonic()
        if now < self._held_until:
            return True
        if not await self._lease.hold():
            self._held_until = 0.0
            return False
        # Renewed after a third of the lease: a request for updates that begins just before may take as long
        # again.
        self._held_until = now + LEASE_S / 3
        return True

    def _find_first_open(self) -> int | None:
        """Return the number before which all updates may be confirmed, ``None`` if there are none to confirm.

        A number is sent once, not with each request: after a quiet time a provider may number from anywhere,
        and would take lower numbers for confirmed.
        """
        first = min(self._open, default=max(self._seen, default=-1) + 1)
        if any(number < first for number in self._seen):
            return first
        return None

    def _add(self, update: PolledUpdate) -> None:
        self._queues.setdefault(update.chat, deque()).append(update)
        if update.chat not in self._tasks:
            self._tasks[update.chat] = asyncio.create_task(self._take_all(update.chat))

    async def _take_all(self, chat: str) -> None:
        queue = self._queues[chat]
        try:
            while queue:
                await self._take_one(queue[0])
                self._open.discard(queue.popleft().number)
        finally:
            # Updates of a task that ends early stay in ``_open``, so that this process does not confirm them.
            del self._queues[chat], self._tasks[chat]

    async def _take_one(self, update: PolledUpdate) -> None:
        """Return when an update is durable, or refused for good."""
        limit = time.monotonic() + _PATIENCE_S
        pause = _AGAIN_S
        while True:
            try:
                await self._take(update)
            except Unavailable:
                # No chat's updates can be stored now.
                limit = time.monotonic() + _PATIENCE_S
                self._log_status("updates wait for the database")
            except RejectedRequest as error:
                if error.status < 500:
                    _log.warning("%s: update %d is left out: %s", self._name, update.number, error)
                    return
                limit = time.monotonic() + _PATIENCE_S
                self._log_status(f"updates wait: {error}")
            except Exception as error:
                kind = type(error).__name__
                if time.monotonic() >= limit or update.chat in self._full_chats:
                    _log.error("%s: update %d was not accepted (%s)", self._name, update.number, kind)
                    await self._give_up(update, error)
                    return
                _log.warning("%s: update %d waits (%s)", self._name, update.number, kind)
            else:
                self._full_chats.discard(update.chat)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _AGAIN_MAX_S)

    async def _give_up(self, update: PolledUpdate, error: Exception) -> None:
        if update.chat in self._full_chats:
            return
        if isinstance(error, QueueFull):
            # Each later update of this chat would wait as long; its sender is notified once.
            self._full_chats.add(update.chat)
        await self._refuse(update)

    def _log_status(self, text: str, level: int = logging.WARNING) -> None:
        if text != self._status:
            self._status = text
            _log.log(level, "%s: %s", self._name, text)

    async def _stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._held_until:
            try:
                async with asyncio.timeout(_POLL_S):
                    await self._lease.release()
            except Exception as error:
                _log.warning("%s: the lease of its updates runs out (%s)", self._name, type(error).__name__)
