"""Runtime: accepts messages durably, and turns them into runs and replies with its workers."""

from __future__ import annotations

import asyncio
import glob
import os
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from types import TracebackType
from typing import Any, Self

from langgraph.pregel import Pregel
from langgraph.store.base import IndexConfig, TTLConfig

from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.engine import documents
from perdure.engine.queue import ended_leases
from perdure.engine.queue.crons import Cron
from perdure.langgraph.search.index import SearchConfig, SearchIndex, index_of
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.records import SERVER, Partition
from perdure.model.retention_policy import ThreadTtl
from perdure.model.runs.messages import Message
from perdure.runtime.accepting import AcceptanceTerms
from perdure.runtime.agent_memory.memory_lane import make_lane_agent, make_lane_channel
from perdure.runtime.agent_memory.memory_turns import MEMORY
from perdure.runtime.agents.agent import Agent, agents
from perdure.runtime.agents.graphs import StoreOptions
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.events.subscription import Subscriptions
from perdure.runtime.limits.limiter import limiter_of
from perdure.runtime.notifications import Notifications
from perdure.runtime.observers import Logs, Observer, Observers
from perdure.runtime.queue_cache import QueueCache
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.settings import Settings
from perdure.runtime.tenant import TenantRuntime
from perdure.runtime.tickets import Ticket
from perdure.runtime.worker.cron_service import Fire
from perdure.runtime.worker.delivery import Channel
from perdure.runtime.worker.worker import Worker

_PROBE = Partition("", "ready", SERVER)
"""Partition that is read to check the database; it is empty."""
_LANE_S = 20.0


class Runtime(TenantRuntime):
    """Accepts messages for threads and works on them. An async context manager for one event loop.

    Its methods are about the threads of the database's tenant; ``for_tenant`` returns the same methods for
    another tenant.

    Args:
        database: The database.
        graphs: Compiled graphs or ``Agent``s by name; a single one is named ``agent``.
        channels: Channels for replies by name.
        settings: Limits and times.
        works: False to accept messages only, and leave the work to other processes.
        all_tenants: True to work on the threads of all tenants.
        observers: Receivers of events; by default events are logged.
        name: The name of this process as the holder of runs.
        store_ttl: LangGraph's TTL settings for the graphs' store.
        store_index: LangGraph's ``IndexConfig`` for the graphs' store, or a ``SearchIndex``, for
            ``store.search(query=…)``.
        store_database: The database of the graphs' store, by default that of the threads.
        thread_ttl: The default time to live of threads. If it is set, threads to which a client gave a time
            to live of their own expire, too.

    Raises:
        ValueError: No graph is given, a channel has no name, a channel's timeout is not shorter than the
            lease, the memories of one agent lie within those of another, or an agent uses ``transaction``
            and the database is neither PostgreSQL nor SQLite.
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
        store_index: SearchIndex | SearchConfig | IndexConfig | None = None,
        store_database: Database | SyncDatabase | None = None,
        thread_ttl: ThreadTtl | None = None,
    ) -> None:
        named = agents(graphs)
        settings = _add_limits(settings or Settings(), named)
        _check_channels(channels or {}, settings)
        if settings.limits:
            limiter_of(handle_of(database)).declare(settings.limits)
        tenant = None if all_tenants else database.tenant
        handle = handle_of(database)
        if thread_ttl is not None:
            handle.honour_thread_ttl()
        clock = DatabaseClock(lambda: handle.arun(ask(Now())))
        observing = Observers((Logs(),) if observers is None else observers)
        index = index_of(store_index)
        _check_roots(named)
        _check_transactions(named, handle)
        notifications = Notifications(handle, tenant)
        context = RuntimeContext(
            database=handle,
            agents=named,
            settings=settings,
            clock=clock,
            observers=observing,
            notifications=notifications,
            subscriptions=Subscriptions(handle, notifications, clock, observing),
            queues=QueueCache(),
            owner=name or process_name(os.getpid(), secrets.token_hex(3)),
            tenant=tenant,
            works=works,
            store=StoreOptions(store_ttl, index, store_database),
            thread_ttl=thread_ttl,
            internal={MEMORY: make_lane_agent(named, observing, has_index=index is not None)},
        )
        lanes = make_lane_channel(self._accept, named, min(_LANE_S, settings.lease / 2))
        super().__init__(context, Worker(context, {**(channels or {}), MEMORY: lanes}), database.tenant)

    def serve_crons(self, fire: Fire, serves: Callable[[Cron], bool] = lambda cron: True) -> None:
        """Set the function with which this process starts due crons; without one it leaves them to others.
        Call this before the runtime is entered.

        Args:
            fire: Starts what a cron is for.
            serves: Returns False for a cron that has to wait for another process.
        """
        self._worker.crons.serve(fire, serves)

    async def __aenter__(self) -> Self:
        await self._context.clock.now()
        if self._context.works:
            await self._worker.crons.arm()
            self._worker.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._context.works:
                await self._worker.drain(self._context.settings.drain)
        finally:
            await self._worker.leave_stopped()
            self._context.subscriptions.close()
            self._context.notifications.close()

    async def pause(self, within: float) -> bool:
        """End the work that this process has begun, before the process is frozen: wait at most ``within``
        seconds for it, summaries included, then release the rest, which is due for other workers at once.
        Nothing is claimed until ``resume``.

        Returns:
            True if nothing was released.
        """
        if not self._context.works:
            return True
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        is_done = await self._worker.dispatch.wait_until_served(within)
        # A summary that is cancelled here would be begun again after each reply, and never be finished.
        await self._worker.runner.conversations.wait_for_summaries(max(0.0, until - loop.time()))
        await self._worker.drain(0)
        return is_done

    async def resume(self, *, polls: bool = False) -> None:
        """Work again after ``pause``: on messages that this process accepts, or with ``polls`` on everything
        that is due.

        The database is asked for its time first; raises ``Unavailable`` if it does not answer.
        """
        self._context.clock.forget()
        await self._context.clock.now()
        if self._context.works:
            self._worker.start(polls=polls)
            self._worker.is_resumed = not polls

    async def work_off(self, within: float) -> bool:
        """Work on everything that is due in the database for at most ``within`` seconds. Return True if
        nothing is left to try now."""
        if not self._context.works:
            raise RuntimeError("this runtime leaves the work to others; open it with works=True")
        return await self._worker.dispatch.serve_all(within)

    async def _accept(self, partition: Partition, message: Message, terms: AcceptanceTerms) -> Ticket:
        return await self._acceptance.accept(partition, message, terms)

    def for_tenant(self, tenant: str) -> TenantRuntime:
        """Return the runtime's methods for the threads of a tenant. It works on the threads of another tenant
        than the database's only with ``all_tenants``."""
        return TenantRuntime(self._context, self._worker, tenant)

    async def end_leases_of(self, names: Collection[str]) -> int:
        """Make runs and replies that were held by ended processes due at once, not when their leases expire.

        For a supervisor that knows of the end: a process that is alive would lose its runs to others.

        Args:
            names: The ``name`` of each ended process.

        Returns:
            The number of leases.
        """
        lease = self._context.settings.lease_us
        count = await self._context.database.arun(ended_leases.end(names, self._context.tenant, lease))
        if count:
            self._context.observers.event("leases.ended", count=count)
        return count

    async def check(self) -> None:
        """Read from the database; raise ``Unavailable`` if it does not answer, another ``PerdureError`` if it
        does not have this release's tables."""
        await self._context.database.arun(documents.get(_PROBE, "ready", ""))

    async def now(self) -> int:
        """Return the database's time, in microseconds."""
        return await self._context.clock.now()

    @property
    def database(self) -> Database:
        """Database of this runtime."""
        return Database(self._context.database)

    @property
    def settings(self) -> Settings:
        """Limits and times of this runtime."""
        return self._context.settings

    @property
    def graphs(self) -> Mapping[str, Agent]:
        """Agents of this runtime by name."""
        return self._context.agents

    @property
    def waiting_runs(self) -> int:
        """The number of threads whose next run waits for a slot of this process."""
        return self._worker.dispatch.waiting_count

    @property
    def name(self) -> str:
        """Name of this process as the holder of runs."""
        return self._context.owner


def process_name(pid: int, token: str) -> str:
    """Return the name of a process of this machine as the holder of runs. ``token`` distinguishes it from
    other processes that have the same id."""
    return f"{socket.gethostname()}:{pid}:{token}"


def _add_limits(settings: Settings, named: Mapping[str, Agent]) -> Settings:
    """Return the settings with the limits of agents, each of which applies to one graph.

    Raises:
        ValueError: There is a budget, and no model has a price.
    """
    own = {
        f"{graph}.{name}": replace(limit, graphs=(glob.escape(graph),))
        for graph, agent in named.items()
        for name, limit in agent.limits.items()
    }
    if own:
        settings = replace(settings, limits={**settings.limits, **own})
    for name, limit in settings.limits.items():
        is_priced = settings.prices.models or any(
            agent.prices for graph, agent in named.items() if limit.is_of(graph)
        )
        if limit.budget is not None and not is_priced:
            raise ValueError(
                f"limits has the budget {name!r}, and no model has a price: set prices=…, or "
                "[prices.models] in perdure.toml"
            )
    return settings


def _check_transactions(named: Mapping[str, Agent], database: DatabaseHandle) -> None:
    statements = database.driver.capabilities.statements
    if using := [name for name, agent in named.items() if agent.transactions and isinstance(statements, str)]:
        raise ValueError(
            f"the agents {using} give statements by transaction(), which a commit on {statements} cannot "
            "include; use PostgreSQL or SQLite for their threads"
        )


def _check_roots(named: Mapping[str, Agent]) -> None:
    roots = sorted({agent.memory.root for agent in named.values() if agent.memory is not None})
    for outer, inner in permutations(roots, 2):
        if inner[: len(outer)] == outer:
            raise ValueError(
                f"MemoryPolicy(root={inner!r}) lies within root={outer!r} of another agent, where it would "
                "be the memory of one user; choose roots so that none begins with another"
            )


def _check_channels(channels: Mapping[str, Channel], settings: Settings) -> None:
    for name, channel in channels.items():
        if name == MEMORY:
            raise ValueError(f"a channel cannot be named {MEMORY!r}, which is the runtime's own")
        if not name:
            raise ValueError("a channel needs a name; messages without a channel have no replies to send")
        if channel.timeout >= settings.lease:
            raise ValueError(
                f"channel {name!r} may take {channel.timeout} s for a reply, the lease is "
                f"{settings.lease} s; make the lease longer, or the timeout shorter"
            )
