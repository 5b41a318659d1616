"""Transfers the waits of a thread with it, so that it goes on by itself in one database only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.engine.queue.effect_journal import make_puts
from perdure.engine.requests import expect_unchanged
from perdure.engine.threads.thread_digest import read_pulse
from perdure.engine.threads.thread_state import guards, load_view
from perdure.engine.transact import split_into_batches
from perdure.engine.transfer import waiting_runs
from perdure.engine.transfer.same_database import refuse_same_database
from perdure.engine.transfer.transfer_terms import (
    ATTEMPTS,
    LeavingWaits,
    TransferOptions,
    commit_at_target,
    run_at_source,
    run_at_target,
)
from perdure.engine.transfer.waiting_runs import WaitingRun, read_waiting
from perdure.errors import Conflict, Contention
from perdure.model.ops import Check, Now, Op
from perdure.model.program import Program, ask
from perdure.model.records import HEAD, Partition


class TakenWaits(NamedTuple):
    """The run with which a thread is to wait at the target.

    Attributes:
        waiting: the run, ``None`` for none.
        is_taken: its waits were taken from the source now.
        leaves: its waits are to be taken from the source later.
    """

    waiting: WaitingRun | None
    is_taken: bool = False
    leaves: bool = False


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
    found = yield from run_at_source(read_waiting(partition))
    refuse_to_wake_twice(partition, found, terms)
    if found is None:
        return TakenWaits(None)
    found = yield from run_at_source(waiting_runs.read_belongings(partition, found))
    if found is None:
        return None
    if terms.is_from_archive:
        return TakenWaits(found)
    if found.is_handed_over and terms.hand_over:
        refuse_to_wake_twice(partition, found, terms, is_there=False)
        return TakenWaits(found.with_waits())
    if found.is_handed_over or not found.wakes:
        return TakenWaits(found)
    if terms.leave is not None:
        return TakenWaits(found, leaves=True)
    if (yield from run_at_source(waiting_runs.take_from_source(partition, found))):
        return TakenWaits(found, is_taken=True)
    return None


def send_results(
    target: Partition, waiting: WaitingRun | None, checks: Sequence[Op], terms: TransferOptions
) -> Program[None]:
    """Store the results of side effects that the run of a thread needs at the target, before it arrives.

    Args:
        target: the thread at the target.
        waiting: the run, ``None`` for none.
        checks: checks of each commit.
        terms: the options.
    """
    if waiting is not None:
        puts = make_puts(waiting.run.id, waiting.results)
        for batch in split_into_batches(puts, terms.budget, reserve=len(checks)):
            yield from commit_at_target(target, [*checks, *batch])


def give_waits_back(partition: Partition, terms: TransferOptions) -> Program[None]:
    """Give the waits back to the source that were taken for a thread whose arrival is refused."""
    now = yield from run_at_source(ask(Now()))
    yield from run_at_source(waiting_runs.give_back(partition, now, terms.first_version))


def leave_or_note_arrival(
    partition: Partition, taken: TakenWaits, pulse: object, terms: TransferOptions
) -> Program[None]:
    """Note that the waits have arrived, or that they are to be taken from the source once the file is
    complete, if the thread still has this pulse."""
    if taken.leaves and terms.leave is not None and taken.waiting is not None:
        terms.leave(LeavingWaits(partition, taken.waiting, pulse))
        return
    yield from note_arrival(partition, taken.waiting, terms)


def bring_waits(partition: Partition, target: Partition, terms: TransferOptions) -> Program[None]:
    """Let a thread that is at the target already wait there as at the source, if the run with which it waits
    is not there."""
    pulse = yield from run_at_source(read_pulse(partition))
    for _ in range(ATTEMPTS):
        found = yield from run_at_source(read_waiting(partition))
        if found is None:
            return
        if terms.hand_over and found.wakes:
            yield from refuse_same_database(partition, target, terms)
        if not (yield from run_at_target(waiting_runs.has_run_with_waits(target, found.run.id))):
            yield from run_at_target(waiting_runs.refuse_target_at_work(target))
            taken = yield from take_waits(partition, terms)
            if taken is None or taken.waiting is None:
                continue
            try:
                yield from run_at_target(_wait_at_target(target, taken.waiting, terms))
            except Conflict:
                if taken.is_taken:
                    yield from give_waits_back(partition, terms)
                raise
            yield from leave_or_note_arrival(partition, taken, pulse, terms)
            return
        yield from note_arrival(partition, found, terms)
        return
    raise Contention(
        f"thread {partition.thread!r} is written to all the time; stop its writers, and move it again"
    )


def note_arrival(partition: Partition, waiting: WaitingRun | None, terms: TransferOptions) -> Program[None]:
    """Note at the source that its waits have arrived. Nothing is noted if one side is a file, which may be
    lost, and is written again."""
    if waiting is not None and terms.hand_over and not (terms.is_from_archive or terms.is_to_archive):
        yield from run_at_source(waiting_runs.note_arrival(partition))


def _wait_at_target(target: Partition, waiting: WaitingRun, terms: TransferOptions) -> Program[None]:
    """Let a thread of the target wait with a run, if it is not changed meanwhile."""
    view = yield from load_view(target, "")
    fence, unchanged = guards(target, view, None)
    head = Check(HEAD, ("",), expect_unchanged(view.head))
    yield from send_results(target, waiting, (fence, unchanged, head), terms)
    now = yield from ask(Now())
    ops = yield from waiting_runs.arrive(target, waiting, now, terms.first_version, terms.budget)
    yield from commit_at_target(target, [fence, unchanged, head, *ops])
