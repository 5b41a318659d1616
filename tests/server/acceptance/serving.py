"""Servers for the acceptance tests, in a thread of this process or as a process of their own, and a line to
them that can be cut."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from multiprocessing.context import ForkServerContext
from typing import Any, ParamSpec

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient

import perdure
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.config import Cors, Http
from perdure.server.resources import ServerState
from perdure.web.connections import LimitedConnection
from tests.server.graphs import graphs
from tests.servers.ports import free_port

P = ParamSpec("P")

near = pytest.mark.parametrize("server", ["sqlite"], indirect=True)
"""A test of what no database has a part in: one is enough."""

WITHIN_S = 60.0
"""How long anything is waited for. Nothing takes that long but a machine that has something else to do."""
_TIMEOUT: Any = httpx.Timeout(WITHIN_S)


def run(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine, and is not waited for for ever."""

    async def bounded(*args: P.args, **given: P.kwargs) -> None:
        async with asyncio.timeout(WITHIN_S * 1.5):
            await test(*args, **given)

    @functools.wraps(test)
    def sync(*args: P.args, **given: P.kwargs) -> None:
        asyncio.run(bounded(*args, **given))

    return sync


async def eventually(what: Callable[[], Awaitable[object]]) -> None:
    """Wait until something that has to be asked for is true."""
    async with asyncio.timeout(WITHIN_S):
        while not await what():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.05)


class Place:
    """Where a server listens, and clients of it."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> LangGraphClient:
        """LangGraph's own client, as it is."""
        return get_client(url=self.url, api_key=None, timeout=_TIMEOUT)

    def sync_client(self) -> SyncLangGraphClient:
        return get_sync_client(url=self.url, api_key=None, timeout=_TIMEOUT)

    def http(self) -> httpx.AsyncClient:
        """For what LangGraph's client does not show."""
        return httpx.AsyncClient(base_url=self.url, timeout=_TIMEOUT, trust_env=False)


def application(database: str, lease: float) -> FastAPI:
    """The server over a database, for pages of every origin, open to everybody."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        settings = Settings(poll=0.2, lease=lease, drain=10.0, shared_threads=True)
        async with (
            perdure.connect(database, migrate=True) as opened,
            Runtime(opened, graphs(), settings=settings, all_tenants=True) as runtime,
        ):
            app.state.perdure = host = ServerState.over(runtime, OpenGate())
            try:
                yield
            finally:
                await host.close()

    return create_app(lifespan, Http(cors=Cors(allow_origins=("*",))))


def _config(database: str, lease: float) -> uvicorn.Config:
    return uvicorn.Config(
        application(database, lease),
        http=LimitedConnection,
        log_level="warning",
        timeout_graceful_shutdown=5,
        ws="none",
    )


class _StreamsFirst(uvicorn.Server):
    """Closes its streams before it waits for their ends, as ``perdure serve`` does."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.config.app.state.perdure.close()  # type: ignore[union-attr]
        await super().shutdown(sockets)


class Server(Place):
    """A server in a thread of this process. ``stop`` ends it in order."""

    def __init__(self, database: str, lease: float = 10.0) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        super().__init__(self._socket.getsockname()[1])
        self.database = database
        self._server = _StreamsFirst(_config(database, lease))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + WITHIN_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise AssertionError("The server did not start.")
            time.sleep(0.02)

    def begin_to_stop(self) -> None:
        self._server.should_exit = True

    def stop(self) -> None:
        self.begin_to_stop()
        self._thread.join(WITHIN_S)
        self._socket.close()


class ServerProcess(Place):
    """A server in a process of its own, which can be killed."""

    def __init__(self, database: str, lease: float = 1.5) -> None:
        super().__init__(free_port())
        self._process = _processes().Process(target=_serve, args=(database, self.port, lease), daemon=True)
        self._process.start()

    def wait(self) -> None:
        """Return when it serves."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/ok", trust_env=False).is_success:
                    return
            if not self._process.is_alive() or time.monotonic() > deadline:
                raise AssertionError(f"The server ended with {self._process.exitcode}.")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a power cut would; repeatable."""
        self._process.kill()
        self._process.join()


@functools.cache
def _processes() -> ForkServerContext:
    """Processes that are forked from one that imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _serve(database: str, port: int, lease: float) -> None:
    config = _config(database, lease)
    config.port = port
    uvicorn.Server(config).run()


class Line:
    """A relay to a server. ``cut`` ends every connection on it, with what is on its way; ``leads_to`` another
    server, later connections go there."""

    def __init__(self, place: Place) -> None:
        self.target = place.port
        self.cuts = 0
        self.reached: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.near = Place(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self.cuts += 1
        for peer in list(self._open):
            _end(peer)
        self._open.clear()

    def close(self) -> None:
        # Closing alone does not wake a thread that waits in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
                self.reached.append(self.target)
            except OSError:
                _end(near)
                continue
            self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass  # one of both sides ended it
        finally:
            _end(source)
            _end(sink)


@contextmanager
def line_to(place: Place) -> Iterator[Line]:
    line = Line(place)
    try:
        yield line
    finally:
        line.close()


def _end(peer: socket.socket) -> None:
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
    peer.close()
