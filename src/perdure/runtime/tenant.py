"""A runtime for the threads of one tenant: messages, runs, events and replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from langgraph.pregel import Pregel

from perdure.engine.queue import inbox, outbox, questions, runs, scheduled
from perdure.engine.queue.events import Event
from perdure.engine.queue.inbox import Standing, Strategy
from perdure.engine.queue.preconditions import Precondition
from perdure.engine.queue.questions import OpenQuestion
from perdure.errors import NotFound
from perdure.langgraph.store import PerdureStore
from perdure.model.arguments import require_text
from perdure.model.records import Partition
from perdure.model.runs.messages import OPEN, Message, Mode, Reply, Run
from perdure.model.runs.payloads import COMMAND, INPUT, RESUME, check_command, holds_anything
from perdure.model.runs.queue import INTERRUPT_RUN, ROLLBACK, Stop
from perdure.model.runs.waits import require_name
from perdure.runtime.accepting import Acceptance, AcceptanceTerms
from perdure.runtime.agents.agent import make_message_payload
from perdure.runtime.agents.graph_factories import Access
from perdure.runtime.agents.run_user import GraphUser
from perdure.runtime.control import Control
from perdure.runtime.crons import Crons
from perdure.runtime.documents import TenantDocuments, ThreadDocuments
from perdure.runtime.notifications import ENDED, SELDOM_S
from perdure.runtime.options import Options
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.threads.threads import Threads
from perdure.runtime.tickets import (
    SignalReceipt,
    Ticket,
    address_answer,
    message_of,
    options_of,
    partition_of,
)
from perdure.runtime.worker.worker import Worker

_WAIT_S = (0.05, 1.0)
_STOPS: Mapping[bool, Stop] = {False: INTERRUPT_RUN, True: ROLLBACK}
"""Ways to end a run, without and with ``rollback``."""
_MODES: Mapping[bool, Mode] = {False: "enqueue", True: "coalesce"}
"""The mode of a message, without and with ``coalesce``."""
_OF_THE_QUESTION = ""
"""Name in place of a graph's: the graph that asked the open question."""


class TenantRuntime:
    """A runtime for the threads of one tenant, made by ``Runtime.for_tenant``."""

    def __init__(self, context: RuntimeContext, worker: Worker, tenant: str) -> None:
        require_text("tenant", tenant)
        self._context = context
        self._worker = worker
        self._tenant = tenant
        self._database = context.database
        self._control = Control(context, worker)
        self._acceptance = Acceptance(context, worker, self._control)

    @property
    def tenant(self) -> str:
        """Owner of the threads."""
        return self._tenant

    @property
    def threads(self) -> Threads:
        """The tenant's threads as their clients see them."""
        return Threads(self._context, self._control, self._tenant)

    @property
    def crons(self) -> Crons:
        """The tenant's crons."""
        return Crons(self._context, self._worker.dispatch, self._tenant)

    def documents(self, kind: str) -> TenantDocuments:
        """Return the tenant's documents of a kind, such as ``"assistant"``."""
        return TenantDocuments(self._database, self._context.clock, self._tenant, kind)

    def thread_documents(self, thread_id: str, kind: str) -> ThreadDocuments:
        """Return a thread's documents of a kind, which are removed with the thread."""
        thread = Partition(self._tenant, thread_id)
        return ThreadDocuments(self._database, self._context.clock, thread, kind)

    # Acceptance

    async def accept(
        self,
        thread_id: str,
        message: str | Mapping[str, Any],
        *,
        dedupe_key: str | None = None,
        graph: str | None = None,
        channel: str = "",
        debounce: float | None = None,
        max_wait: float | None = None,
        strategy: Strategy = "enqueue",
        coalesce: bool = True,
        config: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> Ticket:
        """Accept a message: text, or a mapping with ``role`` and ``content``.

        It is durable when this returns.

        Args:
            thread_id: The thread.
            message: The message.
            dedupe_key: Sent again with the same key, a message gets the same ticket and has no further
                effect.
            graph: The name of the graph; optional if there is only one.
            channel: The channel for replies; empty for none.
            debounce: Seconds to wait for more messages.
            max_wait: Maximum seconds of that wait.
            strategy: The treatment of an open run: wait for its end, reject the message, end the run with or
                without rollback, or steer it: the run takes the message up at its next step.
            coalesce: True to join messages that wait on the thread into one run, in order.
            config: LangGraph's config.
            options: Further options of the run.

        Raises:
            QueueFull: Too many messages wait on the thread.
            RunInProgress: The strategy is ``"reject"``, and a run is open or a message waits.
            TypeError: The message is neither text nor a mapping.
            ValueError: The mapping has no ``content``, and the agent has no ``to_input`` of its own.
        """
        given = options_of(config, options)
        name = self._resolve_graph_name(graph)
        payload = make_message_payload(message, self._context.agents[name])
        stored_message = message_of(name, payload, _MODES[coalesce], dedupe_key, channel, given)
        debouncing = self._context.settings.debounce_for(debounce, max_wait)
        terms = AcceptanceTerms(debounce=debouncing, strategy=strategy)
        return await self._acceptance.accept(self._partition(thread_id), stored_message, terms)

    async def submit(
        self,
        thread_id: str,
        input: Any,  # noqa: A002 - LangGraph's word
        *,
        dedupe_key: str | None = None,
        graph: str | None = None,
        channel: str = "",
        strategy: Strategy = "enqueue",
        command: Mapping[str, Any] | None = None,
        coalesce: bool = False,
        debounce: float = 0.0,
        max_wait: float | None = None,
        delay: float = 0.0,
        cancel_pending: bool = False,
        config: Mapping[str, Any] | None = None,
        options: Options | None = None,
        precondition: Precondition | None = None,
    ) -> Ticket:
        """Accept a whole input for the graph, or a LangGraph ``command`` in its place.

        The input is plain JSON data, and becomes a run of its own, whose id is the ticket's. The other
        arguments are as for ``accept``.

        Args:
            input: The graph's input.
            command: A command's ``update``, ``goto`` and ``resume``. One with a ``resume`` is an answer, and
                is accepted or refused as by ``answer``.
            coalesce: True to join waiting inputs with the same options into one run with the id of the first:
                those whose lists can be concatenated without losing another value. Commands are not joined.
            delay: Seconds until it takes its turn; other messages do not wait for it, and until then its
                ticket has no number.
            cancel_pending: True if a ``strategy`` that ends the open run also withdraws waiting messages.
            precondition: A record that must exist, or is written with the message.

        Raises:
            ValueError: A number of seconds is negative, or more than 100 years; or the command holds nothing,
                or an update or a goto that no graph can apply, or an answer has a delay.
            Conflict: The command goes to another node, and would abandon an open question.
            NotWaiting: The command is an answer, and the thread does not wait for it.
        """
        mode, payload = _MODES[coalesce], {INPUT: input}
        interrupt_ids: Sequence[str] | None = None
        if command is not None:
            check_command(command)
            if not holds_anything(command):
                raise ValueError(
                    "the command holds nothing: no update, no goto and no resume; to go on without input, "
                    "leave it out and pass None as the input"
                )
            payload = {COMMAND: dict(command)}
            if RESUME in command:
                mode, (_, interrupt_ids) = "answer", address_answer(command[RESUME], None)
        given = options_of(config, options)
        name = self._resolve_graph_name(graph)
        message = message_of(name, payload, mode, dedupe_key, channel, given, answers=interrupt_ids)
        partition = self._partition(thread_id)
        if delay != 0:
            if mode == "answer":
                raise ValueError("an answer is given now; leave the delay of a command that resumes out")
            if coalesce or strategy != "enqueue":
                raise ValueError("what comes later waits for its turn; leave out coalesce and strategy")
            return await self._acceptance.postpone(partition, message, delay, precondition)
        terms = AcceptanceTerms(
            debounce=self._context.settings.debounce_for(debounce, max_wait),
            strategy=strategy,
            precondition=precondition,
            cancel_pending=cancel_pending,
        )
        return await self._acceptance.accept(partition, message, terms)

    async def answer(
        self,
        thread_id: str,
        value: Any,
        *,
        interrupt_id: str | None = None,
        dedupe_key: str | None = None,
        graph: str | None = None,
        channel: str = "",
        command: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        options: Options | None = None,
        precondition: Precondition | None = None,
    ) -> Ticket:
        """Answer the interrupt for which a thread waits, so that its graph continues.

        Replies go to the channel of the interrupted run by default. The other arguments are as for
        ``accept``.

        Args:
            value: The answer; for several interrupts, answers by interrupt id as LangGraph takes them.
            interrupt_id: The interrupt, if the thread waits for several.
            graph: The graph that asked, if an application ran it itself and this runtime has several. The
                graph of a stored run is known.
            channel: Another channel for replies.
            command: A LangGraph command's ``update`` and ``goto`` to apply with the answer.
            precondition: A record that must exist, or is written with the answer.

        Raises:
            NotWaiting: The thread does not wait for this interrupt; of two answers the second is refused.
            NotFound: The options name a checkpoint that is not stored.
            ValueError: The command has an update or a goto that no graph can apply.
        """
        resume, interrupt_ids = address_answer(value, interrupt_id)
        if command is not None:
            check_command(command)
        payload = {RESUME: resume}
        if command:
            payload = {COMMAND: {**command, RESUME: resume}}
        given = options_of(config, options)
        graph_name = _OF_THE_QUESTION
        if graph is not None or len(self._context.agents) == 1:
            graph_name = self._resolve_graph_name(graph)
        message = message_of(graph_name, payload, "answer", dedupe_key, channel, given, answers=interrupt_ids)
        terms = AcceptanceTerms(precondition=precondition)
        return await self._acceptance.accept(self._partition(thread_id), message, terms)

    async def signal(
        self, thread_id: str, name: str, value: Any = None, *, key: str | None = None, to_all: bool = True
    ) -> SignalReceipt:
        """Give a signal to a thread: its graph continues where it waits for a signal of this name.

        It is durable when this returns. A signal for which the thread does not wait is kept until it does: at
        most 100 signals, with 256 kB in all.

        Args:
            thread_id: The thread.
            name: The name of the signal, as in ``wait_for``.
            value: The result of ``wait_for``, plain JSON data.
            key: The sender's key: sent again with the same key, a signal has no further effect.
            to_all: False to end one wait, if several branches of the graph wait for this name.

        Raises:
            NotFound: There is no such thread.
            QueueFull: The thread keeps as many signals as it may.
            ValueError: The name or the key is empty or too long.
            Unserialisable: The value is not plain JSON data.
            TooLarge: The value is too large.
        """
        if key is not None:
            require_text("key", key)
            if not key:
                raise ValueError("key is empty; give the sender's key of the signal, or None")
        partition = self._partition(thread_id)
        return await self._acceptance.signal(partition, require_name(name), value, key, to_all=to_all)

    async def retry(self, thread_id: str, run_id: str) -> Ticket:
        """Run a failed run again from the last step that is stored, as a run of its own.

        If that step is the thread's latest, the graph goes on from it without input. If nothing of the run is
        stored, as after a rollback, its messages are accepted again; an answer is given again. The record of
        the failure stays. If this is called twice, the run is repeated once, and both calls return the same
        ticket, unless the repetition was cancelled in between.

        Raises:
            NotFound: There is no such run, or its messages were removed.
            Conflict: The run has not failed, or the thread has gone on after it.
            RunInProgress: Another run is open or waits, and this one would go on from the latest step.
            NotWaiting: The run was that of an answer, and its question is not open any more.
            QueueFull: Too many messages wait on the thread.
        """
        return await self._acceptance.retry(self._partition(thread_id), run_id)

    # Work on demand

    async def run_until_idle(self, thread_id: str, *, within: float | None = None) -> float | None:
        """Work on a thread in this call until nothing of it is due: its runs, its replies, its scheduled
        messages. For a runtime with ``works=False`` in a process that has no worker.

        When it returns or raises, this process holds no lease of the thread. If a process makes several calls
        for a thread at once, one does the work, and the others wait for it.

        Args:
            thread_id: The thread.
            within: Seconds for the work. The call also waits for what becomes due in that time, such as
                another attempt, the end of a debounce, or the expiry of another process's lease.

        Returns:
            The seconds after which something of the thread is due; ``None`` if nothing waits.

        Raises:
            TimeoutError: The work took longer than ``within``. Unfinished work is released, and due for the
                next call or worker at once.
            NotFound: The next run or reply needs a graph or channel that this runtime does not have.
            RuntimeError: This runtime has a worker, which does the work.
        """
        if self._context.works:
            raise RuntimeError("this runtime has a worker, which does the work; open it with works=False")
        later = await self._worker.serve_until_idle(self._partition(thread_id), within)
        if later is None:
            return None
        return max(0.0, (later - await self._context.clock.now()) / 1_000_000)

    # Queries

    async def question(self, thread_id: str) -> OpenQuestion | None:
        """Return the open question of a thread, which ``answer`` can answer; ``None`` if there is none."""
        partition = self._partition(thread_id)
        program = questions.find(partition, partial(self._worker.runner.graphs.read_asked, partition))
        return await self._database.arun(program)

    async def waiting_run(self, thread_id: str) -> str | None:
        """Return the run whose question a thread's latest checkpoint asks, whether or not it may be answered
        now; ``None`` if there is none."""
        return await self._database.arun(questions.waiting_run(self._partition(thread_id)))

    async def look(self, ticket: Ticket) -> Standing:
        """Return the state of an accepted message, with its run if it has one; raise ``NotFound`` if it was
        removed."""
        partition = partition_of(ticket)
        if ticket.number:
            return await self._database.arun(inbox.read_standing(partition, ticket.number, ticket.id))
        standing = await self._database.arun(inbox.find(partition, ticket.id))
        if standing is None:
            raise NotFound(f"thread {ticket.thread_id!r} has no message {ticket.id!r}: it was removed")
        return standing

    async def wait(self, ticket: Ticket, timeout: float | None = None) -> Run:  # noqa: ASYNC109
        """Wait until the run of an accepted message has ended, in any process, and return it. Raise
        ``TimeoutError`` after ``timeout`` seconds; the run continues. Raise ``NotFound`` if the message was
        removed, and ``RuntimeError`` if this runtime works itself and was never entered, as nothing might
        ever end the run."""
        partition = partition_of(ticket)
        if self._context.works and not self._worker.was_started:
            raise RuntimeError(
                "this runtime is not open, so it works on nothing; write `async with Runtime(…) as runtime:`,"
                " or pass works=False if other processes do the work"
            )
        pause, longest = _WAIT_S
        # A run that ended long ago is not remembered here, so the first wait is short: the database is read
        # next.
        seldom = longest
        is_ours = self._worker.dispatch.will_serve(partition)
        with self._worker.dispatch.share_slot(partition):
            async with asyncio.timeout(timeout):
                while True:
                    if (run := self._worker.runner.find_ended(partition, ticket.id)) is not None:
                        return run
                    ended = self._context.notifications.expect(ENDED, partition)
                    run = None if is_ours else (await self.look(ticket)).run
                    if run is not None and run.state != OPEN:
                        return run
                    is_ours = False
                    await ended.wait(seldom if self._worker.dispatch.will_serve(partition) else pause)
                    pause, seldom = min(longest, pause * 1.5), SELDOM_S

    async def run_id(self, ticket: Ticket) -> str:
        """Return the id of the run of an accepted message: its own, also if it was removed, or that of the
        first message with which it is joined."""
        partition = partition_of(ticket)
        if not ticket.number:
            # A postponed message becomes a run of its own.
            return ticket.id
        most = self._context.settings.max_batch
        program = inbox.find_run_id(partition, ticket.number, ticket.id, most)
        return await self._database.arun(program) or ticket.id

    async def find(self, thread_id: str, run_id: str) -> Standing | None:
        """Return the state of the message whose run has this id, or will have it. A message that is joined
        with an earlier one has the id of their common run."""
        most = self._context.settings.max_batch
        return await self._database.arun(inbox.find(self._partition(thread_id), run_id, most))

    def follow(self, thread_id: str, run_id: str, *, after: int = 0) -> AsyncIterator[Event | Standing]:
        """Yield the events of a run, wherever it is worked on, then the state in which it ended.

        The run was accepted with ``Options(stream=…)``. Events are provisional.

        Args:
            thread_id: The thread.
            run_id: The run.
            after: The number of the last event that the caller has; 0 for all.

        Raises:
            NotFound: There is no such run.
            SubscriberTooSlow: The next event is not kept any more.
        """
        partition = self._partition(thread_id)
        items = self._context.subscriptions.follow_run(partition, run_id, after)
        return self._worker.dispatch.share_slot_during(partition, items)

    def follow_thread(self, thread_id: str, *, after: int) -> AsyncIterator[Event]:
        """Yield the events of all runs of a thread after a number, wherever they are worked on, with each
        run's end (an event named ``END``). It never ends, and the thread need not exist yet, or any more.
        Raise ``SubscriberTooSlow`` if the next event is not kept any more."""
        return self._context.subscriptions.follow_thread(self._partition(thread_id), after)

    async def expect_followers(self, thread_id: str) -> None:
        """Record that this process follows a thread: when this returns, processes that work on its runs store
        their events. ``follow_thread`` does the same on its first iteration; call this before
        ``latest_event`` to miss nothing in between. Without a subscriber the record lasts for 90 seconds."""
        await self._context.subscriptions.note(self._partition(thread_id))

    async def latest_event(self, thread_id: str) -> int:
        """Return the number of a thread's latest event, after which to ``follow``."""
        return await self._context.subscriptions.latest(self._partition(thread_id))

    def store(self) -> PerdureStore:
        """Return the store of the graphs."""
        return self._worker.runner.graphs.store(self._tenant)

    def graph(self, name: str) -> Pregel[Any, Any, Any, Any]:
        """Return a graph with the tenant's checkpointer and store, to read and edit state."""
        return self._worker.runner.graphs.graph(self._resolve_graph_name(name), self._tenant)

    def open_graph(
        self,
        name: str | None,
        access: Access,
        *,
        user: GraphUser | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[Pregel[Any, Any, Any, Any]]:
        """Open the same as ``graph`` for a block, including graphs that a factory makes for each use.

        Args:
            name: The name of the graph; of several one has to be named.
            access: The purpose, for a factory.
            user: The verified user, for a factory.
            config: The config, for a factory.
        """
        graphs = self._worker.runner.graphs
        return graphs.open(self._resolve_graph_name(name), self._tenant, access, user=user, config=config)

    async def messages(
        self, thread_id: str, *, limit: int = 100, before: int | None = None
    ) -> Sequence[Standing]:
        """Return the newest messages of a thread with their runs, newest first; those below the number
        ``before`` if it is given."""
        most = self._context.settings.max_batch
        return await self._database.arun(inbox.read_latest(self._partition(thread_id), limit, before, most))

    async def list_postponed(self, thread_id: str, *, limit: int = 100) -> Sequence[Message]:
        """Return the messages of a thread whose time comes later, the earliest due first."""
        return await self._database.arun(scheduled.list_postponed(self._partition(thread_id), limit))

    async def postponed_threads(self) -> Sequence[str]:
        """Return the threads that have messages whose time comes later."""
        found = await self._database.arun(scheduled.find_threads(self._tenant))
        return [partition.thread for partition in found]

    async def runs(self, thread_id: str, *, limit: int = 100, before: int | None = None) -> Sequence[Run]:
        """Return the newest runs of a thread that have begun, newest first; those whose first message is
        below the number ``before`` if it is given. Those that wait are among ``messages`` and
        ``list_postponed``."""
        return await self._database.arun(runs.read_latest(self._partition(thread_id), limit, before))

    async def replies(
        self, thread_id: str, *, limit: int = 100, before: int | None = None
    ) -> Sequence[Reply]:
        """Return the newest replies of a thread, newest first, sent or not; those below the number ``before``
        if it is given."""
        return await self._database.arun(outbox.read_replies(self._partition(thread_id), limit, before))

    # Control

    async def stop(self, thread_id: str, run_id: str, *, rollback: bool = False) -> bool:
        """End an open run and keep what it stored, or remove that with ``rollback``. Return True if the run
        was open."""
        return await self._control.stop(self._partition(thread_id), run_id, _STOPS[rollback])

    async def cancel(self, thread_id: str, run_id: str, *, rollback: bool = False) -> bool:
        """End a waiting or open run. Return True if there was one."""
        if rollback:
            # Once it is rolled back, the run does not show any more that the thread was in use.
            await self.threads.touch(thread_id)
        return await self._control.cancel(self._partition(thread_id), run_id, _STOPS[rollback])

    async def withdraw(self, thread_id: str, run_id: str, *, rollback: bool = False) -> bool:
        """Withdraw a message that still waits. Return True if it did."""
        return await self._control.withdraw(self._partition(thread_id), run_id, _STOPS[rollback])

    async def retry_reply(self, thread_id: str, number: int) -> Reply:
        """Send a dead or held reply again, after all others of its thread."""
        return await self._control.retry_reply(self._partition(thread_id), number)

    async def delete(self, thread_id: str) -> None:
        """Remove a thread with its checkpoints, messages, runs and replies. A current run, in any process,
        can store nothing more."""
        await self._control.delete(self._partition(thread_id))

    async def remove_run(self, thread_id: str, run: Run, *, rollback: bool = False) -> None:
        """Remove the records of a run that has ended; with ``rollback`` also what it stored in the thread.

        Raises:
            CannotTakeBack: The checkpoint to return to was pruned since.
        """
        # As in ``cancel``.
        await self.threads.touch(thread_id)
        await self._control.remove_run(self._partition(thread_id), run, rollback=rollback)

    def _partition(self, thread_id: str) -> Partition:
        require_text("thread_id", thread_id)
        if not thread_id:
            raise ValueError("a message needs a thread: thread_id is empty")
        return Partition(self._tenant, thread_id)

    def _resolve_graph_name(self, graph: str | None) -> str:
        if graph is None:
            if len(self._context.agents) == 1:
                return next(iter(self._context.agents))
            raise ValueError(f"name the graph: graph=… one of {sorted(self._context.agents)}")
        if graph not in self._context.agents:
            raise NotFound(f"there is no graph {graph!r}; there are {sorted(self._context.agents)}")
        return graph
