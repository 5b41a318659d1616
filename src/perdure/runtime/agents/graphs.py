"""Graphs for runs: with a checkpointer and a store of the runtime's database, for each tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from langgraph.pregel import Pregel
from langgraph.store.base import TTLConfig

from perdure.database.asynchronous import Database
from perdure.database.base import DatabaseBase
from perdure.database.blocking import SyncDatabase
from perdure.engine.queue.questions import Asked
from perdure.errors import GraphLoadError
from perdure.langgraph.call_recording import record_calls
from perdure.langgraph.migration.graph_version import name_function, name_graph
from perdure.langgraph.saver import OnStored, PerdureSaver
from perdure.langgraph.search.index import SearchIndex
from perdure.langgraph.store import PerdureStore
from perdure.langgraph.values.datatypes import AGENT, Allow, find_graph_types
from perdure.langgraph.values.undeclared import OnUndeclared, ReportedOnce, refuse, watch_undeclared
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.graph_factories import Access, Factory, Use
from perdure.runtime.agents.run_user import GraphUser
from perdure.schema.schema import Schema

_UNNAMED = "LangGraph"
"""LangGraph's name for a graph that its author gave none."""


def make_saver(
    database: Database | SyncDatabase,
    agents: Sequence[Agent],
    graphs: Iterable[Pregel[Any, Any, Any, Any]],
    tenant: str | None = None,
) -> PerdureSaver:
    """Return a checkpointer that allows the types of all given agents.

    With a list of types, those that the graphs declare are allowed too.

    Args:
        database: The database for the checkpoints.
        agents: The agents, all of one schema.
        graphs: The agents' graphs.
        tenant: The tenant whose threads are stored; the database's own by default.

    Raises:
        ValueError: The agents have different schemas: each version reads its own threads.
    """
    if any(agent.schema != agents[0].schema for agent in agents):
        raise ValueError("agents of different schemas need a checkpointer each")
    codecs = tuple(dict.fromkeys(codec for agent in agents for codec in agent.codecs))
    saver = database.checkpointer(
        tenant=tenant,
        allow=_join_allowed([agent.allow for agent in agents]),
        codecs=codecs,
        schema=agents[0].schema if agents else None,
    )
    saver.declare(
        () if saver.is_open else {cls for graph in graphs for cls in find_graph_types(graph)}, AGENT
    )
    return saver


def make_savers(database: Database, agents: Mapping[str, Agent]) -> dict[str, PerdureSaver]:
    """Return the checkpointers of agents by name; agents of one schema share one, as for ``make_saver``."""
    out: dict[str, PerdureSaver] = {}
    for name, agent in agents.items():
        if name not in out:
            group = {other: each for other, each in agents.items() if each.schema == agent.schema}
            graphs = [each.graph for each in group.values() if not isinstance(each.graph, Factory)]
            out |= dict.fromkeys(group, make_saver(database, list(group.values()), graphs))
    return {name: out[name] for name in agents}


def _name_version(graph: Pregel[Any, Any, Any, Any] | Factory) -> str:
    if isinstance(graph, Factory):
        return name_function(graph.make)
    return name_graph(graph)


def _join_allowed(allowed: Sequence[Allow | None]) -> Allow | None:
    if "imported" in allowed:
        return "imported"
    if None in allowed:
        return None
    lists = [each for each in allowed if not isinstance(each, str) and each is not None]
    return [item for each in lists for item in each] or "listed"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of the graphs' store: LangGraph's TTL settings, the index for searches by meaning, and its
    database, if it is another one than the threads'."""

    ttl: TTLConfig | None = None
    index: SearchIndex | None = None
    database: DatabaseBase | None = None


class Graphs:
    """Agents' graphs, each bound to a database on first use. ``on_stored`` is called with each checkpoint
    that they store, ``on_older`` with each thread whose stored state is older than a known one, and
    ``on_undeclared`` once for each dropped key, with the names of the graph, the node and the key. Unless the
    graphs share threads, each refuses threads of another. With ``task_times`` they store when tasks ran."""

    def __init__(
        self,
        database: Database,
        agents: Mapping[str, Agent],
        store: StoreOptions,
        on_stored: OnStored,
        on_older: Callable[[Partition], None],
        on_undeclared: Callable[[str, str, str], None],
        *,
        shares_threads: bool = False,
        task_times: bool = True,
    ) -> None:
        self.agents = agents
        self._database = database
        self._store = store
        self._on_stored = on_stored
        self._shares_threads = shares_threads
        self._task_times = task_times
        self._on_older = on_older
        self._undeclared: dict[str, OnUndeclared] = {
            name: refuse if agent.strict else ReportedOnce(partial(on_undeclared, name))
            for name, agent in agents.items()
        }
        self._bound: dict[tuple[str, str], Pregel[Any, Any, Any, Any]] = {}
        self.versions: Mapping[str, str] = {}
        """Names of the versions of the graphs, for the records of their runs."""

    def name_versions(self, names: Iterable[str], version: str | None) -> None:
        """Name the versions of graphs: ``version`` for all of them, or else each by the graph's content."""
        self.versions = {name: version or _name_version(self.agents[name].graph) for name in names}

    def store(self, tenant: str) -> PerdureStore:
        """Return the store for a tenant's graphs."""
        database = self._store.database or self._database
        return database.store(tenant=tenant, ttl=self._store.ttl, index=self._store.index)

    def graph(self, name: str, tenant: str) -> Pregel[Any, Any, Any, Any]:
        """Return a graph with a checkpointer and a store for a tenant.

        Raises:
            GraphLoadError: The graph is made for each use by a factory: call ``open`` for such a graph.
        """
        if (name, tenant) not in self._bound:
            agent = self.agents[name]
            if isinstance(agent.graph, Factory):
                raise GraphLoadError(
                    f"the graph {name!r} is made for each use by {agent.graph.place}; take "
                    "runtime.opened(…) instead of runtime.graph(…)"
                )
            self._bound[name, tenant] = self._bind(name, agent.graph, tenant)
        return self._bound[name, tenant]

    def saver(self, name: str, tenant: str) -> PerdureSaver | None:
        """Return the checkpointer of a graph that has been used for a tenant; ``None`` otherwise, or if the
        graph is made for each use."""
        saver = getattr(self._bound.get((name, tenant)), "checkpointer", None)
        if isinstance(saver, PerdureSaver):
            return saver
        return None

    def forget(self, partition: Partition) -> None:
        """Drop what the graphs' checkpointers remember of a thread that was removed."""
        for name in self.agents:
            if (saver := self.saver(name, partition.tenant)) is not None:
                saver.forget_thread(partition)

    def read_asked(self, partition: Partition, checkpoint_id: str | None = None, /) -> Program[Asked]:
        """Return the open questions of a thread's latest checkpoint, or of another one, whichever graph it
        belongs to."""
        schemas: list[Schema | None] = []
        for agent in self.agents.values():
            if agent.schema is not None and agent.schema not in schemas:
                schemas.append(agent.schema)
        asked = Asked()
        for schema in schemas or (None,):
            saver = self._database.checkpointer(tenant=partition.tenant, schema=schema)
            found = yield from saver.read_asked(partition, checkpoint_id)
            asked = found._replace(renamed=(*asked.renamed, *found.renamed))
        return asked

    @asynccontextmanager
    async def open(
        self,
        name: str,
        tenant: str,
        access: Access,
        *,
        config: Mapping[str, Any] | None = None,
        user: GraphUser | None = None,
        context: Any = None,
    ) -> AsyncIterator[Pregel[Any, Any, Any, Any]]:
        """Yield the same as ``graph``, or a graph that its factory makes for this block.

        Args:
            name: The name of the agent.
            tenant: The tenant whose threads it uses.
            access: The purpose, for the factory.
            config: Config of the run, over the agent's own.
            user: The verified user, if any.
            context: The context of the run.
        """
        agent = self.agents[name]
        if not isinstance(agent.graph, Factory):
            yield self.graph(name, tenant)
            return
        merged = {**agent.config, **(config or {})}
        configurable = {
            **agent.config.get("configurable", {}),
            **merged.get("configurable", {}),
            "graph_id": name,
        }
        use = Use(access, {**merged, "configurable": configurable}, self.store(tenant), user, context)
        async with agent.graph.open_graph(use) as made:
            agent.check(made)
            yield self._bind(name, made, tenant)

    def _bind(self, name: str, graph: Pregel[Any, Any, Any, Any], tenant: str) -> Pregel[Any, Any, Any, Any]:
        saver = make_saver(self._database, [self.agents[name]], [graph], tenant)
        saver.on_stored = self._on_stored
        saver.on_older = self._on_older
        saver.task_times = self._task_times
        saver.graph, saver.is_apart = name, not self._shares_threads
        store = graph.store or self.store(tenant)
        watched = watch_undeclared(graph, self._undeclared[name])
        update: dict[str, Any] = {"checkpointer": saver, "store": store}
        if watched.get_name() == _UNNAMED:
            # As on LangGraph's server: events and traces tell graphs apart.
            update["name"] = name
        bound = watched.copy(update=update)
        if self.agents[name].record:
            return record_calls(bound)
        return bound
