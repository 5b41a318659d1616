"""Response with a list as JSON: a short list is sent at once, a long one while it is read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from perdure.server.responses import Json
from perdure.server.streaming.streams import STALLED_S

_log = logging.getLogger("perdure.server")

_WHOLE = 256 * 1024
"""Maximum number of characters of a list that is sent whole."""


async def json_list(
    entries: AsyncGenerator[str, None],
    headers: Mapping[str, str] | None = None,
    *,
    around: tuple[str, str] = ("[", "]"),
) -> Response:
    """Return the response with a list.

    A short list is read to its end first, so that an error while it is read has its own status. Of a long
    list only one entry at a time is in memory; the next is read when the client has taken it. An error then
    ends the connection, as the beginning has already been sent with a status.

    Args:
        entries: the entries, each as JSON text; closed when the response has ended.
        headers: headers of the response.
        around: the texts before and after the entries.
    """
    opening, closing = around
    first: list[str] = []
    size = 0
    async for entry in entries:
        first.append(entry)
        size += len(entry)
        if size > _WHOLE:
            return _LongList(opening, first, entries, closing, headers)
    return Response(f"{opening}{','.join(first)}{closing}", media_type=Json.media_type, headers=headers)


class _LongList(StreamingResponse):
    """Response with a long list, whose first entries have been read."""

    def __init__(
        self,
        opening: str,
        first: list[str],
        entries: AsyncGenerator[str, None],
        closing: str,
        headers: Mapping[str, str] | None,
    ) -> None:
        super().__init__(entries, media_type=Json.media_type, headers=headers)
        self._opening = opening
        self._first = first
        self._closing = closing.encode()
        self._entries = entries

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._entries):
                await _send(send, f"{self._opening}{','.join(self._first)}")
                self._first.clear()
                async for entry in self._entries:
                    await _send(send, f",{entry}")
        except TimeoutError:
            _log.warning("a list was aborted: the client read nothing for %g s", STALLED_S)
            return
        except Exception as error:
            _log.warning("a list was aborted: %s", type(error).__name__)
            return
        await send({"type": "http.response.body", "body": self._closing, "more_body": False})


async def _send(send: Send, part: str) -> None:
    async with asyncio.timeout(STALLED_S):
        await send({"type": "http.response.body", "body": part.encode(), "more_body": True})
