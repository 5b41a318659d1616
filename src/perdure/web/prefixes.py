"""A path in front of all routes of an application."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY_VIOLATION = 1008

_HEALTH = frozenset({"/", "/ok", "/live", "/ready", "/metrics"})
"""Paths that are answered without the prefix as well: probes need not know it."""


class Prefixed:
    """An application whose routes have a path in front of them.

    The addresses in the headers of its responses have the path, too. LangGraph's client appends them to its
    base URL, which ends with the prefix already: so a path that begins with the prefix twice is understood.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self.prefix = prefix
        self._app = app
        self._within = f"{prefix}/"

    def has(self, path: str) -> bool:
        """Return True if a path is the prefix or below it."""
        return path == self.prefix or path.startswith(self._within)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path in _HEALTH:
            await self._app(scope, receive, send)
            return
        if not self.has(path):
            await self._refuse(scope, receive, send)
            return
        repeated = f"{self.prefix}{self._within}"
        if path.startswith(repeated):
            raw: bytes | None = scope.get("raw_path")
            size = len(self.prefix)
            scope = {**scope, "path": path[size:], "raw_path": raw and raw[size:]}

        async def send_with_prefix(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name in ("location", "content-location"):
                    address = headers.get(name, "")
                    if address.startswith("/") and not address.startswith(("//", self._within)):
                        headers[name] = f"{self.prefix}{address}"
            await send(message)

        await self._app({**scope, "root_path": self.prefix}, receive, send_with_prefix)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        detail = f"There is nothing at this path; the routes of this server are below {self.prefix}."
        await JSONResponse({"detail": detail}, 404)(scope, receive, send)
