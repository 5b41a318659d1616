"""Error responses: one sentence under ``detail``, and the matching status."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from traceback import walk_tb
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from perdure.errors import (
    Conflict,
    Corrupt,
    EmbeddingFailed,
    LimitReached,
    NotAllowed,
    NotFound,
    OverMaximum,
    PerdureError,
    QueueFull,
    SubscriberTooSlow,
    TooLarge,
    Unavailable,
    Unreadable,
    Unserialisable,
)
from perdure.runtime.failures.failure_location import shows_texts, write_text_for_clients
from perdure.runtime.json_encoding import to_json
from perdure.server.auth.identity import Refusal
from perdure.server.validation_faults import join_faults

_log = logging.getLogger("perdure.server")
_RETRY_AFTER_S = "1"

_FOR_CLIENTS = (
    Conflict,
    NotFound,
    LimitReached,
    NotAllowed,
    OverMaximum,
    QueueFull,
    SubscriberTooSlow,
    Unreadable,
    Unserialisable,
)
"""Errors whose messages concern threads, runs and types alone. The messages of others are for the operator
of the server: they may name the database and its user, and quote its driver."""

_SENTENCES: tuple[tuple[type[PerdureError], str], ...] = (
    (Unavailable, "The database does not answer; try again."),
    (EmbeddingFailed, "The embedding model does not answer; try again."),
    (TooLarge, "A value is larger than the database takes; store less, or a reference to it."),
)

_STATUSES: tuple[tuple[int, tuple[type[PerdureError], ...]], ...] = (
    (404, (NotFound,)),
    (429, (QueueFull, LimitReached)),
    (413, (TooLarge,)),
    (422, (Unreadable, Unserialisable)),
    (403, (NotAllowed,)),
    (409, (Conflict,)),
    (503, (Unavailable, EmbeddingFailed)),
)
"""Statuses of errors. An error of several kinds has the first of their statuses."""

KNOWN = (Refusal, RequestValidationError, HTTPException, PerdureError, UnicodeEncodeError)
"""Errors that describe what is wrong with a request, or why it cannot be carried out now."""


def install(app: FastAPI) -> None:
    """Install the handlers that give all errors the same form."""
    for kind in KNOWN:
        app.exception_handler(kind)(answer_error)
    app.exception_handler(Exception)(_answer_failure)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an error that is ``KNOWN``. An application may use it for the errors of its
    own endpoints: ``app.exception_handler(PerdureError)(answer_error)``."""
    match error:
        case Refusal():
            return make_error_response(error.status, error.detail, error.headers)
        case RequestValidationError():
            return _answer_invalid(request, error)
        case HTTPException():
            return _answer_http_error(request, error)
        case PerdureError():
            return _answer_perdure_error(request, error)
        case _:
            text = "A text holds half of a character (a lone surrogate) and cannot be stored."
            return make_error_response(422, text)


def make_error_response(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return the response of an error.

    Args:
        status: the HTTP status.
        detail: the message for the client.
        headers: further headers of the response.
    """
    # The detail may quote input that is not valid Unicode.
    text = detail.encode(errors="backslashreplace").decode()
    return JSONResponse({"detail": text}, status, headers)


def status_of(error: PerdureError) -> int:
    """Return the HTTP status of an error."""
    return next((status for status, kinds in _STATUSES if isinstance(error, kinds)), 500)


def make_public_message(error: PerdureError) -> str:
    """Return the message of an error for clients, without the database's address, its user and its
    driver's messages."""
    if isinstance(error, _FOR_CLIENTS):
        return str(error)
    return _write_public_text(type(error))


def make_recorded_message(kind: str, text: str) -> str:
    """Return the message as ``make_public_message`` does, for an error that was recorded by the name of its
    type and its text. The message of an application's exception is replaced unless ``shows_texts``."""
    known = _list_kinds(PerdureError).get(kind)
    if known is None:
        return write_text_for_clients(kind, text)
    if issubclass(known, _FOR_CLIENTS):
        return text
    return _write_public_text(known)


_NESTED_KEYS = ("payload", "data", "chunk", "tasks")
"""Keys of an event's data below which errors of tasks can be."""
_WITH_ERRORS = ("tasks", "debug", "checkpoints", "events")
"""Stream modes whose data have the errors of tasks."""


def make_event_data(name: str, data: str) -> str:
    """Return the JSON of a stream's event as clients may see it: without the texts of exceptions, unless
    ``shows_texts``."""
    if shows_texts.get() or name.partition("|")[0] not in _WITH_ERRORS or '"error"' not in data:
        return data
    return to_json(_without_texts(json.loads(data)))


def _without_texts(data: Any) -> Any:
    """Return the data of an event with sentences in place of errors. LangGraph puts errors in tasks, in the
    payload of a debug event, and in a chunk of a stream mode within an event of LangChain."""
    if isinstance(data, list):
        if len(data) in (2, 3) and isinstance(data[-2], str) and data[-2] not in _WITH_ERRORS:
            return data
        return [_without_texts(part) for part in data]
    if not isinstance(data, dict):
        return data
    cleaned = dict(data)
    error = cleaned.get("error")
    if isinstance(error, str):
        cleaned["error"] = make_recorded_message(error.partition("(")[0], error)
    elif isinstance(error, dict) and isinstance(error.get("error"), str):
        cleaned["error"] = {
            **error,
            "message": make_recorded_message(error["error"], str(error.get("message", ""))),
        }
    return cleaned | {name: _without_texts(cleaned[name]) for name in _NESTED_KEYS if name in cleaned}


def _write_public_text(kind: type[PerdureError]) -> str:
    if issubclass(kind, Corrupt):
        return (
            f"Stored data is missing or damaged ({kind.__name__}); nothing was changed. Run `perdure fsck` "
            "with the thread's id to see what is left, and `perdure fsck --repair` to go on from that."
        )
    return next((text for known, text in _SENTENCES if issubclass(kind, known)), _write_failure_text(kind))


def _write_failure_text(kind: type[Exception]) -> str:
    return f"The server failed ({kind.__name__}); its log says where."


def _list_kinds(root: type[PerdureError]) -> dict[str, type[PerdureError]]:
    """Return an error type and those of its subclasses that are imported so far, by name."""
    kinds = {root.__name__: root}
    for subclass in root.__subclasses__():
        kinds |= _list_kinds(subclass)
    return kinds


def _answer_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    if isinstance(error.body, bytes):
        # FastAPI leaves a body as bytes if its content type is not JSON, and can check no field of it.
        return make_error_response(422, describe_wrong_content_type(request))
    return make_error_response(422, join_faults(error.errors()))


def describe_wrong_content_type(request: Request) -> str:
    """Return the message for a body that was not sent as JSON."""
    sent = "without a content type"
    if kind := request.headers.get("content-type"):
        sent = f"as {kind}"
    return f"The body was sent {sent}; send JSON, with the header Content-Type: application/json."


def _answer_http_error(request: Request, error: HTTPException) -> JSONResponse:
    if isinstance(error.__cause__, UnicodeDecodeError):
        coding = request.headers.get("content-encoding")
        if coding is not None:
            return make_error_response(
                415, f"The body was sent with Content-Encoding: {coding}; send it without one."
            )
        return make_error_response(400, "The body is not UTF-8; send JSON in UTF-8.")
    if isinstance(error.__cause__, RecursionError):
        return make_error_response(400, "The JSON of the body is nested too deeply to be read.")
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # A path of another application matches no route here: its 405 keeps the header that it set.
        headers["Allow"] = ", ".join(sorted(_find_methods(request))) or headers.get("Allow", "")
    return make_error_response(error.status_code, str(error.detail), headers)


def _find_methods(request: Request) -> set[str]:
    """Return the methods of all routes of a path; the framework names only those of its first route."""
    return {
        method
        for route in _flatten(request.app.routes)
        if route.matches(request.scope)[0] is Match.PARTIAL
        for method in route.methods or ()
    }


def _flatten(routes: Iterable[BaseRoute]) -> Iterator[Route]:
    """Yield routes, and those of the routers among them."""
    for route in routes:
        if (router := getattr(route, "original_router", None)) is not None:
            yield from _flatten(router.routes)
        elif isinstance(route, Route):
            yield route


def _answer_perdure_error(request: Request, error: PerdureError) -> JSONResponse:
    status = status_of(error)
    if not isinstance(error, _FOR_CLIENTS):
        _log_failure(logging.ERROR if status == 500 else logging.WARNING, request, error)
    headers: dict[str, str] = {}
    if status in (429, 503):
        headers["Retry-After"] = _RETRY_AFTER_S
    if isinstance(error, LimitReached):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return make_error_response(status, make_public_message(error), headers)


async def _answer_failure(request: Request, error: Exception) -> JSONResponse:
    _log_failure(logging.ERROR, request, error)
    return make_error_response(500, _write_failure_text(type(error)))


def _log_failure(level: int, request: Request, error: Exception) -> None:
    # The error's text is left out: it may contain users' data, and its type and place show the cause.
    route = getattr(request.scope.get("route"), "path", "a request")
    _log.log(level, "%s %s failed: %s at %s", request.method, route, type(error).__name__, _find_place(error))


def _find_place(error: Exception) -> str:
    """Return the module and line where an error was raised."""
    frames = list(walk_tb(error.__traceback__))
    if not frames:
        return "an unknown place"
    frame, line = frames[-1]
    return f"{frame.f_globals.get('__name__', '?')}:{line}"
