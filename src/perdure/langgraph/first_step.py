"""The first writes of a run in one commit: its input, the writes of START, and the step after.

LangGraph asks for these three within a moment, but for the last one only when the put of the input has
returned. So that put may return before it is stored, as soon as another write of its run that builds on it
is under way: that write carries it, shares one commit with it, and returns when both are durable, or raises
the error of that commit. LangGraph awaits every write before a run ends, so a caller that waits for the run
is not notified any sooner. A put that no other write carries makes a commit of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

from perdure.engine.checkpoints import CheckpointPut
from perdure.errors import TooLarge, Unavailable, Unserialisable
from perdure.langgraph.loop_state import Loop
from perdure.langgraph.translate import Address
from perdure.model.heads import ROOT
from perdure.model.merged_commits import merged
from perdure.model.ops import Commit, Committed
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.storage.port import Driver, arun

DURABILITY = "__pregel_durability"
"""LangGraph's configurable key for the durability that the caller of a run asked for; absent if none."""

_ROUNDS = 8
"""Rounds of the event loop for which more of an opening is waited for: START takes up to three."""


def may_be_carried(at: Address, loop: Loop | None, source: object) -> bool:
    """Return True if another write may carry a put.

    That is so if the put is a run's input on the root namespace, and its caller did not ask to store nothing
    before the exit. With ``sync`` LangGraph awaits the checkpoint after START, which shares the commit,
    before the first node begins.

    Args:
        at: The address of the put.
        loop: The loop that makes it, ``None`` for a bare put.
        source: The checkpoint's ``source``.
    """
    return (
        loop is not None
        and source == "input"
        and at.namespace == ROOT
        and at.configurable.get(DURABILITY, "async") in ("async", "sync")
    )


_Place = tuple[asyncio.AbstractEventLoop, Partition]


class PreparedWrite(NamedTuple):
    """A write whose program has been run up to its commit."""

    program: Program[None]
    commit: Commit

    def finish(self) -> None:
        """End the program: the commit was accepted."""
        with suppress(StopIteration):
            self.program.send(Committed())
            raise RuntimeError("a write asks for nothing after its commit")


class Opening:
    """A put of an input that is ready to be committed, and the writes that carry it.

    ``view`` (of the thread) and ``base`` (the checkpoint) are as they will be after the commit: valid only
    for writes in the same commit.

    Args:
        put: The put of the input, already planned.
        lead: Its program, up to the commit.
        driver: The backend that stores it.
        under_way: The openings, of which this is one until it ends, also by an error.
        place: Its place among them.
    """

    __slots__ = (
        "_budget", "_driver", "_error", "_is_open", "_is_sent", "_is_together", "_over", "_parts", "_place",
        "_under_way", "base", "view",
    )  # fmt: skip

    def __init__(
        self, put: CheckpointPut, lead: PreparedWrite, driver: Driver, under_way: dict[_Place, Opening],
        place: _Place,
    ) -> None:  # fmt: skip
        if put.planned is None:
            raise ValueError("a put has planned what it commits")
        self.view, self.base = put.planned
        self._driver = driver
        self._budget = put.budget
        self._under_way = under_way
        self._place = place
        under_way[place] = self
        self._parts = [lead]
        self._is_open = True
        self._is_sent = False
        self._is_together = False
        self._over: asyncio.Event | None = None
        self._error: Exception | None = None

    async def is_carried(self) -> bool:
        """Wait a moment for a write that carries the put. If none comes, the put makes its own commit."""
        try:
            for _ in range(_ROUNDS):
                if len(self._parts) > 1:
                    break
                await asyncio.sleep(0)
        finally:
            if len(self._parts) == 1:
                self._end()
        return len(self._parts) > 1

    async def join(self, program: Program[None], *, is_last: bool) -> bool:
        """Carry the opening by a write that is planned on it, and return when both are durable.

        Args:
            program: The program of the write.
            is_last: True if no more writes are waited for after this one.

        Returns:
            False if the write has to be planned again, for a commit of its own.
        """
        # A write that is too large for one commit begins with something else.
        if not self._is_open or not isinstance(effect := next(program), Commit):
            program.close()
            return False
        self._parts.append(PreparedWrite(program, effect))
        if not is_last:
            try:
                for _ in range(_ROUNDS):
                    if self._is_sent:
                        break
                    await asyncio.sleep(0)
            except BaseException:
                if not self._is_sent:
                    self._fail(_cancelled())
                raise
        if not self._is_sent:
            await self._send()
        await self.settled()
        return self._is_together

    async def settled(self) -> None:
        """Return when the put is durable, or raise the error with which it failed."""
        if self._under_way.get(self._place) is self:
            self._over = self._over or asyncio.Event()
            await self._over.wait()
        if self._error is not None:
            raise self._error

    async def _send(self) -> None:
        """Store all that has joined, or the put alone if they do not fit in one commit."""
        self._is_open, self._is_sent = False, True
        lead = self._parts[0]
        try:
            if await self._commit():
                for part in self._parts:
                    part.finish()
                self._is_together = True
            else:
                await arun(lead.program, self._driver, lead.commit)
        except Exception as error:
            self._fail(error)
            raise
        except BaseException:
            self._fail(_cancelled())
            raise
        self._end()

    async def _commit(self) -> bool:
        commit = merged(part.commit for part in self._parts)
        if commit is None or not self._budget.holds(commit.ops):
            return False
        try:
            return isinstance(await self._driver.aperform(commit), Committed)
        except (TooLarge, Unserialisable):
            return False  # whichever of them it is, the others may be stored
        except Exception as error:
            self._parts[0].program.throw(error)
            raise

    def _fail(self, error: Exception) -> None:
        self._is_sent, self._error = True, error
        self._end()
        for part in self._parts:
            part.program.close()

    def _end(self) -> None:
        self._is_open = False
        if self._under_way.get(self._place) is self:
            del self._under_way[self._place]
        if self._over is not None:
            self._over.set()


class Openings:
    """The openings under way: at most one a thread in each event loop."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._openings: dict[_Place, Opening] = {}

    def of(self, at: Address) -> Opening | None:
        """Return the opening of which a write at this address is a part."""
        if not self._openings:
            return None
        found = self._openings.get((asyncio.get_running_loop(), at.partition))
        if found is None or (at.namespace, at.checkpoint_id) != (ROOT, found.base.id):
            return None
        return found

    async def store(self, put: CheckpointPut, program: Program[None]) -> None:
        """Store a run's input, or return when it is carried."""
        effect = next(program)
        at = asyncio.get_running_loop(), put.partition
        if put.is_committed_by(effect) and at not in self._openings:
            opening = Opening(put, PreparedWrite(program, effect), self._driver, self._openings, at)
            if await opening.is_carried():
                return
        await arun(program, self._driver, effect)


def _cancelled() -> Unavailable:
    return Unavailable(
        "the call that a run's input was stored with was cancelled: it may be stored or not; load the thread "
        "again before repeating it"
    )
