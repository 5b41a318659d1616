"""Reads of several requests, repeated if a removal came in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from perdure.engine.threads.thread_state import load_view
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Contention, Corrupt
from perdure.model.program import Program
from perdure.model.records import Partition

R = TypeVar("R")


def read_undisturbed(partition: Partition, read: Callable[[], Program[R]]) -> Program[R]:
    """Return the result of a read of a thread.

    Records named by one request may be gone at the next one, if the thread is pruned or deleted meanwhile. A
    read that misses something is repeated; if something is missing again although nothing was removed in
    between, the thread is damaged.

    Args:
        partition: The thread.
        read: Reads from the beginning.

    Raises:
        Corrupt: Something is missing.
        Contention: The thread keeps being pruned.
    """
    earlier_generation: int | None = None
    for _ in range(ATTEMPTS):
        try:
            return (yield from read())
        except Corrupt:
            current_generation = (yield from load_view(partition, "")).generation
            if current_generation == earlier_generation:
                raise
            earlier_generation = current_generation
    raise Contention(f"thread {partition.thread!r} keeps being pruned; read it later")


def is_disturbed(partition: Partition, generation: int) -> Program[bool]:
    """Return True if something was removed from a thread since it was read under this collection
    generation."""
    return (yield from load_view(partition, "")).generation != generation
