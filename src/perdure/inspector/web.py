"""The inspector as an application of its own, for one database on this machine."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

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
from perdure.inspector.pages import HEADERS, PATH, make_inspector_pages
from perdure.model.values.json_values import find_fault
from perdure.runtime.json_encoding import to_json
from perdure.web.guard import Guard

_BODY_MAX = 4 * 1024 * 1024
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
        access: The rights of everyone who reaches the application.
        loopback: True if only the loopback address is served; requests with other host names are then
            refused.
    """

    async def show(request: Request) -> Response:
        return json_response(await api.view(access, request.path_params["name"], request.query_params))

    async def act(request: Request) -> Response:
        return json_response(await api.act(access, request.path_params["name"], await read_body(request)))

    async def replay(request: Request) -> Response:
        return json_response(await api.replay(access, await read_body(request)))

    async def redirect_to_page(request: Request) -> Response:
        return RedirectResponse(f"{PATH}/")

    return Starlette(
        routes=[
            Route("/", redirect_to_page),
            Route(f"{PATH}/api/{{name}}", show, methods=["GET"]),
            Route(f"{PATH}/api/replay", replay, methods=["POST"]),
            Route(f"{PATH}/api/actions/{{name}}", act, methods=["POST"]),
            Mount(PATH, make_inspector_pages(), name="inspector"),
        ],
        middleware=[Middleware(Guard, loopback=loopback)],
        exception_handlers={
            PerdureError: _answer_error,
            UnicodeEncodeError: _refuse_surrogate,
            Exception: _answer_failure,
        },
    )


async def read_body(request: Request) -> Mapping[str, Any]:
    """Return the JSON object that a request has as its body, with the ``tenant`` that its address names, if
    any; raise ``BadSetting`` for anything else."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        # Another site's page can make a browser send a form, but not with this content type.
        raise BadSetting("send the content type application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _BODY_MAX:
            raise TooLarge(f"the request is larger than {_BODY_MAX} bytes")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadSetting("the body has to be a JSON object")
    if (fault := find_fault(found)) is not None:
        raise BadSetting(f"the body has to be plain JSON data, and {fault}")
    tenant = request.query_params.get("tenant")
    if tenant is not None and found.setdefault("tenant", tenant) != tenant:
        raise BadSetting("the address names another tenant than the body")
    return found


def json_response(value: object, status: int = 200) -> Response:
    """Return a response with a value as JSON, which no browser takes for a page."""
    return Response(to_json(value), status, HEADERS, "application/json")


async def _answer_error(request: Request, error: Exception) -> Response:
    statuses = (status for kind, status in _STATUS if isinstance(error, kind))
    return json_response({"detail": str(error)}, next(statuses, HTTPStatus.INTERNAL_SERVER_ERROR))


async def _refuse_surrogate(request: Request, error: Exception) -> Response:
    return json_response({"detail": "a parameter is not valid Unicode"}, HTTPStatus.UNPROCESSABLE_ENTITY)


async def _answer_failure(request: Request, error: Exception) -> Response:
    _log.error("a request failed", exc_info=error)
    detail = f"The inspector failed: {type(error).__name__}; its log has more."
    return json_response({"detail": detail}, HTTPStatus.INTERNAL_SERVER_ERROR)
