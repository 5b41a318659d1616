"""Crons: documents with the time at which each is due next, and one queue record for the earliest of them.

All crons of a tenant share one partition, whose queue record is due when the first of them is: workers find
it as they find a thread's inbox. Every change writes or checks that record in its own commit, so that
concurrent changes cannot leave it with a later time than that of a cron. The caller decides what a cron
starts and when it is due again. Of the body, only ``thread_id`` is read here: it names the thread that the
cron is bound to, and the cron is removed with that thread. Times are microseconds since the epoch, and
``fresh`` is as in ``documents``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from perdure.engine import documents
from perdure.engine.complete_reads import read_all
from perdure.engine.documents import Document
from perdure.engine.requests import commit_for, read_record
from perdure.engine.transact import retry_attempt
from perdure.errors import Corrupt, QueueFull
from perdure.model.ops import Check, Delete, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import DOCUMENT, LANE, SERVER, Partition, Record
from perdure.model.runs.messages import encode
from perdure.model.runs.queue import CRONS, Lane

COLLECTION = "cron"
"""Collection of the documents."""

THREAD_ID = "thread_id"
"""Key of a cron's body with the id of the thread that it is bound to, or ``None``."""

MOST = 1000
"""Maximum number of crons of a tenant."""

_NEVER = (1 << 53) - 1
"""Stored time of a cron that is not due at any time."""


class Cron(NamedTuple):
    """A cron as it was read. ``due_at`` is ``None`` while it is not to be started. Until ``claimed_until``
    its start is claimed by one process. ``version`` is the version that a change expects."""

    id: str
    body: Mapping[str, Any]
    due_at: int | None
    created_at: int
    updated_at: int
    version: int
    claimed_until: int = 0

    @classmethod
    def read(cls, record: Record) -> Cron:
        """Decode the cron of a record; raises ``Corrupt`` if its body is not what was stored."""
        return cls.of(Document.read(record))

    @classmethod
    def of(cls, document: Document) -> Cron:
        """Return the cron of a document; raises ``Corrupt`` if it has none."""
        name, fields, order, version, fault = document
        due_at: int | None = order
        if order == _NEVER:
            due_at = None
        try:
            times = fields["created_at"], fields["updated_at"]
            return cls(name, fields["cron"], due_at, *times, version, fields.get("claimed_until", 0))
        except KeyError as error:
            raise fault or Corrupt(f"the cron {name} has no {error}: its record was damaged") from error


class Due(NamedTuple):
    """A cron after a change: its new body, the time at which it is due next, and until when one
    process has claimed its start."""

    body: Mapping[str, Any]
    due_at: int | None
    claimed_until: int = 0


Change = Callable[[Cron], Due | None]
"""Function from a cron to the changed cron; ``None`` leaves it. It may be called more than once."""


def place(tenant: str) -> Partition:
    """Return the partition of a tenant's crons."""
    return Partition(tenant, CRONS, SERVER)


def create(partition: Partition, cron_id: str, new: Due, now: int, fresh: int) -> Program[Cron | None]:
    """Store a cron; ``None`` if there is one of this id.

    Raises:
        QueueFull: the tenant has ``MOST`` crons.
        Contention: other writers win each time.
    """

    def load() -> Program[tuple[_View, int]]:
        view = yield from _load_view(partition, cron_id)
        (others,) = yield from read_all(partition, Range(DOCUMENT, (COLLECTION,), bodies=False))
        return view, len(others)

    def attempt(seen: tuple[_View, int]) -> Program[tuple[Cron | None] | None]:
        view, count = seen
        if view.cron is not None:
            return (None,)
        if count >= MOST:
            raise QueueFull(f"there are {MOST} crons, as many as a tenant may have; delete one first")
        cron = Cron(cron_id, new.body, new.due_at, now, now, fresh)
        return (yield from _store(partition, view, cron, Expect.ABSENT, fresh))

    (made,) = yield from retry_attempt(partition, None, load, attempt)
    return made


def change(partition: Partition, cron_id: str, alter: Change, now: int, fresh: int) -> Program[Cron | None]:
    """Replace a cron by the result of ``alter``, and return it; ``None`` if there is none.

    Raises:
        Contention: other writers win each time.
    """

    def attempt(view: _View) -> Program[tuple[Cron | None] | None]:
        before = view.cron
        if before is None or (after := alter(before)) is None:
            return (before,)
        cron = before._replace(**after._asdict(), version=successor(before.version, fresh, now))
        # A claim is not a change of the cron itself.
        if not after.claimed_until:
            cron = cron._replace(updated_at=now)
        return (yield from _store(partition, view, cron, before.version, fresh))

    load = partial(_load_view, partition, cron_id)
    (changed,) = yield from retry_attempt(partition, None, load, attempt)
    return changed


def remove(partition: Partition, cron_id: str) -> Program[bool]:
    """Remove a cron, readable or not; ``False`` if there is none."""

    def attempt(view: _View) -> Program[bool | None]:
        if view.version is None:
            return False
        # If the queue record is missing, ``arm`` stores it for the other crons.
        queued: Op = Check(LANE, (CRONS,), Expect.ABSENT)
        if view.lane.version:
            queued = _queue_op(view.lane, view.others_due_at, 0)
        gone = Delete(DOCUMENT, (COLLECTION, cron_id), view.version)
        return (yield from commit_for(partition, (gone, queued), True))

    load = partial(_load_view, partition, cron_id, bodies=False)
    return (yield from retry_attempt(partition, None, load, attempt))


def list_bound(tenant: str) -> Program[list[tuple[str, str]]]:
    """Return the id of each cron of a tenant that is bound to a thread, with the thread's name. An unreadable
    cron counts as bound to no thread."""
    (found,) = yield from read_all(place(tenant), Range(DOCUMENT, (COLLECTION,)))
    out: list[tuple[str, str]] = []
    for record in found:
        with suppress(Corrupt):
            cron = Cron.read(record)
            if (thread := cron.body.get(THREAD_ID)) is not None:
                out.append((cron.id, thread))
    return out


def list_for_thread(thread: Partition) -> Program[list[str]]:
    """Return the ids of the crons that are bound to a thread."""
    bound = yield from list_bound(thread.tenant)
    return [cron_id for cron_id, name in bound if name == thread.thread]


def get(partition: Partition, cron_id: str) -> Program[Cron | None]:
    """Return a cron, ``None`` if there is none."""
    record = yield from read_record(partition, DOCUMENT, (COLLECTION, cron_id))
    return record and Cron.read(record)


def read_all_crons(partition: Partition) -> Program[list[Cron]]:
    """Return all crons, by id."""
    (found,) = yield from read_all(partition, Range(DOCUMENT, (COLLECTION,)))
    return list(map(Cron.read, found))


class CronPage(NamedTuple):
    """Crons in the order of their times, the error of the first one that cannot be read, and the time at
    which the next page begins, ``None`` after the last one."""

    crons: tuple[Cron, ...]
    fault: Corrupt | None
    next_since: int | None


def list_by_time(partition: Partition, until: int, limit: int, since: int | None = None) -> Program[CronPage]:
    """Return a page of the crons that are due at some time, the earliest first.

    Args:
        partition: The crons of a tenant.
        until: The page ends with the crons that are due at this time.
        limit: Number of crons of the page; it has more if all of these are due at the same time.
        since: The time at which the page begins. Crons of this time may be on the page before, too.
    """
    order = _earliest(limit)
    if since is not None:
        order = order._replace(after=since - 1)
    while True:
        (stubs,) = yield from ask(Fetch(partition, (order._replace(limit=limit),)))
        times = [stub.fields["updated_at"] for stub in stubs]
        if len(stubs) < limit or times[0] < times[-1]:
            break
        limit *= 4
    last = min(until, _NEVER - 1)
    names = [stub.key[1] for stub, time in zip(stubs, times, strict=True) if time <= last]
    crons: list[Cron] = []
    fault: Corrupt | None = None
    for document in (yield from documents.get_many(partition, COLLECTION, names)):
        try:
            cron = Cron.of(document)
        except Corrupt as error:
            fault = fault or error
        else:
            # Another process may have started it since the order was read: it is due later then, or never.
            if cron.due_at is not None and cron.due_at <= last:
                crons.append(cron)
    next_since: int | None = None
    if len(names) == limit:
        next_since = times[-1]
    return CronPage(tuple(crons), fault, next_since)


def arm(partition: Partition, fresh: int) -> Program[bool]:
    """Store the queue record if it is missing or later than the time of a cron, as after a copy of the
    database; return True if it was stored."""

    def attempt(view: _View) -> Program[bool | None]:
        if view.others_due_at is None or view.lane.is_due(view.others_due_at):
            return False
        queued = _queue_op(view.lane, view.others_due_at, fresh)
        return (yield from commit_for(partition, (queued,), True))

    return (yield from retry_attempt(partition, None, partial(_load_view, partition, ""), attempt))


class _View(NamedTuple):
    """State before a change: the queue record, the cron, and the earliest time of all others."""

    lane: Lane
    cron: Cron | None
    version: int | None
    others_due_at: int | None


def _load_view(partition: Partition, cron_id: str, *, bodies: bool = True) -> Program[_View]:
    itself = Range(DOCUMENT, (COLLECTION, cron_id), limit=1, bodies=bodies)
    lanes, found, first = yield from ask(Fetch(partition, (Get(LANE, (CRONS,)), itself, _earliest(2))))
    lane, times = (
        Lane.read(CRONS, lanes),
        [record.fields["updated_at"] for record in first if record.key[1] != cron_id],
    )
    others = next((time for time in times if time != _NEVER), None)
    if not found:
        return _View(lane, None, None, others)
    cron = None
    if bodies:
        cron = Cron.read(found[0])
    return _View(lane, cron, found[0].version, others)


def _earliest(limit: int) -> Range:
    return Range(DOCUMENT, (COLLECTION,), by="updated_at", limit=limit, bodies=False)


def _store(
    partition: Partition, view: _View, cron: Cron, expect: Expect | int, fresh: int
) -> Program[tuple[Cron | None] | None]:
    fields: dict[str, Any] = {
        "cron": dict(cron.body),
        "created_at": cron.created_at,
        "updated_at": cron.updated_at,
    }
    if cron.claimed_until:
        fields["claimed_until"] = cron.claimed_until
    order = _NEVER
    if cron.due_at is not None:
        order = cron.due_at
    times = [time for time in (view.others_due_at, cron.due_at) if time is not None]
    put = Put(
        DOCUMENT, (COLLECTION, cron.id), {"updated_at": order}, encode(fields, "cron"), expect, cron.version
    )
    queued = _queue_op(view.lane, min(times, default=None), fresh)
    return (yield from commit_for(partition, (put, queued), (cron,)))


def _queue_op(lane: Lane, first: int | None, fresh: int) -> Op:
    """Return the operation on the queue record when the earliest cron is due at ``first``."""
    if first is not None:
        return lane.at_time(first).put(fresh)
    if lane.version:
        return Delete(LANE, (CRONS,), lane.version)
    return Check(LANE, (CRONS,), Expect.ABSENT)
