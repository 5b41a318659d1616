"""Grouping of writes that share a round trip to PostgreSQL, and the outcome of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from perdure.model.ops import Check, Commit, Committed, Delete, Drop, Expect, Op, Put, Refused, Stage
from perdure.model.records import Key, Kind, Partition
from perdure.storage.batching import PendingRequest
from perdure.storage.postgres import codec

Touch = tuple[Partition, Kind, Key, type[Op]]
"""A record, and the kind of earlier write on it that a later one may have overwritten."""

_GROUP_BYTES = 32 << 20


def find_overwritten(jobs: Iterable[PendingRequest]) -> set[Touch]:
    """Return the earlier writes that these jobs may have overwritten. A write that expects no record cannot
    have overwritten a put."""
    effects = [job.effect for job in jobs]
    return {
        (e.partition, op.kind, op.key, covered)
        for e in effects
        if isinstance(e, Commit | Stage)
        for op in e.ops
        if not isinstance(op, Check) and op.kind.grows is None
        for covered in ((Delete,) if op.expect is Expect.ABSENT else (Put, Delete))
    }


def outcome(write: codec.Write, refused: int) -> Committed | Refused | None:
    """Return the outcome of a write, given 0 or the number of its first condition that does not hold."""
    if not isinstance(write, Commit):
        return None
    if refused == 0:
        return Committed()
    op = write.ops[refused - 1]
    return Refused(op.kind, op.key)


def split_group(group: Sequence[PendingRequest]) -> Iterator[list[PendingRequest]]:
    """Yield the group in parts that fit one round trip, in order. A drop is a part of its own, and so is a
    commit with statements of the application: other commits would wait for their locks."""
    part: list[PendingRequest] = []
    size = 0
    for job in group:
        if not isinstance(job.effect, Commit | Stage | Drop):
            job.error = TypeError(f"not a storage request: {type(job.effect).__name__}")
            continue
        job_size = 0
        if not isinstance(job.effect, Drop):
            job_size = codec.count_body_bytes([job.effect])
        is_alone = isinstance(job.effect, Drop) or (
            isinstance(job.effect, Commit) and bool(job.effect.statements)
        )
        if part and (is_alone or size + job_size > _GROUP_BYTES):
            yield part
            part, size = [], 0
        if is_alone:
            yield [job]
        else:
            part.append(job)
            size += job_size
    if part:
        yield part
