"""Limits of whole runs, for the dispatcher of a process: a run that waits has no slot, no lease and no task.

A queue whose next run has to wait leaves its slot. When the run's turn comes, the queue is served again and
the run claimed; if another process was faster, the turn is given back unused.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue.claims import Claim, PlannedClaim, RememberedInbox, Unserved
from perdure.engine.queue.runs import HeldRun
from perdure.model.limits import SharedLimit
from perdure.model.records import Partition
from perdure.model.runs.messages import Message
from perdure.runtime.agent_memory.memory_turns import MEMORY
from perdure.runtime.limits.call_limits import LimitKeys, Subject, keys_of
from perdure.runtime.limits.limiter import CallTurn, limiter_of
from perdure.runtime.worker.backlog import Limited

COUNTED = "limits"
"""Option of a stored message: names of the limits whose rates counted it when it was submitted."""

_WAITING_MAX = 4096
_OF_USER_MAX = 64
"""Maximum numbers of waiting runs of a process, and of one user in it; others are tried again later."""

_CLAIMS = 3
"""Number of times a claim is planned, if other processes change the queue, before the queue is put off."""

Serve = Callable[[Partition], bool]
"""Serves the queue of a thread again; returns False if there is no slot for it."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """Turn that is waited for, or that came and is not used yet."""

    keys: LimitKeys
    turn: CallTurn
    coming: Future[None]


class RunLimits:
    """Turns of the runs of a process.

    Args:
        database: The database.
        limits: The limits of runs by their names.
        serve: Serves a queue whose turn came.
    """

    def __init__(self, database: DatabaseHandle, limits: Mapping[str, SharedLimit], serve: Serve) -> None:
        self._database, self._limiter = database, limiter_of(database)
        self._limits, self._serve = limits, serve
        self._waiting: dict[Partition, _Waiting] = {}
        self._of_user: Counter[tuple[str, str]] = Counter()

    def has(self, partition: Partition, message: Message) -> bool:
        """Return True if the run of a message has a limit."""
        return bool(self._list_keys(_subject(partition, message)))

    # Submission

    @property
    def refuses(self) -> bool:
        """True if a limit refuses runs that would have to wait."""
        return any(limit.refuse for limit in self._limits.values())

    async def admit(self, partition: Partition, message: Message) -> CallTurn | None:
        """Take a turn for the run of a message that is about to be stored, if it has limits that refuse runs.

        Raises:
            LimitReached: The run would have to wait.
            Unavailable: The database is unavailable.
        """
        keys = self._list_keys(_subject(partition, message), refuse=True)
        if not keys:
            return None
        turn = CallTurn(keys)
        await self._limiter.acquire(turn, partition.tenant, 0)
        return turn

    def note_accepted(self, partition: Partition, message: Message, turn: CallTurn, *, is_next: bool) -> None:
        """Note that an admitted message was stored, marked by ``mark_counted``. With ``is_next`` its run
        follows at once in this process, under the same turn."""
        keys = self._list_keys(_subject(partition, message))
        if not is_next or partition in self._waiting or turn.keys != [(name, key) for name, key, _ in keys]:
            self._limiter.end(turn)
            return
        came: Future[None] = Future()
        came.set_result(None)
        self._add_waiting(partition, _Waiting(keys, turn, came))

    def give_back(self, turn: CallTurn) -> None:
        """Give back the turn of a message that was not stored."""
        self._limiter.drop(turn)

    # Runs

    def _list_keys(self, subject: Subject, *, refuse: bool | None = None) -> LimitKeys:
        if subject.graph == MEMORY:
            # Memories are extracted apart from the application's own runs.
            return []
        return keys_of(self._limits, "run", "", subject, refuse=refuse)

    async def claim(
        self,
        partition: Partition,
        next_claim: Callable[[Partition], Awaitable[Claim]],
        inbox: RememberedInbox | None,
    ) -> tuple[HeldRun | Unserved | Limited | None, CallTurn | None]:
        """Claim a thread's next run if its turn has come. Return it with its turn, if it has limits.

        Args:
            partition: The thread.
            next_claim: Returns the claim of its next run.
            inbox: The thread's inbox as this process remembers it.

        Raises:
            PerdureError: The claim failed, for instance with ``Unavailable``.
        """
        for _ in range(_CLAIMS):
            claim = await next_claim(partition)
            try:
                planned = await self._database.arun(claim.plan(inbox))
                if not isinstance(planned, PlannedClaim):
                    self.drop(partition)
                    return planned, None
                turn = self._find_turn(planned)
            except BaseException:
                self.drop(partition)
                raise
            if isinstance(turn, Limited):
                return turn, None
            held = None
            try:
                held = await self._database.arun(claim.commit(planned))
            finally:
                if held is None and turn is not None:
                    self._limiter.drop(turn)
            if held is not None:
                return held, turn
            inbox = None
        return None, None

    def _find_turn(self, planned: PlannedClaim) -> CallTurn | Limited | None:
        """Return the turn of a run that is about to be claimed, ``None`` if it needs none."""
        held = planned.held
        subject = _subject(held.partition, held.messages[0])
        keys = [] if planned.is_to_end else self._list_keys(subject)
        waiting = self._waiting.get(held.partition)
        if waiting is not None and (waiting.keys != keys or waiting.coming.done()):
            self._remove_waiting(held.partition)
            if waiting.keys == keys:
                waiting.coming.result()
                return waiting.turn
            self._limiter.drop(waiting.turn)
            waiting = None
        if not keys:
            return None
        if waiting is None and not self._is_full(subject):
            # A run that was claimed before is not counted again.
            counted = [name for name, *_ in keys]
            if planned.is_new:
                counted = held.messages[0].options.get(COUNTED, ())
            self._wait(held.partition, keys, CallTurn(keys, counted=counted))
        return Limited(keys[0][0])

    def _is_full(self, subject: Subject) -> bool:
        of_user = self._of_user[subject.tenant, subject.user]
        return len(self._waiting) >= _WAITING_MAX or of_user >= _OF_USER_MAX

    def _wait(self, partition: Partition, keys: LimitKeys, turn: CallTurn) -> None:
        loop = asyncio.get_running_loop()
        coming = self._limiter.submit(turn.wait_for_all(self._limiter, partition.tenant, math.inf))
        waiting = _Waiting(keys, turn, coming)
        self._add_waiting(partition, waiting)
        coming.add_done_callback(lambda _: loop.call_soon_threadsafe(self._note_arrival, partition, waiting))

    def _add_waiting(self, partition: Partition, waiting: _Waiting) -> None:
        self._waiting[partition] = waiting
        self._of_user[partition.tenant, waiting.keys[0][2]] += 1

    def _note_arrival(self, partition: Partition, waiting: _Waiting) -> None:
        if self._waiting.get(partition) is waiting and not self._serve(partition):
            self._remove_waiting(partition)
            self._limiter.drop(waiting.turn)

    def _remove_waiting(self, partition: Partition) -> _Waiting | None:
        waiting = self._waiting.pop(partition, None)
        if waiting is not None:
            user = partition.tenant, waiting.keys[0][2]
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]
        return waiting

    def drop(self, partition: Partition) -> None:
        """Give back the turn of a thread that has no run to be claimed."""
        if (waiting := self._remove_waiting(partition)) is not None:
            self._limiter.drop(waiting.turn)

    def close(self) -> None:
        """Give back all turns that are waited for."""
        for partition in list(self._waiting):
            self.drop(partition)


def mark_counted(message: Message, turn: CallTurn) -> Message:
    """Return a message, marked as counted towards the rates of its limits when it was submitted."""
    return replace(message, options={**message.options, COUNTED: turn.limits})


def _subject(partition: Partition, message: Message) -> Subject:
    return Subject.of(partition.tenant, message.graph, message.options)


def run_limits_of(
    database: DatabaseHandle, limits: Mapping[str, SharedLimit], serve: Serve
) -> RunLimits | None:
    """Return the limits that apply to whole runs, ``None`` if there are none."""
    of_runs = {name: limit for name, limit in limits.items() if limit.of == "run"}
    if of_runs:
        return RunLimits(database, of_runs, serve)
    return None
