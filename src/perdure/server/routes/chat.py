"""The chat page: static files beside the API, which the page uses as any other client does.

The files are open to anyone who reaches the server; their data comes from the API, which authenticates.
Nothing is loaded from another host, and the content security policy forbids it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse

from perdure.server.auth.identity import Refusal
from perdure.server.conversation_search import search
from perdure.server.process_view import serve_process
from perdure.server.requests import body_max, page_max
from perdure.server.resources import CallerNow
from perdure.server.responses import Json
from perdure.web.pages import Pages, find_page_folder, make_page_headers

PATH = "/chat"
"""Path of the page. The address of a thread is this path, ``/#`` and the thread's id."""

PAGE = find_page_folder("perdure.server")

HEADERS = make_page_headers("no-cache", embedded_images=True)


def serve_page(app: FastAPI, about: Mapping[str, Any] | None = None) -> None:
    """Serve the page at ``PATH``. ``about`` describes the server: ``model`` and ``database``, texts, and
    ``starts``, messages to begin with; ``inspector`` is true if the server has one; with ``process``, for
    development, the page shows which process answers. It is readable without authentication, as are the
    maximum sizes of a listing and of a request, which the page keeps to."""
    described = dict(about or {})

    @app.get(f"{PATH}/about.json", include_in_schema=False)
    async def about_page() -> JSONResponse:
        limits = {"page_max": page_max.get(), "body_max": body_max.get()}
        return JSONResponse({**described, **limits}, headers=HEADERS)

    @app.get(f"{PATH}/graphs.json", include_in_schema=False)
    async def graphs(caller: CallerNow) -> JSONResponse:
        # Rules may hide the default assistants from a user who may nevertheless run their graphs.
        return JSONResponse(sorted(caller.host.runtime.graphs), headers=HEADERS)

    @app.get(f"{PATH}/search.json", include_in_schema=False)
    async def find(
        caller: CallerNow,
        q: Annotated[str, Query(min_length=1, max_length=200)],
        cursor: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    ) -> Json:
        if not q.strip():
            raise Refusal(422, "q has no words to search for")
        return Json(await search(caller, q, cursor), headers=HEADERS)

    if described.get("process"):
        serve_process(app, PATH)
    app.mount(PATH, Pages(PAGE, HEADERS), name="chat")
