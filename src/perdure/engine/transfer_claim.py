"""Claim on the name of a thread while the thread is being written there.

A thread arrives in many commits, and does not exist before the last of them. Each checks the claim. If two
writers bring a thread to one name, or it is removed meanwhile, no mixture of both is stored.
"""

from __future__ import annotations

from perdure.errors import NotFound
from perdure.model.ops import Check, Delete, Expect, Fetch, Get, Op, Put
from perdure.model.program import Program, ask
from perdure.model.records import GC, HEAD, SEAL, Key, Partition

CLAIM: Key = ("arriving",)
"""Key of the claim."""

UNCLAIMED = Check(SEAL, CLAIM, Expect.ABSENT)
"""Check of every commit that begins a thread."""
NOTHING: tuple[Op, ...] = (Check(GC, (), Expect.ABSENT), Check(HEAD, ("",), Expect.ABSENT))


def claim(version: int) -> list[Op]:
    """Return the operations that claim a name at which no thread is; they replace an earlier claim."""
    return [*NOTHING, Put(SEAL, CLAIM, version=version)]


def checks(version: int) -> list[Op]:
    """Return the checks of every commit but the last one."""
    return [*NOTHING, Check(SEAL, CLAIM, version)]


def release(version: int) -> Op:
    """Return the removal of the claim, for the last commit, on condition that it is still held."""
    return Delete(SEAL, CLAIM, version)


def is_claimed(partition: Partition) -> Program[bool]:
    """Return True if a name is claimed for a thread that has not arrived, by a writer that may be dead."""
    claims, *there = yield from ask(Fetch(partition, (Get(SEAL, CLAIM), Get(GC, ()), Get(HEAD, ("",)))))
    return bool(claims) and not any(there)


def not_arrived(partition: Partition) -> NotFound:
    """Return the error for the use of a thread that has not arrived."""
    return NotFound(
        f"thread {partition.thread!r} has not arrived: an import, a move or a copy to it has not ended. "
        "Repeat it, or delete the thread"
    )
