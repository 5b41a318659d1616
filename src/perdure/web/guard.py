"""Access control of a server without a password: its own page, and programs on the same machine.

As there is no password, so a web page of another origin must not reach it through the browser: neither by
a post request nor under a host name that points at the loopback address.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
READING = frozenset({"GET", "HEAD", "OPTIONS"})
FOREIGN = "Only the page of this server itself may change anything."
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


class Guard:
    """Middleware that answers 403 to foreign origins and, when bound to the loopback address, to foreign host
    names. Pages of the origins that ``allows`` accepts are not foreign."""

    def __init__(
        self, app: ASGIApp, *, loopback: bool, allows: Callable[[str], bool] = lambda origin: False
    ) -> None:
        self._app = app
        self._loopback = loopback
        self._allows = allows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with the reason for its refusal."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        # A browser opens web sockets across origins without a check, so they count as writes.
        is_socket = scope["type"] == "websocket"
        reason = self._refusal("CONNECT" if is_socket else scope["method"], Headers(scope=scope))
        if reason is not None:
            if is_socket:
                await send({"type": "websocket.close", "code": 1008, "reason": reason})
            else:
                await JSONResponse({"detail": reason}, status_code=403)(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if self._loopback and _name(f"//{host}") not in LOOPBACK_NAMES:
            return "This server answers to 127.0.0.1 and localhost only."
        origin = headers.get("origin")
        if method in READING or (origin is not None and self._allows(origin)):
            return None
        site = headers.get("sec-fetch-site")
        if site is not None:
            return None if site in ("same-origin", "none") else FOREIGN
        if origin is not None and not is_of_host(origin, host):
            return FOREIGN
        return None


def is_of_host(origin: str, host: str | None) -> bool:
    """Return True for the header ``Origin`` of a page of a host; False for one that is no origin."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
