"""Repeated check that the user of an open connection may still read a thread: neither a WebSocket nor a
stream of a thread's events outlives its token."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from starlette.requests import HTTPConnection

from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import Refusal
from perdure.server.resources import Caller

RECHECK_S = 30.0
"""Seconds between two checks of the user of a connection."""


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


async def until_refused(
    connection: HTTPConnection, caller: Caller, thread_id: str, conditions: Filter | None
) -> Refusal:
    """Return the refusal once the user may no longer read the thread, checked every ``RECHECK_S`` seconds.

    Args:
        connection: the request or the WebSocket, as it was opened.
        caller: the user who was authenticated then.
        thread_id: the thread.
        conditions: the filter that restricted the user's threads then, or None.
    """
    while True:
        await asyncio.sleep(RECHECK_S)
        try:
            now = await authenticate_again(connection, caller)
            if await now.may("threads", "read", {"thread_id": thread_id}) != conditions:
                # What was opened keeps the former filter.
                return Refusal(403, "the rights of this user have changed; connect again")
        except Refusal as refusal:
            return refusal
