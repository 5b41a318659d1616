"""Requests that many programs make: reads of records by their keys, and commits that may be refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from perdure.model.ops import Commit, Committed, Expect, Expectation, Fetch, Get, Op
from perdure.model.program import Program, ask
from perdure.model.records import LANE, Key, Kind, Partition, Record
from perdure.model.runs.queue import Lane

A = TypeVar("A")


class WithVersion(Protocol):
    """Anything that was read from a record and has the record's version."""

    @property
    def version(self) -> int: ...


def read_record(partition: Partition, kind: Kind, key: Key) -> Program[Record | None]:
    """Return a record, ``None`` if it is not stored."""
    (found,) = yield from ask(Fetch(partition, (Get(kind, key),)))
    return first_of(found)


def read_records(partition: Partition, kind: Kind, keys: Iterable[Key]) -> Program[list[Record]]:
    """Return the records that are stored under some keys, in the order of the keys."""
    gets = tuple(Get(kind, key) for key in keys)
    if not gets:
        return []
    answers = yield from ask(Fetch(partition, gets))
    return [record for answer in answers for record in answer]


def read_lane(partition: Partition, name: str) -> Program[Lane]:
    """Return a queue record, with the version 0 if it is not stored."""
    (found,) = yield from ask(Fetch(partition, (Get(LANE, (name,)),)))
    return Lane.read(name, found)


def first_of(found: Sequence[Record]) -> Record | None:
    """Return the first record of an answer, ``None`` if there is none."""
    return next(iter(found), None)


def version_of(found: Sequence[Record]) -> int:
    """Return the version of the record in an answer, 0 if it is not stored."""
    return max((record.version for record in found), default=0)


def expect_unchanged(before: WithVersion | None) -> Expectation:
    """Return the expectation that a record is as it was read, or still absent."""
    if before is None:
        return Expect.ABSENT
    return before.version


def try_commit(partition: Partition, ops: Iterable[Op]) -> Program[bool]:
    """Commit; return False if that is refused."""
    outcome = yield from ask(Commit(partition, tuple(ops)))
    return isinstance(outcome, Committed)


def commit_for(partition: Partition, ops: Iterable[Op], answer: A) -> Program[A | None]:
    """Commit, and return ``answer``; ``None`` if the commit is refused, as an attempt of ``retry_attempt``
    has to."""
    if (yield from try_commit(partition, ops)):
        return answer
    return None
