"""Several commits of one partition as one: what they do one after another, at once."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.model.ops import Check, Commit, Delete, Expect, Op, Put
from perdure.model.records import Key, Kind


def merged(commits: Iterable[Commit]) -> Commit | None:
    """The commit that is accepted exactly when each of these would be, in their order and with nothing in
    between, and that leaves what they leave. ``None`` where they touch one record in ways that have no such
    commit, or that are not worth knowing."""
    ops: dict[tuple[Kind, Key], Op] = {}
    partition = None
    for commit in commits:
        if partition is not None and commit.partition != partition:
            raise ValueError("commits of different partitions cannot be one")
        partition = commit.partition
        for op in commit.ops:
            at = op[:2]
            before = ops.get(at)
            both = op if before is None else _both(before, op)
            if both is None:
                return None
            ops[at] = both
    return None if partition is None else Commit(partition, tuple(ops.values()))


def _both(first: Op, second: Op) -> Op | None:
    """One operation for two on the same record."""
    if first == second and (first.expect is Expect.ANY or isinstance(first, Check)):
        return first
    if isinstance(first, Delete) or isinstance(second, Delete) or first.kind.grows is not None:
        return None
    if isinstance(first, Put):
        if second.expect not in (Expect.ANY, Expect.PRESENT, first.version):
            return None
        return first if isinstance(second, Check) else second._replace(expect=first.expect)
    # A check, then whatever demands the same once more.
    return second if second.expect == first.expect else None
