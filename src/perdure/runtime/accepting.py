"""Acceptance of messages: each is stored in one commit, then its run is scheduled in a process that works."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar, cast, get_args

from perdure.engine.queue import accept_and_claim, questions, scheduled
from perdure.engine.queue.claims import RememberedInbox
from perdure.engine.queue.inbox import Accept, Accepted, Strategy, was_accepted
from perdure.engine.queue.preconditions import AlreadyCreated, Precondition
from perdure.engine.queue.retries import Retry
from perdure.engine.threads.steering import STEER
from perdure.errors import LimitReached, PerdureError, QueueFull, Unavailable
from perdure.model.ops import Expect, Fetch, Put, Refused
from perdure.model.program import Program, ask
from perdure.model.records import LANE, Partition
from perdure.model.runs.messages import Message
from perdure.model.runs.payloads import COMMAND
from perdure.model.runs.queue import IN, Debounce, Lane
from perdure.runtime.control import Control
from perdure.runtime.options import Options
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.settings import parse_span
from perdure.runtime.tickets import SignalReceipt, Ticket, make_id, make_signal
from perdure.runtime.worker.run_limits import mark_counted
from perdure.runtime.worker.worker import Worker
from perdure.storage.port import Answers

R = TypeVar("R")
__all__ = ["Acceptance", "AcceptanceTerms", "AlreadyCreated", "Precondition", "Strategy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceTerms:
    """Terms of an acceptance.

    Attributes:
        debounce: The wait for more messages.
        strategy: The treatment of an open run.
        precondition: A record that must exist, or is written with the message.
        cancel_pending: True if a strategy that ends the open run also withdraws waiting messages.
    """

    debounce: Debounce = field(default_factory=Debounce)
    strategy: Strategy = "enqueue"
    precondition: Precondition | None = None
    cancel_pending: bool = False


class Acceptance:
    """Accepts messages for the threads of a runtime."""

    def __init__(self, context: RuntimeContext, worker: Worker, control: Control) -> None:
        self._context = context
        self._worker = worker
        self._control = control
        self._graphs = worker.runner.graphs

    async def accept(self, partition: Partition, message: Message, terms: AcceptanceTerms) -> Ticket:
        """Store a message, and start its run if it is due and this process works.

        A limit on runs that is set to refuse may refuse the message first.

        Args:
            partition: The thread.
            message: The message.
            terms: The terms of its acceptance.

        Raises:
            QueueFull: Too many messages wait on the thread.
            RunInProgress: The strategy is ``"reject"``, and a run is open or a message waits.
            NotWaiting: The message is an answer that the thread does not wait for.
            Conflict: The message is a command that would abandon an open question.
            NotFound: The record that must exist does not.
            AlreadyCreated: The record to write was written meanwhile.
            LimitReached: A limit refuses a run that would have to wait.
        """
        limits, database = self._worker.runner.limits, self._context.database
        if limits is None:
            return await self._accept(partition, message, terms)
        if limits.refuses and message.mode == "answer" and not message.graph:
            # The limits of its run are those of the graph that asked.
            message = replace(message, graph=await self._find_asking_graph(partition))
        try:
            turn = await limits.admit(partition, message)
        except LimitReached as refused:
            dedupe = message.dedupe
            if bool(dedupe) and await database.arun(was_accepted(partition, dedupe)):
                return await self._accept(partition, message, terms)
            self._context.observers.thread_event(
                "limit.refused", partition, graph=message.graph, limit=refused.limit
            )
            raise
        if turn is None:
            return await self._accept(partition, message, terms)
        is_next = self._context.works and not terms.debounce.quiet
        is_next = is_next and not self._worker.dispatch.will_serve(partition)
        try:
            ticket = await self._accept(partition, mark_counted(message, turn), terms)
        except BaseException:
            limits.give_back(turn)
            raise
        with self._context.report_errors(partition):
            if ticket.is_duplicate:
                limits.give_back(turn)
            else:
                limits.note_accepted(partition, message, turn, is_next=is_next)
        return ticket

    async def _find_asking_graph(self, partition: Partition) -> str:
        """Return the graph that asked the thread's open question; empty if it is not known."""
        read_asked = partial(self._graphs.read_asked, partition)
        question = await self._context.database.arun(questions.find(partition, read_asked))
        if question is None or question.run is None:
            return ""
        return question.run.graph

    async def _accept(self, partition: Partition, message: Message, terms: AcceptanceTerms) -> Ticket:
        if terms.strategy not in get_args(Strategy):
            raise ValueError(
                f"strategy is one of {', '.join(map(repr, get_args(Strategy)))}, not {terms.strategy!r}"
            )
        if terms.strategy == STEER:
            _require_steering(message)
            message = replace(message, mode="steer")
        context = self._context
        now = await context.clock.now()
        accept = Accept(
            partition,
            message,
            now,
            terms.debounce,
            terms.strategy,
            context.settings.max_pending,
            context.database.draw_version(),
            terms.precondition,
            terms.cancel_pending,
            partial(self._graphs.read_asked, partition),
        )
        known = await self._find_inbox(accept)
        if known is None or not self._may_begin(accept, known):
            return await self._store_and_schedule(accept, terms, known and known.lane)
        # The caller may be cancelled, but its claim has to be worked on.
        beginning = asyncio.create_task(self._begin_at_once(accept, terms, known))
        self._worker.beginning.add(beginning)
        beginning.add_done_callback(self._forget_beginning)
        return await asyncio.shield(beginning)

    async def _find_inbox(self, accept: Accept) -> RememberedInbox | None:
        """Return the inbox of a message's thread as this process remembers it. If it remembers
        none but may claim the message with its acceptance, read the inbox. Where a commit can also read,
        assume an empty one: the commit checks that."""
        context, partition = self._context, accept.partition
        if isinstance(accept.precondition, Put) and accept.precondition.expect is Expect.ABSENT:
            # A thread that does not exist yet has no inbox, and no epoch.
            return accept_and_claim.NEW
        known = context.queues.get(partition)
        graphs = self._graphs.agents.keys()
        if known is not None or not context.works or not accept_and_claim.may_ever_begin(accept, graphs):
            return known
        if context.database.driver.capabilities.reads_with_commits:
            return accept_and_claim.NEW
        return accept_and_claim.read(
            await context.database.arun(ask(Fetch(partition, accept_and_claim.GETS)))
        )

    def _may_begin(self, accept: Accept, known: RememberedInbox) -> bool:
        """Return True if a message is to be claimed by the commit that stores it, after reserving a slot of
        the worker for its run."""
        context, partition = self._context, accept.partition
        limits = self._worker.runner.limits
        return (
            context.works
            and (limits is None or not limits.has(partition, accept.message))
            and accept_and_claim.may_begin(accept, known, self._graphs.agents.keys())
            and not context.subscriptions.is_followed(partition)
            and self._worker.dispatch.reserve((partition, IN))
        )

    async def _begin_at_once(self, accept: Accept, terms: AcceptanceTerms, known: RememberedInbox) -> Ticket:
        """Store a message and claim its run in one commit; only store it if the thread is not idle."""
        partition, dispatch, runner = accept.partition, self._worker.dispatch, self._worker.runner
        saver = runner.graphs.saver(accept.message.graph, partition.tenant)
        # The run begins by loading its thread: read that with the same commit, if that is possible.
        load = None
        if saver is not None:
            load = saver.plan_early_load(partition.thread)
        gets = accept_and_claim.GETS
        fetch = Fetch(partition, (*gets, *(() if load is None else load.items)))
        try:
            begun, answers = await self._begin(accept, known, fetch)
            if isinstance(begun, Refused) and accept_and_claim.is_of_inbox(begun) and answers is not None:
                # The inbox is not as remembered or assumed; its present state came with the refusal.
                known = accept_and_claim.read(answers[: len(gets)])
                if accept_and_claim.may_begin(accept, known, runner.graphs.agents.keys()):
                    begun, answers = await self._begin(accept, known, fetch)
            if isinstance(begun, Refused):
                dispatch.release((partition, IN))
                is_outdated = accept_and_claim.is_of_inbox(begun) and answers is None
                lane = None
                if begun.kind is LANE and not is_outdated:
                    lane = known.lane
                return await self._store_and_schedule(accept, terms, lane)
            accepted, held = begun
            with self._context.report_errors(partition):
                self._emit_accepted(accept, accepted)
                if saver is not None and load is not None and answers is not None:
                    saver.keep_early_load(load, answers[len(gets) :])
                self._context.queues.note_begun(partition, held.lane)
                self._context.subscriptions.wake(partition)
                if dispatch.is_stopping:
                    await runner.hand_back(held)
                else:
                    runner.note_claimed(held, known.epoch)
                    dispatch.serve_reserved((partition, IN))
            return _make_ticket(partition, accepted)
        finally:
            dispatch.release((partition, IN))

    async def _begin(
        self, accept: Accept, known: RememberedInbox, fetch: Fetch
    ) -> tuple[accept_and_claim.Begun | Refused, Answers | None]:
        """Try to store a message and claim its run, and ``fetch`` if that costs no further round trip."""
        runner = self._worker.runner
        planned = accept_and_claim.plan(accept, runner.claim(accept.partition, accept.now), known)
        try:
            return await self._store(accept, accept_and_claim.begin(accept, planned, known), fetch)
        except Unavailable:
            runner.note_doubted(planned.held)
            self._worker.dispatch.serve_reserved((accept.partition, IN))
            raise

    def _forget_beginning(self, beginning: asyncio.Task[Ticket]) -> None:
        self._worker.beginning.discard(beginning)
        if not beginning.cancelled():
            # A cancelled caller does not retrieve the error, and asyncio would report it.
            beginning.exception()

    async def _store(
        self, accept: Accept, program: Program[R], fetch: Fetch | None = None
    ) -> tuple[R, Answers | None]:
        """Run a program that stores a message, and ``fetch`` if that costs no further round trip."""
        try:
            return await self._context.database.arun_and_fetch(program, fetch)
        except QueueFull:
            self._emit("message.refused", accept.partition, accept.message)
            raise
        except PerdureError:
            self._context.queues.forget(accept.partition)
            raise

    async def _store_and_schedule(self, accept: Accept, terms: AcceptanceTerms, lane: Lane | None) -> Ticket:
        """Store a message, and schedule its run. ``lane`` is the inbox, as it is remembered."""
        accepted, _ = await self._store(accept, accept.store(lane))
        with self._context.report_errors(accept.partition):
            self._emit_accepted(accept, accepted)
            if accepted.is_duplicate and self._worker.is_resumed:
                # The process of the first request may have died, and perhaps no other watches the thread.
                await self._worker.watch(accept.partition)
            if accepted.lane is not None:
                self._schedule(accept.partition, accepted, terms, accept.now)
        return _make_ticket(accept.partition, accepted)

    def _emit_accepted(self, accept: Accept, accepted: Accepted) -> None:
        name = "message.accepted"
        if accepted.is_duplicate:
            name = "message.duplicate"
        self._emit(name, accept.partition, accept.message, message=accepted.id)

    async def retry(self, partition: Partition, run_id: str) -> Ticket:
        """Store the messages that repeat a failed run, and start that run if this process works; raise the
        errors of ``engine.queue.retries.Retry``."""
        context = self._context
        now = await context.clock.now()
        read_asked = partial(self._graphs.read_asked, partition)
        most, fresh = context.settings.max_pending, context.database.draw_version()
        retry = Retry(partition, run_id, now, most, fresh, make_id, read_asked)
        try:
            accepted = await context.database.arun(retry.store())
        finally:
            context.queues.forget(partition)
        if accepted.lane is not None and accepted.message is not None:
            with context.report_errors(partition):
                self._emit("run.retried", partition, accepted.message, message=accepted.id)
                self._start(partition, accepted.lane, now)
        return _make_ticket(partition, accepted)

    async def signal(
        self, partition: Partition, name: str, value: object, key: str | None, *, to_all: bool
    ) -> SignalReceipt:
        """Store a signal, and start the run that goes on with it if this process works; raise the
        errors of ``engine.queue.signals.Signal``."""
        context, now = self._context, await self._context.clock.now()
        fresh, read_asked = context.database.draw_version(), partial(self._graphs.read_asked, partition)
        signal = make_signal(
            partition, name, value, key, to_all=to_all, now=now, fresh=fresh, read_asked=read_asked
        )
        signalled = await context.database.arun(signal.store())
        accepted = signalled.accepted
        outcome = "delivered"
        if signalled.is_duplicate:
            outcome = "duplicate"
        elif accepted is None:
            outcome = "kept"
        context.observers.thread_event(f"signal.{outcome}", partition, signal=name)
        if accepted is not None and accepted.lane is not None:
            with context.report_errors(partition):
                context.queues.forget(partition)
                self._start(partition, accepted.lane, now)
        return SignalReceipt.of(signal, signalled)

    async def postpone(
        self, partition: Partition, message: Message, delay: float, precondition: Precondition | None
    ) -> Ticket:
        """Store a message that is queued after ``delay`` seconds; raise ``ValueError`` if that is not a
        number of at least 0."""
        context = self._context
        wait = parse_span("delay", delay)
        now = await context.clock.now()
        most, fresh = context.settings.max_pending, context.database.draw_version()
        program = scheduled.postpone(partition, message, now + wait, most, fresh, precondition)
        accepted: Accepted = await context.database.arun(program)
        with context.report_errors(partition):
            if accepted.lane is not None:
                self._worker.dispatch.schedule_anywhere(partition, accepted.lane, now)
        return _make_ticket(partition, accepted)

    def _start(self, partition: Partition, lane: Lane, now: int) -> None:
        """Start the run of a thread's next message, here, or by notifying processes that work."""
        self._context.subscriptions.wake(partition)
        self._worker.dispatch.schedule_anywhere(partition, lane, now)

    def _schedule(self, partition: Partition, accepted: Accepted, terms: AcceptanceTerms, now: int) -> None:
        context, lane = self._context, cast(Lane, accepted.lane)
        if terms.cancel_pending:
            # The messages in the cached inbox were withdrawn.
            context.queues.forget(partition)
        context.queues.note_accepted(partition, accepted)
        context.subscriptions.wake(partition)
        if lane.stop is not None:
            self._control.request_stop(partition, lane.stop, lane.run_id)
        if terms.strategy == STEER and lane.run_id is not None:
            self._control.notify_of_message(partition)
        self._worker.dispatch.schedule_anywhere(partition, lane, now)

    def _emit(self, name: str, partition: Partition, accepted: Message, **fields: str) -> None:
        self._context.observers.thread_event(
            name, partition, **fields, graph=accepted.graph, channel=accepted.channel
        )


def _require_steering(message: Message) -> None:
    """Raise ``ValueError`` if a message cannot be taken up by an open run."""
    if COMMAND in message.payload or Options.read(message.options).checkpoint_id is not None:
        raise ValueError(
            "a command, or an input that starts from a checkpoint, cannot steer a run that is open; send it "
            "with another strategy"
        )


def _make_ticket(partition: Partition, accepted: Accepted) -> Ticket:
    return Ticket(partition.thread, accepted.seq, accepted.id, accepted.is_duplicate, partition.tenant)
