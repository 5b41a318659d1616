"""Protection of a server from web pages of other sites, which act in its user's browser.

A browser sends a page's request with the cookies of the server, and asks the server first only for requests
that a form cannot make. So a request that changes something is refused, on every route, if a page of another
origin sent it in a form about which its browser does not ask. A server without authentication refuses all
requests of other origins' pages that change something, and all requests under a host name that is not its
own: the owner of a page may have pointed the page's name at the server.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
READING = frozenset({"GET", "HEAD", "OPTIONS"})
FOREIGN = "Only the page of this server itself may change anything."
SIMPLE = (
    "A page of another origin may change something here only with JSON, which its browser asks about first; "
    "allow the origin in http.cors.allow_origins."
)
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
ANY_HOST = "*"

_EFFECT = "cancel_on_disconnect"
"""Query parameter with which a read changes something: it cancels a run when the client disconnects."""
_REFUSED = 4000
"""Code with which a WebSocket is closed, with the HTTP status added."""
_REASON_MAX = 120

Allows = Callable[[str], bool]


class Guard:
    """Middleware that refuses with 403 the requests of other origins' pages that would change something.

    With ``is_open``, for a server without authentication, it also refuses requests under foreign host names
    with 403, and requests without exactly one ``Host`` header with 400. The server's own names are those of
    the loopback address. Unless it is bound to that address (``loopback``), its own names are also all
    addresses, the machine's name, and names without a dot, which no one can register. ``hosts`` are further
    names, or ``*`` for any.

    Pages of the origins that ``allows`` accepts are not foreign.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        loopback: bool,
        is_open: bool = True,
        hosts: Collection[str] = (),
        allows: Allows = lambda origin: False,
    ) -> None:
        self._app = app
        self._loopback = loopback
        self._is_open = is_open
        self._hosts = frozenset(hosts)
        self._allows = allows
        self._machine = socket.gethostname().lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with the reason for its refusal."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = self._find_refusal(scope)
        if refused is not None:
            status, reason = refused
            if scope["type"] == "http":
                await JSONResponse({"detail": reason}, status)(scope, receive, send)
                return
            if not self._is_open:
                # A browser passes the code on to the page only if the socket was open.
                await receive()
                await send({"type": "websocket.accept"})
            await send({"type": "websocket.close", "code": _REFUSED + status, "reason": reason[:_REASON_MAX]})
            return
        if not self._is_open:
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)

    def _find_refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason with which a request is refused, or None."""
        headers = Headers(scope=scope)
        if self._is_open:
            given = headers.getlist("host")
            if len(given) != 1:
                return 400, f"A request has one Host header; this one has {len(given)}."
            if not self._is_own(_parse_host(f"//{given[0]}")):
                return 403, self._list_own_names()
        if not may_change(scope) or not is_foreign(headers, self._allows):
            return None
        if self._is_open or scope["type"] == "websocket":
            return 403, FOREIGN
        if needs_preflight(headers):
            return None
        return (403, SIMPLE)

    def _is_own(self, name: str | None) -> bool:
        if ANY_HOST in self._hosts or name in self._hosts or name in LOOPBACK_NAMES:
            return True
        if self._loopback or not name:
            return False
        return "." not in name or name == self._machine or _is_address(name)

    def _list_own_names(self) -> str:
        if self._loopback:
            return "This server answers to 127.0.0.1 and localhost only."
        return (
            "This server has no authentication, and answers to its addresses and names without a dot alone; "
            "a server's further names are set with http.hosts."
        )


def may_change(scope: Scope) -> bool:
    """Return True if a request may change something. A browser opens WebSockets across origins without a
    check, so they count as changes."""
    if scope["type"] == "websocket" or scope["method"] not in READING:
        return True
    query = scope.get("query_string", b"")
    return _EFFECT.encode() in query and _EFFECT in parse_qs(query.decode("latin-1"), keep_blank_values=True)


def is_foreign(headers: Headers, allows: Allows) -> bool:
    """Return True for a request of a page of another origin that is not allowed. A program sends neither of
    the headers by which browsers name the origin."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and allows(origin):
        return False
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and not is_of_host(origin, headers.get("host"))


def needs_preflight(headers: Headers) -> bool:
    """Return True if a browser asks the server before it sends such a request to another origin, because its
    body is JSON, which a form cannot send."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def is_of_host(origin: str, host: str | None) -> bool:
    """Return True if an ``Origin`` header is that of a page of a host; False also if it is not an origin."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _parse_host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
