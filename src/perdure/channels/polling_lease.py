"""Lease of the one process that asks a provider for a bot's updates, in the database of the runtime.

It keeps the processes of one deployment from disturbing each other. Safety does not depend on it: an update
that two processes got becomes one turn.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from perdure.database.base import handle_of
from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.model.records import SERVER, Partition
from perdure.runtime import Runtime

_COLLECTION, _NAME = "channel", "polling"
LEASE_S = 30.0
"""Seconds after which another process takes over from one that was killed."""


class PollingLease:
    """Lease of a bot's updates.

    Args:
        runtime: The runtime, whose database has the lease.
        tenant: The tenant of the channel.
        bot: The name of the channel, and the bot's id.
    """

    def __init__(self, runtime: Runtime, tenant: str, bot: str) -> None:
        self._runtime = runtime
        self._database = handle_of(runtime.database)
        self._partition = Partition(tenant, f"polling:{bot}", SERVER)
        self._owner = secrets.token_hex(8)

    async def hold(self) -> bool:
        """Take or renew the lease, and return True if this process holds it."""
        now = await self._runtime.now()
        is_held = False

        def take(before: Document | None) -> Mapping[str, Any] | None:
            nonlocal is_held
            body: Mapping[str, Any] = {}
            if before is not None:
                body = before.body
            is_held = body.get("owner") in (None, self._owner) or int(body.get("until", 0)) <= now
            if is_held:
                return {"owner": self._owner, "until": now + round(LEASE_S * 1_000_000)}
            return None

        await self._change(take, now)
        return is_held

    async def release(self) -> None:
        """Give the lease up, if this process holds it."""

        def give_up(before: Document | None) -> Mapping[str, Any] | None:
            if before is not None and before.body.get("owner") == self._owner:
                return {"owner": None, "until": 0}
            return None

        await self._change(give_up, await self._runtime.now())

    async def _change(self, change: documents.Change, now: int) -> None:
        fresh = self._database.draw_version()
        program = documents.change(self._partition, _COLLECTION, _NAME, change, now, fresh)
        await self._database.arun(program)
