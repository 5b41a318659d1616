"""The LangGraph API inside another application, and the thread id of that application's requests.

The resources of these routes are opened by ``checkpoint_lifespan(serve=True)`` of the surrounding
application, which chooses the routes' prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.requests import HTTPConnection

from perdure.server import error_handlers, openapi, thread_ids
from perdure.server.app import create_app, routers
from perdure.server.auth.identity import Refusal
from perdure.server.config import Http
from perdure.server.json_bodies import parse_json
from perdure.server.origins import allows
from perdure.server.resources import GatedRoute
from perdure.web.guard import SIMPLE, is_foreign, may_change, needs_preflight


def perdure_app(app: FastAPI, http: Http | None = None) -> FastAPI:
    """Return the API as an application for ``app.mount("/agents", perdure_app(app))``. It behaves as the
    server does: its own error responses, ids with any character, its own ``/openapi.json``."""
    mounted = create_app(None, http)
    # Starlette runs no lifespan of a mounted application; the outer one serves both.
    mounted.state = app.state
    return mounted


def perdure_router(http: Http | None = None) -> APIRouter:
    """Return the API as a router for ``app.include_router(perdure_router(), prefix="/agents")``: its
    routes are the application's own, behind its middleware and its dependencies, and in its
    ``/openapi.json``. A thread's id in a path cannot contain a slash there; ``perdure_app`` accepts any."""
    allowed = partial(allows, (http or Http()).cors)

    async def require_own_page(connection: HTTPConnection) -> None:
        # The route of the WebSocket checks its client itself, and sends it the reason of a refusal.
        headers = connection.headers
        is_change = connection.scope["type"] == "http" and may_change(connection.scope)
        if is_change and is_foreign(headers, allowed) and not needs_preflight(headers):
            raise Refusal(403, SIMPLE)

    router = APIRouter(route_class=_OwnErrorsRoute, dependencies=[Depends(require_own_page)])
    for part in routers(http):
        for route in part.routes:
            if isinstance(route, APIWebSocketRoute):
                router.add_api_websocket_route(
                    route.path, route.endpoint, route.name, dependencies=route.dependencies
                )
            elif isinstance(route, APIRoute):
                router.add_api_route(
                    route.path,
                    route.endpoint,
                    methods=list(route.methods or ()),
                    response_model=route.response_model,
                    response_class=route.response_class,
                    status_code=route.status_code,
                    dependencies=route.dependencies,
                    responses={
                        status: each
                        for status, each in route.responses.items()
                        if each is not openapi.RESPONSES.get(status)
                    },
                    tags=route.tags,
                    name=route.name,
                    summary=route.summary,
                    description=route.description,
                    include_in_schema=route.include_in_schema,
                )
            else:
                raise TypeError(f"{type(route).__name__} {getattr(route, 'path', '')} cannot be included")
    return router


class _OwnErrorsRoute(GatedRoute):
    """A route that returns errors in this API's form, whatever the application's error handlers do."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except error_handlers.KNOWN as error:
                return await error_handlers.answer_error(request, error)

        return answer


async def thread_id_of_request(request: Request) -> str:
    """Return the thread of a request: ``thread_id``, or ``context_id``, its name in protocols between
    agents; from the path, the query, or the top level of a JSON body.

    Responds with 422 if the request names two threads, and also if it names none: on a new thread in its
    place the graph would not know the user's conversation. ``null`` counts as absent. The caller's access to
    the thread is not checked.
    """
    in_path = [str(request.path_params[name]) for name in thread_ids.NAMES if name in request.path_params]
    try:
        named = thread_ids.require_same_thread(
            [
                *in_path,
                *thread_ids.read_from_query(request),
                *thread_ids.read_from_body(await _read_object(request)),
            ]
        )
    except Refusal as refusal:
        raise HTTPException(refusal.status, refusal.detail) from None
    if named is None:
        raise HTTPException(
            422, "the request names no thread; send thread_id, or context_id, in the path, query or JSON body"
        )
    return named


RequestThreadId = Annotated[str, Depends(thread_id_of_request)]
"""The thread of a request, as the type of an endpoint's parameter; see ``thread_id_of_request``."""


async def _read_object(request: Request) -> dict[str, Any]:
    """Return the object in a JSON body; an empty one for any other body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        return {}
    if not (content := await request.body()):
        return {}
    try:
        body = parse_json(content)
    except ValueError:
        raise HTTPException(422, "the body is not JSON") from None
    except RecursionError:
        raise HTTPException(422, "the body is nested too deeply") from None
    if isinstance(body, dict):
        return body
    return {}
