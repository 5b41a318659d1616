"""The inspector as an application of its own, for one database on this machine."""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from perdure.errors import (
    BadSetting,
    Conflict,
    NotAllowed,
    NotFound,
    PerdureError,
    TooLarge,
    Unavailable,
    Unserialisable,
)
from perdure.inspector import api
from perdure.inspector.access import Access
from perdure.inspector.guard import Guard
from perdure.inspector.pages import HEADERS, PATH, InspectorFiles
from perdure.runtime.encoding import encoded

_log = logging.getLogger("perdure.inspector")

_STATUS: tuple[tuple[type[PerdureError], HTTPStatus], ...] = (
    (NotFound, HTTPStatus.NOT_FOUND),
    (NotAllowed, HTTPStatus.FORBIDDEN),
    (Conflict, HTTPStatus.CONFLICT),
    (BadSetting, HTTPStatus.UNPROCESSABLE_ENTITY),
    (TooLarge, HTTPStatus.UNPROCESSABLE_ENTITY),
    (Unserialisable, HTTPStatus.UNPROCESSABLE_ENTITY),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
)


def create_app(access: Access, *, loopback: bool = True) -> Starlette:
    """Return the application.

    Args:
        access: The rights of all who reach it.
        loopback: True if only the loopback address is served: other host names are refused then.
    """

    async def show(request: Request) -> Response:
        return json_response(await api.view(access, request.path_params["name"], request.query_params))

    async def to_page(request: Request) -> Response:
        return RedirectResponse(f"{PATH}/")

    return Starlette(
        routes=[
            Route("/", to_page),
            Route(f"{PATH}/api/{{name}}", show, methods=["GET"]),
            Mount(PATH, InspectorFiles(), name="inspector"),
        ],
        middleware=[Middleware(Guard, loopback=loopback)],
        exception_handlers={PerdureError: _refused, UnicodeEncodeError: _halved, Exception: _failed},
    )


def json_response(value: object, status: int = 200) -> Response:
    """Return a response with a value as JSON, which no browser takes for a page."""
    return Response(encoded(value), status, HEADERS, "application/json")


async def _refused(request: Request, error: Exception) -> Response:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return json_response({"detail": str(error)}, status)
    return json_response({"detail": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)


async def _halved(request: Request, error: Exception) -> Response:
    return json_response({"detail": "a parameter is not valid Unicode"}, HTTPStatus.UNPROCESSABLE_ENTITY)


async def _failed(request: Request, error: Exception) -> Response:
    _log.error("a request failed", exc_info=error)
    detail = f"The inspector failed: {type(error).__name__}; its log has more."
    return json_response({"detail": detail}, HTTPStatus.INTERNAL_SERVER_ERROR)
