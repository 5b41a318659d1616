"""Decides whether a commit whose answer was lost was applied.

A connection that breaks between a commit and its answer leaves the outcome unknown. Most writes of a commit
identify it (versions start at random, bodies are sealed or name their checkpoint), so a commit was applied if
all its writes are stored as it wrote them. Absence and chunks prove nothing: another commit may have removed
the same record, or stored the same content.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.model.ops import Check, Commit, Delete, Expect, Fetch, Get, Op, Put
from perdure.model.records import Record

Answers = Sequence[tuple[Record, ...]]


def evidence(commit: Commit) -> Fetch:
    """Return the reads that show whether a commit was applied."""
    return Fetch(commit.partition, tuple(Get(op.kind, op.key) for op in _list_writes(commit)))


def was_applied(commit: Commit, answers: Answers) -> bool:
    """Return True if the answers to ``evidence`` show all writes, and at least one that identifies the
    commit."""
    writes = _list_writes(commit)
    return any(map(_identifies, writes)) and all(map(_is_stored, writes, answers))


def is_in_doubt(commit: Commit, answers: Answers) -> bool:
    """Return True if a commit that is not found as written, and is refused when it is repeated, may have been
    applied and overwritten since: some of the writes that identify it are found, or it has none of these."""
    writes = _list_writes(commit)
    are_stored = [
        _is_stored(op, records) for op, records in zip(writes, answers, strict=True) if _identifies(op)
    ]
    return any(are_stored) or (bool(writes) and not are_stored)


def is_repeatable(commit: Commit) -> bool:
    """Return True if a commit that was applied is refused, or changes nothing, when it is repeated. A write
    without expectations would undo later writes of others."""
    writes = [op for op in _list_writes(commit) if op.kind.grows is None]
    return not writes or any(op.expect is not Expect.ANY for op in writes)


def _list_writes(commit: Commit) -> list[Put | Delete]:
    return [op for op in commit.ops if not isinstance(op, Check)]


def _identifies(op: Op) -> bool:
    return isinstance(op, Put) and op.kind.grows is None and bool(op.kind.body or op.fields or op.version)


def _is_stored(op: Put | Delete, records: tuple[Record, ...]) -> bool:
    if isinstance(op, Delete):
        return not records
    if not records:
        return False
    record = records[0]
    grows = op.kind.grows
    # A growing record is named by its content. The first writer's copy stays; it may be sealed differently.
    has_same_body = grows is not None or record.body == op.body
    is_same = has_same_body and (not op.kind.versioned or record.version == op.version)
    return is_same and all(
        record.fields[name] >= value if name == grows else record.fields[name] == value
        for name, value in op.fields.items()
    )
