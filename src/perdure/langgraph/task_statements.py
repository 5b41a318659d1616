"""Statements on the application's own tables that a task gave, on their way to the commit of its writes.

They travel as a write of the task in LangGraph's channel for "nothing", which no graph reads. So LangGraph
drops them with the writes of a failed attempt before it makes the next attempt. They are never stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR

from perdure.errors import NotAllowed, TooLarge, Unavailable
from perdure.model.ops import ApplicationStatement

NOTHING = "__no_writes__"
"""LangGraph's channel for the mark that a task has ended without any writes."""

STATEMENTS_MAX, BYTES_MAX = 500, 1 << 20
"""Maximum number of statements that a task may give, and of bytes of their texts and values."""

_numbers = itertools.count()


class TaskStatements(str):
    """The statements that one attempt of a task gave, in order. For LangGraph it is text, which it passes on.

    Attributes:
        outcome: Is done when the statements were executed or dropped, or has the error of their commit.
        parent: LangGraph's put of the checkpoint with which the task began, ``None`` if that was loaded. With
            the durability "async" the task may end before the put. The statements wait for it: if they were
            executed and the checkpoint not stored, the step would be run again, and they with it.
    """

    _statements: list[ApplicationStatement]
    _size: int
    _is_open: bool
    outcome: Future[None]
    parent: Future[Any] | asyncio.Future[Any] | None

    def __new__(cls) -> TaskStatements:
        new = super().__new__(cls, f"statements {next(_numbers)}")
        new._statements, new._size, new._is_open, new.outcome = [], 0, True, Future()
        new.parent = None
        return new

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str.__str__(self),)

    def add(self, statement: ApplicationStatement) -> None:
        """Add a statement.

        Raises:
            NotAllowed: The task has ended.
            TooLarge: With this statement the task would have given more than it may.
        """
        if not self._is_open:
            raise NotAllowed("the node has ended, and its step's commit has begun; give statements within it")
        size = self._size + statement.size
        if len(self._statements) == STATEMENTS_MAX or size > BYTES_MAX:
            raise TooLarge(
                f"a task may give {STATEMENTS_MAX} statements of {BYTES_MAX} bytes together, with their "
                "values; this one was not taken. Give fewer, or write many rows by one statement"
            )
        self._statements.append(statement)
        self._size = size

    def close(self) -> tuple[ApplicationStatement, ...]:
        """Return the statements; none are taken any more."""
        self._is_open = False
        return tuple(self._statements)

    def wait_for_parent(self) -> None:
        """Return when the task's checkpoint is stored, or raise the error with which that failed."""
        if self.parent is not None:
            self.parent.result()

    async def await_parent(self) -> None:
        """See ``wait_for_parent``."""
        if isinstance(self.parent, asyncio.Future):
            # Not awaited directly: cancelling this call must not cancel the put.
            await asyncio.wait([self.parent])
            self.parent.result()

    def end(self, error: BaseException | None = None) -> None:
        """Note the outcome."""
        if self.outcome.done():
            return
        if error is None:
            self.outcome.set_result(None)
        elif isinstance(error, Exception):
            self.outcome.set_exception(error)
        else:
            self.outcome.set_exception(
                Unavailable(
                    "the call that stores a task's writes and statements was cancelled: they may be stored "
                    "or not; load the thread again before repeating it"
                )
            )


Writes = Sequence[tuple[str, Any]]


def split_off_statements(writes: Writes) -> tuple[Writes, list[TaskStatements]]:
    """Return the writes of a task that are to be stored, and the statements that it gave with them."""
    given = [value for _, value in writes if isinstance(value, TaskStatements)]
    if not given:
        return writes, given
    left = [write for write in writes if not isinstance(write[1], TaskStatements)]
    if all(channel in WRITES_IDX_MAP and channel != ERROR for channel, _ in left):
        left.append((NOTHING, None))
    return left, given


def statements_of(writes: Writes, given: Sequence[TaskStatements]) -> tuple[ApplicationStatement, ...]:
    """Return the statements to execute with these writes: none if the writes have the task's error."""
    closed = tuple(statement for each in given for statement in each.close())
    if any(channel == ERROR for channel, _ in writes):
        return ()
    return closed
