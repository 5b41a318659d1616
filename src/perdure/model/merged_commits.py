"""Merging of several commits of one partition into one with the same effect."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.model.ops import ApplicationStatement, Check, Commit, Delete, Expect, Op, Put
from perdure.model.records import Key, Kind


def merge(commits: Iterable[Commit]) -> Commit | None:
    """Return the commit that is accepted exactly if all of these, made in order with nothing in between,
    would be, and that has the same result.

    ``None`` if two of them touch the same record in ways that cannot be merged, or for which merging is not
    worth the effort.
    """
    ops: dict[tuple[Kind, Key], Op] = {}
    statements: list[ApplicationStatement] = []
    partition = None
    for commit in commits:
        if partition is not None and commit.partition != partition:
            raise ValueError("commits of different partitions cannot be one")
        partition = commit.partition
        statements += commit.statements
        for op in commit.ops:
            place = op[:2]
            earlier = ops.get(place)
            merged = op if earlier is None else _merge_two(earlier, op)
            if merged is None:
                return None
            ops[place] = merged
    if partition is None:
        return None
    return Commit(partition, tuple(ops.values()), tuple(statements))


def _merge_two(first: Op, second: Op) -> Op | None:
    """Return one operation for two on the same record, ``None`` if they cannot be merged."""
    if first == second and (first.expect is Expect.ANY or isinstance(first, Check)):
        return first
    if isinstance(first, Delete) or isinstance(second, Delete) or first.kind.grows is not None:
        return None
    if isinstance(first, Put):
        if second.expect not in (Expect.ANY, Expect.PRESENT, first.version):
            return None
        if isinstance(second, Check):
            return first
        return second._replace(expect=first.expect)
    # A check, followed by an operation with the same expectation.
    if second.expect == first.expect:
        return second
    return None
