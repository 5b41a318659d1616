"""Commits that write items of one namespace, with their entries in the search index: either the last write
wins, or nothing is written if an item is not as the caller saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from perdure.engine.items import search_index
from perdure.engine.items.known_generations import KnownGenerations
from perdure.engine.items.search_index import Generation
from perdure.engine.requests import expect_unchanged, first_of
from perdure.engine.transact import ATTEMPTS, Budget
from perdure.errors import Contention, TooLarge
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Delete,
    Expect,
    Expectation,
    Fetch,
    Get,
    Op,
    Put,
    Range,
)
from perdure.model.program import Program, ask
from perdure.model.records import ITEM, Partition, Record
from perdure.model.store_items import Write, expiry, is_over, labels_of

EXACT = 8
"""Times that a write is planned again to keep the creation time; after that the last write wins."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Items that a caller saw, whether it writes them or not.

    Args:
        keys: Their keys.
        is_unchanged: Compares a living item, or its absence, with what the caller saw.
        now: The current time in microseconds.
    """

    keys: Sequence[str]
    is_unchanged: Callable[[str, Record | None], bool]
    now: int


def commit_writes(
    partition: Partition,
    writes: Sequence[Write],
    budget: Budget,
    *,
    keeps: bool = False,
    known: KnownGenerations | None = None,
) -> Program[None]:
    """Write items in one commit. Of two writers the later one wins.

    Args:
        partition: The namespace.
        writes: The writes, at most one for each key.
        budget: The limits of a commit.
        keeps: The driver's ``keeps_fields``.
        known: The generations that this process knows, and which therefore need not be read.
    """
    # Deletions are planned on a read, which shows whether the namespace has a generation, and so an index.
    overwrites = keeps and all(w.body is not None for w in writes)
    changes_index = any(map(is_indexed, writes))
    if overwrites and not any(w.entry for w in writes):
        yield from ask(Commit(partition, (*_plan_overwrite(writes), *_remove_generation(changes_index))))
        return
    if not changes_index:
        known = None
    if overwrites and known is not None and (guess := known.get(partition)) is not None:
        ops = _plan_overwrite(writes)
        change, after = _plan_generation(ops, writes, guess, budget)
        if isinstance((yield from ask(Commit(partition, (*ops, *change)))), Committed):
            known.note_commit(partition, guess.version, after)
            return
        known.note_refusal(partition, guess.version)
    items: list[Get | Range] = []
    if changes_index:
        items.append(search_index.GENERATION)
    if not overwrites:
        items += [Range(ITEM, (w.key,), bodies=False) for w in writes]
    for attempt in count():
        answers = yield from ask(Fetch(partition, tuple(items)))
        records = [record for answer in answers for record in answer]
        if overwrites:
            ops = _plan_overwrite(writes)
        else:
            stored = {record.key[0]: record for record in records if record.kind is ITEM}
            ops = _plan(writes, stored, exact=attempt < EXACT)
        if not ops:
            return
        found = next((record for record in records if record.kind is not ITEM), None)
        before = yield from _read_generation(partition, writes, found, attempt)
        change, after = _plan_generation(ops, writes, before, budget)
        if isinstance((yield from ask(Commit(partition, (*ops, *change)))), Committed):
            if known is not None and change:
                known.note_commit(partition, found and found.version, after)
            return


def is_indexed(write: Write) -> bool:
    """Return True if a write may change the search index of its namespace."""
    return write.body is None or write.entry is not None


def _plan_overwrite(writes: Sequence[Write]) -> tuple[Op, ...]:
    """Return the operations of writes that remove nothing, for drivers that keep the creation time."""
    items = [
        Put(ITEM, (w.key,), _make_fields(w, w.at), w.body or b"", Expect.ANY, w.version, "created_at")
        for w in writes
    ]
    return (*items, *(_make_entry_op(w) for w in writes if w.entry is not None))


def commit_if_unchanged(
    partition: Partition, writes: Sequence[Write], seen: Seen, budget: Budget
) -> Program[bool]:
    """Write items in one commit, unless one of the items that the caller saw was changed since.

    Args:
        partition: The namespace.
        writes: The writes, at most one for each key.
        seen: The items as the caller read them.
        budget: The limits of a commit.

    Returns:
        False if an item was changed; then nothing was written.

    Raises:
        TooLarge: One commit cannot hold the writes.
        Contention: Other writers win each time.
    """
    # A check of an item is an operation of the commit, too; one more is for the generation.
    others = [key for key in dict.fromkeys(seen.keys) if key not in {w.key for w in writes}]
    weights = [weigh_write(w) for w in writes]
    ops_needed, size = sum(ops for ops, _ in weights) + len(others) + 1, sum(size for _, size in weights)
    if ops_needed > budget.ops or size > budget.bytes:
        raise TooLarge(
            f"{len(writes)} items of {labels_of(partition.thread)!r} have to be written together; that takes "
            f"{ops_needed} operations and {size} bytes; the backend takes {budget.ops} and {budget.bytes} at "
            "once; change fewer of them in one step"
        )
    for attempt in range(ATTEMPTS):
        keys = dict.fromkeys([*(w.key for w in writes), *seen.keys])
        gets = tuple(Get(ITEM, (key,)) for key in keys)
        answers = yield from ask(Fetch(partition, (search_index.GENERATION, *gets)))
        before = yield from _read_generation(partition, writes, first_of(answers[0]), attempt)
        stored = {record.key[0]: record for answer in answers[1:] for record in answer}
        living = {key: record for key, record in stored.items() if not is_over(record, seen.now)}
        if not all(seen.is_unchanged(key, living.get(key)) for key in seen.keys):
            return False
        plan = _plan(writes, stored, exact=True)
        change, _ = _plan_generation(plan, writes, before, budget)
        ops = (*_guard(plan, keys, stored), *change)
        if isinstance((yield from ask(Commit(partition, ops))), Committed):
            return True
    raise Contention(
        f"{labels_of(partition.thread)!r} keeps being written to, so items could not be changed together; "
        "try again"
    )


def _guard(plan: Sequence[Op], keys: Iterable[str], stored: Mapping[str, Record]) -> list[Op]:
    """Return the operations of a plan with checks, so that the commit is refused unless all items of the keys
    are as they were read."""
    ops: list[Op] = []
    left = dict.fromkeys(keys)
    for op in plan:
        if op.kind is ITEM:
            del left[op.key[0]]
        if isinstance(op, Delete) and op.kind is ITEM:
            op = op._replace(expect=stored[op.key[0]].version)
        ops.append(op)
    return [*(Check(ITEM, (key,), expect_unchanged(stored.get(key))) for key in left), *ops]


def weigh_write(write: Write) -> tuple[int, int]:
    """Return the operations and bytes of a write, with its entry in the search index or the removal of it."""
    return 1 + is_indexed(write), len(write.body or b"") + len(write.entry or b"")


def _plan(writes: Iterable[Write], stored: Mapping[str, Record], *, exact: bool) -> tuple[Op, ...]:
    ops: list[Op] = []
    for w in writes:
        before = stored.get(w.key)
        if w.body is None:
            if before is not None:
                ops += (Delete(ITEM, (w.key,)), search_index.make_removal(w.key))
            continue
        created_at = w.at
        if before is not None and not is_over(before, w.at):
            created_at = before.fields["created_at"]
        expect: Expectation = Expect.ANY
        if exact:
            expect = expect_unchanged(before)
        ops.append(Put(ITEM, (w.key,), _make_fields(w, created_at), w.body, expect, w.version))
        if w.entry is not None:
            ops.append(_make_entry_op(w))
    return tuple(ops)


def _make_entry_op(write: Write) -> Op:
    """Return the operation on the entry in the search index of an item that is put."""
    if not write.entry:
        return search_index.make_removal(write.key)
    return search_index.make_stored_entry_op(write.key, write.entry, write.version)


def _read_generation(
    partition: Partition, writes: Sequence[Write], found: Record | None, attempt: int
) -> Program[Generation | None]:
    """Return the generation in whose record a commit of writes is noted, as ``_plan_generation`` takes it."""
    if found is None or attempt or (yield from _leaves_nothing(partition, writes)):
        return None
    return search_index.generation_of(found)


def _remove_generation(is_needed: bool) -> tuple[Op, ...]:
    """Return the removal of the generation, if that is needed."""
    if is_needed:
        return (search_index.make_generation_removal(),)
    return ()


def _leaves_nothing(partition: Partition, writes: Sequence[Write]) -> Program[bool]:
    """Return True if a namespace has no items left after some writes.

    Then its generation is removed, too: its record names the last items, and keys may reveal deleted data.
    """
    if any(w.body is not None for w in writes):
        return False
    (left,) = yield from ask(Fetch(partition, (Range(ITEM, limit=len(writes) + 1, bodies=False),)))
    return {record.key[0] for record in left} <= {w.key for w in writes}


def _make_fields(write: Write, created_at: int) -> dict[str, int | None]:
    return {
        "created_at": created_at,
        "updated_at": write.at,
        "ttl": write.ttl,
        "expires_at": expiry(write.ttl, write.at),
    }


def _plan_generation(
    ops: Sequence[Op], writes: Sequence[Write], before: Generation | None, budget: Budget
) -> tuple[tuple[Op, ...], Generation | None]:
    """Return the operation on the namespace's generation that a commit of writes needs, if any, and the
    generation that it makes.

    Args:
        ops: The operations of the writes.
        writes: The writes.
        before: The generation; ``None`` if there is none, if no item will be left, or if a commit that
            checked it was refused, so that writers of different items do not wait for each other.
        budget: The limits of a commit.
    """
    changed = list(filter(is_indexed, writes))
    version = next((w.version for w in changed), 0)
    is_logged = before is not None and weight(ops)[1] + search_index.LOG_BYTES <= budget.bytes
    if before is not None and is_logged and changed:
        op, after = search_index.log_generation(before, version, [w.key for w in changed])
        return (op,), after
    if any(w.entry for w in changed):
        return (search_index.make_generation_op(version),), Generation(version, [])
    return _remove_generation(any(isinstance(op, Delete) for op in ops)), None


def weight(part: Sequence[Op]) -> tuple[int, int]:
    """Return the number of operations, and the bytes of their bodies, for ``split``."""
    return len(part), sum(len(op.body) for op in part if isinstance(op, Put))
