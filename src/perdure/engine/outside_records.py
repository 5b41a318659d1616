"""What is stored of a thread outside of it: its entry in a server's index, which has a copy of its metadata,
and the crons that are bound to it, which have the input of their runs. It is removed with the thread.

They are in partitions of their own, so no commit holds them and the thread. Each is read before the thread is
removed, and removed as it was read: those of a thread that is created under the same name meanwhile stay.
"""

from __future__ import annotations

from typing import NamedTuple

from perdure.engine import crons, documents
from perdure.model.ops import Fetch, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, LISTED, Partition


class OutsideRecords(NamedTuple):
    """What is stored of a thread outside of it: the version of its entry in the index, ``None`` without one,
    and the ids of its crons."""

    thread: Partition
    entry: int | None
    cron_ids: tuple[str, ...]


def find(thread: Partition) -> Program[OutsideRecords]:
    """Find what is stored of a thread outside of it."""
    index, key = _entry(thread)
    (found,) = yield from ask(Fetch(index, (Range(DOCUMENT, key, limit=1, bodies=False),)))
    bound = yield from crons.bound_to(thread)
    return OutsideRecords(thread, found[0].version if found else None, tuple(bound))


def remove(found: OutsideRecords) -> Program[None]:
    """Remove what was found."""
    for cron_id in found.cron_ids:
        yield from crons.remove(crons.place(found.thread.tenant), cron_id)
    if found.entry is not None:
        index, (collection, name) = _entry(found.thread)
        yield from documents.remove(index, collection, name, found.entry)


def _entry(thread: Partition) -> tuple[Partition, tuple[str, str]]:
    return Partition(thread.tenant, *LISTED), (LISTED[0], thread.thread)
