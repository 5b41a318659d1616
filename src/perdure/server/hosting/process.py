"""Process of a server: it starts, serves until a signal stops it, and closes its streams before it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from ipaddress import ip_address

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from perdure.runtime.garbage_collector import exempt_existing
from perdure.runtime.worker.node_threads import run_with_node_threads
from perdure.server.app import create_app
from perdure.server.auth.identity import Gate, OpenGate
from perdure.server.config import Config, Cors
from perdure.server.hosting.child_process import handle_stops
from perdure.server.hosting.loopback import bind_clients_to
from perdure.server.hosting.mounting import mount
from perdure.server.hosting.startup import import_graphs, load_own_app, open_state, settings_of
from perdure.server.origins import allows
from perdure.server.request_log import RequestLog
from perdure.server.resources import ServerState
from perdure.web.connections import make_server_config
from perdure.web.guard import Guard
from perdure.web.prefixes import Prefixed


def run_server(
    config: Config,
    listener: socket.socket,
    *,
    works: bool = True,
    name: str | None = None,
    ended: Collection[str] = (),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Import the graphs, then serve them until SIGINT or SIGTERM.

    Args:
        config: the configuration.
        listener: the listening socket.
        works: execute runs in this process, too.
        name: name of this process as the holder of runs.
        ended: names of processes that have ended, whose leases end with the start.
        ready: called once requests are accepted.
    """
    import_graphs(config)
    opening = open_state(config, works=works, name=name, ended=ended)
    serving = _serve(config, listener, opening, ready)
    run(run_with_node_threads(settings_of(config).concurrency, serving))


def run(serving: Coroutine[None, None, None]) -> None:
    """Run a server to its end, on uvloop where it is installed."""
    # The configuration's application is never loaded, and the server's own decides about the log.
    loop_factory = uvicorn.Config("", log_config=None).get_loop_factory()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(serving)


async def _do_nothing() -> None:
    """Do nothing at the start or stop."""


_ABORTED = "ASGI callable returned without completing response."


class Server(uvicorn.Server):
    """uvicorn's server with hooks for its start and stop: streams have to end before it can stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], Awaitable[None]] = _do_nothing,
        stopping: Callable[[], Awaitable[None]] = _do_nothing,
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        await self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._stopping()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        log = logging.getLogger("uvicorn.error")
        log.addFilter(self._is_worth_logging)
        try:
            # The base class raises the signal again after the shutdown, which would cancel the clean-up.
            with handle_stops(self.handle_exit):
                yield
        finally:
            log.removeFilter(self._is_worth_logging)

    def _is_worth_logging(self, record: logging.LogRecord) -> bool:
        """Return False for uvicorn's error message about streams that end with the server, from the signal
        on: the shutdown begins some time later."""
        return not self.should_exit or record.getMessage() != _ABORTED


def guard(
    app: ASGIApp, gate: Gate, cors: Cors, listener: socket.socket, hosts: Collection[str] = ()
) -> ASGIApp:
    """Return the application for requests from the network.

    A server without authentication is protected from the pages of other sites in its users' browsers, also
    from pages whose host name points at this machine.

    Args:
        app: the application.
        gate: authenticates its requests.
        cors: the origins whose pages may use it.
        listener: the listening socket.
        hosts: host names to which the server answers besides its own, or ``*`` for any.
    """
    if not isinstance(gate, OpenGate):
        return app
    is_loopback = ip_address(listener.getsockname()[0]).is_loopback
    return Guard(app, loopback=is_loopback, hosts=hosts, allows=partial(allows, cors))


@asynccontextmanager
async def application(config: Config, host: ServerState) -> AsyncIterator[FastAPI]:
    """Yield the application over the opened server, with the custom application beside it. LangGraph
    clients that this process makes without a URL send their requests to it."""
    app = create_app(None, config.http, development=config.development)
    app.state.perdure = host
    for chat in host.chats:
        app.router.routes.extend(chat.routes(host.runtime))
    own = await load_own_app(config)
    async with AsyncExitStack() as stack:
        stack.enter_context(bind_clients_to(app))
        if own is not None:
            gate = None
            if config.http.enable_custom_route_auth:
                gate = host.gate
            await stack.enter_async_context(mount(app, own, gate))
        yield app


async def _serve(
    config: Config,
    listener: socket.socket,
    opening: AbstractAsyncContextManager[ServerState],
    ready: Callable[[], None],
) -> None:
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(opening)
        app = await stack.enter_async_context(application(config, host))

        async def notify_ready() -> None:
            exempt_existing()
            ready()

        drain = round(host.runtime.settings.drain)
        routed: ASGIApp = app
        if (prefix := config.http.mount_prefix) is not None:
            routed = Prefixed(app, prefix)
        guarded = guard(routed, host.gate, config.http.cors, listener, config.http.hosts)
        settings = make_server_config(RequestLog(guarded, prefix), max(1, drain))
        await Server(settings, notify_ready, host.close).serve(sockets=[listener])
