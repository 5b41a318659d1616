"""Terms of a transfer: its two sides, its options and its result.

A program of a transfer uses two databases: every effect carries the ``Side`` at which it is performed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from perdure.engine.requests import try_commit
from perdure.engine.threads import thread_digest
from perdure.engine.threads.thread_digest import Digest, Report
from perdure.engine.transact import Budget
from perdure.engine.transfer.waiting_runs import WaitingRun
from perdure.errors import Conflict
from perdure.model.ops import Op
from perdure.model.program import Effect, Program, advance, ask, resume
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester

R = TypeVar("R")

ATTEMPTS = 5
"""Times that a thread is read again because it was written to during the transfer."""


class Side(Enum):
    """The database at which an effect is performed."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class OnSide(Effect[R]):
    """An effect, and the side at which it is performed."""

    place: Side
    effect: Effect[R]


def run_at_source(program: Program[R]) -> Program[R]:
    """Run a program of the source as part of a program of two databases."""
    return (yield from _run_at(Side.SOURCE, program))


def run_at_target(program: Program[R]) -> Program[R]:
    """Run a program of the target as part of a program of two databases."""
    return (yield from _run_at(Side.TARGET, program))


def _run_at(place: Side, program: Program[R]) -> Program[R]:
    return (yield from resume(program, advance(program), lambda effect: ask(OnSide(place, effect))))


@dataclass(frozen=True, slots=True)
class LeavingWaits:
    """Waits that a file takes along, and that are taken from the source once the file is complete.

    Attributes:
        partition: the thread at the source.
        waiting: the run with which it waits.
        pulse: changes with every write to the thread.
    """

    partition: Partition
    waiting: WaitingRun
    pulse: object


class State(Enum):
    """State of a thread at the target before the transfer."""

    ABSENT = "absent"
    PARTIAL = "partial"
    SAME = "same"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class TransferResult:
    """Result for a thread or a namespace of the store.

    ``found`` is the state at the target before, ``digest`` the digest of the content, ``written`` the bytes
    of chunks written now, and ``kept`` the number of records of a namespace of the store, or of a server's
    list, that only the target has and that stay there.
    """

    found: State
    digest: Digest
    written: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """Options of a transfer.

    Attributes:
        source: digester of the source.
        target: digester of the target.
        budget: size of a commit at the target.
        first_version: start of the versions of a new thread.
        replace: replace a different thread of the same name.
        report: called with the count of bytes as they are read.
        hand_over: take the waits from the source.
        leave: called with the waits that are to be taken from the source later, ``None`` to take them before
            the thread arrives.
        is_from_archive: the source is an archive, in which nothing wakes a thread.
        is_to_archive: the target is an archive, in which nothing wakes a thread.
        has_queue: the run with which the thread waits is transferred, too.
    """

    source: Digester
    target: Digester
    budget: Budget
    first_version: int
    replace: bool = False
    report: Report = thread_digest.report_nothing
    hand_over: bool = False
    leave: Callable[[LeavingWaits], None] | None = None
    is_from_archive: bool = False
    is_to_archive: bool = False
    has_queue: bool = True


class Exists(Conflict):
    """Raised when the target has a different thread of this name; it was left as it is."""


def commit_at_target(target: Partition, ops: Iterable[Op]) -> Program[None]:
    """Commit operations at the target; raise ``Conflict`` if others write to the thread there."""
    if not (yield from try_commit(target, ops)):
        raise busy_target_error(target)


def busy_target_error(target: Partition) -> Conflict:
    """Return the error for a thread that others write to while it arrives."""
    return Conflict(
        f"thread {target.thread!r} is written to at the target while it arrives; it was not put in place. "
        "Stop its writers there, and move it again; if it is then taken by what they wrote, delete it there, "
        "or pass --replace"
    )
