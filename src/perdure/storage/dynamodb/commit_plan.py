"""Decides by which requests a commit is carried out, so that it costs the fewest write units. Pure.

Each item that a transaction touches costs twice the units of a single write, also if it is only checked. So a
transaction holds what has to be decided at one moment, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.model.ops import Check, Delete, Expect, Op, Put
from perdure.model.records import GC, Key, Partition
from perdure.storage.dynamodb import items
from perdure.storage.dynamodb.items import PartitionRoot


class CommitPlan(NamedTuple):
    """The ways of a commit's operations.

    Attributes:
        inside: The positions of the operations on records in the root item.
        own: The positions of the operations on other items in the transaction.
        early: The positions of chunks that are stored before the transaction.
        after: The revision that the root must still have, because checks that hold at this revision were left
            out; empty if none were.
    """

    inside: tuple[int, ...]
    own: tuple[int, ...]
    early: tuple[int, ...] = ()
    after: bytes = b""


def plan_commit(partition: Partition, ops: Sequence[Op], root: PartitionRoot) -> CommitPlan:
    """Return the plan of a commit on a partition whose root is as remembered."""
    inside = tuple(n for n, op in enumerate(ops) if items.is_embedded(partition, op))
    own = [n for n in range(len(ops)) if n not in inside]
    if not root.incarnation or all(isinstance(op, Check) for op in ops):
        return CommitPlan(inside, tuple(own))
    implied = [n for n in own if _holds_at(ops[n], root)]
    early: list[int] = []
    if _refuses_collected(ops):
        early = [n for n in own if _is_chunk(ops[n])]
    own = [n for n in own if n not in implied and n not in early]
    return CommitPlan(inside, tuple(own), tuple(early), root.revision if implied else b"")


def find_versions(ops: Sequence[Op]) -> Mapping[tuple[str, Key], int]:
    """Return the versions of the records that a commit writes, which stay the stored ones as long as the
    partition has the revision of this commit. Records that expire and chunks are left out: they also change
    without a commit."""
    puts = [op for op in ops if isinstance(op, Put) and not op.kind.expires and op.kind.grows is None]
    return {(put.kind.name, put.key): put.version for put in puts}


def _holds_at(op: Op, root: PartitionRoot) -> bool:
    """Return True if a check holds as long as the root has its revision."""
    if not isinstance(op, Check) or (version := root.stored.get((op.kind.name, op.key))) is None:
        return False
    return op.expect in (Expect.PRESENT, Expect.ANY) or (op.kind.versioned and op.expect == version)


def _is_chunk(op: Op) -> bool:
    return isinstance(op, Put) and op.kind.grows is not None and op.expect is Expect.ANY


def _refuses_collected(ops: Sequence[Op]) -> bool:
    """Return True if a commit is refused once a collection of garbage has begun, as this could remove a chunk
    to which no commit refers yet."""
    return any(
        op.kind is GC
        and not isinstance(op, Delete)
        and (op.expect is Expect.ABSENT or isinstance(op.expect, int))
        for op in ops
    )
