"""Routes about the server itself: its description and its metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import Request, Response

from perdure.errors import MissingExtra
from perdure.server.auth.identity import Refusal
from perdure.server.openapi import make_router
from perdure.storage.own_threads import run_in_own_thread

router = make_router("server")

API_VERSION = "0.16.7"
"""Version of LangGraph's server whose routes these are; LangGraph's tools compare it."""


# Read at import, because this opens files.
_LANGGRAPH, _PERDURE = version("langgraph"), version("perdure")


@router.get("/info")
async def info() -> dict[str, Any]:
    """Return the server's versions and features."""
    return {
        "version": API_VERSION,
        "langgraph_py_version": _LANGGRAPH,
        "flags": {"assistants": True, "crons": True, "langsmith": False, "strict_resume": True},
        "host": {"kind": "perdure", "version": _PERDURE},
    }


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return this process's metrics for Prometheus: counts by graph and channel, never by user. No
    authentication is needed."""
    try:
        from perdure.runtime.metrics import exposition
    except MissingExtra as error:
        raise Refusal(501, str(error)) from error
    # In an OS thread, because it reads files of the system about this process.
    text, media_type = await run_in_own_thread(exposition, request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": media_type})
