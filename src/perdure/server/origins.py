"""Origins of pages that may open a WebSocket, which the rules of cross-origin requests do not cover."""

from __future__ import annotations

import re

from starlette.requests import HTTPConnection, Request

from perdure.server.auth.identity import Gate, OpenGate, Refusal
from perdure.server.config import Cors
from perdure.web.guard import is_of_host


def is_allowed(connection: HTTPConnection) -> bool:
    """Return True for a client that is not a page of a browser, and for pages of this server or of an origin
    that the application's ``Cors`` allows."""
    origin = connection.headers.get("origin")
    if origin is None or is_of_host(origin, connection.headers.get("host")):
        return True
    return allows(getattr(connection.app.state, "perdure_cors", None) or Cors(), origin)


def require_own_page(request: Request, gate: Gate, what: str) -> None:
    """Raise ``Refusal`` for a page of a browser whose origin is not allowed, and on a server without
    authentication for one that reaches it by DNS rebinding. ``what`` is what such a page may not do."""
    if not is_allowed(request) or (isinstance(gate, OpenGate) and is_rebound(request)):
        raise Refusal(403, f"pages of this origin may not {what} here; allow it in http.cors")


_LOCAL = ("localhost", "127.0.0.1", "::1")


def is_rebound(connection: HTTPConnection) -> bool:
    """Return True for a page of a browser that reaches this machine's own address under another host name
    (DNS rebinding): the owner of that name has pointed it at this machine, so that the page seems to come
    from this server."""
    server = connection.scope.get("server")
    is_local = server is not None and server[0] in _LOCAL
    return "origin" in connection.headers and is_local and connection.url.hostname not in _LOCAL


def allows(cors: Cors, origin: str) -> bool:
    """Return True for an origin that the settings of cross-origin requests allow."""
    if "*" in cors.allow_origins or origin in cors.allow_origins:
        return True
    return cors.allow_origin_regex is not None and re.fullmatch(cors.allow_origin_regex, origin) is not None
