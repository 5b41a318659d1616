"""A commit whose answer was lost: was it applied?

A connection that breaks between a commit and its answer leaves the caller not knowing. What a commit writes
names itself (versions start at random, bodies are sealed or named by their content), so if everything that
it wrote stands there as written, it was applied; and if its expectations still hold, it was not.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.model.ops import Check, Commit, Delete, Fetch, Get, Put
from perdure.model.records import Record


def evidence(commit: Commit) -> Fetch:
    """What to read to tell whether a commit was applied."""
    return Fetch(
        commit.partition, tuple(Get(op.kind, op.key) for op in commit.ops if not isinstance(op, Check))
    )


def was_applied(commit: Commit, answers: Sequence[tuple[Record, ...]]) -> bool:
    """Whether the answers to ``evidence`` show everything as the commit would have left it."""
    writes = [op for op in commit.ops if not isinstance(op, Check)]
    return all(_stands(op, found) for op, found in zip(writes, answers, strict=True))


def _stands(op: Put | Delete, found: tuple[Record, ...]) -> bool:
    if isinstance(op, Delete):
        return not found
    if not found:
        return False
    record = found[0]
    same = record.body == op.body and (not op.kind.versioned or record.version == op.version)
    grows = op.kind.grows
    return same and all(
        record.fields[name] >= value if name == grows else record.fields[name] == value
        for name, value in op.fields.items()
    )
