"""Health checks for orchestrators: liveness and readiness.

They need no authentication, reveal nothing about users, and are never disabled or counted. HEAD is
for monitors that send it.
"""

from __future__ import annotations

import asyncio

from fastapi import Request
from fastapi.responses import JSONResponse

from perdure.errors import PerdureError
from perdure.server.auth.identity import Refusal
from perdure.server.openapi import make_router
from perdure.server.resources import ServerState, get_server_state

router = make_router("server")

_PATIENCE_S = 5.0
"""Limit of the database's response time in seconds: orchestrators give up after as much, or sooner."""


@router.head("/ok", include_in_schema=False)
@router.get("/ok")
async def ok(request: Request, check_db: bool = False) -> JSONResponse:
    """Check the server; with ``check_db`` also its database."""
    if not check_db:
        return JSONResponse({"ok": True})
    return _answer(await _reaches_database(get_server_state(request)))


@router.head("/live", include_in_schema=False)
@router.get("/live")
async def live() -> JSONResponse:
    """Check that the process responds. A process that does not has to be restarted."""
    return JSONResponse({"ok": True})


@router.head("/ready", include_in_schema=False)
@router.get("/ready")
async def ready(request: Request) -> JSONResponse:
    """Check that the server accepts requests: the database answers, with this release's tables, and the
    server is not stopping."""
    host = get_server_state(request)
    if host.closing.is_set():
        raise Refusal(503, "The server is stopping; ask another one.")
    return _answer(await _reaches_database(host))


async def _reaches_database(host: ServerState) -> bool:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await host.runtime.check()
    except (PerdureError, TimeoutError):
        return False
    return True


def _answer(is_well: bool) -> JSONResponse:
    if is_well:
        return JSONResponse({"ok": True, "services": {"database": "ok"}})
    detail = "The database does not answer."
    return JSONResponse({"ok": False, "detail": detail, "services": {"database": "unavailable"}}, 503)
