"""Routes for whoever keeps the server running: whether it lives, and whether it can work.

They are open to all, say nothing of anybody, and are never disabled or counted.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from perdure.engine import documents
from perdure.errors import PerdureError
from perdure.model.records import SERVER, Partition
from perdure.server.auth.identity import Refusal
from perdure.server.state import ServerState, server_state

router = APIRouter(tags=["server"])

_ANYWHERE = Partition("", "ready", SERVER)
"""What is read to see whether that can be done; nothing is there."""

_PATIENCE_S = 5.0
"""How long the database may take to answer: orchestrators give up after as much, or sooner."""


@router.get("/ok")
async def ok(request: Request, check_db: bool = False) -> JSONResponse:
    """Whether the server is well; with ``check_db`` whether its database answers, too."""
    if not check_db:
        return JSONResponse({"ok": True})
    return _answer(await _reaches_database(server_state(request)))


@router.get("/live")
async def live() -> JSONResponse:
    """Whether the process is alive: it answers. One that does not is to be started again."""
    return JSONResponse({"ok": True})


@router.get("/ready")
async def ready(request: Request) -> JSONResponse:
    """Whether requests may be sent here: the database answers, with this release's tables, and the server
    does not stop."""
    host = server_state(request)
    if host.closing.is_set():
        raise Refusal(503, "The server is stopping; ask another one.")
    return _answer(await _reaches_database(host))


async def _reaches_database(host: ServerState) -> bool:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await host.database.arun(documents.get(_ANYWHERE, "ready", ""))
    except (PerdureError, TimeoutError):
        return False
    return True


def _answer(is_well: bool) -> JSONResponse:
    if is_well:
        return JSONResponse({"ok": True, "services": {"database": "ok"}})
    detail = "The database does not answer."
    return JSONResponse({"ok": False, "detail": detail, "services": {"database": "unavailable"}}, 503)
