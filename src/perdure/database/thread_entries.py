"""Entries of the list of threads, read from the backend's listing or from each thread's latest checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.engine.threads import checkpoint_loading
from perdure.errors import Corrupt
from perdure.model.ops import FindThreads, IndexHit
from perdure.model.program import Program, ask
from perdure.model.records import Partition
from perdure.model.times import to_datetime


@dataclass(frozen=True, slots=True)
class Thread:
    """Entry of the thread listing.

    Attributes:
        tenant: The owner of the thread.
        thread_id: Its id.
        updated_at: The time of the last change, ISO 8601. If it is read from the latest checkpoint, and that
            cannot be read, it is ``None`` and ``error`` is the reason.
        error: The reason, else ``None``.
        created_at: The time of the first change, ISO 8601; ``None`` on backends without a listing.
        status: ``idle``, ``busy``, ``interrupted`` or ``error``; ``None`` if it can only be found by reading
            the thread.
    """

    tenant: str
    thread_id: str
    updated_at: str | None
    error: str | None = None
    created_at: str | None = None
    status: str | None = None


def read_page(tenant: str, after: Partition | None) -> Program[tuple[IndexHit, ...]]:
    """Return the tenant's next threads, by id, after one of them."""
    return (yield from ask(FindThreads(tenant, after=after)))


def make_entry(found: IndexHit) -> Program[Thread]:
    """Return the entry of a thread of a page."""
    if found.listed is None:
        return (yield from _read_entry(found.partition))
    listed = found.listed
    try:
        updated, created = _format_time(listed.updated_at), _format_time(listed.created_at)
    except OverflowError:
        return Thread(
            *found.partition[:2], None, "the time in the listing is not a valid time: run `perdure fsck`"
        )
    status = None if listed.status == "unsure" else listed.status
    return Thread(*found.partition[:2], updated, None, created, status)


def _format_time(microseconds: int) -> str:
    return to_datetime(microseconds).isoformat(timespec="microseconds")


def _read_entry(partition: Partition) -> Program[Thread]:
    try:
        loaded = yield from checkpoint_loading.load(partition, "", None)
    except Corrupt as error:
        return Thread(partition.tenant, partition.thread, None, str(error))
    if loaded.checkpoint is None and loaded.view.head is not None:
        missing = f"its head names checkpoint {loaded.view.head.checkpoint_id}, which is not stored"
        return Thread(partition.tenant, partition.thread, None, missing)
    return Thread(partition.tenant, partition.thread, loaded.checkpoint.ts if loaded.checkpoint else None)
