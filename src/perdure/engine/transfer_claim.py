"""Bringing a thread to where none is: who does so holds a claim on the place until the thread is there.

A thread arrives in many commits, and is none before the last. Each of them checks the claim, so that of two
who bring a thread to one place, or where it is removed meanwhile, nothing is put in place that is half one's.
"""

from __future__ import annotations

from perdure.model.ops import Check, Delete, Expect, Op, Put
from perdure.model.records import GC, HEAD, SEAL, Key

CLAIM: Key = ("arriving",)
"""Under which name the claim stands."""
_NOTHING: tuple[Op, ...] = (Check(GC, (), Expect.ABSENT), Check(HEAD, ("",), Expect.ABSENT))


def claim(version: int) -> list[Op]:
    """What claims a place where no thread is; a claim that is there is overtaken."""
    return [*_NOTHING, Put(SEAL, CLAIM, version=version)]


def checks(version: int) -> list[Op]:
    """What every commit but the last one checks."""
    return [*_NOTHING, Check(SEAL, CLAIM, version)]


def release(version: int) -> Op:
    """What the last commit does with the claim, on condition that it is still held."""
    return Delete(SEAL, CLAIM, version)


def last(version: int) -> list[Op]:
    """What the last commit does and checks where it gives the thread no collection generation: nobody else
    has given it one. Its root's head it puts itself."""
    return [Check(GC, (), Expect.ABSENT), release(version)]
