"""Commits that writes of one run share.

LangGraph asks within a moment for a run's input, the writes of START and the next checkpoint, and later for
the writes of a step's last task and the checkpoint that follows. Each of these groups is one commit:

- The put of an input may return before it is stored, as soon as a write of its run that builds on it has
  begun: that write carries it, and returns when both are durable, or raises their error. LangGraph awaits
  every write before a run ends, so a caller that waits for the run is not notified any sooner.
- Writes of a task wait until the checkpoint that their step began with is stored, as without it nothing could
  read them, and then a moment for the next checkpoint, whose put stores them, too.

A call that no other one joins makes a commit of its own. So does each part of a group that does not fit one
commit, or whose commit is refused; and writes that claim the head, as ``merge`` finds no one operation
for the claim and the move. No call but the put of an input returns before what it was given is
durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from perdure.engine.threads.checkpoints import CheckpointPut
from perdure.engine.threads.thread_state import View
from perdure.engine.transact import Budget
from perdure.errors import StatementRefused, TooLarge, Unavailable, Unserialisable
from perdure.langgraph.translate import Address
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.merged_commits import merge
from perdure.model.ops import Commit, Committed
from perdure.model.program import Program, ProgramResult, advance, resume
from perdure.model.records import Partition
from perdure.storage.port import Driver, arun

_ROUNDS = 8
"""Rounds of the event loop for which other calls are waited for; LangGraph takes three to make them, wrappers
of nodes may take more. Time would be no measure: the busier the loop, the longer are its rounds."""

Planned = tuple[View, CheckpointRecord]
"""A thread, and its newest checkpoint, as they will be after a commit."""

_Place = tuple[asyncio.AbstractEventLoop, Partition, str, str]


class _Part(NamedTuple):
    """A write whose program has been run up to its commit."""

    program: Program[None]
    commit: Commit

    def finish(self) -> None:
        """End the program: the commit was accepted."""
        if not isinstance(advance(self.program, Committed()), ProgramResult):
            raise RuntimeError("a write asks for nothing after its commit")

    def rest(self) -> Program[None]:
        """Return the program, whose commit has not been performed yet."""
        return resume(self.program, self.commit)

    def fail(self, error: Exception) -> None:
        """End the program: the commit failed."""
        with suppress(Exception):
            advance(self.program, error=error)


class UnfinishedStep:
    """What of a step is not stored yet: its checkpoint, writes of its tasks, and the checkpoint that follows.

    Its states:

    - its checkpoint is being put (closed, nothing planned): writes on it wait;
    - a run's input waits for company (open, with ``planned``): a write on it joins, and carries it;
    - writes wait for the next checkpoint (open, nothing planned): the put of that one joins;
    - the commit is being sent (closed): calls wait for it, and then go on by themselves;
    - ended.

    Attributes:
        planned: The state after the commit, if that is to store the step's checkpoint: valid only for writes
            in the same commit.
        parts: The writes that wait for others.
        is_open: True as long as others may join them.
        is_stored: True if one commit has stored them all.
    """

    __slots__ = ("_ended", "_error", "_place", "_steps", "is_open", "is_stored", "parts", "planned")

    def __init__(self, steps: dict[_Place, UnfinishedStep], place: _Place, *, is_open: bool) -> None:
        self.planned: Planned | None = None
        self.parts: list[_Part] = []
        self.is_open = is_open
        self.is_stored = False
        self._error: Exception | None = None
        self._ended = asyncio.Event()
        self._steps = steps
        self._place = place
        steps[place] = self

    async def wait(self) -> None:
        """Return when all parts have an outcome, or raise the error with which their commit failed."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    def end(self, error: Exception | None = None) -> None:
        self.is_open = False
        self._error = self._error or error
        if self._steps.get(self._place) is self:
            del self._steps[self._place]
        self._ended.set()


class StepCommits:
    """The unfinished steps, by the event loop and the checkpoint with which they began."""

    def __init__(self, driver: Driver, budget: Budget) -> None:
        self._driver = driver
        self._budget = budget
        self._steps: dict[_Place, UnfinishedStep] = {}

    def begin(self, at: Address, checkpoint_id: str) -> UnfinishedStep:
        """Return a new step, whose checkpoint is being stored: writes on it wait until it is ended, or opened
        by ``store_input``."""
        return UnfinishedStep(self._steps, _place(at, checkpoint_id), is_open=False)

    def find(self, at: Address) -> UnfinishedStep | None:
        """Return the step that a put ends, if something of it is not stored yet."""
        return self._steps.get(_place(at, at.checkpoint_id)) if self._steps else None

    async def store_writes(
        self, at: Address, plan: Callable[[Planned | None], Program[None]], *, may_wait: bool
    ) -> None:
        """Store a task's writes on the checkpoint of ``at``.

        Args:
            at: The address of the checkpoint.
            plan: Makes the program that stores them on what is stored, or on a checkpoint in the same commit.
            may_wait: False if they have to be stored at once, unless their checkpoint waits for them.
        """
        place = _place(at, at.checkpoint_id)
        while True:
            step = self._steps.get(place)
            planned = None if step is None else step.planned
            if not may_wait and planned is None:
                await arun(plan(None), self._driver)
                return
            if step is not None and not step.is_open:
                # What the put changes in the thread would refuse writes that are planned before.
                await step.wait()
                continue
            program = plan(planned)
            effect = advance(program)
            if isinstance(effect, Commit):
                step = step or UnfinishedStep(self._steps, place, is_open=True)
                if await self._join(step, _Part(program, effect)):
                    return
            elif step is None or planned is None:
                # What is too large for one commit begins with something else.
                await arun(resume(program, effect), self._driver)
                return
            else:
                # It does not fit one commit: wait until the checkpoint is stored, then plan on that.
                await step.wait()

    async def _join(self, step: UnfinishedStep, part: _Part) -> bool:
        """Store writes as a part of a step; return False if they have to be planned again."""
        step.parts.append(part)
        try:
            await _wait_a_moment(lambda: not step.is_open)
        except BaseException:
            if step.is_open:
                self._leave(step, part)
            raise
        if step.is_open and step.planned is None:
            self._leave(step, part)
        else:
            if step.is_open:
                await self._send(step)
            await step.wait()
            if step.is_stored or step.planned is not None:
                return step.is_stored
        await arun(part.rest(), self._driver)
        return True

    def _leave(self, step: UnfinishedStep, part: _Part) -> None:
        """Take writes out of a step. If they were to carry its checkpoint, that is not stored either."""
        step.parts.remove(part)
        if step.planned is not None:
            step.end(_cancelled_error())
        elif not step.parts:
            step.end()

    async def store_input(self, step: UnfinishedStep, put: CheckpointPut, program: Program[None]) -> bool:
        """Store a run's input, with which a step begins; return True if another write carries it, which need
        not be durable yet."""
        effect = advance(program)
        if put.is_committed_by(effect):
            step.planned, step.is_open = put.planned, True
            step.parts.append(_Part(program, effect))
            try:
                await _wait_a_moment(lambda: len(step.parts) > 1)
            finally:
                if len(step.parts) == 1:
                    step.planned, step.is_open = None, False
            if step.planned is not None:
                return True
        await arun(resume(program, effect), self._driver)
        return False

    async def store_with(
        self, step: UnfinishedStep | None, put: CheckpointPut, program: Program[None]
    ) -> bool:
        """Store a checkpoint, and with it what waits in the step that it ends.

        Returns:
            False if the program was planned on a checkpoint in the same commit, and has to be planned again.
        """
        rest = program
        if step is not None and step.is_open:
            effect = advance(program)
            rest = resume(program, effect)
            if put.is_committed_by(effect):
                step.parts.append(_Part(program, effect))
                if await self._send(step):
                    return True
        if step is not None and step.planned is not None:
            put.plan.freeze()
            await step.wait()
            return False
        await arun(rest, self._driver)
        return True

    async def _send(self, step: UnfinishedStep) -> bool:
        """Store all parts of a step by one commit; return False if they have to be stored apart. Then the
        checkpoint that waited among them is stored."""
        step.is_open = False
        error: Exception | None = None
        try:
            step.is_stored = await self._commit(step.parts)
            if step.is_stored:
                for part in step.parts:
                    part.finish()
            elif step.planned is not None:
                await arun(step.parts[0].rest(), self._driver)
        except Exception as found:
            error = found
            raise
        except BaseException:
            # The others are stored alone: what is stored already may be stored again.
            error = None if step.planned is None else _cancelled_error()
            raise
        finally:
            step.end(error)
        return step.is_stored

    async def _commit(self, parts: list[_Part]) -> bool:
        commit = merge(part.commit for part in parts)
        if commit is None or not self._budget.holds(commit.ops):
            return False
        try:
            return isinstance(await self._driver.aperform(commit), Committed)
        except (TooLarge, Unserialisable, StatementRefused):
            return False  # whichever of them it is, the others may be stored
        except Exception as error:
            for part in parts:
                part.fail(error)
            raise


async def _wait_a_moment(is_over: Callable[[], bool]) -> None:
    for _ in range(_ROUNDS):
        if is_over():
            return
        await asyncio.sleep(0)


def _place(at: Address, checkpoint_id: str | None) -> _Place:
    return asyncio.get_running_loop(), at.partition, at.namespace or "", checkpoint_id or ""


def _cancelled_error() -> Unavailable:
    return Unavailable(
        "the call that a run's input was stored with was cancelled: it may be stored or not; load the thread "
        "again before repeating it"
    )
