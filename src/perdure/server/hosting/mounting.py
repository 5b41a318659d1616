"""A custom application beside the API's routes: its lifespan, its middleware, and its authentication."""

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
async def mount(app: FastAPI, own: ASGIApp, gate: Gate | None) -> AsyncIterator[None]:
    """Serve ``own`` wherever ``app`` has no route, within the block.

    The lifespan of ``own`` runs meanwhile, and its middleware wraps the API's routes too, as on LangGraph's
    server.

    Args:
        app: the API's application.
        own: the custom application.
        gate: authenticates requests to the custom routes, or None to leave them open.
    """
    inner = own
    if isinstance(own, Starlette):
        for middleware in reversed(own.user_middleware):
            app.add_middleware(middleware.cls, *middleware.args, **middleware.kwargs)
        # The middleware wraps everything now; the original object stays unchanged.
        inner = copy.copy(own)
        inner.user_middleware, inner.middleware_stack = [], None
    if isinstance(own, FastAPI) and own.openapi_url is not None:
        _merge_descriptions(app, own)
    stateful = _WithState(inner)
    app.mount("", stateful if gate is None else AuthenticatedApp(stateful, gate))
    if not isinstance(own, Starlette):
        yield
        return
    async with own.router.lifespan_context(own) as state:
        stateful.state = dict(state or {})
        yield


def _merge_descriptions(app: FastAPI, own: FastAPI) -> None:
    describe_api = app.openapi

    def describe_both() -> dict[str, Any]:
        # Both applications cache their descriptions.
        return openapi.merge_descriptions(describe_api(), own.openapi())

    # FastAPI documents this way of replacing the description.
    app.openapi = describe_both  # type: ignore[method-assign]


class AuthenticatedApp:
    """Authenticates requests with a gate. The user is at ``request.user``, permissions at
    ``request.auth``."""

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
        authenticated = {"user": user, "auth": AuthCredentials(list(user.permissions))}
        await self._app({**scope, **authenticated}, receive, send)


class _WithState:
    """Adds the lifespan state of the custom application to each request, as a server does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.state: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "state": {**scope.get("state", {}), **self.state}}, receive, send)
