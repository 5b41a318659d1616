"""Records of a thread in other partitions, which are removed with it: its entry in a server's index, with a
copy of its metadata, and the crons that are bound to it, with the input of their runs.

No commit holds them and the thread. They are read before the thread is removed, and removed as they were
read: those of a thread that is created under the same name meanwhile stay.
"""

from __future__ import annotations

from typing import NamedTuple

from perdure.engine import documents
from perdure.engine.queue import crons
from perdure.model.ops import Fetch, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, LISTED, Partition


class OutsideRecords(NamedTuple):
    """Records of a thread in other partitions: the version of its entry in the index, ``None`` without one,
    and the ids of its crons."""

    thread: Partition
    entry: int | None
    cron_ids: tuple[str, ...]


def find(thread: Partition) -> Program[OutsideRecords]:
    """Find the records of a thread in other partitions."""
    index, key = _entry(thread)
    (found,) = yield from ask(Fetch(index, (Range(DOCUMENT, key, limit=1, bodies=False),)))
    bound = yield from crons.list_for_thread(thread)
    return OutsideRecords(thread, found[0].version if found else None, tuple(bound))


def remove(found: OutsideRecords) -> Program[None]:
    """Remove the records that were found."""
    for cron_id in found.cron_ids:
        yield from crons.remove(crons.place(found.thread.tenant), cron_id)
    if found.entry is not None:
        index, (collection, name) = _entry(found.thread)
        yield from documents.remove(index, collection, name, found.entry)


def _entry(thread: Partition) -> tuple[Partition, tuple[str, str]]:
    return Partition(thread.tenant, *LISTED), (LISTED[0], thread.thread)
