"""Start-up of a server's parts from its configuration, and their orderly close.

Nothing is opened before the start; a configuration that cannot be used stops it with one sentence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from langgraph_sdk import Auth
from starlette.applications import Starlette

from perdure.channels.chat_channel import ChatChannel
from perdure.config.resolve import add_import_folders, make_folder_of, make_runtime_settings, set_variables
from perdure.config.store_database import store_database
from perdure.database.opening import connect
from perdure.errors import BadSetting, GraphLoadError, MissingExtra
from perdure.memory.policy import verified_user
from perdure.retention.sweeper import RetentionOptions
from perdure.runtime import Agent, Settings
from perdure.runtime.agents.loading import LoadedGraph, find, load_agent
from perdure.runtime.failures.failure_location import shows_texts
from perdure.runtime.observers import Observer, Observers, RunLogs
from perdure.runtime.retention_loop import RetentionLoop
from perdure.server.auth.handlers import Handlers, Rules
from perdure.server.auth.identity import Gate, OpenGate
from perdure.server.auth.jwt import Jwt, JwtSettings
from perdure.server.config import Config
from perdure.server.configurable_headers import Headers
from perdure.server.hosting.lifespan import open_host
from perdure.server.hosting.loopback import DEFER
from perdure.server.resources import ServerState
from perdure.server.runs.webhooks import webhooks

_log = logging.getLogger("perdure.server")


def import_graphs(config: Config) -> None:
    """Import the graphs, and the handlers of authentication, before an event loop runs: a module may run a
    loop of its own while it is imported, for example to fetch tools.

    Raises:
        GraphLoadError: One of them cannot be imported.
    """
    shows_texts.set(config.development)
    prepare(config)
    places = [place.place for place in config.graphs.values()]
    for place in (*places, *filter(None, (config.auth.handlers,))):
        _load(config, place)


@asynccontextmanager
async def open_state(
    config: Config,
    *,
    works: bool = True,
    name: str | None = None,
    ended: Collection[str] = (),
) -> AsyncIterator[ServerState]:
    """Yield the state of a server, and close it afterwards.

    Args:
        config: the configuration.
        works: execute runs in this process; otherwise runs are accepted, and left to workers.
        name: name of this process as the holder of runs.
        ended: names of processes that have ended, whose leases end with the start.
    """
    shows_texts.set(config.development)
    prepare(config)
    loaded = {name: await load_agent(_load(config, place.place)) for name, place in config.graphs.items()}
    agents = config.agents.apply(loaded, config.root)
    gate, settings = gate_of(config), settings_of(config)
    if isinstance(gate, OpenGate):
        _require_users(agents)
    make_folder_of(config.database_url)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            connect(
                config.database_url,
                migrate=config.development,
                encryption_key=config.keys,
                retention=config.retention.rules,
            )
        )
        store = await store_database(stack, config.store_url, development=config.development, key=config.keys)
        chats = [await stack.enter_async_context(chat) for chat in _make_chats(config)]
        host = await open_host(
            stack,
            database,
            agents,
            gate,
            webhooks(config.http, development=config.development),
            settings=settings,
            channels={name: channel for chat in chats for name, channel in chat.channels.items()},
            ended=ended,
            state=_list_state_arguments(config),
            works=works,
            all_tenants=True,
            observers=_make_observers(),
            name=name,
            store_ttl=config.store,
            store_index=config.store_index and config.store_index.load(config.root),
            store_database=store,
            thread_ttl=config.checkpointer,
        )
        host.signal_secrets, host.chats = config.http.signal_secrets, chats
        host.sweeps = RetentionLoop(
            database,
            Observers(_make_observers()),
            every=config.retention.every,
            options=RetentionOptions(all_tenants=True, share=config.retention.share, keep=settings.keep),
            store=store,
        )
        await stack.enter_async_context(host.sweeps)
        for chat in chats:
            await stack.enter_async_context(chat.poll(host.runtime))
        yield host


def _list_state_arguments(config: Config) -> dict[str, Any]:
    """Return the configured arguments of ``ServerState.over``."""
    arguments: dict[str, Any] = {
        "limits": config.limits,
        "descriptions": {name: each.description for name, each in config.graphs.items() if each.description},
        "configs": config.assistants,
    }
    if config.http.configurable_headers:
        arguments["headers"] = Headers(*config.http.configurable_headers)
    return arguments


def _make_chats(config: Config) -> Sequence[ChatChannel]:
    """Return the chat channels of the configuration."""
    if not config.chats:
        return ()
    from perdure.channels.configured import configure_channels

    return configure_channels(config.chats, config.graphs)


def _require_users(agents: Mapping[str, Agent]) -> None:
    """Raise ``BadSetting`` if an agent's memory is that of the verified user. Call this without
    authentication, where no user is verified."""
    for name, agent in agents.items():
        if agent.memory is not None and agent.memory.user is verified_user:
            raise BadSetting(
                f"the graph {name!r} has a memory of the verified user, and requests are not authenticated; "
                "configure auth, or name one user for all requests with memory.user (PERDURE_MEMORY_USER) "
                "or MemoryPolicy(user=…)"
            )


def prepare(config: Config) -> None:
    """Set the environment variables that the configuration has for graphs, and the one that makes the
    SDK's clients without a URL wait for this server; variables that are set already stay unchanged. Make the
    configuration's folders importable."""
    set_variables({DEFER: "true", **config.env})
    add_import_folders(config.import_folders)


def gate_of(config: Config) -> Gate:
    """Return the gate that the configuration describes."""
    auth, rules = config.auth, None
    if auth.handlers is not None:
        rules = _load(config, auth.handlers).found
        if not isinstance(rules, Auth):
            raise GraphLoadError(
                f"{auth.handlers} is not a langgraph_sdk.Auth but {type(rules).__name__}; name the object "
                "that has the handlers"
            )
    if auth.jwt is not None:
        return Jwt(JwtSettings(**auth.jwt), None if rules is None else Rules(rules))
    if rules is not None:
        return Handlers(rules, auth.tenant_claims)
    if not config.development:
        _log.warning("requests are not authenticated: anyone who reaches this server is its one user")
    return OpenGate()


def settings_of(config: Config) -> Settings:
    """Return the runtime's settings."""
    return make_runtime_settings(config.runtime)


async def load_own_app(config: Config) -> Starlette | Any | None:
    """Return the custom application that is served beside the API, if the configuration names one."""
    if config.http.app is None:
        return None
    app = await asyncio.to_thread(_load, config, config.http.app)
    if not callable(app.found):
        raise GraphLoadError(f"{config.http.app} is not an ASGI application but {type(app.found).__name__}")
    return app.found


def _load(config: Config, place: str) -> LoadedGraph:
    return find(place, root=Path(config.root))


def _make_observers() -> tuple[Observer, ...]:
    try:
        from perdure.runtime.metrics import of_process
    except MissingExtra:
        return (RunLogs(),)
    return (RunLogs(), of_process())
