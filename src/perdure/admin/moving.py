"""Transfer of threads and of the store's namespaces between two open databases, and their digests."""

from __future__ import annotations

import time
from functools import partial
from typing import TypeVar

from perdure.admin.hand_overs import find_hand_overs
from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine.threads import thread_digest
from perdure.engine.threads.thread_digest import Digest, Report
from perdure.engine.transfer import transfer, transfer_documents, transfer_items
from perdure.engine.transfer.transfer_terms import OnSide, Side, TransferOptions, TransferResult
from perdure.model.program import Effect
from perdure.model.records import OF_ITEMS, SERVER, Partition
from perdure.storage.port import Driver, run

R = TypeVar("R")


def digest_of(
    database: Database | SyncDatabase, partition: Partition, report: Report = thread_digest.report_nothing
) -> Digest:
    """Return the digest of any tenant's thread, or of a namespace of its store.

    Args:
        database: The database.
        partition: The thread or namespace.
        report: Called with the number of bytes just read.
    """
    handle = handle_of(database)
    if partition.space in OF_ITEMS:
        return handle.run(transfer_items.compute_items_digest(partition, _now(), report))
    return handle.run(thread_digest.compute_thread_digest(partition, handle.digest, report))


def move(
    source: Database | SyncDatabase,
    partition: Partition,
    target: Database | SyncDatabase,
    into: Partition | None = None,
    *,
    replace: bool = False,
    dry_run: bool = False,
    hand_over: bool = False,
    report: Report = thread_digest.report_nothing,
) -> TransferResult:
    """Transfer a thread, or a namespace of the store, to another database and compare its digest there.

    An interrupted transfer can be repeated and continues. Equal content at the target stays. The source is
    not changed, except for the waits that ``hand_over`` takes from it.

    A thread that waits for an answer does so at the target, too. A thread that goes on by itself, at a
    deadline, after a sleep or with a signal, does so in one database only: with ``hand_over`` at the target.

    Args:
        source: The database that holds it.
        partition: The thread or namespace.
        target: The database that receives it.
        into: Name at the target; the same unless given.
        replace: Replace different content at the target. Items of the store and records of a server that only
            the target has stay.
        dry_run: Compare only.
        hand_over: Let the target take over a thread that goes on by itself; the source then stops doing so.
        report: Called with the number of bytes just read.

    Raises:
        Conflict: The target has different content and ``replace`` is false, a message is under way, or a
            thread goes on by itself and ``hand_over`` is false.
        NotFound: There is no such thread.
    """
    here, there = handle_of(source), handle_of(target)
    hand_overs = find_hand_overs(there)
    options = TransferOptions(
        here.digest,
        there.digest,
        there.budget,
        here.draw_version(),
        replace,
        report,
        hand_over=hand_over,
        leave=None if hand_overs is None else partial(hand_overs.add, here),
        is_from_archive=here.driver.capabilities.is_archive,
        is_to_archive=there.driver.capabilities.is_archive,
    )
    into = into or partition
    if partition.space in OF_ITEMS:
        of_items = transfer_items.compare_items if dry_run else transfer_items.move_items
        program = of_items(partition, into, options, _now)
    elif partition.space == SERVER:
        of_records = transfer_documents.compare_documents if dry_run else transfer_documents.move_documents
        program = of_records(partition, into, options)
    else:
        of_thread = transfer.compare_thread if dry_run else transfer.move_thread
        program = of_thread(partition, into, options)
    return run(program, _Between(here.driver, there.driver))


class _Between:
    """Two drivers, for programs whose effects name the side at which they are performed."""

    def __init__(self, source: Driver, target: Driver) -> None:
        self._drivers = {Side.SOURCE: source, Side.TARGET: target}
        self.limits, self.capabilities = target.limits, target.capabilities

    def perform(self, effect: Effect[R]) -> R:
        if not isinstance(effect, OnSide):
            raise TypeError(f"not a request to one of two databases: {type(effect).__name__}")
        answer: R = self._drivers[effect.place].perform(effect.effect)
        return answer

    async def aperform(self, effect: Effect[R]) -> R:
        if not isinstance(effect, OnSide):
            raise TypeError(f"not a request to one of two databases: {type(effect).__name__}")
        answer: R = await self._drivers[effect.place].aperform(effect.effect)
        return answer

    def close(self) -> None:
        """Leave the databases open: their owners close them."""


def _now() -> int:
    return time.time_ns() // 1000
