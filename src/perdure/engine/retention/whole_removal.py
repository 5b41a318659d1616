"""Removal of a thread as a whole, in the state in which it was read.

A task's write that came since keeps the thread, although it changes no record that a removal could check. It
checks the thread's collection generation. So the generation goes first: a writer that has planned under it is
refused from then on, and one that plans without it stores another, which refuses the removal. Writes that
came before that are found when the writes are read again. A thread without a generation reads as before, and
its next write gives it one: nothing is lost if the removal is cut short.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from perdure.engine.range_reads import read_all
from perdure.model.heads import ROOT
from perdure.model.ops import Check, Commit, Committed, Delete, Drop, Expect, Put, Range, Refused
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import GC, HEAD, WRITE, Key, Partition

_ABSENT = Check(GC, (), Expect.ABSENT)


def remove_whole(
    partition: Partition, generation: int, checks: Sequence[Check], seen: Collection[tuple[Key, int]]
) -> Program[Committed | Refused]:
    """Remove a thread with all its records, unless it changed since it was read.

    Args:
        partition: the thread.
        generation: its collection generation as it was read, 0 without one.
        checks: what has to hold of its other records.
        seen: keys and versions of the records of pending writes that may go with it.

    Returns:
        ``Refused`` names the record that keeps the thread, which is as it was then.
    """
    if generation:
        begun = yield from ask(Commit(partition, (Delete(GC, (), generation), *checks)))
        if isinstance(begun, Refused):
            return begun
    outcome: Committed | Refused
    unseen = (yield from write_versions(partition)).difference(seen)
    if unseen:
        outcome = Refused(WRITE, min(unseen)[0])
    else:
        outcome = yield from ask(Drop(partition, (_ABSENT, *checks)))
    if generation and not isinstance(outcome, Committed):
        # Refused where a writer gave it one meanwhile, and where the thread was deleted.
        back = Put(GC, (), expect=Expect.ABSENT, version=successor(generation, "kept"))
        yield from ask(Commit(partition, (back, Check(HEAD, (ROOT,), Expect.PRESENT))))
    return outcome


def write_versions(partition: Partition) -> Program[set[tuple[Key, int]]]:
    """Return the keys and versions of the records of a thread's pending writes."""
    (writes,) = yield from read_all(partition, Range(WRITE, bodies=False))
    return {(each.key, each.version) for each in writes}
