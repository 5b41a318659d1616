"""Journal of side effects: results, stored under the epoch of their run and read when their step is repeated.

A result is stored with the run that recorded it, and is removed with it. A step can be repeated in another
run, which answers its interrupt or continues after its failure, so a pointer, which belongs to no run, names
the run of each result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perdure.engine.complete_reads import PAGE, read_all
from perdure.engine.requests import read_record
from perdure.errors import Fenced
from perdure.model.ops import Check, Commit, Committed, Expect, Fetch, Get, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import EFFECT, EPOCH, RUN, Key, Partition, Record
from perdure.model.runs.messages import DONE


def recall(partition: Partition, run_id: str, name: str, number: int) -> Program[bytes | None]:
    """Return the result of an effect that this run or an earlier one of the thread recorded, ``None`` if none
    is recorded."""
    own, pointer = (run_id, name, number), make_pointer_key(name, number)
    found = yield from ask(Fetch(partition, (Get(EFFECT, own), Get(EFFECT, pointer))))
    rows = {record.key: record.body for answer in found for record in answer}
    if own in rows or pointer not in rows:
        return rows.get(own)
    earlier = yield from read_record(partition, EFFECT, (rows[pointer].decode(), name, number))
    return earlier and earlier.body


def read_results(partition: Partition) -> Program[dict[Key, bytes]]:
    """Return all recorded results of a thread by key, with the pointers to their runs."""
    (found,) = yield from ask(Fetch(partition, (Range(EFFECT),)))
    return {record.key: record.body for record in found}


def recall_from(found: Mapping[Key, bytes], run_id: str, name: str, number: int) -> bytes | None:
    """Return the same as ``recall``, from results that were read before."""
    own = found.get((run_id, name, number))
    pointer = found.get(make_pointer_key(name, number))
    if own is not None or pointer is None:
        return own
    return found.get((pointer.decode(), name, number))


def make_pointer_key(name: str, number: int) -> Key:
    """Return the key of the pointer to the run that recorded an effect."""
    return ("", name, number)


def select_repeatable(runs: Sequence[Record]) -> Sequence[Record]:
    """Return those of a thread's runs, oldest first, whose steps a later run may repeat.

    An answer, or a run that continues a failed one, repeats steps of the runs before it, back to the latest
    run that succeeded.
    """
    ended_well = max((n for n, run in enumerate(runs) if run.fields["state"] == DONE), default=-1)
    return runs[ended_well + 1 :]


def read_repeatable_runs(partition: Partition) -> Program[Sequence[Record]]:
    """Return the runs whose steps a later run of the thread may repeat, oldest first."""
    runs: list[Record] = []
    while True:
        after = runs[0].fields["first"] if runs else None
        page = Range(RUN, by="first", reverse=True, after=after, limit=PAGE, bodies=False)
        (found,) = yield from ask(Fetch(partition, (page,)))
        runs[:0] = reversed(found)
        repeatable = select_repeatable(runs)
        if len(repeatable) < len(runs) or len(found) < PAGE:
            return repeatable


def read_results_of(partition: Partition, runs: Iterable[Record]) -> Program[dict[Key, bytes]]:
    """Return the results that some runs recorded, by name and number."""
    found = yield from read_all(partition, *(Range(EFFECT, run.key) for run in runs))
    return {record.key[1:]: record.body for records in found for record in records}


def make_puts(run_id: str, results: Mapping[Key, bytes]) -> list[Put]:
    """Return the operations that store results, by name and number, as those of a run."""
    return [
        put
        for key, body in results.items()
        for put in (
            Put(EFFECT, (run_id, *key), body=body),
            Put(EFFECT, make_pointer_key(*key), body=run_id.encode()),
        )
    ]


def note(
    partition: Partition, run_id: str, name: str, number: int, body: bytes, epoch: int
) -> Program[bytes]:
    """Record the result of an effect.

    Args:
        name: name of the effect, its task's included.
        number: its number among the effects of that name.
        epoch: epoch of the lease under which the caller holds the run.

    Returns:
        The recorded result: the first one, if one was recorded before.

    Raises:
        Fenced: the caller does not hold the run any more.
    """
    put = Put(EFFECT, (run_id, name, number), body=body, expect=Expect.ABSENT)
    pointer = Put(EFFECT, make_pointer_key(name, number), body=run_id.encode(), expect=Expect.ABSENT)
    outcome = yield from ask(Commit(partition, (Check(EPOCH, (), epoch), put, pointer)))
    if isinstance(outcome, Committed):
        return body
    if outcome.kind is EFFECT:
        stored = yield from recall(partition, run_id, name, number)
        if stored is not None:
            return stored
    raise Fenced(
        f"thread {partition.thread!r}: run {run_id!r} is not held under epoch {epoch} any more; the result "
        "of its side effect was not recorded, and its next attempt repeats it under the same key"
    )
