"""Walk over a tenant's threads as they are now, the latest activity first where the database can do that.

A backend with a listing orders its threads by time; on the others they come by their ids, as an order by time
would need all of them. Each step names the place after it, so that a request examines threads for a moment
and the next request continues there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.errors import BadSetting
from perdure.model.records import INTERNAL
from perdure.model.runs.lifecycle import Status
from perdure.runtime.threads.index import Sees, ThreadIndex
from perdure.runtime.threads.order import Order
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.walk_by_id import WalkPlace, number, walk

_BY_TIME, _BY_ID = "t", "i"


class VisitedThread(NamedTuple):
    """Step of a walk: the cursor after it, the thread, ``None`` if it does not match or may not be seen, and
    the number of threads since the step before."""

    cursor: str
    row: ThreadRow | None
    examined: int = 1


class ThreadWalk(NamedTuple):
    """A walk over the threads of a tenant.

    Attributes:
        database: the database.
        tenant: the tenant.
        sees: which threads the viewer may see, ``None`` for all.
        status: the status that a thread has to have, ``None`` for any.
        prefix: the beginning of its id.
        is_by_id: the threads come by their ids on every backend.
        is_oldest_first: where threads come by time, those whose last change is longest ago come first.
    """

    database: DatabaseHandle
    tenant: str
    sees: Sees | None = None
    status: Status | None = None
    prefix: str = ""
    is_by_id: bool = False
    is_oldest_first: bool = False

    @property
    def is_by_time(self) -> bool:
        """True if threads come by the time of their last change, otherwise by their ids."""
        return self.database.has_listing and not self.prefix and not self.is_by_id

    async def steps(self, cursor: str = "", enough: int | None = None) -> AsyncGenerator[VisitedThread, None]:
        """Yield the steps after a cursor.

        Args:
            cursor: where to continue, empty for the beginning.
            enough: the number of threads after which the caller is likely to stop.

        Raises:
            BadSetting: the cursor is not one of this walk.
        """
        order, _, place = cursor.partition(":")
        if cursor and order != (_BY_TIME if self.is_by_time else _BY_ID):
            raise BadSetting(f"the cursor {cursor[:40]!r} is not one of this search; begin it again without")
        if self.is_by_time:
            steps = self._walk_by_time(place, enough)
        else:
            steps = self._walk_by_id(place)
        async with aclosing(steps) as walked:
            async for step in walked:
                yield step

    async def _walk_by_time(self, place: str, enough: int | None) -> AsyncGenerator[VisitedThread, None]:
        passed = number(place, "the cursor's number") if place else 0
        index = ThreadIndex(self.database, self.tenant)
        order = Order("updated_at", descending=not self.is_oldest_first)
        found = index.steps(status=self.status, sees=self.sees, order=order, skip=passed, enough=enough)
        async with aclosing(found) as steps:
            async for position, row in steps:
                if position > passed:
                    yield VisitedThread(f"{_BY_TIME}:{position}", row, position - passed)
                passed = position

    async def _walk_by_id(self, place: str) -> AsyncGenerator[VisitedThread, None]:
        start = WalkPlace.read(place)
        found = walk(self.database, self.tenant, self.sees, start, prefix=self.prefix, with_rows=True)
        async with aclosing(found) as walked:
            async for step in walked:
                row = step.row
                if row is not None and (
                    row.thread_id.startswith(INTERNAL)
                    or not row.thread_id.startswith(self.prefix)
                    or self.status not in (None, row.status)
                ):
                    row = None
                yield VisitedThread(f"{_BY_ID}:{step.place.cursor}", row)
