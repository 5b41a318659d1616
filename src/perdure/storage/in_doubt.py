"""A commit whose answer was lost: was it applied?

A connection that breaks between a commit and its answer leaves the caller not knowing. Most of what a commit
writes tells who wrote it (versions start at random, bodies are sealed or say which checkpoint they are), so
if everything that it wrote stands there as written, it was applied. Absence and chunks tell nothing: another
may have removed the same record, or stored the same content.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.model.ops import Check, Commit, Delete, Expect, Fetch, Get, Op, Put
from perdure.model.records import Record

Answers = Sequence[tuple[Record, ...]]


def evidence(commit: Commit) -> Fetch:
    """What to read to tell whether a commit was applied."""
    return Fetch(commit.partition, tuple(Get(op.kind, op.key) for op in _writes(commit)))


def was_applied(commit: Commit, answers: Answers) -> bool:
    """Whether the answers to ``evidence`` show everything as only this commit leaves it."""
    writes = _writes(commit)
    return any(map(_tells, writes)) and all(map(_stands, writes, answers))


def is_in_doubt(commit: Commit, answers: Answers) -> bool:
    """Whether a commit that does not stand, and is refused when it is made again, may have been applied and
    written over since: some of it stands, or none of it would tell."""
    writes = _writes(commit)
    told = [_stands(op, found) for op, found in zip(writes, answers, strict=True) if _tells(op)]
    return any(told) or (bool(writes) and not told)


def is_repeatable(commit: Commit) -> bool:
    """Whether a commit that was applied is refused when it is made again, or changes nothing then. One that
    expects nothing would undo what others have built on it since."""
    writes = [op for op in _writes(commit) if op.kind.grows is None]
    return not writes or any(op.expect is not Expect.ANY for op in writes)


def _writes(commit: Commit) -> list[Put | Delete]:
    return [op for op in commit.ops if not isinstance(op, Check)]


def _tells(op: Op) -> bool:
    return isinstance(op, Put) and op.kind.grows is None and bool(op.kind.body or op.fields or op.version)


def _stands(op: Put | Delete, found: tuple[Record, ...]) -> bool:
    if isinstance(op, Delete):
        return not found
    if not found:
        return False
    record = found[0]
    grows = op.kind.grows
    # What grows is named by its content. Who stored it first keeps his copy, which may be sealed differently.
    body = grows is not None or record.body == op.body
    same = body and (not op.kind.versioned or record.version == op.version)
    return same and all(
        record.fields[name] >= value if name == grows else record.fields[name] == value
        for name, value in op.fields.items()
    )
