"""Lifespan for an existing FastAPI application: a database, a checkpointer and the graphs over them, open
while the application runs.

Nothing is opened before the start; everything is closed in reverse order, even after a start that fails. The
application's endpoints use the graphs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, FastAPI, HTTPException, Request
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from perdure.config.checkpoint_lifespan import compile_graph, is_development, keys_of, url_of
from perdure.database.asynchronous import Database
from perdure.database.opening import connect
from perdure.errors import BadSetting, NotFound
from perdure.langgraph.saver import PerdureSaver
from perdure.langgraph.store import PerdureStore
from perdure.model.retention_policy import Retention, RetentionRules
from perdure.retention.sweeper import RetentionOptions
from perdure.runtime import Agent, Channel, Runtime, Settings
from perdure.runtime.agents.graph_factories import Factory
from perdure.runtime.agents.graphs import make_savers
from perdure.runtime.agents.loading import DEFAULT_NAME, LoadedGraph, load_agent
from perdure.runtime.observers import Logs, Observers
from perdure.runtime.retention_loop import RetentionLoop
from perdure.server.auth.identity import Gate, OpenGate
from perdure.server.resources import ServerState
from perdure.server.runs.crons import CronStarter
from perdure.server.runs.webhooks import Webhooks, of_variables
from perdure.storage.key_providers import EncryptionKey
from perdure.storage.url import redact

Graph: TypeAlias = Pregel[Any, Any, Any, Any]
Builder: TypeAlias = StateGraph[Any, Any, Any, Any]
GraphSource: TypeAlias = Builder | Graph | Agent | Callable[[], Any]
"""A graph, compiled or not, an ``Agent``, or a function without arguments that returns or awaits one."""
Lifespan: TypeAlias = Callable[[FastAPI], AbstractAsyncContextManager[None]]

_log = logging.getLogger("perdure.server")


@dataclass(frozen=True, eq=False)
class Opened:
    """The resources of a running application, at ``app.state.perdure``.

    ``graphs`` have a checkpointer and the store, and are the same objects for all requests. ``checkpointers``
    are the checkpointers by graph name: graphs with the same schema share one. ``host`` is set with
    ``serve=True``; then ``host.runtime`` accepts messages.
    """

    database: Database
    checkpointers: Mapping[str, PerdureSaver]
    store: PerdureStore
    graphs: Mapping[str, Graph]
    host: ServerState | None = None

    @property
    def checkpointer(self) -> PerdureSaver:
        """The checkpointer of all graphs; one without a schema if there are no graphs. Raises ``NotFound`` if
        the graphs have different schemas."""
        different = {id(each): each for each in self.checkpointers.values()}
        if len(different) > 1:
            raise NotFound(
                "the graphs have different schemas and so different checkpointers; use checkpointers[…] with "
                f"one of {', '.join(map(repr, self.checkpointers))}"
            )
        if different:
            return next(iter(different.values()))
        return self.database.checkpointer()

    @property
    def graph(self) -> Graph:
        """The only graph. Raises ``NotFound`` if there is none, or more than one."""
        if len(self.graphs) != 1:
            if not self.graphs:
                raise NotFound("there is no graph; pass graphs=… to checkpoint_lifespan")
            raise NotFound(f"there are several graphs; use graphs[…] with one of {sorted(self.graphs)}")
        return next(iter(self.graphs.values()))


def _require_opened(request: Request) -> Opened:
    opened = getattr(request.app.state, "perdure", None)
    if not isinstance(opened, Opened):
        raise HTTPException(503, "The server is starting or stopping; try again.", {"Retry-After": "1"})
    return opened


OpenedNow = Annotated[Opened, Depends(_require_opened)]
"""The open resources, as the type of an endpoint's parameter; 503 before the start and after the stop."""


_SWEEP_S = 3600.0
"""Seconds between two sweeps of the threads."""


def checkpoint_lifespan(
    db_url: str | None = None,
    *,
    graphs: Mapping[str, GraphSource] | GraphSource | None = None,
    serve: bool = False,
    migrate: bool | None = None,
    tenant: str = "",
    gate: Gate | None = None,
    settings: Settings | None = None,
    encryption_key: EncryptionKey | None = None,
    retention: Retention | RetentionRules | None = None,
) -> Lifespan:
    """Return a lifespan for ``FastAPI(lifespan=…)``, or to be entered within the application's own. While it
    lasts, ``app.state.perdure`` is an ``Opened``. Every start opens new resources; nothing is opened before.

    Args:
        db_url: the database; by default ``PERDURE_DB`` or ``DATABASE_URL`` at the start. Without any the
            start fails, except in development (``LANGGRAPH_DEV=true``), where threads are kept in
            ``.perdure/dev.db``.
        graphs: graphs by name; a single graph is named ``agent``.
        serve: run the graphs with a ``Runtime`` too, for the routes of ``perdure_app`` and
            ``perdure_router``.
        migrate: migrate a database without this release's schema, which is the default in development;
            otherwise ``MigrationRequired`` is raised, which names the command.
        tenant: the tenant that owns the threads.
        gate: authenticates and authorises requests to the routes; without one anyone may use them.
        settings: settings of the runtime.
        encryption_key: the wrapping key or its provider, as for ``connect``; by default the one that
            ``PERDURE_KEYS`` names at the start.
        retention: what is kept of the threads; everything by default. With it the application sweeps the
            tenant's threads once an hour, for 5% of its time; of several processes only one sweeps.

    Raises:
        BadSetting: the arguments contradict each other.
    """
    if serve and (graphs is None or graphs == {}):
        raise BadSetting("serve=True needs graphs to serve; pass graphs={'agent': builder}")
    if not serve and (gate is not None or settings is not None):
        raise BadSetting("gate and settings are for the routes and the runtime; pass serve=True as well")
    if graphs is None:
        named: Mapping[str, GraphSource] = {}
    elif isinstance(graphs, Mapping):
        named = dict(graphs)
    else:
        named = {DEFAULT_NAME: graphs}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        development = is_development()
        runtime_settings = settings or Settings(shared_threads=True)
        url = url_of(db_url)
        if hasattr(app.state, "perdure"):
            raise BadSetting(
                "app.state.perdure is taken: one application has one checkpoint_lifespan; pass it all graphs"
            )
        agents = {
            name: await load_agent(LoadedGraph(f"graphs[{name!r}]", each)) for name, each in named.items()
        }
        is_migrated = development if migrate is None else migrate
        async with AsyncExitStack() as stack:
            database = await stack.enter_async_context(
                connect(
                    url,
                    migrate=is_migrated,
                    tenant=tenant,
                    encryption_key=keys_of(encryption_key),
                    retention=retention,
                )
            )
            sweeps: RetentionLoop | None = None
            if retention is not None or serve:
                options = RetentionOptions(
                    all_tenants=gate is not None, keep=runtime_settings.keep if serve else None
                )
                sweeps = RetentionLoop(database, Observers((Logs(),)), every=_SWEEP_S, options=options)
                await stack.enter_async_context(sweeps)
            host: ServerState | None = None
            if serve:
                if gate is None and not development:
                    _log.warning(
                        "requests are not authenticated: anyone who reaches the routes may use every thread"
                    )
                host = await open_host(
                    stack,
                    database,
                    agents,
                    gate or OpenGate(tenant),
                    of_variables(os.environ),
                    settings=runtime_settings,
                    all_tenants=gate is not None,
                )
                host.sweeps = sweeps
            app.state.perdure = _open(database, agents, host)
            stack.callback(delattr, app.state, "perdure")
            _log.info("threads are kept in %s", redact(url))
            yield

    return lifespan


def _open(database: Database, agents: Mapping[str, Agent], host: ServerState | None) -> Opened:
    checkpointers = make_savers(database, agents)
    store = database.store()
    graphs: dict[str, Graph] = {}
    for name, agent in agents.items():
        if isinstance(agent.graph, Factory):
            if host is None:
                raise BadSetting(
                    f"graphs[{name!r}] is a function that makes a graph for each run, but without a runtime "
                    "there are no runs; pass a graph, or serve=True"
                )
            continue
        # A store that a graph was compiled with takes precedence, as in the runtime.
        graph_store = store if agent.graph.store is None else None
        # A warning about memory:// was logged at the start.
        graph = compile_graph(
            agent.graph, checkpointer=checkpointers[name], store=graph_store, allow_in_memory=True
        )
        graphs[name] = graph.with_config(dict(agent.config)) if agent.config else graph  # type: ignore[arg-type]
    return Opened(database, MappingProxyType(checkpointers), store, MappingProxyType(graphs), host)


async def open_host(
    stack: AsyncExitStack,
    database: Database,
    agents: Mapping[str, Agent],
    gate: Gate,
    hooks: Webhooks | None,
    *,
    settings: Settings,
    channels: Mapping[str, Channel] | None = None,
    ended: Collection[str] = (),
    state: Mapping[str, Any] | None = None,
    **options: Any,
) -> ServerState:
    """Open the runtime and the state of the routes. They close before the database, streams first, so that a
    run that is still in progress when its subscribers are disconnected can be stored.

    Args:
        stack: closes what is opened.
        database: the database with the threads.
        agents: the agents by the names of their graphs.
        gate: authenticates and authorises requests.
        hooks: sends the notices of runs; None to disable them.
        settings: settings of the runtime.
        channels: the runtime's further channels.
        ended: names of processes that have ended, whose leases end with the start.
        state: further arguments of ``ServerState.over``.
        options: further arguments of the runtime.

    Raises:
        BadSetting: the runtime cannot work with these arguments.
    """
    all_channels, reach = dict(channels or {}), None
    if hooks is not None:
        all_channels = {**hooks.channels(settings), **all_channels}
        reach = hooks.reach
    try:
        runtime = Runtime(database, agents, channels=all_channels, settings=settings, **options)
    except ValueError as error:
        raise BadSetting(str(error)) from error
    if hooks is not None:
        hooks.serve(runtime)
    if ended:
        await runtime.end_leases_of(ended)
    host = ServerState.over(runtime, gate, webhooks=reach, **(state or {}))
    CronStarter(host).serve()
    await stack.enter_async_context(runtime)
    stack.push_async_callback(host.close)
    return host
