"""Limits on the requests and streams of a user and of the process, and on the size of a request.

Requests and streams are counted in this process's memory, for each authenticated user: several servers
admit several times as much, and requests that fail to authenticate are not counted. All users without an
identity count as one. The limits of bodies and pages are the same for all. More load than the process can
carry is refused at once, so that what was accepted is finished.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.model.bounded_cache import BoundedCache
from perdure.server.auth.identity import Refusal, User
from perdure.server.config import RequestLimits
from perdure.server.error_handlers import make_error_response
from perdure.server.requests import body_max, page_max

USERS_MOST = 10_000
"""Maximum number of users that are counted. Beyond it the least recently seen user is forgotten, and has all
requests of a minute left again."""

_STACK = "perdure.held"
"""Key in a request's scope: an exit stack that releases at the request's end what was counted for it."""
_LENGTH_DIGITS_MAX = 19
_STREAMS = ("/stream", "/stream/events", "/wait", "/join")
_RETRY_HEADERS = {"Retry-After": "5"}

_Key = tuple[str, str]


class Throttle:
    """Counts the requests and the open streams of users. ``waiting`` returns the number of runs that wait
    for a slot of this process; ``clock`` is in seconds."""

    def __init__(
        self,
        limits: RequestLimits,
        clock: Callable[[], float] = time.monotonic,
        *,
        waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._waiting = waiting
        # Remaining requests of a user, and the time at which they were computed.
        self._left: BoundedCache[_Key, tuple[float, float]] = BoundedCache(USERS_MOST)
        self._open: dict[_Key, int] = {}
        self._arriving = 0

    def admit(self, user: User, scope: MutableMapping[str, Any]) -> None:
        """Count a request of a user, and if it opens a stream, count the stream until its end. ``Refusal`` if
        a limit is exceeded, before the request has any effect."""
        self.request(user)
        route = getattr(scope.get("route"), "path", "")
        stack: ExitStack | None = scope.get(_STACK)
        if stack is not None and route.endswith(_STREAMS):
            stack.enter_context(self.count_stream(user))

    def request(self, user: User) -> None:
        """Count a request, as a token bucket: a minute's worth may come at once, and tokens are refilled
        evenly."""
        if (most := self._limits.requests_per_minute) is None:
            return
        now = self._clock()
        key = (user.tenant, user.identity)
        left, computed_at = self._left.get(key, (float(most), now))
        left = min(float(most), left + (now - computed_at) * most / 60)
        self._left[key] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            retry_after = max(1, math.ceil((1 - left) * 60 / most))
            raise Refusal(
                429,
                f"This user has made {most} requests within a minute; the next may come in {retry_after} s.",
                {"Retry-After": str(retry_after)},
            )

    @contextmanager
    def count_arrival(self) -> Iterator[None]:
        """Count a run whose request will wait for it, until the run is accepted. ``Refusal`` if too many runs
        wait already."""
        most = self._limits.total_waiting_runs
        if most is not None and (count := self._waiting() + self._arriving) >= most:
            raise Refusal(
                503,
                f"{count} runs wait for a slot of this server; try again in a few seconds, or create the run "
                "without waiting for it.",
                _RETRY_HEADERS,
            )
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    @contextmanager
    def count_stream(self, user: User) -> Iterator[None]:
        """Count a stream or a waiting request. ``Refusal`` if the user or the process has too many open."""
        total = self._limits.total_streams
        if total is not None and (count := sum(self._open.values())) >= total:
            raise Refusal(
                503,
                f"This server has {count} streams and waiting requests open, at most {total} at once; try "
                "again in a few seconds.",
                _RETRY_HEADERS,
            )
        key = (user.tenant, user.identity)
        most = self._limits.streams
        if most is None and total is not None and user.identity:
            most = max(1, total // 2)
        if most is not None and (count := self._open.get(key, 0)) >= most:
            raise Refusal(
                429,
                f"This user has {count} streams and waiting requests open, at most {most} at once; close one "
                "of them.",
                _RETRY_HEADERS,
            )
        self._open[key] = self._open.get(key, 0) + 1
        try:
            yield
        finally:
            if self._open[key] > 1:
                self._open[key] -= 1
            else:
                del self._open[key]


class Bounded:
    """Refuses a body that is too large before all of it was read, sets the maximum page size for the
    models, and releases what was counted for a request at its end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            with ExitStack() as stack:
                await self._app({**scope, _STACK: stack}, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = getattr(scope["app"].state, "perdure", None)
        host = getattr(state, "host", state)  # as in ``get_server_state``
        if host is None:
            limits: RequestLimits = RequestLimits()
        else:
            limits = host.limits
        refused = (
            f"The body of this request is larger than {limits.body_bytes} bytes, which is the limit here; "
            "put large content elsewhere and send a reference to it."
        )
        if _read_declared(scope) > limits.body_bytes:
            await make_error_response(413, refused)(scope, receive, send)
            return
        size = 0

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limits.body_bytes:
                raise HTTPException(413, refused)
            return message

        page_max.set(limits.page_max)
        body_max.set(limits.body_bytes)
        with ExitStack() as stack:

            async def send_counted(message: Message) -> None:
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    # A client that has received the end may send its next request at once: stop counting this
                    # one before.
                    stack.close()
                await send(message)

            await self._app({**scope, _STACK: stack}, receive_counted, send_counted)


def _read_declared(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            # A longer number is over any limit, and Python refuses to convert thousands of digits.
            if len(value) < _LENGTH_DIGITS_MAX:
                return int(value)
            return sys.maxsize
    return 0
