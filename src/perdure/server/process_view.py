"""View for development: which process serves the chat page, and a way to end it.

Only a process that another one replaces can be ended from the page, and only by a browser on the same
machine.
"""

from __future__ import annotations

import os
import signal
import time
from ipaddress import ip_address
from multiprocessing import parent_process
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.background import BackgroundTask

from perdure.server.auth.identity import Refusal
from perdure.server.resources import CallerNow

_HEADERS = {"Cache-Control": "no-store"}
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def serve_process(app: FastAPI, path: str) -> None:
    """Serve ``process.json`` and ``process/kill`` under the path of the chat page. The page shows them if its
    description has ``process``."""
    started_at = round(time.time() * 1000)

    @app.get(f"{path}/process.json", include_in_schema=False)
    async def show(caller: CallerNow, request: Request) -> JSONResponse:
        return JSONResponse(
            {"pid": os.getpid(), "started_at": started_at, "can_kill": _find_refusal(request) is None},
            headers=_HEADERS,
        )

    @app.post(f"{path}/process/kill", include_in_schema=False)
    async def kill(caller: CallerNow, request: Request, body: dict[str, Any]) -> JSONResponse:
        # The JSON body and this check keep pages of other sites from ending the process, even without a
        # ``Guard``.
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise Refusal(403, "Only the page of this server itself may end its process.")
        if (reason := _find_refusal(request)) is not None:
            raise Refusal(403, reason)
        # Nothing is flushed or handed over, so that the process ends as in a crash.
        return JSONResponse({"pid": os.getpid()}, background=BackgroundTask(_die))


def _die() -> None:
    os.kill(os.getpid(), KILL)


def _find_refusal(request: Request) -> str | None:
    """Return the reason for which a request may not end this process, or None."""
    if parent_process() is None:
        return "No other process would take over: start the server with --workers 2, or perdure demo."
    try:
        if request.client is not None and ip_address(request.client.host).is_loopback:
            return None
    except ValueError:
        pass
    return "A process is ended only from the machine on which it runs."
