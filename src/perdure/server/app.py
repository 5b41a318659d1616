"""The HTTP application: the routes of the LangGraph API over a runtime."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter, FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.server import error_handlers, openapi
from perdure.server.config import Cors, Http
from perdure.server.origins import allows
from perdure.server.request_limits import Bounded
from perdure.server.resources import RAW
from perdure.server.routes import (
    a2a,
    chat,
    crons,
    health,
    inspector,
    limits,
    mcp,
    memory,
    meta,
    protocol,
    protocol_socket,
    reference,
    runs,
    signals,
    states,
    tags,
    thread_stream,
    threads,
)
from perdure.server.routes import assistants as assistant_routes
from perdure.server.routes import storage as storage_routes
from perdure.server.routes import store as store_routes
from perdure.web.guard import Guard

_log = logging.getLogger("perdure.server")

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def routers(http: Http | None = None) -> Sequence[APIRouter]:
    """Return the routers of a server's routes."""
    http = http or Http()
    chosen = (
        # Routes are tried in this order, and most requests are for runs.
        (runs.router, http.disable_runs),
        (health.router, False),
        (meta.router, http.disable_meta),
        (assistant_routes.router, http.disable_assistants),
        (threads.router, http.disable_threads),
        (states.router, http.disable_threads),
        (storage_routes.router, http.disable_threads),
        (tags.router, http.disable_threads),
        (signals.router, http.disable_runs),
        (memory.router, http.disable_store),
        (crons.router, http.disable_runs),
        (limits.router, http.disable_runs),
        (protocol.router, http.disable_runs),
        (protocol_socket.router, http.disable_runs),
        (thread_stream.router, http.disable_runs),
        (store_routes.router, http.disable_store),
        (mcp.router, http.disable_mcp),
        (
            a2a.router_of(needs_context=http.a2a_needs_context, shares_contexts=http.a2a_shared_contexts),
            http.disable_a2a,
        ),
    )
    return [router for router, is_off in chosen if not is_off]


def create_app(
    lifespan: Lifespan | None = None, http: Http | None = None, *, development: bool = False
) -> FastAPI:
    """Return the application. Its ``lifespan`` opens the resources and sets ``app.state.perdure`` to a
    ``ServerState``. In ``development`` the chat page shows which process answers."""
    http = http or Http()
    app = FastAPI(
        title="Perdure",
        version=release(),
        lifespan=lifespan,
        openapi_url=None if http.disable_meta else "/openapi.json",
        # FastAPI's own pages load their scripts from another host.
        docs_url=None,
        redoc_url=None,
        responses=openapi.RESPONSES,
        generate_unique_id_function=openapi.name_operation,
    )
    error_handlers.install(app)
    chosen = routers(http)
    openapi.summarise(chosen)
    for router in chosen:
        app.router.routes.extend(router.routes)
    if http.app is None:
        # A custom application may serve this path itself.
        app.add_api_route("/", health.live, methods=["GET"], include_in_schema=False)
    if not http.disable_meta:
        reference.serve_reference(app)
    if http.page:
        chat.serve_page(app, {"inspector": http.inspector, "process": development})
    if http.inspector:
        inspector.serve_inspector(app, http.prices)
    app.add_middleware(Bounded)
    app.add_middleware(Outermost)
    app.add_middleware(Guard, loopback=False, is_open=False, allows=partial(allows, http.cors))
    _allow_origins(app, http.cors)
    return app


def _allow_origins(app: FastAPI, cors: Cors) -> None:
    app.state.perdure_cors = cors
    app.add_middleware(
        CORSMiddleware,
        allow_origins=cors.allow_origins,
        allow_origin_regex=cors.allow_origin_regex,
        allow_methods=cors.allow_methods,
        allow_headers=cors.allow_headers,
        allow_credentials=cors.allow_credentials,
        expose_headers=cors.expose_headers,
        max_age=cors.max_age,
        allow_private_network=True,
    )


@cache
def release() -> str:
    """Return the release of this package. The first call reads files, so it is made below, at import."""
    try:
        return version("perdure")
    except PackageNotFoundError:
        return "0"


release()
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class Outermost:
    """Matches paths in their encoded form, so that an id in them may have any character, and adds a
    request id to every response. Paths of an ASGI server that passes only their decoded form are matched in
    that, and a warning is logged once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._is_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if raw := scope.get("raw_path"):
            scope = {**scope, "path": raw.partition(b"?")[0].decode("ascii", "replace"), RAW: True}
        elif not self._is_warned:
            self._is_warned = True
            _log.warning(
                "the ASGI server passes no raw_path, so %2F in a path is a slash that divides it: a request "
                "for an id with a slash is not found, or reaches another route; use such ids only with a "
                "server that passes it, e.g. uvicorn"
            )
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = str(uuid.uuid4())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
