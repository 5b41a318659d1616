"""Requests of a provider: bodies of bounded size, and answers that make it send again what was not stored."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from perdure.errors import PerdureError, QueueFull, Unavailable

_log = logging.getLogger("perdure.channels")

Handle = Callable[[Request], Awaitable[Response]]


class RejectedRequest(Exception):
    """Request that is refused, with the status of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


async def body_of(request: Request, most: int) -> bytes:
    """Return the body of a request of at most ``most`` bytes.

    Raises:
        RejectedRequest: It is larger, which is known before all of it was read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise RejectedRequest(413, "the body is too large")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise RejectedRequest(413, "the body is too large")
        parts.append(part)
    return b"".join(parts)


def endpoint(channel: str, handle: Handle) -> Handle:
    """Return an endpoint that answers errors so that the provider sends again what was not stored: 503 if it
    may succeed later, 4xx if it never will. Nothing of the request is logged."""

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
