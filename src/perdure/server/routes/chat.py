"""The chat page: static files beside the API, which the page uses as any other client does.

The files are open to anyone who reaches the server; their data comes from the API, which authenticates.
Nothing is loaded from another host, and the content security policy forbids it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from perdure.server.requests import page_max
from perdure.server.state import CallerNow
from perdure.web.pages import Pages, page_folder, page_headers

PATH = "/chat"
"""Path of the page; a thread's address is this, ``/#`` and the thread's id."""

PAGE = page_folder("perdure.server")

HEADERS = page_headers("no-cache")


def serve_page(app: FastAPI, about: Mapping[str, Any] | None = None) -> None:
    """Serve the page at ``PATH``. ``about`` describes the server: ``model`` and ``database``, texts, and
    ``starts``, messages to begin with. It is readable without authentication, as is the maximum page size
    of a listing, which the page keeps to."""
    described = dict(about or {})

    @app.get(f"{PATH}/about.json", include_in_schema=False)
    async def about_page() -> JSONResponse:
        return JSONResponse({**described, "page_max": page_max.get()}, headers=HEADERS)

    @app.get(f"{PATH}/graphs.json", include_in_schema=False)
    async def graphs(caller: CallerNow) -> JSONResponse:
        # Rules may hide the default assistants from a user who may nevertheless run their graphs.
        return JSONResponse(sorted(caller.host.runtime.graphs), headers=HEADERS)

    app.mount(PATH, Pages(PAGE, HEADERS), name="chat")
