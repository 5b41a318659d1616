"""What is answered when something is wrong: one sentence under ``detail``, and the status that fits."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from perdure.errors import (
    Conflict,
    NotAllowed,
    NotFound,
    PerdureError,
    TooLarge,
    TryLater,
    TypeNotAllowed,
    Unavailable,
    Unserialisable,
)
from perdure.server.auth.identity import Refusal

_log = logging.getLogger("perdure.server")
_AGAIN_S = "1"

KNOWN = (Refusal, RequestValidationError, HTTPException, PerdureError, UnicodeEncodeError)
"""Errors that say what is wrong with a request, or why it cannot be carried out now."""


def install(app: FastAPI) -> None:
    """Answer every kind of failure in one form."""
    app.exception_handler(Refusal)(_refused)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(PerdureError)(_perdure)
    app.exception_handler(UnicodeEncodeError)(_halved)
    app.exception_handler(Exception)(_failed)


async def answer(request: Request, error: Exception) -> JSONResponse:
    """What an error that is ``KNOWN`` comes to. An application of its own may take it for what its endpoints
    raise: ``app.exception_handler(PerdureError)(answer_error)``."""
    match error:
        case Refusal():
            return await _refused(request, error)
        case RequestValidationError():
            return await _invalid(request, error)
        case HTTPException():
            return await _http(request, error)
        case UnicodeEncodeError():
            return await _halved(request, error)
        case _:
            return await _perdure(request, error)


def told(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error's answer."""
    # It may quote what was sent, and that need not be text.
    text = detail.encode(errors="backslashreplace").decode()
    return JSONResponse({"detail": text}, status, headers)


def status_of(error: PerdureError) -> int:
    """The status that fits an error of ours."""
    match error:
        case NotFound():
            return 404
        case TryLater():
            return 429
        case TooLarge():
            return 413
        case TypeNotAllowed() | Unserialisable():
            return 422
        case NotAllowed():
            return 403
        case Conflict():
            return 409
        case Unavailable():
            return 503
        case _:
            return 500


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refusal)  # noqa: S101 - what it was installed for
    return told(error.status, error.detail, dict(error.headers))


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - what it was installed for
    return told(422, "; ".join(map(_fault, error.errors())))


def _fault(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
    return f"{where}: {error['msg']}" if where else str(error["msg"])


async def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - what it was installed for
    return told(error.status_code, str(error.detail), dict(error.headers or {}))


async def _halved(_: Request, __: Exception) -> JSONResponse:
    return told(422, "A text holds half of a character (a lone surrogate) and cannot be stored.")


async def _perdure(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PerdureError)  # noqa: S101 - what it was installed for
    status = status_of(error)
    if status == 503:
        return told(503, "The database does not answer; try again.", {"Retry-After": _AGAIN_S})
    if status == 500:
        _log.error("%s failed: %s", request.scope["route"].path, type(error).__name__)
    return told(status, str(error), {"Retry-After": _AGAIN_S} if status == 429 else None)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    # The text may hold what somebody wrote; the type and the place say enough to find it.
    _log.error("%s %s failed: %s", request.method, request.scope.get("path"), type(error).__name__)
    return told(500, f"The server failed ({type(error).__name__}); its log says where.")
