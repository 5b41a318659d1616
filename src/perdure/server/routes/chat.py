"""The chat page: static files beside the API, which the page speaks as any other client does.

The files are open to whoever reaches the server; what they show is asked of the API, which asks who asks.
Nothing of another host is loaded, and the browser is told to allow no such thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from perdure.server.requests import page_max
from perdure.server.state import CallerNow

PATH = "/chat"
"""Where the page is; a thread's is this, ``/#`` and the thread's id."""

PAGE = Path(str(files("perdure.server"))) / "page"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def serve_page(app: FastAPI, about: Mapping[str, Any] | None = None) -> None:
    """Serve the page at ``PATH``. ``about`` is what it may say of the server: ``model`` and ``database``,
    texts, and ``starts``, messages to begin with. Everybody can read it, and how long a page of a listing may
    be, which the page keeps to."""
    said = dict(about or {})

    @app.get(f"{PATH}/about.json", include_in_schema=False)
    async def tell() -> JSONResponse:
        return JSONResponse({**said, "page_max": page_max.get()}, headers=HEADERS)

    @app.get(f"{PATH}/graphs.json", include_in_schema=False)
    async def graphs(caller: CallerNow) -> JSONResponse:
        # Rules may hide the graphs' own assistants, and a user may run the graphs all the same.
        return JSONResponse(sorted(caller.host.runtime.graphs), headers=HEADERS)

    app.mount(PATH, _Files(directory=PAGE, html=True), name="chat")


class _Files(StaticFiles):
    """The page's files. A browser asks each time whether its copy is the newest."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
