"""What is answered when something is wrong: one sentence under ``detail``, and the status that fits."""

from __future__ import annotations

import logging
from traceback import walk_tb
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
    QueueFull,
    SubscriberTooSlow,
    TooLarge,
    Unavailable,
    Unreadable,
    Unserialisable,
)
from perdure.server.auth.identity import Refusal

_log = logging.getLogger("perdure.server")
_AGAIN_S = "1"

_FOR_CLIENTS = (Conflict, NotFound, NotAllowed, QueueFull, SubscriberTooSlow, Unreadable)
"""Errors whose sentences are of threads, runs and types alone. What others say is for whoever runs the
server: it may name the database and its user, and quote its driver."""

_SENTENCES: tuple[tuple[type[PerdureError], str], ...] = (
    (Unavailable, "The database does not answer; try again."),
    (TooLarge, "A value is larger than the database takes; store less, or a reference to it."),
    (Unserialisable, "A value cannot be stored in a form that comes back; change it and try again."),
)

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
        case QueueFull():
            return 429
        case TooLarge():
            return 413
        case Unreadable() | Unserialisable():
            return 422
        case NotAllowed():
            return 403
        case Conflict():
            return 409
        case Unavailable():
            return 503
        case _:
            return 500


def sentence(error: PerdureError) -> str:
    """What a client is told of an error. The database's address, its user and what its driver says are
    nothing for clients."""
    return str(error) if isinstance(error, _FOR_CLIENTS) else _plain(type(error))


def sentence_of(kind: str, said: str) -> str:
    """As ``sentence``, for an error that was noted by the name of its type and its text."""
    known = _kinds(PerdureError).get(kind)
    return said if known is None or issubclass(known, _FOR_CLIENTS) else _plain(known)


def _plain(kind: type[PerdureError]) -> str:
    return next((said for known, said in _SENTENCES if issubclass(kind, known)), _somewhere(kind))


def _somewhere(kind: type[Exception]) -> str:
    return f"The server failed ({kind.__name__}); its log says where."


def _kinds(root: type[PerdureError]) -> dict[str, type[PerdureError]]:
    """Every kind of error that is known by now, by name."""
    found = {root.__name__: root}
    for kind in root.__subclasses__():
        found |= _kinds(kind)
    return found


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
    if not isinstance(error, _FOR_CLIENTS):
        _note(logging.ERROR if status == 500 else logging.WARNING, request, error)
    return told(status, sentence(error), {"Retry-After": _AGAIN_S} if status in (429, 503) else None)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    _note(logging.ERROR, request, error)
    return told(500, _somewhere(type(error)))


def _note(level: int, request: Request, error: Exception) -> None:
    # The text may hold what somebody wrote; the type and the place say enough to find it.
    route = getattr(request.scope.get("route"), "path", "a request")
    _log.log(level, "%s %s failed: %s at %s", request.method, route, type(error).__name__, _place(error))


def _place(error: Exception) -> str:
    """The line of code where an error was raised."""
    frames = list(walk_tb(error.__traceback__))
    if not frames:
        return "an unknown place"
    frame, line = frames[-1]
    return f"{frame.f_globals.get('__name__', '?')}:{line}"
