"""The runtime: messages are accepted durably, and workers turn them into runs and replies."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from langgraph.pregel import Pregel

from perdure.database import Database
from perdure.engine import inbox, outbox, retention, runs
from perdure.engine.inbox import Accept, Accepted, Standing, Strategy
from perdure.errors import NotFound, PerdureError, TryLater
from perdure.model.lane import INTERRUPT, ROLLBACK, Debounce
from perdure.model.messages import OPEN, Message, Mode, Reply, Run, dedupe_digest
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.runtime.agents import INPUT, RESUME, Agent, agents, said
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.lanes import Lanes
from perdure.runtime.observe import Logs, Observer, Observers
from perdure.runtime.relay import Channel, Relay
from perdure.runtime.settings import Settings
from perdure.runtime.worker import DELETED, Worker

_WAIT_S = (0.05, 1.0)
_OF_THE_QUESTION = ""


class Ticket(NamedTuple):
    """An accepted message: it is durable. ``number`` is its place on the thread and ``id`` its own, the same
    however often it was sent; ``is_duplicate`` says that it had been accepted before."""

    thread_id: str
    number: int
    id: str
    is_duplicate: bool
    tenant: str


class Runtime:
    """Accepts messages for threads and works on them. An async context manager; one event loop uses it.

    ``graphs`` are compiled graphs or ``Agent``s by name; a single one is called ``agent``. ``channels`` say
    how replies get to people. With ``works=False`` it accepts only, and leaves the work to other processes.
    ``tenant`` is whose threads these are; a worker that serves every tenant is made with
    ``all_tenants=True``. ``observers`` are told what happens; without any, it is logged.
    """

    def __init__(
        self,
        database: Database,
        graphs: Mapping[str, Agent | Pregel[Any, Any, Any, Any]] | Agent | Pregel[Any, Any, Any, Any],
        *,
        channels: Mapping[str, Channel] | None = None,
        settings: Settings | None = None,
        works: bool = True,
        all_tenants: bool = False,
        observers: Sequence[Observer] | None = None,
        name: str | None = None,
    ) -> None:
        self._database = database
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
        self._lanes = Lanes()
        self._clock = DatabaseClock(lambda: database.arun(ask(Now())))
        owner = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        relay = Relay(database, channels or {}, self._settings, self._clock, self._observers, owner)
        self._worker = Worker(
            database,
            self._agents,
            self._settings,
            self._clock,
            self._lanes,
            relay,
            self._observers,
            owner,
            tenant=None if all_tenants else self._tenant,
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

    # Accepting

    async def accept(
        self,
        thread_id: str,
        message: str | Mapping[str, Any],
        *,
        dedupe_key: str | None = None,
        graph: str | None = None,
        channel: str = "",
        quiet: float | None = None,
        max_wait: float | None = None,
        strategy: Strategy = "enqueue",
        together: bool = True,
        config: Mapping[str, Any] | None = None,
        tenant: str | None = None,
    ) -> Ticket:
        """Accept something said: text, or a message with ``role`` and ``content``. It is durable when this
        returns. Messages that wait on a thread become one run, in order, unless ``together`` is false;
        ``quiet`` seconds are waited for more of them, ``max_wait`` at most. Sent again with the same
        ``dedupe_key``, a message is answered as the first time and nothing happens. Replies go to
        ``channel``. ``TryLater`` when too many wait, ``Busy`` when ``strategy`` is to be rejected then."""
        mode: Mode = "coalesce" if together else "enqueue"
        spoken = _message(self._graph_name(graph), said(message), mode, dedupe_key, channel, config)
        debounce = self._settings.debounce(quiet, max_wait)
        return await self._accept(self._partition(thread_id, tenant), spoken, debounce, strategy)

    async def submit(
        self,
        thread_id: str,
        input: Any,  # noqa: A002 - LangGraph's word
        *,
        dedupe_key: str | None = None,
        graph: str | None = None,
        channel: str = "",
        strategy: Strategy = "enqueue",
        config: Mapping[str, Any] | None = None,
        tenant: str | None = None,
    ) -> Ticket:
        """Accept a whole input for the graph, as plain JSON data: a run of its own, whose id is the ticket's.
        See ``accept``."""
        message = _message(self._graph_name(graph), {INPUT: input}, "enqueue", dedupe_key, channel, config)
        return await self._accept(self._partition(thread_id, tenant), message, Debounce(), strategy)

    async def answer(
        self,
        thread_id: str,
        value: Any,
        *,
        interrupt_id: str | None = None,
        dedupe_key: str | None = None,
        channel: str = "",
        config: Mapping[str, Any] | None = None,
        tenant: str | None = None,
    ) -> Ticket:
        """Answer the interrupt that a thread waits on. ``NotWaiting`` when it waits for none, or for another
        one: of two answers the second is refused. The graph that asked goes on, and its replies go to the
        channel of the question unless ``channel`` says otherwise."""
        payload = {RESUME: value if interrupt_id is None else {interrupt_id: value}}
        message = _message(_OF_THE_QUESTION, payload, "answer", dedupe_key, channel, config, interrupt_id)
        return await self._accept(self._partition(thread_id, tenant), message, Debounce(), "enqueue")

    async def _accept(
        self, partition: Partition, message: Message, debounce: Debounce, strategy: Strategy
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
        )
        try:
            accepted: Accepted = await self._database.arun(accept.store(self._lanes.lane(partition)))
        except TryLater:
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
        if accepted.lane is not None:
            self._lanes.accepted(partition, accepted)
            if self._works:
                if accepted.lane.stop is not None:
                    self._worker.stop_asked(partition, accepted.lane.stop)
                self._worker.told(partition, accepted.lane, now)
        return Ticket(partition.thread, accepted.seq, accepted.id, accepted.is_duplicate, partition.tenant)

    # Looking

    async def look(self, ticket: Ticket) -> Standing:
        """Where an accepted message stands: the run that took it, if one has."""
        return await self._database.arun(
            inbox.look(Partition(ticket.tenant, ticket.thread_id), ticket.number)
        )

    async def wait(self, ticket: Ticket, timeout: float | None = None) -> Run:  # noqa: ASYNC109
        """Wait until the run of an accepted message has ended, whoever works on it; the run. ``TimeoutError``
        after ``timeout`` seconds: the run goes on."""
        partition = Partition(ticket.tenant, ticket.thread_id)
        pause, longest = _WAIT_S
        is_ours = self._worker.serves(partition)
        async with asyncio.timeout(timeout):
            while True:
                run = self._worker.ended(partition, ticket.id)
                if run is None and not is_ours:
                    run = (await self.look(ticket)).run
                is_ours = False
                if run is not None and run.state != OPEN:
                    return run
                await self._worker.changed(partition, pause)
                pause = min(longest, pause * 1.5)

    async def runs(self, thread_id: str, *, limit: int = 100, tenant: str | None = None) -> Sequence[Run]:
        """The newest runs of a thread, newest first."""
        return await self._database.arun(runs.latest(self._partition(thread_id, tenant), limit))

    async def replies(
        self, thread_id: str, *, limit: int = 100, tenant: str | None = None
    ) -> Sequence[Reply]:
        """The newest replies of a thread, newest first, sent or not."""
        return await self._database.arun(outbox.replies(self._partition(thread_id, tenant), limit))

    # Intervening

    async def stop(
        self, thread_id: str, run_id: str, *, rollback: bool = False, tenant: str | None = None
    ) -> bool:
        """End an open run, keeping what it stored, or taking it back; whether it was open."""
        partition = self._partition(thread_id, tenant)
        how = ROLLBACK if rollback else INTERRUPT
        now = await self._clock.now()
        stopping = await self._database.arun(runs.stop(partition, run_id, how, now))
        if stopping and self._works:
            self._worker.stop_asked(partition, how)
        return stopping

    async def retry_reply(self, thread_id: str, number: int, *, tenant: str | None = None) -> Reply:
        """Send a reply again that was given up or is held in doubt, after all others of its thread."""
        now = await self._clock.now()
        return await self._database.arun(outbox.retry(self._partition(thread_id, tenant), number, now))

    async def delete(self, thread_id: str, *, tenant: str | None = None) -> None:
        """Remove a thread with everything in it: checkpoints, messages, runs and replies. A run that is under
        way, here or elsewhere, can store nothing more."""
        partition = self._partition(thread_id, tenant)
        await self._database.arun(retention.delete_thread(partition))
        self._lanes.forget(partition)
        self._worker.stop_asked(partition, DELETED)
        self._observers.event("thread.deleted", tenant=partition.tenant, thread=partition.thread)

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


def _message(
    graph: str,
    payload: Mapping[str, Any],
    mode: Mode,
    dedupe_key: str | None,
    channel: str,
    config: Mapping[str, Any] | None,
    interrupt_id: str | None = None,
) -> Message:
    options: dict[str, Any] = {"config": _checked(config)} if config else {}
    if interrupt_id is not None:
        options["interrupt_id"] = interrupt_id
    dedupe = dedupe_digest(dedupe_key) if dedupe_key else b""
    return Message(str(uuid.uuid4()), payload, graph, channel, mode, options, dedupe=dedupe)


def _checked(config: Mapping[str, Any]) -> Mapping[str, Any]:
    reserved = [key for key in config.get("configurable", {}) if key.startswith("__")]
    if reserved:
        raise ValueError(f"the configurable keys {reserved} are not a caller's to set; leave them out")
    return config
