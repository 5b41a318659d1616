"""The LangGraph API inside another application, and the thread that a request of that application names.

The parts that these routes use are opened by ``checkpoint_lifespan(serve=True)`` of the application around
them. Where the routes are, and what else the application has, is its own affair.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.routing import APIRoute, APIWebSocketRoute

from perdure.server import error_handlers, thread_ids
from perdure.server.app import create_app, routers
from perdure.server.auth.identity import Refusal
from perdure.server.config import Http


def perdure_app(app: FastAPI, http: Http | None = None) -> FastAPI:
    """The API as an application for ``app.mount("/agents", perdure_app(app))``. It has all that the server
    has: answers in its own form, ids with any character, its own ``/openapi.json``."""
    mounted = create_app(None, http)
    # Starlette runs no lifespan of what is mounted; the outer one's is for both.
    mounted.state = app.state
    return mounted


def perdure_router(http: Http | None = None) -> APIRouter:
    """The API as a router for ``app.include_router(perdure_router(), prefix="/agents")``: its routes are the
    application's own, behind its middleware and its dependencies, and in its ``/openapi.json``. A thread's id
    in a path can have no slash there; ``perdure_app`` takes any."""
    router = APIRouter(route_class=_Answered)
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
                    responses=route.responses,
                    tags=route.tags,
                    name=route.name,
                    summary=route.summary,
                    description=route.description,
                    include_in_schema=route.include_in_schema,
                )
            else:
                raise TypeError(f"{type(route).__name__} {getattr(route, 'path', '')} cannot be included")
    return router


class _Answered(APIRoute):
    """A route that answers what is wrong in this API's form, whatever the application does with its own."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handle(request)
            except error_handlers.KNOWN as error:
                return await error_handlers.answer(request, error)

        return answered


async def thread_id_of_request(request: Request) -> str:
    """The thread that a request names: ``thread_id``, or ``context_id``, which is the same under the name
    that agents use between each other; in the path, the query, or at the top of a JSON body.

    422 when it names none, since a new thread in its place would answer somebody who is not known; and when
    it names two. ``null`` is as good as absent. Whether the caller may use the thread is not looked at.
    """
    in_path = [str(request.path_params[name]) for name in thread_ids.NAMES if name in request.path_params]
    try:
        named = thread_ids.only(
            [*in_path, *thread_ids.in_query(request), *thread_ids.in_body(await _body(request))]
        )
    except Refusal as refusal:
        raise HTTPException(refusal.status, refusal.detail) from None
    if named is None:
        raise HTTPException(
            422, "the request names no thread; send thread_id, or context_id, in the path, query or JSON body"
        )
    return named


RequestThreadId = Annotated[str, Depends(thread_id_of_request)]
"""The thread that a request names, for an endpoint's parameter; see ``thread_id_of_request``."""


async def _body(request: Request) -> dict[str, Any]:
    """The object that a JSON body is; an empty one for any other body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        return {}
    if not (content := await request.body()):
        return {}
    try:
        body = json.loads(content)
    except ValueError:
        raise HTTPException(422, "the body is no JSON") from None
    except RecursionError:
        raise HTTPException(422, "the body is nested too deeply") from None
    return body if isinstance(body, dict) else {}
