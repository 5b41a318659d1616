"""Rights of a viewer, which a server's authorization or a local command provides for each request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, NamedTuple, Protocol

from perdure.database.asynchronous import Database
from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.errors import NotAllowed, NotFound
from perdure.langgraph.reading.readable_states import Graph
from perdure.model.model_calls import NO_PRICES, Prices
from perdure.model.records import Partition
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.graph_factories import Factory
from perdure.runtime.operations.open_questions import read_asking_options
from perdure.runtime.options import Options
from perdure.runtime.runtime import Runtime
from perdure.runtime.tenant import TenantRuntime
from perdure.runtime.threads.rows import ThreadRow, load_row

Sees = Callable[[Mapping[str, Any]], bool]
"""Predicate over the metadata of the threads that a viewer may see."""

PERMISSIONS = ("tag", "edit", "run", "answer", "cancel", "retry", "delete", "export", "replay")
"""Permissions of the actions, each granted on its own."""


DataRight = Literal["read", "delete"]
"""Actions of a viewer on a user's data other than threads."""


class UserDataNames(NamedTuple):
    """Data of a user other than threads: ids of crons and assistants, and namespaces of the store."""

    crons: Sequence[str]
    assistants: Sequence[str]
    namespaces: Sequence[tuple[str, ...]]


class InterruptAnswer(NamedTuple):
    """Answer to an interrupt: any JSON value, with the interrupt's id if several are open."""

    value: Any
    interrupt_id: str | None = None


class RunStart(NamedTuple):
    """Start of a run without new input: from a checkpoint (by default the latest), or by an answer."""

    graph: str | None
    checkpoint_id: str | None = None
    answer: InterruptAnswer | None = None


class ReplayGraphs(NamedTuple):
    """Names of the graphs that can replay threads, and of the graph to compare others with, if any."""

    names: tuple[str, ...] = ()
    compared: str | None = None


class ReplaySource(NamedTuple):
    """Database from which threads are replayed, and the agents that replay them."""

    database: Database | SyncDatabase
    agents: Sequence[Agent]


class Access(Protocol):
    """The rights of one viewer of one tenant's threads."""

    @property
    def handle(self) -> DatabaseHandle: ...

    @property
    def tenant(self) -> str: ...

    @property
    def all_tenants(self) -> bool:
        """True if the viewer may see the threads of every tenant."""
        ...

    def require_all_tenants(self) -> None:
        """Raise ``NotAllowed`` unless the viewer may see the threads of every tenant."""
        ...

    def of_tenant(self, tenant: str) -> Access:
        """Return the viewer's rights to the threads of a tenant; ``NotFound`` if there are none."""
        ...

    @property
    def url(self) -> str | None:
        """URL of the database, to read the schema version; ``None`` if the viewer may not know the
        version."""
        ...

    @property
    def runtime(self) -> TenantRuntime | None:
        """Runtime for actions; ``None`` if nothing can be changed here."""
        ...

    @property
    def who(self) -> str:
        """Name of the viewer in the audit log."""
        ...

    def open_graph(self, name: str | None, thread_id: str) -> AbstractAsyncContextManager[Graph]:
        """Open a graph to edit a thread's state; without a name the only graph."""
        ...

    def open_to_draw(self, name: str | None, thread_id: str) -> AbstractAsyncContextManager[Graph]:
        """Open a graph to draw it; without a name the only one. Raise if the viewer may not see it."""
        ...

    @property
    def prices(self) -> Prices:
        """Prices of models."""
        ...

    async def start(self, thread_id: str, start: RunStart) -> str:
        """Accept a run and return its id."""
        ...

    @property
    def replay_graphs(self) -> ReplayGraphs: ...

    def open_to_replay(
        self, graphs: Sequence[str], thread_id: str
    ) -> AbstractAsyncContextManager[ReplaySource]:
        """Open graphs to replay a thread; raise if the viewer may not run them."""
        ...

    async def permissions(self) -> frozenset[str]:
        """Return the permissions whose actions are offered; each action checks its permission again."""
        ...

    async def authorize_listing(self) -> Sees | None:
        """Return a predicate for the threads that the viewer may list, ``None`` for all threads; raise if the
        viewer may list none."""
        ...

    async def authorize_crons(self) -> Sees | None:
        """Return a predicate over the metadata of the crons that the viewer may see, ``None`` for all of
        them; raise ``NotAllowed`` if the viewer may see none."""
        ...

    async def find_thread(self, thread_id: str) -> ThreadRow:
        """Return a thread that the viewer may read; ``NotFound`` for any other."""
        ...

    @property
    def agents(self) -> Iterable[Agent]:
        """The graphs that run here, whose memories of a user are removed with the user."""
        ...

    async def authorize_user_data(self, right: DataRight, names: UserDataNames) -> None:
        """Raise unless the viewer may read, or delete, a user's data other than threads."""
        ...

    async def authorize(self, permission: str, thread_id: str, right: str = "") -> ThreadRow:
        """Return a thread; raise if the viewer may not act on it. ``right`` names a further right to the
        thread that the action needs."""
        ...


class LocalReplays(NamedTuple):
    """Graphs, by name, to replay threads of a database with; ``compared`` is the name of the graph to compare
    others with, if any."""

    database: Database | SyncDatabase
    agents: Mapping[str, Agent]
    compared: str | None = None


class LocalAccess:
    """Access of the user who opened the database on this machine.

    Args:
        handle: The database.
        tenant: The tenant whose threads are shown.
        all_tenants: True to show the threads of other tenants, too, on request.
        url: The database's URL.
        runtime: Runtime for actions, ``None`` to show only.
        replays: Graphs to replay threads with, ``None`` without them.
        allowed: The permissions that were granted.
        prices: Prices of models.
    """

    def __init__(
        self,
        handle: DatabaseHandle,
        tenant: str,
        *,
        all_tenants: bool = False,
        url: str | None = None,
        runtime: Runtime | None = None,
        replays: LocalReplays | None = None,
        allowed: frozenset[str] = frozenset(),
        prices: Prices = NO_PRICES,
    ) -> None:
        self.handle = handle
        self.tenant = tenant
        self.all_tenants = all_tenants
        self.url = url
        self.runtime = None
        if runtime is not None:
            self.runtime = runtime.for_tenant(tenant)
        self.who = "local"
        self.prices = prices
        self._all_tenants_runtime = runtime
        self._allowed = allowed
        self._replays = replays

    def require_all_tenants(self) -> None:
        if not self.all_tenants:
            raise NotAllowed("the threads of one tenant are shown here; see others with --all-tenants")

    def of_tenant(self, tenant: str) -> LocalAccess:
        if tenant == self.tenant:
            return self
        if not self.all_tenants:
            raise NotFound(describe_tenant_refusal(tenant))
        return LocalAccess(
            self.handle,
            tenant,
            all_tenants=True,
            url=self.url,
            runtime=self._all_tenants_runtime,
            replays=self._replays,
            allowed=self._allowed,
            prices=self.prices,
        )

    def open_graph(self, name: str | None, thread_id: str) -> AbstractAsyncContextManager[Graph]:
        if self.runtime is None:
            raise NotAllowed("there is no graph here; start the inspector with --graph module:graph")
        return self.runtime.open_graph(
            name, "threads.update", config={"configurable": {"thread_id": thread_id}}
        )

    @asynccontextmanager
    async def open_to_draw(self, name: str | None, thread_id: str) -> AsyncIterator[Graph]:
        if self.runtime is not None:
            config = {"configurable": {"thread_id": thread_id}}
            async with self.runtime.open_graph(name, "assistants.read", config=config) as graph:
                yield graph
            return
        agents: Mapping[str, Agent] = {}
        if self._replays is not None:
            agents = self._replays.agents
        if len(agents) == 1:
            (name,) = agents
        agent = agents.get(name or "")
        if agent is None:
            place = "module:graph"
            if name is not None:
                place = f"{name}={place}"
            raise NotAllowed(f"there is no graph here; start the inspector with --graph {place}")
        if isinstance(agent.graph, Factory):
            raise NotAllowed(
                "this graph is made for each use; permit an action, such as --allow run, to draw it"
            )
        yield agent.graph

    async def start(self, thread_id: str, start: RunStart) -> str:
        if self.runtime is None:
            raise NotAllowed("there is no graph here; start the inspector with --graph module:graph")
        if start.answer is not None:
            value, interrupt_id = start.answer
            options = await self.handle.arun(read_asking_options(Partition(self.tenant, thread_id)))
            ticket = await self.runtime.answer(thread_id, value, interrupt_id=interrupt_id, options=options)
            return ticket.id
        options = Options(checkpoint_id=start.checkpoint_id)
        ticket = await self.runtime.submit(
            thread_id, None, graph=start.graph, strategy="reject", options=options
        )
        return ticket.id

    @property
    def replay_graphs(self) -> ReplayGraphs:
        if self._replays is None:
            return ReplayGraphs()
        return ReplayGraphs(tuple(self._replays.agents), self._replays.compared)

    @asynccontextmanager
    async def open_to_replay(self, graphs: Sequence[str], thread_id: str) -> AsyncIterator[ReplaySource]:
        if self._replays is None:
            raise NotAllowed(describe_refusal("replay"))
        yield ReplaySource(self._replays.database, [self._replays.agents[name] for name in graphs])

    async def permissions(self) -> frozenset[str]:
        if self.runtime is not None:
            return self._allowed
        if self._replays is not None:
            return self._allowed & {"replay"}
        return frozenset()

    async def authorize_listing(self) -> Sees | None:
        return None

    async def authorize_crons(self) -> Sees | None:
        return None

    async def find_thread(self, thread_id: str) -> ThreadRow:
        row = await self.handle.arun(load_row(Partition(self.tenant, thread_id)))
        if row is None:
            raise NotFound(f"there is no thread {thread_id!r}")
        return row

    @property
    def agents(self) -> Iterable[Agent]:
        if self._all_tenants_runtime is None:
            return ()
        return self._all_tenants_runtime.graphs.values()

    async def authorize_user_data(self, right: DataRight, names: UserDataNames) -> None:
        if right == "delete" and "delete" not in await self.permissions():
            raise NotAllowed(describe_refusal("delete"))

    async def authorize(self, permission: str, thread_id: str, right: str = "") -> ThreadRow:
        if permission not in await self.permissions():
            raise NotAllowed(describe_refusal(permission))
        return await self.find_thread(thread_id)


def describe_tenant_refusal(tenant: str) -> str:
    """Return the reason for which a viewer is refused the threads of a tenant, the same whether the tenant
    exists or not."""
    return f"there is no tenant {tenant[:40]!r} that you may see"


def describe_refusal(permission: str) -> str:
    """Return the reason for which an action is refused on this machine."""
    return (
        f"this inspector may not {permission}; start it with --graph module:graph --allow {permission} to "
        "permit that"
    )
