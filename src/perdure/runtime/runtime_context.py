"""Parts of a runtime that its worker, runs, deliveries and tenants share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from perdure.database.handle import DatabaseHandle
from perdure.model.records import Partition
from perdure.model.retention_policy import ThreadTtl
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.graphs import StoreOptions
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.events.subscription import Subscriptions
from perdure.runtime.notifications import Notifications
from perdure.runtime.observers import Observers
from perdure.runtime.queue_cache import QueueCache
from perdure.runtime.settings import Settings


@dataclass(frozen=True, kw_only=True, eq=False)
class RuntimeContext:
    """Shared parts of one runtime.

    Attributes:
        database: The handle of the database.
        agents: Agents by name.
        settings: Limits and times.
        clock: The database's time.
        observers: Receivers of events.
        notifications: Notifications between processes and within this one.
        subscriptions: Subscribers of events in this process.
        queues: Inboxes as this process remembers them.
        owner: The name of this process as the holder of runs.
        tenant: The tenant whose work is done here; None for all tenants.
        works: False if the work is left to other processes.
        store: Options of the graphs' store.
        thread_ttl: The time to live of threads that are created without one.
        internal: Agents of the runtime's own threads, by name; clients cannot address them.
    """

    database: DatabaseHandle
    agents: Mapping[str, Agent]
    settings: Settings
    clock: DatabaseClock
    observers: Observers
    notifications: Notifications
    subscriptions: Subscriptions
    queues: QueueCache
    owner: str
    tenant: str | None
    works: bool
    store: StoreOptions
    thread_ttl: ThreadTtl | None = None
    internal: Mapping[str, Agent] = field(default_factory=dict[str, Agent])

    @contextmanager
    def report_errors(self, partition: Partition) -> Iterator[None]:
        """Report an error of work that follows a commit, instead of raising it: what was stored stands, and a
        caller that gets an error sends it again. Work that was not scheduled is found by a poll."""
        try:
            yield
        except Exception as error:
            self.observers.thread_event("worker.error", partition, error=type(error).__name__)
