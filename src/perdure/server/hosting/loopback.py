"""LangGraph's client without a URL: ``get_client()`` in a graph, or in the application beside the API,
reaches the server that it runs in.

Such a client is the program itself and not one of its users: it is asked for no credentials and restricted by
no rule. It sees the threads of the tenant for whose run it is called, and outside of a run those of the
tenant without a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import httpx
from langgraph_sdk._async import client
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.server.state import LOOPBACK

DEFER = "__LANGGRAPH_DEFER_LOOPBACK_TRANSPORT"
"""The variable that, when it is "true", has the SDK's clients without a URL wait for their application. Where
LangGraph's own server is installed as well they would reach for that."""


class _Within:
    """The application, for requests that were made in this process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, LOOPBACK: True, "root_path": ""}, receive, send)


class _Bound(list[Any]):
    """The SDK's list of transports that wait for an application: they get it at once."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app: Any = app

    def append(self, transport: Any) -> None:
        _bind(transport, self._app)


def _bind(transport: Any, app: Any) -> None:
    """Have a transport of the SDK's reach an application. Where LangGraph's own server is installed as well
    the SDK takes a transport of that, which works in its process only."""
    transport.app = app
    transport.handle_async_request = MethodType(httpx.ASGITransport.handle_async_request, transport)


@contextmanager
def reachable(app: ASGIApp) -> Iterator[None]:
    """Have clients without a URL reach an application, those that were made before and those made while the
    block lasts."""
    within = _Within(app)
    sdk: Any = client
    before = sdk._registered_transports
    # Clients that a module made when it was imported; the SDK keeps them for this.
    for transport in before:
        _bind(transport, within)
    sdk._registered_transports = _Bound(within)
    try:
        yield
    finally:
        sdk._registered_transports = before
