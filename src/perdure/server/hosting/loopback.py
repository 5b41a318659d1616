"""Support for LangGraph's client without a URL: ``get_client()`` in a graph, or in the application beside
the API, reaches the server that it runs in.

Such a client acts for the application and not for one of its users: it needs no credentials and no rule
restricts it. It sees the threads of the tenant whose run calls it, and outside of a run those of the
nameless tenant.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import httpx
from langgraph_sdk._async import client
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.server.resources import LOOPBACK

DEFER = "__LANGGRAPH_DEFER_LOOPBACK_TRANSPORT"
"""Environment variable that, if "true", makes the SDK's clients without a URL wait for their application.
Without it they use LangGraph's own server, where that is installed too."""


class _LoopbackApp:
    """The application, for requests made in this process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, LOOPBACK: True, "root_path": ""}, receive, send)


class _BoundTransports(list[Any]):
    """The SDK's list of transports that wait for an application: each is bound at once."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app: Any = app

    def append(self, transport: Any) -> None:
        _bind(transport, self._app)


def _bind(transport: Any, app: Any) -> None:
    """Make a transport of the SDK reach an application. Where LangGraph's own server is installed too, the
    SDK uses that server's transport, which works only in a process of that server."""
    transport.app = app
    transport.handle_async_request = MethodType(httpx.ASGITransport.handle_async_request, transport)


@contextmanager
def bind_clients_to(app: ASGIApp) -> Iterator[None]:
    """Make clients without a URL reach an application: those created before, and those created within the
    block."""
    loopback = _LoopbackApp(app)
    sdk: Any = client
    waiting = sdk._registered_transports
    # Transports of clients that modules created when they were imported; the SDK keeps them to be bound.
    for transport in waiting:
        _bind(transport, loopback)
    sdk._registered_transports = _BoundTransports(loopback)
    try:
        yield
    finally:
        sdk._registered_transports = waiting
