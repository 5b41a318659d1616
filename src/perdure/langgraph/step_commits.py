"""Commits that writes of one run share.

LangGraph asks within a moment for a run's input, the writes of START and the next checkpoint, and later for
the writes of a step's last task and the checkpoint that follows. Each of these groups is one commit:

- The put of an input may return before it is stored, as soon as a write of its run that builds on it has
  begun: that write carries it, and returns when both are durable, or raises their error. LangGraph awaits
  every write before a run ends, so a caller that waits for the run is not notified any sooner.
- Writes of a task wait until the checkpoint that their step began with is stored, as without it nothing could
  read them, and then a moment for the next checkpoint, whose put stores them, too.

A call that is not joined by another makes a commit of its own. If a group of calls does not fit one commit,
or its commit is refused, each call makes one. Writes that claim the head also get a commit of their own,
because ``merge`` cannot combine the claim and the move of the head. Only the put of an input may return
before what it was given is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from perdure.engine.threads.checkpoints import CheckpointPut
from perdure.engine.threads.thread_state import View
from perdure.engine.transact import Budget
from perdure.errors import StatementRefused, TooLarge, Unavailable, Unserialisable
from perdure.langgraph.translate import Address
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.merged_commits import merge
from perdure.model.ops import Commit, Committed, Stage
from perdure.model.program import Effect, Program, ProgramResult, advance, resume
from perdure.model.records import Partition
from perdure.storage.port import Driver, WrappingDriver, arun

_ROUNDS = 8
"""Rounds of the event loop that a call waits for others to join; LangGraph takes three to make them, wrappers
of nodes may take more. A wait of fixed length would not do: the busier the loop, the longer are its
rounds."""

_EXIT_ROUNDS = 100
"""Maximum number of rounds of the event loop that a load waits for the only put of a run that stores at its
exit, and whose stream was left: each generator around the stream takes three to be closed."""

_CALLS_MAX = 8
"""Maximum number of calls in succession that a load waits for, so that it does not wait for the end of a run
that goes on."""

Planned = tuple[View, CheckpointRecord]
"""A thread, and its newest checkpoint, as they will be after a commit."""

_Place = tuple[asyncio.AbstractEventLoop, Partition, str]
_Steps = dict[_Place, dict[str, "UnfinishedStep"]]
"""Steps by event loop and namespace of a thread, and there by the checkpoint with which they began."""


class _Part(NamedTuple):
    """A write whose program has been run up to its commit."""

    program: Program[None]
    commit: Commit

    def finish(self) -> None:
        """End the program: the commit was accepted."""
        if not isinstance(advance(self.program, Committed()), ProgramResult):
            raise RuntimeError("a write asks for nothing after its commit")

    def rest(self) -> Program[None]:
        """Return the program from its commit on, which has not been performed yet."""
        return resume(self.program, self.commit)

    def fail(self, error: Exception) -> None:
        """End the program: the commit failed."""
        with suppress(Exception):
            advance(self.program, error=error)


class UnfinishedStep:
    """The part of a step that is not stored yet: its checkpoint, writes of its tasks, and the checkpoint that
    follows.

    Its states:

    - its checkpoint is being put (closed, nothing planned): writes on it wait;
    - a run's input waits for another write (open, with ``planned``): a write on it joins the step, and
      carries it;
    - writes wait for the next checkpoint (open, nothing planned): its put joins the step;
    - the commit is being sent (closed): other calls wait for it, and then store on their own;
    - ended.

    Attributes:
        planned: The state after the step's commit, if that commit is to store the step's checkpoint: only
            writes in the same commit may be planned on it.
        parts: The writes that wait for others.
        is_open: True as long as further writes may join.
        is_stored: True if one commit has stored all parts.
    """

    def __init__(self, steps: _Steps, place: _Place, began_with: str, *, is_open: bool) -> None:
        self.planned: Planned | None = None
        self.parts: list[_Part] = []
        self.is_open = is_open
        self.is_stored = False
        self._error: Exception | None = None
        self.ended = asyncio.Event()
        self._steps = steps
        self._place, self._began_with = place, began_with
        steps.setdefault(place, {})[began_with] = self

    async def wait(self) -> None:
        """Return when all parts have an outcome, or raise the error with which their commit failed."""
        await self.ended.wait()
        if self._error is not None:
            raise self._error

    def end(self, error: Exception | None = None) -> None:
        self.is_open = False
        self._error = self._error or error
        siblings = self._steps.get(self._place, {})
        if siblings.get(self._began_with) is self:
            del siblings[self._began_with]
            if not siblings:
                del self._steps[self._place]
        self.ended.set()


_Calls = dict[_Place, set[asyncio.Future[None]]]
"""Of the puts and the writes of tasks that are under way the futures that are done at their ends."""


class CallUnderWay:
    """A put, or the writes of a task, that is under way within the block of this context manager."""

    __slots__ = ("_calls", "_end", "_place")

    def __init__(self, calls: _Calls, place: _Place) -> None:
        self._calls, self._place, self._end = calls, place, place[0].create_future()

    def __enter__(self) -> None:
        self._calls.setdefault(self._place, set()).add(self._end)

    def __exit__(self, *error: object) -> None:
        siblings = self._calls[self._place]
        siblings.remove(self._end)
        if not siblings:
            del self._calls[self._place]
        self._end.set_result(None)


class _LastingWrites(WrappingDriver):
    """A driver whose writes go on when their callers are cancelled, as a request that was sent to a database
    cannot be called back. It remembers those writes, so that loads can wait for them."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self._cancelled: dict[tuple[asyncio.AbstractEventLoop, Partition], set[asyncio.Task[Any]]] = {}

    def perform(self, effect: Effect[Any]) -> Any:
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[Any]) -> Any:
        if not isinstance(effect, (Commit, Stage)):
            return await self._inner.aperform(effect)
        sent = asyncio.ensure_future(self._inner.aperform(effect))
        try:
            await asyncio.wait((sent,))
        except asyncio.CancelledError:
            self._remember(effect.partition, sent)
            raise
        return sent.result()

    def _remember(self, partition: Partition, sent: asyncio.Task[Any]) -> None:
        place = asyncio.get_running_loop(), partition
        self._cancelled.setdefault(place, set()).add(sent)

        def forget(done: asyncio.Task[Any]) -> None:
            if not done.cancelled():
                done.exception()  # marks an error as retrieved: the caller was cancelled
            siblings = self._cancelled[place]
            siblings.remove(done)
            if not siblings:
                del self._cancelled[place]

        sent.add_done_callback(forget)

    async def wait(self, partition: Partition) -> None:
        """Wait until the writes of a thread whose callers were cancelled have an outcome."""
        while left := self._cancelled.get((asyncio.get_running_loop(), partition)):
            await asyncio.wait(left)


class StepCommits:
    """The unfinished steps of a saver."""

    def __init__(self, driver: Driver, budget: Budget) -> None:
        self._driver = driver
        self._lasting = _LastingWrites(driver)
        self._calls: _Calls = {}
        self._budget = budget
        self._steps: _Steps = {}

    def begin(self, at: Address, checkpoint_id: str) -> UnfinishedStep:
        """Return a new step, whose checkpoint is being stored: writes on it wait until it is ended, or opened
        by ``store_input``."""
        return UnfinishedStep(self._steps, _place(at), checkpoint_id, is_open=False)

    def find(self, at: Address) -> UnfinishedStep | None:
        """Return the step that a put ends, if a part of it is not stored yet."""
        return self._find(_place(at), at.checkpoint_id)

    def _find(self, place: _Place, began_with: str | None) -> UnfinishedStep | None:
        siblings = self._steps.get(place)
        return None if siblings is None else siblings.get(began_with or "")

    def note_call(self, at: Address) -> CallUnderWay:
        """Count a put, or the writes of a task, as under way within the block: loads wait for its end."""
        return CallUnderWay(self._calls, _place(at))

    async def wait_for_calls(self, at: Address, *, may_begin: bool, stores_at_exit: bool) -> None:
        """Wait until the puts and the writes of tasks that are under way in this event loop on a namespace
        have ended. When a run is cancelled, or its stream is left, and its caller has returned, LangGraph's
        last calls go on, and so does a commit that was at the database. A run that loaded the thread before
        they end would lose the race against them.

        Args:
            at: The address of the load.
            may_begin: True if the last call of a run may still have to begin: the generator of a
                stream that was left with ``break`` is closed a few rounds of the event loop later.
            stores_at_exit: True if that run stores at its exit, and has not begun to.
        """
        place = _place(at)
        if may_begin:
            rounds = _EXIT_ROUNDS if stores_at_exit else _ROUNDS
            await _wait_a_moment(lambda: place in self._calls, rounds)
        for _ in range(_CALLS_MAX):
            await self._lasting.wait(at.partition)
            if not (here := self._calls.get(place)):
                return
            await asyncio.wait(tuple(here))
            # The next call may begin only now.
            await _wait_a_moment(lambda: place in self._calls)

    async def store_writes(
        self, at: Address, plan: Callable[[Planned | None], Program[None]], *, may_wait: bool, lasts: bool
    ) -> None:
        """Store a task's writes on the checkpoint of ``at``.

        Args:
            at: The address of the checkpoint.
            plan: Makes the program that stores them on what is stored, or on a checkpoint in the same commit.
            may_wait: False if the writes have to be stored at once, unless their checkpoint waits for them.
            lasts: See ``store_input``.
        """
        place, driver = _place(at), self._lasting if lasts else self._driver
        while True:
            step = self._find(place, at.checkpoint_id)
            planned = None if step is None else step.planned
            if not may_wait and planned is None:
                await arun(plan(None), driver)
                return
            if step is not None and not step.is_open:
                # Writes that were planned before this put would be refused because of its changes.
                await step.wait()
                continue
            program = plan(planned)
            effect = advance(program)
            if isinstance(effect, Commit):
                step = step or UnfinishedStep(self._steps, place, at.checkpoint_id or "", is_open=True)
                if await self._join(step, _Part(program, effect), driver):
                    return
            elif step is None or planned is None:
                # An operation that is too large for one commit begins with another request.
                await arun(resume(program, effect), driver)
                return
            else:
                # The operation does not fit one commit: wait until the checkpoint is stored, then plan on
                # that.
                await step.wait()

    async def _join(self, step: UnfinishedStep, part: _Part, driver: Driver) -> bool:
        """Store writes as a part of a step; return False if they have to be planned again."""
        step.parts.append(part)
        try:
            await _wait_a_moment(lambda: not step.is_open)
        except BaseException:
            if step.is_open:
                self._remove_part(step, part)
            raise
        if step.is_open and step.planned is None:
            self._remove_part(step, part)
        else:
            if step.is_open:
                await self._send(step, driver)
            await step.wait()
            if step.is_stored or step.planned is not None:
                return step.is_stored
        await arun(part.rest(), driver)
        return True

    def _remove_part(self, step: UnfinishedStep, part: _Part) -> None:
        """Take writes out of a step. If they were to carry its checkpoint, it is not stored either."""
        step.parts.remove(part)
        if step.planned is not None:
            step.end(_cancelled_error())
        elif not step.parts:
            step.end()

    async def store_input(
        self, step: UnfinishedStep, put: CheckpointPut, program: Program[None], *, lasts: bool
    ) -> bool:
        """Store a run's input, with which a step begins; return True if another write carries it; then it
        need not be durable yet. ``lasts`` is True for a call that may be cancelled: the next load then waits
        for its commit."""
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
        await arun(resume(program, effect), self._lasting if lasts else self._driver)
        return False

    async def store_with(
        self, step: UnfinishedStep | None, put: CheckpointPut, program: Program[None], *, lasts: bool
    ) -> bool:
        """Store a checkpoint, and with it what waits in the step that it ends. ``lasts``: see
        ``store_input``.

        Returns:
            False if the program was planned on a checkpoint in the same commit, and has to be planned again.
        """
        rest, driver = program, self._lasting if lasts else self._driver
        if step is not None and step.is_open:
            effect = advance(program)
            rest = resume(program, effect)
            if put.is_committed_by(effect):
                step.parts.append(_Part(program, effect))
                if await self._send(step, driver):
                    return True
        if step is not None and step.planned is not None:
            put.plan.freeze()
            await step.wait()
            return False
        await arun(rest, driver)
        return True

    async def _send(self, step: UnfinishedStep, driver: Driver) -> bool:
        """Store all parts of a step by one commit; return False if they have to be stored apart. Then the
        step's own checkpoint, if it was among them, is stored alone."""
        step.is_open = False
        error: Exception | None = None
        try:
            step.is_stored = await self._commit(step.parts, driver)
            if step.is_stored:
                for part in step.parts:
                    part.finish()
            elif step.planned is not None:
                await arun(step.parts[0].rest(), driver)
        except Exception as found:
            error = found
            raise
        except BaseException:
            # The other calls store their parts alone: if this commit was made, storing them again does no
            # harm.
            if step.planned is None:
                error = None
            else:
                error = _cancelled_error()
            raise
        finally:
            step.end(error)
        return step.is_stored

    async def _commit(self, parts: list[_Part], driver: Driver) -> bool:
        commit = merge(part.commit for part in parts)
        if commit is None or not self._budget.holds(commit.ops):
            return False
        try:
            return isinstance(await driver.aperform(commit), Committed)
        except (TooLarge, Unserialisable, StatementRefused):
            return False  # one of the parts causes this; stored alone, the others may succeed
        except Exception as error:
            for part in parts:
                part.fail(error)
            raise


async def _wait_a_moment(is_over: Callable[[], bool], rounds: int = _ROUNDS) -> None:
    for _ in range(rounds):
        if is_over():
            return
        await asyncio.sleep(0)


def _place(at: Address) -> _Place:
    return asyncio.get_running_loop(), at.partition, at.namespace or ""


def _cancelled_error() -> Unavailable:
    return Unavailable(
        "the call that a run's input was stored with was cancelled: it may be stored or not; load the thread "
        "again before repeating it"
    )
