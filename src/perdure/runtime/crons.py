"""Crons of a tenant, as their clients see them: created, changed, listed and removed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from perdure.engine.queue import crons
from perdure.engine.queue.crons import Change, Cron, Due
from perdure.errors import NotFound
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.worker.cron_service import queue_of
from perdure.runtime.worker.dispatch import Dispatch

__all__ = ["Change", "Cron", "Crons", "Due"]


class Crons:
    """The crons of one tenant."""

    def __init__(self, context: RuntimeContext, dispatch: Dispatch, tenant: str) -> None:
        self._context = context
        self._dispatch = dispatch
        self._place = crons.place(tenant)

    async def create(self, body: Mapping[str, Any], due_at: int | None) -> Cron:
        """Store a cron under a new id.

        Args:
            body: The run that it starts, as plain JSON data.
            due_at: The time of its first start, in microseconds; ``None`` for none until it is changed.

        Raises:
            QueueFull: The tenant has as many crons as it may have.
        """
        now, fresh = await self._context.clock.now(), self._context.database.draw_version()
        made = None
        while made is None:
            program = crons.create(self._place, str(uuid.uuid4()), Due(body, due_at), now, fresh)
            made = await self._context.database.arun(program)
        self._schedule(made, now)
        return made

    async def change(self, cron_id: str, alter: Change) -> Cron:
        """Replace a cron by the result of ``alter``, which may be called more than once, and return it.

        Raises:
            NotFound: There is no such cron.
        """
        now, fresh = await self._context.clock.now(), self._context.database.draw_version()
        changed = await self._context.database.arun(crons.change(self._place, cron_id, alter, now, fresh))
        if changed is None:
            raise _missing_error(cron_id)
        self._schedule(changed, now)
        return changed

    async def remove(self, cron_id: str) -> None:
        """Remove a cron; runs that it started go on. ``NotFound`` if there is none."""
        if not await self._context.database.arun(crons.remove(self._place, cron_id)):
            raise _missing_error(cron_id)

    async def get(self, cron_id: str) -> Cron:
        """Return a cron; ``NotFound`` if there is none."""
        found = await self._context.database.arun(crons.get(self._place, cron_id))
        if found is None:
            raise _missing_error(cron_id)
        return found

    async def read_all(self) -> list[Cron]:
        """Return all crons, by id."""
        return await self._context.database.arun(crons.read_all_crons(self._place))

    def _schedule(self, cron: Cron, now: int) -> None:
        if cron.due_at is not None:
            with self._context.report_errors(self._place):
                self._dispatch.schedule_anywhere(self._place, queue_of(cron.due_at), now)


def _missing_error(cron_id: str) -> NotFound:
    return NotFound(f"Cron {cron_id!r} not found.")
