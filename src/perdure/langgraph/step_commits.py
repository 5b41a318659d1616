"""The writes of a step's last tasks and the checkpoint that follows it, in one commit.

LangGraph asks for both within a few rounds of the event loop: a task's writes when it ends, the checkpoint
when all tasks have ended, but not before the one that the step began with is stored. So writes wait until
that one is stored, as without it nothing could read them, and then these few rounds for the put of a
checkpoint on theirs, which stores them, too. If none comes, as other tasks of the step are still under way,
they make a commit of their own. No call returns before what it was given is durable.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from perdure.engine.checkpoints import CheckpointPut
from perdure.errors import TooLarge, Unserialisable
from perdure.langgraph.translate import Address
from perdure.model.merged_commits import merged
from perdure.model.ops import Commit, Committed
from perdure.model.program import Effect, Program
from perdure.model.records import Partition
from perdure.storage.port import Driver, arun

_ROUNDS = 8
"""Rounds of the event loop for which writes wait: from a task's end to the put of the checkpoint are up to
six."""

_Step = tuple[asyncio.AbstractEventLoop, Partition, str, str]


class _HeldWrite:
    """The writes of a task, planned up to their commit, and what became of them.

    ``over`` is set when a put that took them has an outcome: ``is_stored``, or ``error``, or neither if they
    have to be stored alone."""

    __slots__ = ("commit", "error", "is_stored", "over", "program")

    def __init__(self, program: Program[None], commit: Commit) -> None:
        self.program = program
        self.commit = commit
        self.over: asyncio.Event | None = None
        self.is_stored = False
        self.error: Exception | None = None


class _Putting:
    """The time in which a checkpoint is being stored, until ``end``."""

    __slots__ = ("_over", "_puts", "_step")

    def __init__(self, puts: dict[_Step, _Putting], step: _Step) -> None:
        self._puts = puts
        self._step = step
        self._over: asyncio.Event | None = None
        puts[step] = self

    async def over(self) -> None:
        """Return when the checkpoint has an outcome."""
        self._over = self._over or asyncio.Event()
        await self._over.wait()

    def end(self) -> None:
        if self._puts.get(self._step) is self:
            del self._puts[self._step]
        if self._over is not None:
            self._over.set()


class StepCommits:
    """The writes that wait for a checkpoint, by the event loop and the checkpoint that they belong to."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._held: dict[_Step, list[_HeldWrite]] = {}
        self._puts: dict[_Step, _Putting] = {}

    def putting(self, at: Address, checkpoint_id: str) -> _Putting:
        """Hold the writes on a checkpoint from now on, until the returned object is ended: it is being
        stored."""
        return _Putting(self._puts, _step(at, checkpoint_id))

    async def store_writes(self, at: Address, program: Program[None]) -> None:
        """Store a task's writes on the checkpoint of ``at``, by the put of the next one or by a commit of
        their own."""
        step = _step(at, at.checkpoint_id)
        if (putting := self._puts.get(step)) is not None:
            # What the put changes in the thread would refuse writes that are planned before.
            await putting.over()
        effect = next(program)
        if isinstance(effect, Commit):
            held = _HeldWrite(program, effect)
            await self._wait(step, held)
            if held.over is not None:
                await held.over.wait()
                if held.is_stored:
                    return
                if held.error is not None:
                    program.throw(held.error)
        await arun(program, self._driver, effect)

    async def _wait(self, step: _Step, held: _HeldWrite) -> None:
        self._held.setdefault(step, []).append(held)
        try:
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
                if held.over is not None:
                    return
        finally:
            if held.over is None:
                waiting = self._held[step]
                waiting.remove(held)
                if not waiting:
                    del self._held[step]

    async def store_checkpoint(self, at: Address, put: CheckpointPut, program: Program[None]) -> None:
        """Store a checkpoint, and with it the writes that wait on the one of ``at``, which it is built on."""
        waiting = self._held.pop(_step(at, at.checkpoint_id), None) if self._held else None
        if waiting is None:
            await arun(program, self._driver)
            return
        for held in waiting:
            held.over = asyncio.Event()
        effect: Effect[object] | None = None
        try:
            effect = next(program)
            if await self._is_stored(waiting, put, program, effect):
                return
        finally:
            # After any other end they are stored alone: also if this call was cancelled while its commit was
            # under way, as writes that are stored already may be stored again.
            for held in waiting:
                if held.over is not None:
                    held.over.set()
        await arun(program, self._driver, effect)

    async def _is_stored(
        self, waiting: list[_HeldWrite], put: CheckpointPut, program: Program[None], effect: Effect[object]
    ) -> bool:
        """Return True when one commit has stored everything, False if each has to be stored alone."""
        if not put.is_committed_by(effect):
            return False
        together = merged((*(held.commit for held in waiting), effect))
        if together is None or not put.budget.holds(together.ops):
            return False
        try:
            answer = await self._driver.aperform(together)
        except (TooLarge, Unserialisable):
            return False  # whichever of them it is, the others may be stored
        except Exception as error:
            for held in waiting:
                held.error = error
            program.throw(error)
            raise
        if not isinstance(answer, Committed):
            return False
        for held in waiting:
            held.is_stored = True
            _finish(held.program)
        _finish(program)
        return True


def _step(at: Address, checkpoint_id: str | None) -> _Step:
    return asyncio.get_running_loop(), at.partition, at.namespace or "", checkpoint_id or ""


def _finish(program: Program[None]) -> None:
    """End a program whose commit was accepted."""
    with suppress(StopIteration):
        program.send(Committed())
        raise RuntimeError("a write asks for nothing after its commit")
