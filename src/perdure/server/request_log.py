"""Log of requests: one line each, at its end, with nothing that a user wrote but the ids in the path.

Parameters, headers, bodies and credentials are left out. ``perdure.server.app`` gives the id that is shown.
"""

from __future__ import annotations

import json
import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.runtime.observers import duration_text

_log = logging.getLogger("perdure.requests")

_PROBES = frozenset({"/", "/ok", "/live", "/ready", "/metrics"})
"""Paths that are asked for every few seconds: their successes are logged at debug level."""
_PATH_MAX = 200
_CUT_OFF = 499
"""Status that is shown of a request whose client did not wait for the answer, as by nginx."""


class RequestLog:
    """Middleware that logs each request at info level, and one that fails here at warning level.

    Args:
        app: The application.
        prefix: The path in front of its routes, if any.
    """

    def __init__(self, app: ASGIApp, prefix: str | None = None) -> None:
        self._app = app
        self._probes = _PROBES | {f"{prefix or ''}{path}" for path in _PROBES}

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
                named = (held for name, held in message["headers"] if name.lower() == b"x-request-id")
                request_id = next(named, b"").decode("latin-1")
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
        path = scope["path"]
        level = logging.INFO
        if status >= 500 and status != 503:
            level = logging.WARNING
        elif path in self._probes and status < 500:
            level = logging.DEBUG
        if not _log.isEnabledFor(level):
            return
        method = scope.get("method", "WEBSOCKET")
        fields = {"method": method, "path": path, "status": status, "bytes": size, "took": round(took * 1e6)}
        _log.log(
            level,
            "%s %s %d in %s, %d bytes%s",
            method,
            _show(path),
            status,
            duration_text(took),
            size,
            f", request {request_id}" if request_id else "",
            extra={"event": "request", **{f"perdure_{name}": value for name, value in fields.items()}},
        )


def _show(path: str) -> str:
    text = path if len(path) <= _PATH_MAX else f"{path[:_PATH_MAX]}…"
    is_plain = text.isprintable() and " " not in text
    return text if is_plain else json.dumps(text, ensure_ascii=True)
