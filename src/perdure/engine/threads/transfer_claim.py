"""Claim on the name of a thread while the thread is being written there.

A thread arrives in many commits, and does not exist before the last of them. Each commit checks the claim, so
that no mixture is stored if two writers bring a thread to one name, or the name is removed meanwhile. A sweep
removes the claim of a writer that died once it is older than a lease (``engine.retention.thread_removal``).
"""

from __future__ import annotations

from perdure.errors import NotFound
from perdure.model.ops import Check, Delete, Expect, Fetch, Get, Now, Op, Put
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, GC, HEAD, LANE, OF_THREAD, SEAL, Key, Partition, Record
from perdure.model.runs.queue import IN, LATER, OUT, WAITS

CLAIM: Key = ("arriving",)
"""Key of the claim."""

UNCLAIMED = Check(SEAL, CLAIM, Expect.ABSENT)
"""Check of every commit that begins a thread."""
NOTHING: tuple[Check, ...] = (Check(GC, (), Expect.ABSENT), Check(HEAD, ("",), Expect.ABSENT))
"""Checks that a name has no thread."""
NO_QUEUES = (
    *(Check(LANE, (name,), Expect.ABSENT) for name in (IN, OUT, LATER, WAITS)),
    Check(DOCUMENT, OF_THREAD, Expect.ABSENT),
)
"""Checks that a name has neither messages nor a document."""


LEASE_US = 24 * 3_600_000_000
"""Microseconds after which the writer of a claim counts as dead: a day, as a claim is not renewed. If the
writer lives after all, its next commit is refused once the claim is removed."""


def claim(version: int) -> Program[list[Op]]:
    """Return the operations that claim a name at which there is no thread; they replace an earlier claim."""
    now = yield from ask(Now())
    return [*NOTHING, make_claim(version, now, Expect.ANY)]


def make_claim(version: int, now: int, expect: Expect | int) -> Put:
    """Return the claim itself, made at a time of the database's clock in microseconds."""
    return Put(SEAL, CLAIM, body=str(now).encode(), expect=expect, version=version)


def read_claim_time(claim: Record) -> int:
    """Return the time at which a claim was made, in microseconds; 0 if the claim does not state it."""
    return int(claim.body or b"0")


def checks(version: int) -> list[Check]:
    """Return the checks that every commit of an arrival carries, except the last."""
    return [*NOTHING, Check(SEAL, CLAIM, version)]


def release(version: int) -> Op:
    """Return the removal of the claim, for the last commit, on condition that it is still held."""
    return Delete(SEAL, CLAIM, version)


def is_claimed(partition: Partition) -> Program[bool]:
    """Return True if a name is claimed for a thread that has not arrived, by a writer that may be dead."""
    claims, *there = yield from ask(Fetch(partition, (Get(SEAL, CLAIM), Get(GC, ()), Get(HEAD, ("",)))))
    return bool(claims) and not any(there)


def not_arrived_error(partition: Partition) -> NotFound:
    """Return the error for the use of a thread that has not arrived."""
    return NotFound(
        f"thread {partition.thread!r} has not arrived: an import, a move or a copy to it has not ended. "
        "Repeat it, or delete the thread"
    )
