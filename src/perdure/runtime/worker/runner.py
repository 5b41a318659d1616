"""Life of a run in this process: claim it, hold its lease while the graph runs, then end or release it.

While a graph runs only the lease is held in the database; one task renews the leases of all runs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from perdure.database.asynchronous import Database
from perdure.engine.queue import questions, runs
from perdure.engine.queue.claims import Claim, Unserved
from perdure.engine.queue.runs import Ending, Followed, HeldRun
from perdure.engine.retention import queue_retention, thread_removal
from perdure.errors import CannotTakeBack, Corrupt, Fenced, Unavailable
from perdure.langgraph.awaited_checkpoints import StoredCheckpoints
from perdure.model.bounded_cache import BoundedCache
from perdure.model.records import Partition
from perdure.model.runs.lifecycle import decide_stopped_state
from perdure.model.runs.messages import DONE, FAILED, TIMEOUT, WAITING, Run, shorten_error
from perdure.model.runs.queue import IN, OUT, ROLLBACK
from perdure.model.runs.queue import WAITS as TIMER
from perdure.model.runs.waits import Wait, with_waits
from perdure.runtime.activity import ActivityCounts
from perdure.runtime.agent_memory.conversation_windows import Conversations
from perdure.runtime.agent_memory.memory_turns import MEMORY
from perdure.runtime.agent_memory.run_memory import Memories
from perdure.runtime.agents.graphs import Graphs
from perdure.runtime.contained_exits import contain, contain_exits
from perdure.runtime.events.publisher import Ended
from perdure.runtime.failures.failure_location import log_failure, place_of
from perdure.runtime.failures.failure_traces import make_failure_note
from perdure.runtime.failures.unfit_updates import UnfitAnswer, find_unfit_answer
from perdure.runtime.jitter import spread
from perdure.runtime.limits.call_limits import limits_of
from perdure.runtime.nodes.effects import EffectJournal
from perdure.runtime.nodes.steering import Steering
from perdure.runtime.notifications import ENDED
from perdure.runtime.options import WEBHOOK, Options
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.state_sizes import SaverReports
from perdure.runtime.worker.attempt import Views, add_notice, attempt
from perdure.runtime.worker.backlog import Foreign, Limited
from perdure.runtime.worker.delivery import Channel, Indicate
from perdure.runtime.worker.dispatch import Dispatch
from perdure.runtime.worker.leases import DELETED, Leases, Starting, Working, fields_of
from perdure.runtime.worker.run_buffers import RunBuffers
from perdure.runtime.worker.run_limits import run_limits_of
from perdure.runtime.worker.uncounted_attempts import PERMANENT, Excuses, Judge

_ENDED_MAX = 4096
_SOON_POLLS = 2
"""A wait that is due within this number of polls is scheduled by the process that stored it."""
CANCEL_WAIT_S = 5.0
"""Seconds for which a cancelled run is waited for."""


class Runner:
    """Works on the next runs of threads and renews their leases. Created by ``Worker``."""

    def __init__(
        self, context: RuntimeContext, dispatch: Dispatch, channels: Mapping[str, Channel] | None = None
    ) -> None:
        self._database = context.database
        self._settings = context.settings
        self._clock = context.clock
        self._queues = context.queues
        self._observers = context.observers
        self._subscriptions = context.subscriptions
        self._notifications = context.notifications
        self._dispatch = dispatch
        self._channels = channels or {}
        self._owner = context.owner
        self._works = context.works
        self.leases = Leases(context)
        self.excuses = Excuses(context)
        self._judge = Judge(context.database, context.settings.limits)
        self.activity = ActivityCounts(context.database, context.clock, context.owner, context.observers)
        self._working = self.leases.working
        self._begun: dict[Partition, HeldRun] = {}
        """Runs that were claimed by the commits that stored their messages, until ``run_next`` takes them."""
        self._doubted: dict[Partition, tuple[HeldRun, float]] = {}
        """Runs that may have been claimed, with the time of the event loop at which their leases end."""
        self._latest_ended: BoundedCache[Partition, tuple[Run, tuple[str, ...]]] = BoundedCache(_ENDED_MAX)
        self.buffers = RunBuffers(context, self.leases)
        self.limits = run_limits_of(
            context.database, context.settings.limits, lambda partition: dispatch.admit((partition, IN))
        )
        self._waits: dict[str, dict[str, Wait]] = {}
        self.conversations = Conversations(context.database, context.clock, context.observers)
        reports = SaverReports(context.observers, context.settings.warn_bytes, self._find_fields)
        self.graphs = Graphs(
            Database(context.database),
            {**context.agents, **context.internal},
            context.store,
            reports.report_checkpoint,
            reports.report_older,
            reports.report_undeclared,
            shares_threads=context.settings.shared_threads,
            task_times=context.settings.task_times,
        )
        self.graphs.name_versions(context.agents, context.settings.version)
        self.memories = Memories(
            context.observers, self.graphs.store, has_index=context.store.index is not None
        )

    def find_ended(self, partition: Partition, message_id: str) -> Run | None:
        """Return the run of a message if it is the latest of its thread that ended in this process."""
        run, messages = self._latest_ended.get(partition, (None, ()))
        return run if message_id in messages else None

    def request_stop(self, partition: Partition, how: str, run_id: str | None) -> None:
        """Cancel a run of this process that was asked to stop, without waiting for the renewal of its lease.

        Args:
            partition: The thread.
            how: The reason, such as ``ROLLBACK``.
            run_id: The run. By the time the database has answered, the thread may have another run.
        """
        if run_id is not None and run_id == self.leases.run_of(partition):
            self._cancel(partition, how)

    def release(self, partition: Partition) -> None:
        """Release the run of a thread, for other workers."""
        self._cancel(partition, "drain")

    def _cancel(self, partition: Partition, how: str) -> None:
        if (starting := self.leases.starting.get(partition)) is not None:
            starting.how = starting.how or how
        elif (working := self._working.get(partition)) is not None:
            working.cancel(how)

    def hand_over(self) -> None:
        """Release all runs under way, for other workers."""
        for working in self._working.values():
            working.cancel("drain")
        for starting in self.leases.starting.values():
            starting.how = starting.how or "drain"

    def claim(self, partition: Partition, now: int) -> Claim:
        """Return the claim of a thread's next run for this process."""
        settings = self._settings
        return Claim(
            partition,
            self._owner,
            self.graphs.agents.keys(),
            now,
            settings.lease_us,
            settings.max_batch,
            self._database.draw_version(),
            self.graphs.versions,
        )

    async def _make_claim(self, partition: Partition) -> Claim:
        return self.claim(partition, await self._clock.now())

    def note_claimed(self, held: HeldRun, over: int | None) -> None:
        """Note a run that was claimed by the commit that stored its message; ``run_next`` works on it.
        ``over`` is the thread's epoch before the claim."""
        self._begun[held.partition] = held
        self.leases.starting[held.partition] = Starting(held.run.id, over=over)

    def note_doubted(self, held: HeldRun) -> None:
        """Note a run that may have been claimed: the answer to the commit that stores its message and claims
        it was lost. ``run_next`` asks the database, and works on the run if the commit was applied."""
        until = asyncio.get_running_loop().time() + self._settings.lease_us / 1_000_000
        self._doubted[held.partition] = held, until

    # One run

    async def run_next(self, partition: Partition) -> bool | Foreign | Limited | None:
        """Work on the thread's next run.

        Returns:
            True if another run is due, ``None`` if there was none, the graph that this worker does not
                serve, or the limit for which the run waits.
        """
        held: HeldRun | Unserved | Limited | None
        held, turn = self._begun.pop(partition, None) or await self._resolve_doubt(partition), None
        if held is None and self.limits is not None:
            inbox = self._queues.get(partition)
            # A run that has to wait makes no commit that would show a remembered inbox to be old: read it
            # next time.
            self._queues.forget(partition)
            held, turn = await self.limits.claim(partition, self._make_claim, inbox)
        elif held is None:
            claim = await self._make_claim(partition)
            held = await self._database.arun(claim.take(self._queues.get(partition)))
        if held is None and (held := self._begun.pop(partition, None)) is None:
            return None
        if isinstance(held, Limited):
            return held
        if isinstance(held, Unserved):
            return Foreign("graph", held.name)
        self.leases.starting.setdefault(partition, Starting(held.run.id))
        try:
            with nullcontext() if turn is None else turn.surround(partial(self._emit, held=held)):
                return await self._run_held(held)
        finally:
            self.leases.starting.pop(partition, None)

    async def end_stopped(self, partition: Partition) -> None:
        """End the thread's run if it was stopped and no process holds it any more, or if its message was
        withdrawn. No graph is run."""
        claim = replace(await self._make_claim(partition), graphs=())
        held = await self._database.arun(claim.take(None))
        if not isinstance(held, HeldRun):
            return
        self.leases.starting[partition] = Starting(held.run.id)
        try:
            await self._run_held(held)
        finally:
            self.leases.starting.pop(partition, None)

    async def _run_held(self, held: HeldRun) -> bool:
        if self._dispatch.is_stopping:
            await self.hand_back(held)
            return False
        self._emit("run.claimed", held, waited=held.run.updated_at - held.messages[0].accepted_at)
        self._subscriptions.wake(held.partition)
        with self._observers.span("run", **fields_of(held)):
            try:
                return await self._work(held)
            except Fenced:
                self._emit("run.write_refused", held)
                self._note_lost(held)
                return False
            except Unavailable:
                self.excuses.add(held)
                raise
            finally:
                self.activity.forget(held.run.id)
                self._waits.pop(held.run.id, None)
                self.buffers.close(held)

    def _note_call(self, held: HeldRun, call: Mapping[str, Any]) -> None:
        self.activity.count_call(held, call)
        self._emit("model.called", held, **call)

    async def _resolve_doubt(self, partition: Partition) -> HeldRun | None:
        """Return the thread's doubted run, with a renewed lease, if it was claimed.

        Raises:
            Unavailable: The database does not answer; it is asked again as long as the lease may last.
        """
        doubted = self._doubted.pop(partition, None)
        if doubted is None:
            return None
        held, until = doubted
        try:
            now = await self._clock.now()
            return await self._database.arun(runs.renew(held, now, self._settings.lease_us))
        except Fenced:
            return None
        except Unavailable:
            if asyncio.get_running_loop().time() < until:
                self._doubted[partition] = doubted
                self._dispatch.serve_later((partition, IN), self._settings.poll)
            raise

    async def _work(self, held: HeldRun) -> bool:
        message = held.messages[0]
        try:
            options = Options.read(message.options)
        except Corrupt as unreadable:
            # Unreadable options stay unreadable at the next attempt.
            return await self._give_up(held, make_failure_note(unreadable))
        await self.buffers.open(held, options)
        stopped = message.stop if message.is_withdrawn else held.lane.stop
        if stopped is not None:
            return await self._stop(held, stopped)
        if runs.count_attempts(held.run) > self._settings.attempts:
            why = "its worker ended each time that it was tried"
            return await self._give_up(held, {"error": why, "kind": "GivenUp"})
        agent, settings = self.graphs.agents[held.run.graph], self._settings
        durability = options.durability or agent.durability
        prices = settings.prices.override(agent.prices)
        steering = Steering(self._database, agent, held, settings.max_batch, is_sync=durability == "sync")
        stored = StoredCheckpoints() if durability == "async" else None
        lease = self.leases.check(held)
        journal = EffectJournal(
            self._database, held.partition, held.run.id, held.epoch, stored=stored, lease=lease
        )
        self._waits[held.run.id] = journal.waits
        task = asyncio.create_task(
            attempt(
                agent,
                self.graphs,
                Views(
                    self.conversations,
                    self.memories,
                    partial(self._note_call, held),
                    partial(self.activity.note_token, held.run.id),
                    steering,
                    prices,
                    limits_of(held, self._database, settings, prices, partial(self._emit, held=held)),
                ),
                held,
                journal,
                self.buffers.get(held),
            ),
            name=held.run.id,
        )
        working = Working(held, steering, task, self.leases.confirmed_at(held))
        self.leases.register(working)
        deadline = self._compute_time_left(held)
        channel = self._channels.get(held.run.channel)
        indicator = None
        if channel is not None and channel.indicate is not None:
            indicator = asyncio.create_task(self._indicate(held, channel.indicate))
        try:
            either: list[asyncio.Future[Any]] = [task, working.asked]
            await asyncio.wait(either, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                working.cancel("deadline")
                # A task that ignores the cancellation is abandoned: it can store nothing after the run has
                # ended.
                await asyncio.wait([task], timeout=CANCEL_WAIT_S)
        finally:
            if indicator is not None:
                indicator.cancel()
            working.halt()
            if stored is not None:  # a node in an OS thread of its own may still wait
                stored.close(Unavailable("the attempt ended before its checkpoint was stored"))
            del self._working[held.partition]
        return await self._end(working)

    async def _indicate(self, held: HeldRun, indicate: Indicate) -> None:
        """Show on the run's channel that an answer is being written."""
        try:
            await contain(indicate(held.partition, held.messages[-1]))
        except Exception as error:
            self._emit("run.indicator_failed", held, error=type(error).__name__)

    def _add_replies(self, held: HeldRun, ending: Ending) -> Ending:
        """Return the ending of a run with its replies as they are stored."""
        if held.run.channel == WEBHOOK:
            return add_notice(held, ending)
        channel = self._channels.get(held.run.channel)
        if channel is not None:
            with contain_exits():
                return channel.format_replies(ending)
        # The interrupts of a run are not replies by themselves.
        return replace(ending, replies=()) if ending.state == WAITING else ending

    async def _end(self, working: Working) -> bool:
        task, how = working.task, working.how
        held = working.steering.add_taken(working.held)
        if held is not working.held:
            self._emit("run.steered", held, messages=len(held.messages) - len(working.held.messages))
            self._queues.forget(held.partition)
        if not task.done():
            self._emit("run.not_heeded", held)
        failure: BaseException | None = None
        is_stopped = working.steering.control.is_stopped
        if not is_stopped and not task.cancelled() and task.exception() is None:
            # It finished before it was stopped. A result in spite of the cancellation does not count.
            try:
                ending = self._format_ending(held, task.result())
            except Exception as error:
                # The channel's functions are the application's, as the graph is: the attempt has failed.
                failure = error
            else:
                try:
                    return await self._finish(held, ending)
                except PERMANENT as refused:
                    return await self._give_up(held, make_failure_note(refused))
        if how == DELETED:
            return False
        if how == "lost":
            self._note_lost(held)
            return False
        if how == "drain":
            await self.hand_back(held)
            return False
        if how == "deadline":
            why = f"it took longer than {self._settings.deadline} s"
            return await self._give_up(held, {"error": why, "kind": TIMEOUT})
        if how:
            return await self._stop(held, how)
        if failure is None and task.done() and not task.cancelled():
            failure = task.exception()
        if isinstance(failure, Fenced):
            # A node's own call on another thread, or on this one, raises it, too: ask for this run's lease.
            now = await self._clock.now()
            held = await self._database.arun(runs.renew(held, now, self._settings.lease_us))
        return await self._fail(held, failure or asyncio.CancelledError())

    async def hand_back(self, held: HeldRun) -> None:
        """Release a healthy run: it is due for other workers at once, and the attempt does not count."""
        now = await self._clock.now()
        await self._database.arun(runs.postpone(held, now, held.run.note, now, counts=False))
        self._emit("run.handed_over", held)
        self._notifications.notify_due(held.partition)

    def _format_ending(self, held: HeldRun, ending: Ending) -> Ending:
        """Return the ending of a run as it is stored, with its replies and its waits.

        Raises:
            Exception: A function of the run's channel raises this, or makes replies that cannot be stored.
        """
        asked = {one["id"]: one for one in ending.replies} if ending.state == WAITING else {}
        return self._add_waits(held, self._add_replies(held, ending), asked)

    async def _finish(self, held: HeldRun, ending: Ending) -> bool:
        """End a run with an ending that ``_format_ending`` made."""
        now = await self._clock.now()
        last, puts = await self.buffers.end(held, ending)
        buffer = self.buffers.get(held)
        fresh, max_ops = self._database.draw_version(), self._database.limits.ops
        finish = runs.finish(held, ending, now, fresh, max_ops, puts)
        # Expired records are looked for in the round trip of the end, where that is possible.
        fetch = queue_retention.make_request_at_end(held.partition, held.run)
        fetched = None
        try:
            (lane, replies), fetched = await self._database.arun_and_fetch(finish, fetch)
        except Followed:
            # Another process began to follow the thread during the run.
            buffer = buffer or await self.buffers.make(held, is_stored=True)
            buffer.start_storing()
            last, puts = await self.buffers.end(held, ending)
            lane, replies = await self._database.arun(runs.finish(held, ending, now, fresh, max_ops, puts))
        # Only the stored note has the times at which its waits are due.
        ending = replace(ending, note=with_waits(ending.note, {}))
        self._note_end(held, ending)
        if buffer is not None:
            self.buffers.close(held, last, Ended.of(held, ending, now, buffer.values))
        self.activity.count_run(held, ending, now)
        self._emit(f"run.{ending.state}", held, took=now - held.run.started_at, replies=len(replies))
        self.conversations.begin_due_summary(held.partition)
        is_to_go = held.run.graph == MEMORY and await self.memories.remove_lane_texts(
            self.graphs.graph(MEMORY, held.partition.tenant), held
        )
        if replies and self._works:
            self._dispatch.serve_soon((held.partition, OUT))
        elif replies:
            self._notifications.notify_due(held.partition)
        self._queues.note_ended(held.partition, lane, runs.compute_closed_epoch(held.epoch))
        if lane.due_at is not None and not lane.is_due(now):
            self._dispatch.schedule(held.partition, lane, now)
        self._schedule_waits(held)
        if fetch is not None:
            keep = now - round(self._settings.keep * 1_000_000)
            at = random.random()
            await self._database.arun(queue_retention.forget(held.partition, keep, max_ops, fetched, at))
        if is_to_go and await self._database.arun(thread_removal.remove_if_idle(held.partition)):
            self._queues.forget(held.partition)
            return False
        return lane.is_due(now)

    def _add_waits(self, held: HeldRun, ending: Ending, asked: Mapping[str, Any]) -> Ending:
        """Return the ending of a run that leaves a question, with the waits that its nodes have begun, and
        what their reminders send: the question, as it was ``asked`` on the run's channel."""
        begun = self._waits.get(held.run.id)
        if not begun or ending.state == DONE:
            return ending
        if ending.state == WAITING:
            ids = {one["id"] for one in ending.note["interrupts"]}
            begun = {name: wait for name, wait in begun.items() if name in ids}
        for name, wait in begun.items():
            if wait.remind and held.run.channel:
                again = Ending(WAITING, {}, [asked[name]] if name in asked else ())
                replies = tuple(self._add_replies(held, again).replies)
                begun = {**begun, name: replace(wait, replies=replies)}
        return replace(ending, note=with_waits(ending.note, begun))

    def _schedule_waits(self, held: HeldRun) -> None:
        """If waits of a run that has ended are due within ``_SOON_POLLS`` polls, schedule them here. Later
        waits cost this process nothing until they are due."""
        begun = self._waits.get(held.run.id, {}).values()
        if any(wait.kind == "signal" for wait in begun):
            self._dispatch.serve_soon((held.partition, TIMER))
            return
        first = min((wait.due_at for wait in begun if wait.due_at is not None), default=None)
        if first is not None and first <= _SOON_POLLS * self._settings.poll * 1_000_000:
            self._dispatch.serve_later((held.partition, TIMER), first / 1_000_000)

    def _note_end(self, held: HeldRun, ending: Ending) -> None:
        """Notify those who wait for the run's end in this process."""
        run = replace(held.run, state=ending.state, note=held.run.with_version(ending.note))
        self._latest_ended[held.partition] = (run, tuple(message.id for message in held.messages))
        self._notifications.notify(ENDED, held.partition)

    async def _stop(self, held: HeldRun, how: str) -> bool:
        """End a run that was asked to stop; a rollback removes what it stored."""
        if held.messages[0].is_withdrawn:
            is_kept, note = False, dict[str, Any](begun=False)
        else:
            held, note = await self._roll_back(held, how == ROLLBACK)
            is_kept = bool(note)
        stopped = Ending(decide_stopped_state(how, is_kept=is_kept), note)
        return await self._finish(held, self._format_ending(held, stopped))

    def _note_lost(self, held: HeldRun) -> None:
        self._emit("run.lost", held)
        self.excuses.add(held)

    async def _fail(self, held: HeldRun, error: BaseException) -> bool:
        note = make_failure_note(error)
        self._emit("run.attempt_failed", held, error=type(error).__name__, place=place_of(error))
        log_failure(held.run.id, error)
        max_attempts = self._settings.attempts
        attempts = Options.read(held.messages[0].options).attempts
        is_no_fault, may_excuse = self._judge.is_no_fault(error, held), self._judge.may_excuse(error)
        if attempts is not None and not may_excuse:
            # An unavailable database is not the graph's fault: its run is retried, as after a crash.
            max_attempts = min(attempts, max_attempts)
        is_excused = not is_no_fault and may_excuse and await self._database.arun(runs.excuse(held))
        is_no_fault = is_no_fault or is_excused
        is_permanent = self._judge.is_permanent(error, held)
        if not is_no_fault and (is_permanent or runs.count_attempts(held.run) >= max_attempts):
            return await self._give_up(held, note, find_unfit_answer(error, held.messages[0]))
        now = await self._clock.now()
        until = now + self._settings.pause_us(held.run.attempts, spread(), error)
        put_off = runs.postpone(held, until, note, now, counts=is_excused or not is_no_fault)
        postponed = await self._database.arun(put_off)
        self._dispatch.schedule(held.partition, postponed.lane, now)
        return False

    async def _give_up(self, held: HeldRun, why: Mapping[str, Any], unfit: UnfitAnswer | None = None) -> bool:
        """End a run that has failed, with the agent's apology, or with what is wrong with its answer."""
        options = Options.read_if_readable(held.messages[0].options)
        is_whole = (options.on_failure or self._settings.on_failure) == "rollback"
        held, kept = await self._roll_back(held, is_whole)
        note = {**why, **kept}
        apology = self.graphs.agents[held.run.graph].apology
        if unfit is not None:
            note["error"] = unfit.explain(note["error"], is_taken_back=is_whole and not kept)
            apology = apology and unfit.text
        replies = ({"role": "assistant", "content": apology},) if apology and held.run.channel else ()
        failed = Ending(FAILED, note, replies)
        try:
            ending = self._format_ending(held, failed)
        except Exception as error:
            # An apology that its channel cannot divide is sent whole: otherwise the run would never end.
            self._emit("run.apology_not_divided", held, error=type(error).__name__)
            ending = self._add_waits(held, failed, {})
        return await self._finish(held, ending)

    async def _roll_back(self, held: HeldRun, is_whole: bool) -> tuple[HeldRun, dict[str, Any]]:
        """Remove all records of a run if ``is_whole``; otherwise only the answers after which it failed, and
        its records in subgraphs after them.

        Returns:
            The run, under an epoch that its own late writes do not have, and a note: if not all records
            could be removed, and all stay, with the reason.
        """
        note: dict[str, Any] = {}
        buffer = self.buffers.get(held)
        if buffer is not None:
            await buffer.flush()
        now = await self._clock.now()
        held = await self._database.arun(runs.fence(held, now, self._settings.lease_us))
        if buffer is not None:
            buffer.epoch = held.epoch
        try:
            if is_whole:
                await self._database.roll_back(held.partition, held.run.id, epoch=held.epoch)
                return held, note
        except (CannotTakeBack, Corrupt) as error:
            self._emit("run.not_taken_back", held, error=type(error).__name__)
            note = {"not_taken_back": shorten_error(error)}
        try:
            # Subgraphs have to ask the questions that are shown, so they are rolled back to these.
            behind = await self._database.arun(questions.read_behind(held.partition, held.run))
            if behind:
                await self._database.roll_back(held.partition, held.run.id, epoch=held.epoch, within=behind)
            release = questions.release_answers(held.partition, held.run, held.messages[0])
            await self._database.arun(release)
        except (CannotTakeBack, Corrupt) as error:
            self._emit("run.not_taken_back", held, error=type(error).__name__)
        return held, note

    def _compute_time_left(self, held: HeldRun) -> float | None:
        """Return the seconds until the run's deadline, or ``None`` without one."""
        if self._settings.deadline is None:
            return None
        spent = (self._clock.estimate() - held.run.started_at) / 1_000_000
        return max(0.0, self._settings.deadline - spent)

    def _find_fields(self, partition: Partition) -> dict[str, Any] | None:
        working = self._working.get(partition)
        return None if working is None else fields_of(working.held)

    def _emit(self, name: str, held: HeldRun, **fields: Any) -> None:
        self._observers.event(name, **fields_of(held), **fields)
