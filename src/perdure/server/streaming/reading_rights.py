"""Repeated check that the user of an open connection may still receive its data.

No stream, no request that waits for a run, and no WebSocket outlives its token or the right to its thread by
more than the interval of ``RequestLimits.recheck``. Without authentication nothing is checked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.errors import Unavailable
from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import OpenGate, Refusal
from perdure.server.resources import Caller

T = TypeVar("T")

_IN_LEEWAY_S = 5.0
_LEEWAY_S = 300.0
"""Seconds after ``exp`` for which a token may still be valid: it is then checked every ``_IN_LEEWAY_S``
seconds."""


async def authenticate_again(connection: HTTPConnection, caller: Caller) -> Caller:
    """Return the caller of an open connection, authenticated again.

    Raises:
        Refusal: the request that opened the connection is no longer valid, or is now of another user.
    """
    if caller.is_program:
        return caller
    user = await caller.host.gate.authenticate(connection)
    before = caller.user
    if (user.identity, user.tenant) != (before.identity, before.tenant):
        raise Refusal(401, "the connection was opened by another user; connect again")
    return replace(caller, user=user)


def reads_as_before(thread_id: str, conditions: Filter | None) -> Callable[[Caller], Awaitable[bool]]:
    """Return the check that a user may read a thread under the same filter as before, and that the thread is
    still among those that the filter lets the user see."""

    async def reads(caller: Caller) -> bool:
        found = await caller.may("threads", "read", {"thread_id": thread_id})
        return found == conditions and await _sees(caller, thread_id, conditions)

    return reads


async def _sees(caller: Caller, thread_id: str, conditions: Filter | None) -> bool:
    """Return True if a filter lets the user see a thread, or if there is none: it may be created yet, or was
    removed, which ends the streams of its runs."""
    if conditions is None:
        return True
    row = await caller.threads.find(thread_id)
    return row is None or caller.sees(conditions, row.metadata)


class ReadingRights:
    """The right of a connection's user to the events that it receives."""

    def __init__(
        self, connection: HTTPConnection, caller: Caller, reads: Callable[[Caller], Awaitable[bool]]
    ) -> None:
        """Create the right.

        Args:
            connection: the request or the WebSocket, as it was opened.
            caller: the user who was authenticated then.
            reads: returns False once the user, authenticated again, may no longer read.
        """
        self.is_lost = False
        self._connection, self._caller, self._reads = connection, caller, reads
        self._is_checked = not (caller.is_program or isinstance(caller.host.gate, OpenGate))

    async def wait_until_lost(self) -> Refusal:
        """Return the refusal once the user is no longer authenticated, or may no longer read.

        Checks are made every ``recheck`` seconds of the server's limits, and when a token with an ``exp``
        expires. If the database cannot answer a check, the user keeps the right until the next check.
        """
        while True:
            await asyncio.sleep(self._count_seconds_to_check())
            try:
                caller = await authenticate_again(self._connection, self._caller)
                if not await self._reads(caller):
                    # An open stream cannot change its filter, so it has to end.
                    raise Refusal(403, "the rights of this user have changed; connect again")
            except Refusal as refusal:
                self.is_lost = True
                return refusal
            except Unavailable:
                continue

    def _count_seconds_to_check(self) -> float:
        longest, expiry = self._caller.host.limits.recheck, self._caller.user.fields.get("exp")
        if isinstance(expiry, bool) or not isinstance(expiry, int | float):
            return longest
        left = expiry - time.time()
        if left > 0:
            return min(longest, left)
        if left > -_LEEWAY_S:
            return min(longest, _IN_LEEWAY_S)
        return longest

    async def enforce(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``, which is cancelled when the right is lost.

        Raises:
            Refusal: the right was lost.
        """
        if not self._is_checked:
            return await work
        working = asyncio.ensure_future(work)
        refusing = asyncio.ensure_future(self.wait_until_lost())
        try:
            await asyncio.wait((working, refusing), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise refusing.result()
        finally:
            working.cancel()
            refusing.cancel()
            await asyncio.gather(working, refusing, return_exceptions=True)

    def guard(self, response: Response) -> Response:
        """Return a response that is aborted when the right is lost."""
        if self._is_checked:
            return _Guarded(response, self)
        return response


class RunRights(ReadingRights):
    """The right to the events and the result of a run: the user is still authenticated, and may still read
    the thread. A user who could not read it at the beginning, but may create runs there, only has to be
    authenticated.

    A run whose client loses the right continues, even if it would be cancelled at a disconnection.
    """

    def __init__(
        self,
        connection: HTTPConnection,
        caller: Caller,
        thread_id: str | None = None,
        *,
        could_read: bool | None = None,
    ) -> None:
        """Create the right.

        Args:
            connection: the request, as it was opened.
            caller: the user who was authenticated then.
            thread_id: the thread; None if it is not known yet, see ``watch``.
            could_read: True if the request itself was permitted to read the thread; None if that is to be
                found out.
        """
        super().__init__(connection, caller, self._may_still_read)
        self._thread_id, self._could_read = thread_id, could_read

    def note_readable(self, thread_id: str) -> None:
        """Note that the request was permitted to read a thread, and check that right from now on."""
        self._thread_id, self._could_read = thread_id, True

    async def watch(self, thread_id: str) -> None:
        """Check the right to a thread from now on."""
        if self._is_checked and thread_id != self._thread_id:
            self._could_read = await self._may_read_thread(self._caller, thread_id)
            self._thread_id = thread_id

    async def wait_until_lost(self) -> Refusal:
        if self._thread_id is not None and self._could_read is None:
            try:
                self._could_read = await self._may_read_thread(self._caller, self._thread_id)
            except Unavailable:
                self._could_read = True
        return await super().wait_until_lost()

    async def _may_still_read(self, caller: Caller) -> bool:
        if self._thread_id is None or not self._could_read:
            return True
        return await self._may_read_thread(caller, self._thread_id)

    async def _may_read_thread(self, caller: Caller, thread_id: str) -> bool:
        try:
            conditions = await caller.may("threads", "read", {"thread_id": thread_id})
        except Refusal:
            return False
        return await _sees(caller, thread_id, conditions)


class _Guarded(Response):
    def __init__(self, response: Response, rights: ReadingRights) -> None:
        self.background = response.background
        self.status_code = response.status_code
        self.raw_headers = response.raw_headers
        self._response, self._rights = response, rights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._rights.enforce(self._response(scope, receive, send))
        except Refusal:
            # The response has begun and is cut off: a client that connects again gets the reason.
            return
