"""The page of the routes: what ``/openapi.json`` describes, for people.

Its files are this package's own. Nothing is loaded from another host, because the pages of this origin keep
the token of their user.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response

from perdure.web.pages import Pages, find_page_folder, make_page_headers

PATH = "/docs"
_FOLDER = find_page_folder("perdure.server", "reference")
_HEADERS = make_page_headers("no-cache")


def serve_reference(app: FastAPI) -> None:
    """Serve the page at ``PATH``, and ``/redoc`` as another address of it."""

    @app.get(PATH, include_in_schema=False)
    async def page() -> Response:
        return FileResponse(_FOLDER / "index.html", headers=_HEADERS)

    @app.get("/redoc", include_in_schema=False)
    async def other(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}{PATH}")

    app.mount(PATH, Pages(_FOLDER, _HEADERS, is_html=False), name="reference")
