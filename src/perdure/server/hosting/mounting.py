"""The user's own application beside the API's routes: its lifespan, its middleware, and who may use it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.server import openapi
from perdure.server.auth.identity import Gate, Refusal

_POLICY_VIOLATION = 1008


@asynccontextmanager
async def mounted(app: FastAPI, own: ASGIApp, gate: Gate | None) -> AsyncIterator[None]:
    """Serve ``own`` wherever ``app`` has no route, for as long as the block lasts. Its lifespan runs
    meanwhile, and its middleware is around the API's routes, too, as on LangGraph's server. With a ``gate``
    nobody gets to its routes who is not let in."""
    inner = own
    if isinstance(own, Starlette):
        for middleware in reversed(own.user_middleware):
            app.add_middleware(middleware.cls, *middleware.args, **middleware.kwargs)
        # The middleware is around everything now; the user's object stays as it is.
        inner = copy.copy(own)
        inner.user_middleware, inner.middleware_stack = [], None
    if isinstance(own, FastAPI) and own.openapi_url is not None:
        _describe(app, own)
    stateful = _WithState(inner)
    app.mount("", stateful if gate is None else AuthenticatedApp(stateful, gate))
    if not isinstance(own, Starlette):
        yield
        return
    async with own.router.lifespan_context(own) as state:
        stateful.state = dict(state or {})
        yield


def _describe(app: FastAPI, own: FastAPI) -> None:
    alone = app.openapi

    def both() -> dict[str, Any]:
        # Each keeps its own description once it is made.
        return openapi.joined(alone(), own.openapi())

    # The way that FastAPI documents for a description of one's own.
    app.openapi = both  # type: ignore[method-assign]


class AuthenticatedApp:
    """Lets in whom the gate knows. The user stands at ``request.user``, permissions at ``request.auth``."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        is_http = scope["type"] == "http"
        try:
            user = await self._gate.authenticate(Request(scope) if is_http else HTTPConnection(scope))
        except Refusal as refusal:
            if is_http:
                answer = JSONResponse({"detail": refusal.detail}, refusal.status, refusal.headers)
                await answer(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": refusal.detail})
            return
        known = {"user": user, "auth": AuthCredentials(list(user.permissions))}
        await self._app({**scope, **known}, receive, send)


class _WithState:
    """Gives each request what the lifespan of the user's application yielded, as a server does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.state: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "state": {**scope.get("state", {}), **self.state}}, receive, send)
