"""The graphs as runs use them: with a checkpointer and a store of the runtime's database, a tenant's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.pregel import Pregel
from langgraph.store.base import TTLConfig

from perdure.database import Database
from perdure.langgraph.saver import OnStored
from perdure.langgraph.store import PerdureStore
from perdure.runtime.agents import Agent


class Graphs:
    """The agents' graphs, bound to a database when they are first asked for. ``on_stored`` is told of every
    checkpoint that one of them stores."""

    def __init__(
        self,
        database: Database,
        agents: Mapping[str, Agent],
        store_ttl: TTLConfig | None,
        on_stored: OnStored,
    ) -> None:
        self.agents = agents
        self._database = database
        self._store_ttl = store_ttl
        self._on_stored = on_stored
        self._bound: dict[tuple[str, str], Pregel[Any, Any, Any, Any]] = {}

    def store(self, tenant: str) -> PerdureStore:
        """The store that a tenant's graphs are given."""
        return self._database.store(tenant=tenant, ttl=self._store_ttl)

    def graph(self, name: str, tenant: str) -> Pregel[Any, Any, Any, Any]:
        """The graph with this database's checkpointer and store, a tenant's own."""
        if (name, tenant) not in self._bound:
            agent = self.agents[name]
            saver = self._database.checkpointer(tenant=tenant, allow=agent.allow)
            saver.on_stored = self._on_stored
            store = agent.graph.store or self.store(tenant)
            self._bound[name, tenant] = agent.graph.copy(update={"checkpointer": saver, "store": store})
        return self._bound[name, tenant]
