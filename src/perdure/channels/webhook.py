"""Requests of a provider: bodies of bounded size, and answers that make it send again what was not stored."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from perdure.errors import PerdureError, QueueFull, Unavailable

_log = logging.getLogger("perdure.channels")

_DIGITS = 19
"""A length of this many digits exceeds every limit. Python refuses to convert texts of thousands of
digits."""

_HALF = re.compile("[\ud800-\udfff]")

Handle = Callable[[Request], Awaitable[Response]]


class RejectedRequest(Exception):
    """Request that is refused, with the status of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


async def body_of(request: Request, most: int) -> bytes:
    """Return the body of a request of at most ``most`` bytes.

    Raises:
        RejectedRequest: The body is larger; the rest of it is not read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) >= _DIGITS or int(declared) > most):
        raise RejectedRequest(413, "the body is too large")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise RejectedRequest(413, "the body is too large")
        parts.append(part)
    return b"".join(parts)


def json_of(body: bytes | str) -> Any:
    """Return the JSON of a body. Half of a surrogate pair becomes U+FFFD: clients that cut an emoji leave
    such halves, and no database stores them.

    Raises:
        ValueError: The body is not JSON, or is nested too deeply.
    """
    try:
        return _replace_halves(json.loads(body))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _replace_halves(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        items: list[Any] = value
        return [_replace_halves(each) for each in items]
    if isinstance(value, dict):
        fields: dict[str, Any] = value
        return {_replace_halves(name): _replace_halves(each) for name, each in fields.items()}
    return value


def endpoint(channel: str, handle: Handle) -> Handle:
    """Return an endpoint that answers errors so that the provider repeats a request that was not stored: 503
    if a repetition may succeed, 4xx if it never will. Nothing of the request is logged."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except RejectedRequest as refused:
            _log.warning("%s: request refused with %s: %s", channel, refused.status, refused)
            return PlainTextResponse(str(refused), refused.status)
        except ClientDisconnect:
            return PlainTextResponse("the request ended early", 400)
        except (QueueFull, Unavailable) as error:
            _log.warning("%s: not accepted (%s)", channel, type(error).__name__)
            return PlainTextResponse("not accepted; send it again", 503, {"Retry-After": "5"})
        except PerdureError as error:
            _log.error("%s: not accepted (%s)", channel, type(error).__name__)
            return PlainTextResponse("not accepted", 500)

    return answer
