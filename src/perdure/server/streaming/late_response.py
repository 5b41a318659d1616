"""Response whose headers are sent at once, and whose body follows when it is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.errors import Unavailable
from perdure.server.resources import HEARTBEAT_S


class LateResponse(Response):
    """A JSON document that ``work`` returns.

    Until the work is done, blank lines, which have no meaning in JSON, keep the connection alive. The body is
    aborted when the server stops: its client notices, and retries at another server.
    """

    media_type = "application/json"

    def __init__(
        self, work: Coroutine[Any, Any, bytes], left: Callable[[], None], headers: Mapping[str, str]
    ) -> None:
        """Start the work.

        Args:
            work: returns the document; raises ``Unavailable`` if the server stops.
            left: called if the client disconnects before the end of the work, which is cancelled then.
            headers: further headers of the response.
        """
        self.status_code = 200
        self.background = None
        self.init_headers(headers)
        self._work = asyncio.ensure_future(work)
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only the wait for a disconnection is a task of its own: most runs end before the first blank line,
        # so that blank lines are not worth another task.
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            either = (self._work, disconnected)
            while True:
                await asyncio.wait(either, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if self._work.done():
                    break
                if disconnected.done():
                    disconnected.result()
                    return
                await send({"type": "http.response.body", "body": b"\n", "more_body": True})
            await send({"type": "http.response.body", "body": self._work.result()})
        except Unavailable:
            return
        finally:
            disconnected.cancel()
            if not self._work.done():
                self._work.cancel()
                self._left()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
