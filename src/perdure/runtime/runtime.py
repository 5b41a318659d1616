"""Runtime: accepts messages durably, and turns them into runs and replies with its workers."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from langgraph.pregel import Pregel
from langgraph.store.base import TTLConfig

from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine import inbox, outbox, removal, retention, runs, scheduled
from perdure.engine.events import Event
from perdure.engine.inbox import Accept, Accepted, Standing, Strategy
from perdure.engine.removal import MayGo
from perdure.errors import NotFound, PerdureError, QueueFull
from perdure.langgraph.store import PerdureStore
from perdure.model.messages import OPEN, Message, Mode, Reply, Run
from perdure.model.ops import Check, Now
from perdure.model.program import ask
from perdure.model.queue import IN, INTERRUPT, ROLLBACK, Debounce
from perdure.model.records import Partition
from perdure.runtime.agents import COMMAND, INPUT, RESUME, Agent, agents, message_payload
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.events.subscription import Subscriptions
from perdure.runtime.graph_factories import Access
from perdure.runtime.interrupt_answers import is_by_name
from perdure.runtime.notifications import ENDED, Notifications
from perdure.runtime.observe import Logs, Observer, Observers
from perdure.runtime.on_demand import OnDemand
from perdure.runtime.options import Options
from perdure.runtime.queue_cache import QueueCache
from perdure.runtime.settings import Settings
from perdure.runtime.tickets import Ticket, message_of, options_of
from perdure.runtime.users import GraphUser
from perdure.runtime.worker.delivery import Channel, Delivery
from perdure.runtime.worker.runner import DELETED
from perdure.runtime.worker.worker import Worker

_WAIT_S = (0.05, 1.0)
_OF_THE_QUESTION = ""


class Runtime(OnDemand):
    """Accepts messages for threads and works on them. An async context manager for one event loop.

    Args:
        database: The database, whose tenant is the default of all methods.
        graphs: Compiled graphs or ``Agent``s by name; a single one is named ``agent``.
        channels: Channels for replies by name.
        settings: Limits and times.
        works: False to accept messages only, and leave the work to other processes.
        all_tenants: True to work on the threads of all tenants.
        observers: Receivers of events; by default events are logged.
        name: The name of this process as the holder of runs.
        store_ttl: LangGraph's TTL settings for the graphs' store.

    Raises:
        ValueError: There is no graph, or a channel has no name or a timeout longer than the lease.
    """

    def __init__(
        self,
        database: Database | SyncDatabase,
        graphs: Mapping[str, Agent | Pregel[Any, Any, Any, Any]] | Agent | Pregel[Any, Any, Any, Any],
        *,
        channels: Mapping[str, Channel] | None = None,
        settings: Settings | None = None,
        works: bool = True,
        all_tenants: bool = False,
        observers: Sequence[Observer] | None = None,
        name: str | None = None,
        store_ttl: TTLConfig | None = None,
    ) -> None:
        self._database = handle = handle_of(database)
        self._agents = agents(graphs)
        self._settings = settings or Settings()
        for channel, how in (channels or {}).items():
            if not channel:
                raise ValueError("a channel needs a name; messages without a channel have no replies to send")
            if how.timeout >= self._settings.lease:
                raise ValueError(
                    f"channel {channel!r} may take {how.timeout} s for a reply, the lease is "
                    f"{self._settings.lease} s; make the lease longer, or the timeout shorter"
                )
        self._tenant = database.tenant
        self._works = works
        self._observers = Observers((Logs(),) if observers is None else observers)
        self._lanes = QueueCache()
        self._clock = DatabaseClock(lambda: handle.arun(ask(Now())))
        owner = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        relay = Delivery(handle, channels or {}, self._settings, self._clock, self._observers, owner)
        self._owner = owner
        self._signals = Notifications(handle, None if all_tenants else self._tenant)
        self._following = Subscriptions(handle, self._signals, self._clock, self._observers)
        self._worker = Worker(
            handle,
            self._agents,
            self._settings,
            self._clock,
            self._lanes,
            relay,
            self._observers,
            self._following,
            self._signals,
            owner,
            tenant=None if all_tenants else self._tenant,
            store_ttl=store_ttl,
        )

    async def __aenter__(self) -> Self:
        await self._clock.now()
        if self._works:
            self._worker.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._works:
            await self._worker.drain(self._settings.drain)
        self._following.close()
        self._signals.close()

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
        tenant: str | None = None,
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
            strategy: The treatment of an open run: wait, reject the message, or end the run with or without
                rollback.
            coalesce: True to join messages that wait on the thread into one run, in order.
            config: LangGraph's config.
            options: Further options of the run.
            tenant: The owner of the thread; the database's tenant by default.

        Raises:
            QueueFull: Too many messages wait on the thread.
            RunInProgress: The strategy is ``"reject"``, and a run is open or a message waits.
        """
        mode: Mode = "coalesce" if coalesce else "enqueue"
        given = options_of(config, options)
        spoken = message_of(
            self._graph_name(graph), message_payload(message), mode, dedupe_key, channel, given
        )
        waits = self._settings.debounce_for(debounce, max_wait)
        return await self._accept(self._partition(thread_id, tenant), spoken, waits, strategy)

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
        precondition: Check | None = None,
        tenant: str | None = None,
    ) -> Ticket:
        """Accept a whole input for the graph, or a LangGraph ``command`` in its place.

        It is plain JSON data, and becomes a run of its own, whose id is the ticket's. The other arguments are
        as for ``accept``.

        Args:
            input: The graph's input.
            command: A command's ``update``, ``goto`` and ``resume``.
            coalesce: True to join waiting inputs with the same options into one run with the id of the first;
                their lists are concatenated.
            delay: Seconds until it takes its turn; other messages do not wait for it, and until then its
                ticket has no number.
            cancel_pending: True if a ``strategy`` that ends the open run also withdraws waiting messages.
            precondition: A record that must exist.
        """
        payload = {INPUT: input} if command is None else {COMMAND: dict(command)}
        given = options_of(config, options)
        mode: Mode = "coalesce" if coalesce else "enqueue"
        message = message_of(self._graph_name(graph), payload, mode, dedupe_key, channel, given)
        partition = self._partition(thread_id, tenant)
        if delay > 0:
            if coalesce or strategy != "enqueue":
                raise ValueError("what comes later waits for its turn; leave out coalesce and strategy")
            return await self._postpone(partition, message, delay, precondition)
        waits = self._settings.debounce_for(debounce, max_wait)
        return await self._accept(partition, message, waits, strategy, precondition, cancel_pending)

    async def answer(
        self,
        thread_id: str,
        value: Any,
        *,
        interrupt_id: str | None = None,
        dedupe_key: str | None = None,
        channel: str = "",
        command: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        options: Options | None = None,
        tenant: str | None = None,
    ) -> Ticket:
        """Answer the interrupt for which a thread waits, so that its graph continues.

        Replies go to the channel of the interrupted run by default. The other arguments are as for
        ``accept``.

        Args:
            value: The answer; for several interrupts, answers by interrupt id as LangGraph takes them.
            interrupt_id: The interrupt, if the thread waits for several.
            channel: Another channel for replies.
            command: A LangGraph command's ``update`` and ``goto`` to apply with the answer.

        Raises:
            NotWaiting: The thread does not wait for this interrupt; of two answers the second is refused.
        """
        resume = value if interrupt_id is None else {interrupt_id: value}
        named = list(resume) if interrupt_id is not None or is_by_name(resume) else []
        payload = {RESUME: resume} if not command else {COMMAND: {**command, RESUME: resume}}
        given = options_of(config, options)
        message = message_of(_OF_THE_QUESTION, payload, "answer", dedupe_key, channel, given, named)
        return await self._accept(self._partition(thread_id, tenant), message, Debounce(), "enqueue")

    async def _postpone(
        self,
        partition: Partition,
        message: Message,
        delay: float,
        precondition: Check | None,
    ) -> Ticket:
        now = await self._clock.now()
        due = now + round(delay * 1_000_000)
        most, fresh = self._settings.max_pending, self._database.fresh()
        program = scheduled.postpone(partition, message, due, most, fresh, precondition)
        accepted: Accepted = await self._database.arun(program)
        if accepted.lane is not None and self._works:
            self._worker.dispatch.schedule(partition, accepted.lane, now)
        elif accepted.lane is not None:
            self._signals.due(partition, delay)
        return Ticket(partition.thread, accepted.seq, accepted.id, accepted.is_duplicate, partition.tenant)

    async def _accept(
        self,
        partition: Partition,
        message: Message,
        debounce: Debounce,
        strategy: Strategy,
        precondition: Check | None = None,
        cancel_pending: bool = False,
    ) -> Ticket:
        if strategy not in ("enqueue", "reject", INTERRUPT, ROLLBACK):
            raise ValueError(f"strategy is 'enqueue', 'reject', 'interrupt' or 'rollback', not {strategy!r}")
        now = await self._clock.now()
        accept = Accept(
            partition,
            message,
            now,
            debounce,
            strategy,
            self._settings.max_pending,
            self._database.fresh(),
            precondition,
            cancel_pending,
        )
        try:
            accepted: Accepted = await self._database.arun(accept.store(self._lanes.lane(partition)))
        except QueueFull:
            self._observers.event(
                "message.refused",
                tenant=partition.tenant,
                thread=partition.thread,
                graph=message.graph,
                channel=message.channel,
            )
            raise
        except PerdureError:
            self._lanes.forget(partition)
            raise
        self._observers.event(
            "message.duplicate" if accepted.is_duplicate else "message.accepted",
            tenant=partition.tenant,
            thread=partition.thread,
            message=accepted.id,
            graph=message.graph,
            channel=message.channel,
        )
        if accepted.is_duplicate and self._is_resumed:
            # The first request may have died in a process of which no other one looks after the thread.
            await self._worker.watch(partition)
        if accepted.lane is not None:
            if cancel_pending:
                # The cached messages are withdrawn.
                self._lanes.forget(partition)
            self._lanes.accepted(partition, accepted)
            self._following.changed(partition)
            if accepted.lane.stop is not None:
                self._stop_asked(partition, accepted.lane.stop)
            if self._works:
                self._worker.dispatch.schedule(partition, accepted.lane, now)
            elif accepted.lane.due_at is not None and accepted.lane.owner is None:
                self._signals.due(partition, (accepted.lane.due_at - now) / 1_000_000)
        return Ticket(partition.thread, accepted.seq, accepted.id, accepted.is_duplicate, partition.tenant)

    # Queries

    async def look(self, ticket: Ticket) -> Standing:
        """Return the state of an accepted message, with its run if it has one; raise ``NotFound`` if it was
        removed."""
        partition = Partition(ticket.tenant, ticket.thread_id)
        if ticket.number:
            return await self._database.arun(inbox.look(partition, ticket.number))
        standing = await self._database.arun(inbox.find(partition, ticket.id))
        if standing is None:
            raise NotFound(f"thread {ticket.thread_id!r} has no message {ticket.id!r}: it was removed")
        return standing

    async def wait(self, ticket: Ticket, timeout: float | None = None) -> Run:  # noqa: ASYNC109
        """Wait until the run of an accepted message has ended, in any process, and return it. Raise
        ``TimeoutError`` after ``timeout`` seconds; the run continues."""
        partition = Partition(ticket.tenant, ticket.thread_id)
        pause, longest = _WAIT_S
        is_ours = self._worker.dispatch.serves(partition)
        async with asyncio.timeout(timeout):
            while True:
                ended = self._signals.expect(ENDED, partition)
                run = self._worker.runner.ended(partition, ticket.id)
                if run is None and not is_ours:
                    run = (await self.look(ticket)).run
                is_ours = False
                if run is not None and run.state != OPEN:
                    return run
                await self._signals.wait(ended, pause)
                pause = min(longest, pause * 1.5)

    async def run_id(self, ticket: Ticket) -> str:
        """Return the id of the run of an accepted message: its own, or that of the first message with which
        it is joined."""
        if not ticket.number:
            # A postponed message becomes a run of its own.
            return ticket.id
        partition = Partition(ticket.tenant, ticket.thread_id)
        program = inbox.run_id(partition, ticket.number, self._settings.max_batch)
        return await self._database.arun(program) or ticket.id

    async def find(self, thread_id: str, run_id: str, *, tenant: str | None = None) -> Standing | None:
        """Return the state of the message whose run has this id, or will have it."""
        return await self._database.arun(inbox.find(self._partition(thread_id, tenant), run_id))

    def follow(
        self, thread_id: str, run_id: str, *, after: int = 0, tenant: str | None = None
    ) -> AsyncIterator[Event | Standing]:
        """Yield the events of a run, wherever it is worked on, then the state in which it ended.

        The run was accepted with ``Options(stream=…)``. Events are provisional.

        Args:
            thread_id: The thread.
            run_id: The run.
            after: The number of the last event that the caller has; 0 for all.
            tenant: The owner of the thread; the database's tenant by default.

        Raises:
            NotFound: There is no such run.
            SubscriberTooSlow: The next event is not held any more.
        """
        return self._following.run(self._partition(thread_id, tenant), run_id, after)

    def follow_thread(self, thread_id: str, *, after: int, tenant: str | None = None) -> AsyncIterator[Event]:
        """Yield the events of all runs of a thread after a number, wherever they are worked on, with each
        run's end (an event named ``END``). It never ends, and the thread need not exist yet. Raise
        ``SubscriberTooSlow`` if the next event is not held any more."""
        return self._following.thread(self._partition(thread_id, tenant), after)

    async def expect_followers(self, thread_id: str, *, tenant: str | None = None) -> None:
        """Record that this process follows a thread: when this returns, processes that work on its runs store
        their events. ``follow_thread`` does the same on its first iteration; call this before
        ``latest_event`` to miss nothing in between. Without a subscriber the record lasts for 90 seconds."""
        await self._following.note(self._partition(thread_id, tenant))

    async def latest_event(self, thread_id: str, *, tenant: str | None = None) -> int:
        """Return the number of a thread's latest event, after which to ``follow``."""
        return await self._following.latest(self._partition(thread_id, tenant))

    def store(self, *, tenant: str | None = None) -> PerdureStore:
        """Return the store of a tenant's graphs."""
        return self._worker.runner.graphs.store(self._tenant if tenant is None else tenant)

    async def check(self) -> None:
        """Query the database; raise ``Unavailable`` if it does not answer."""
        await self._database.arun(ask(Now()))

    async def now(self) -> int:
        """Return the database's time, in microseconds."""
        return await self._clock.now()

    @property
    def database(self) -> Database:
        """Database of this runtime."""
        return Database(self._database)

    @property
    def settings(self) -> Settings:
        """Limits and times of this runtime."""
        return self._settings

    @property
    def graphs(self) -> Mapping[str, Agent]:
        """Agents of this runtime by name."""
        return self._agents

    @property
    def name(self) -> str:
        """Name of this process as the holder of runs."""
        return self._owner

    def graph(self, name: str, *, tenant: str | None = None) -> Pregel[Any, Any, Any, Any]:
        """Return a graph with a tenant's checkpointer and store, to read and edit state."""
        return self._worker.runner.graphs.graph(
            self._graph_name(name), self._tenant if tenant is None else tenant
        )

    def opened(
        self,
        name: str,
        access: Access,
        *,
        tenant: str | None = None,
        user: GraphUser | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[Pregel[Any, Any, Any, Any]]:
        """Open the same as ``graph`` for a block, including graphs that a factory makes for each use.

        Args:
            name: The name of the graph.
            access: The purpose, for a factory.
            tenant: The owner of the threads; the database's tenant by default.
            user: The verified user, for a factory.
            config: The config, for a factory.
        """
        whose = self._tenant if tenant is None else tenant
        graphs = self._worker.runner.graphs
        return graphs.opened(self._graph_name(name), whose, access, user=user, config=config)

    async def runs(self, thread_id: str, *, limit: int = 100, tenant: str | None = None) -> Sequence[Run]:
        """Return the newest runs of a thread, newest first."""
        return await self._database.arun(runs.latest(self._partition(thread_id, tenant), limit))

    async def replies(
        self, thread_id: str, *, limit: int = 100, tenant: str | None = None
    ) -> Sequence[Reply]:
        """Return the newest replies of a thread, newest first, sent or not."""
        return await self._database.arun(outbox.replies(self._partition(thread_id, tenant), limit))

    # Control

    async def stop(
        self, thread_id: str, run_id: str, *, rollback: bool = False, tenant: str | None = None
    ) -> bool:
        """End an open run and keep what it stored, or remove that with ``rollback``. Return True if the run
        was open."""
        partition = self._partition(thread_id, tenant)
        how = ROLLBACK if rollback else INTERRUPT
        now = await self._clock.now()
        stopping = await self._database.arun(runs.stop(partition, run_id, how, now))
        if stopping:
            self._stop_asked(partition, how)
            self._signals.due(partition)
        return stopping

    async def cancel(
        self, thread_id: str, run_id: str, *, rollback: bool = False, tenant: str | None = None
    ) -> bool:
        """End a run that waits or is open. Return True if there was one."""
        for end in (self.withdraw, self.stop, self.withdraw):
            # Meanwhile an open run may be put off until its next attempt, and a waiting one may begin.
            if await end(thread_id, run_id, rollback=rollback, tenant=tenant):
                return True
        return False

    async def withdraw(
        self, thread_id: str, run_id: str, *, rollback: bool = False, tenant: str | None = None
    ) -> bool:
        """Withdraw a message that still waits. Return True if it did."""
        partition = self._partition(thread_id, tenant)
        how = ROLLBACK if rollback else INTERRUPT
        now = await self._clock.now()
        withdrawn = await self._database.arun(inbox.withdraw(partition, run_id, how, now))
        if not withdrawn:
            postponed = scheduled.withdraw(partition, run_id, how, now, self._database.fresh())
            withdrawn = await self._database.arun(postponed)
        if withdrawn:
            self._lanes.forget(partition)
            self._signals.ended(partition)
            if self._works:
                self._worker.dispatch.soon((partition, IN))
            else:
                self._signals.due(partition)
        return withdrawn

    async def retry_reply(self, thread_id: str, number: int, *, tenant: str | None = None) -> Reply:
        """Send a dead or held reply again, after all others of its thread."""
        now, partition = await self._clock.now(), self._partition(thread_id, tenant)
        reply = await self._database.arun(outbox.retry(partition, number, now))
        self._signals.due(partition)
        return reply

    async def delete(self, thread_id: str, *, tenant: str | None = None) -> None:
        """Remove a thread with its checkpoints, messages, runs and replies. A current run, in any process,
        can store nothing more."""
        partition = self._partition(thread_id, tenant)
        await self._database.arun(retention.delete_thread(partition))
        self._stop_asked(partition, DELETED)
        self._removed(partition)

    async def remove_resting(self, thread_id: str, may_go: MayGo, *, tenant: str | None = None) -> bool:
        """Remove a thread without current work if ``may_go`` allows it, and return True if it was removed.
        Any change of the thread meanwhile keeps it."""
        partition = self._partition(thread_id, tenant)
        removed = await self._database.arun(removal.remove_resting(partition, may_go))
        if removed:
            self._removed(partition)
        return removed

    def _removed(self, partition: Partition) -> None:
        self._lanes.forget(partition)
        self._following.forget(partition)
        self._signals.ended(partition)
        self._observers.event("thread.deleted", tenant=partition.tenant, thread=partition.thread)

    def _stop_asked(self, partition: Partition, how: str) -> None:
        """Notify the worker of a thread's run that the run has to end."""
        self._worker.runner.stop_asked(partition, how)
        self._signals.stop(partition)

    def _partition(self, thread_id: str, tenant: str | None) -> Partition:
        if not thread_id:
            raise ValueError("a message needs a thread: thread_id is empty")
        return Partition(self._tenant if tenant is None else tenant, thread_id)

    def _graph_name(self, graph: str | None) -> str:
        if graph is None:
            if len(self._agents) == 1:
                return next(iter(self._agents))
            raise ValueError(f"name the graph: graph=… one of {sorted(self._agents)}")
        if graph not in self._agents:
            raise NotFound(f"there is no graph {graph!r}; there are {sorted(self._agents)}")
        return graph
