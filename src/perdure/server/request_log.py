"""Log of requests: one line each, at its end. Of what a user sent, a line has only the path with its ids.

Parameters, headers, bodies and credentials are left out. ``perdure.server.app`` sets the request's id.
"""

from __future__ import annotations

import json
import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.inspector import pages
from perdure.model.bounded_cache import BoundedCache
from perdure.runtime.observers import format_duration
from perdure.server.routes import chat, reference

_log = logging.getLogger("perdure.requests")

_PROBES = frozenset({"/", "/ok", "/live", "/ready", "/metrics"})
"""Paths that are requested every few seconds: they are logged at debug level unless the server fails."""
_READS = frozenset({"GET", "HEAD"})
_READS_BY_POST = ("/search", "/count")
"""Ends of the paths of reads whose conditions are in their body."""
_REPEATED_S = 60.0
"""Time in which a further success of the same read is a poll, which is logged at debug level."""
_SLOW_S = 1.0
_REMEMBERED_MAX = 1000
_PATH_MAX = 200
_CUT_OFF = 499
"""Status logged for a request whose client left before the answer, as by nginx."""


class RequestLog:
    """Middleware that logs requests at info level, and failures of the server at warning level.

    Probes are logged at debug level unless the server fails. So are files of pages, and reads that are
    repeated within a minute (open pages send the same reads every few seconds), unless they are refused, fail
    or are slow.

    Args:
        app: The application.
        prefix: The path in front of its routes, if any.
    """

    def __init__(self, app: ASGIApp, prefix: str | None = None) -> None:
        self._app = app
        self._probes = _PROBES | {f"{prefix or ''}{path}" for path in _PROBES}
        self._pages = tuple(f"{prefix or ''}{path}/" for path in (chat.PATH, pages.PATH, reference.PATH))
        self._data = f"{prefix or ''}{pages.PATH}/api/"
        self._logged_at: BoundedCache[tuple[str, str], float] = BoundedCache(_REMEMBERED_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not _log.isEnabledFor(logging.WARNING):
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status, size, request_id = _CUT_OFF, 0, ""

        async def note_and_send(message: Message) -> None:
            nonlocal status, size, request_id
            kind = message["type"]
            if kind == "http.response.start":
                status = message["status"]
                ids = (value for name, value in message["headers"] if name.lower() == b"x-request-id")
                request_id = next(ids, b"").decode("latin-1")
            elif kind == "http.response.body":
                size += len(message.get("body", b""))
            elif kind == "websocket.accept":
                status = 101
            elif kind == "websocket.send":
                size += len(message.get("text") or message.get("bytes") or "")
            await send(message)

        try:
            await self._app(scope, receive, note_and_send)
        except Exception:
            status = 500 if status == _CUT_OFF else status
            raise
        finally:
            self._write(scope, status, size, request_id, time.monotonic() - began)

    def _write(self, scope: Scope, status: int, size: int, request_id: str, took: float) -> None:
        path, method = scope["path"], scope.get("method", "WEBSOCKET")
        level = logging.INFO
        if status >= 500 and status != 503:
            level = logging.WARNING
        elif status < 500 and self._is_quiet(scope, method, status, took):
            level = logging.DEBUG
        if not _log.isEnabledFor(level):
            return
        fields = {"method": method, "path": path, "status": status, "bytes": size, "took": round(took * 1e6)}
        _log.log(
            level,
            "%s %s %d in %s, %d bytes%s",
            method,
            _show(path),
            status,
            format_duration(took),
            size,
            f", request {request_id}" if request_id else "",
            extra={"event": "request", **{f"perdure_{name}": value for name, value in fields.items()}},
        )

    def _is_quiet(self, scope: Scope, method: str, status: int, took: float) -> bool:
        """Return True for a probe. Of the requests that are neither refused nor slow, return True for a file
        of a page, but not for the page itself, and for a read that was logged less than a minute ago."""
        path = scope["path"]
        if path in self._probes:
            return True
        if status >= 400 or took >= _SLOW_S:
            return False
        if path.startswith(self._pages) and not path.startswith(self._data):
            return not path.endswith("/")
        if method not in _READS and not (method == "POST" and path.endswith(_READS_BY_POST)):
            return False
        now, read = time.monotonic(), (method, path[:_PATH_MAX])
        logged_at = self._logged_at.get(read)
        if logged_at is not None and now - logged_at < _REPEATED_S:
            return True
        self._logged_at[read] = now
        return False


def _show(path: str) -> str:
    text = path if len(path) <= _PATH_MAX else f"{path[:_PATH_MAX]}…"
    is_plain = text.isprintable() and " " not in text
    if is_plain:
        return text
    return json.dumps(text, ensure_ascii=True)
