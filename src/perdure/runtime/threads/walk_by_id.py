"""Walk over a tenant's threads in order of their ids. It continues from a cursor, and names only threads that
the viewer may see.

A cursor has the last thread that the viewer saw and the number of threads that were examined since, because
the id of a thread that the viewer may not see would reveal that it exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.errors import BadSetting
from perdure.model.ops import FindThreads
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.runtime.threads.index import Sees
from perdure.runtime.threads.rows import ThreadRow, load_row

_PAGE = 64
_SKIPPED_PAGE = 1000
_ASCII = 128
NUMBER_DIGITS = 18
"""Maximum number of digits of a number in a request."""


class WalkPlace(NamedTuple):
    """Place in the walk: the last thread that the viewer saw, and the number of threads passed since."""

    after: str = ""
    passed: int = 0

    @classmethod
    def read(cls, cursor: str) -> WalkPlace:
        """Return the place of a cursor, the beginning for an empty one. ``BadSetting`` if it is not a
        cursor."""
        if not cursor:
            return cls()
        passed, _, after = cursor.partition(":")
        return cls(after, number(passed, "the cursor's number"))

    @property
    def cursor(self) -> str:
        """The cursor of this place."""
        return f"{self.passed}:{self.after}"


class WalkStep(NamedTuple):
    """A thread that was examined. ``partition`` is None if the viewer may not see it; ``row`` is None then,
    or if no rows were asked for."""

    place: WalkPlace
    partition: Partition | None
    row: ThreadRow | None


async def walk(
    database: DatabaseHandle,
    tenant: str,
    sees: Sees | None,
    place: WalkPlace,
    *,
    prefix: str = "",
    with_rows: bool = False,
) -> AsyncGenerator[WalkStep, None]:
    """Yield the tenant's threads after a place.

    Args:
        database: The database.
        tenant: The tenant.
        sees: Which threads the viewer may see, None for all.
        place: Where to continue.
        prefix: Beginning of the ids that have to be examined: others may be left out.
        with_rows: True to read the row of every thread; otherwise rows are read only if ``sees`` needs them.
    """
    # The index takes prefixes that end in an ASCII character.
    while prefix and ord(prefix[-1]) >= _ASCII - 1:
        prefix = prefix[:-1]
    after, to_skip = place.after, place.passed
    while True:
        start = Partition(tenant, after) if after else None
        size = min(to_skip, _SKIPPED_PAGE) or _PAGE
        find = FindThreads(tenant, after=start, limit=size, prefix=prefix)
        hits = await database.arun(ask(find))
        skipped = min(to_skip, len(hits))
        to_skip -= skipped
        partitions = [hit.partition for hit in hits[skipped:]]
        rows: list[ThreadRow | None] = [None] * len(partitions)
        if with_rows or sees is not None:
            rows = list(await asyncio.gather(*(database.arun(load_row(each)) for each in partitions)))
        for partition, row in zip(partitions, rows, strict=True):
            if sees is None or (row is not None and sees(row.metadata)):
                place = WalkPlace(partition.thread)
                yield WalkStep(place, partition, row)
            else:
                place = WalkPlace(place.after, place.passed + 1)
                yield WalkStep(place, None, None)
        if len(hits) < size:
            return
        after = hits[-1].partition.thread


def number(text: str, name: str) -> int:
    """Return a text of a request as a number. ``BadSetting`` if it is not a number, or too long."""
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS):
        raise BadSetting(f"{name} has to be a number of at most {NUMBER_DIGITS} digits, not {text[:40]!r}")
    return int(text)
