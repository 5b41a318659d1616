"""Transfers the waits of a thread with it, so that it goes on by itself in one database only."""

from __future__ import annotations

from typing import NamedTuple

from perdure.engine.threads.thread_state import guards, load_view
from perdure.engine.transfer import waiting_runs
from perdure.engine.transfer.same_database import refuse_same_database
from perdure.engine.transfer.transfer_terms import (
    ATTEMPTS,
    Side,
    TransferOptions,
    busy_target_error,
    commit_at_target,
    run_at,
)
from perdure.engine.transfer.waiting_runs import WaitingRun, read_waiting
from perdure.errors import Contention
from perdure.model.ops import Check, Expect, Now
from perdure.model.program import Program, ask
from perdure.model.records import HEAD, Partition


class TakenWaits(NamedTuple):
    """The run with which a thread is to wait at the target, ``None`` for none."""

    waiting: WaitingRun | None


def refuse_to_wake_twice(
    partition: Partition, found: WaitingRun | None, terms: TransferOptions, *, is_there: bool = True
) -> None:
    """Raise ``Conflict`` if a thread would go on by itself in two databases."""
    if found is None or terms.is_from_archive:
        return
    if terms.hand_over:
        if found.has_arrived and not is_there:
            raise waiting_runs.second_error(partition)
    elif found.wakes and not found.is_handed_over:
        raise waiting_runs.waking_error(partition)


def take_waits(partition: Partition, terms: TransferOptions) -> Program[TakenWaits | None]:
    """Take the run with which a thread waits from the source; ``None`` if the thread changes at that
    moment."""
    if not terms.has_queue:
        return TakenWaits(None)
    found = yield from run_at(Side.SOURCE, read_waiting(partition))
    refuse_to_wake_twice(partition, found, terms)
    if found is None or terms.is_from_archive:
        return TakenWaits(found)
    if found.is_handed_over and terms.hand_over:
        refuse_to_wake_twice(partition, found, terms, is_there=False)
        return TakenWaits(found.with_waits())
    is_kept = found.is_handed_over or not found.wakes
    if is_kept or (yield from run_at(Side.SOURCE, waiting_runs.take_from_source(partition, found))):
        return TakenWaits(found)
    return None


def bring_waits(partition: Partition, target: Partition, terms: TransferOptions) -> Program[None]:
    """Let a thread that is at the target already wait there as at the source, if the run with which it waits
    is not there."""
    for _ in range(ATTEMPTS):
        found = yield from run_at(Side.SOURCE, read_waiting(partition))
        if found is None:
            return
        if terms.hand_over and found.wakes:
            yield from refuse_same_database(partition, target, terms)
        if not (yield from run_at(Side.TARGET, waiting_runs.has_run_with_waits(target, found.run.id))):
            taken = yield from take_waits(partition, terms)
            if taken is None or taken.waiting is None:
                continue
            yield from run_at(Side.TARGET, _wait_at_target(target, taken.waiting, terms))
        yield from note_arrival(partition, found, terms)
        return
    raise Contention(
        f"thread {partition.thread!r} is written to all the time; stop its writers, and move it again"
    )


def note_arrival(partition: Partition, waiting: WaitingRun | None, terms: TransferOptions) -> Program[None]:
    """Note at the source that its waits have arrived. Nothing is noted if one side is a file, which may be
    lost, and is written again."""
    if waiting is not None and terms.hand_over and not (terms.is_from_archive or terms.is_to_archive):
        yield from run_at(Side.SOURCE, waiting_runs.note_arrival(partition))


def _wait_at_target(target: Partition, waiting: WaitingRun, terms: TransferOptions) -> Program[None]:
    """Let a thread of the target wait with a run, if it is not changed meanwhile."""
    view = yield from load_view(target, "")
    fence, unchanged = guards(target, view, None)
    ops = yield from waiting_runs.arrive(target, waiting, (yield from ask(Now())), terms.first_version)
    if ops is None:
        raise busy_target_error(target)
    head = view.head.version if view.head is not None else Expect.ABSENT
    yield from commit_at_target(target, [fence, unchanged, Check(HEAD, ("",), head), *ops])
