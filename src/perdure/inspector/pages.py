"""The files of the inspector's pages, and the headers that keep stored text from ever becoming a program.

Nothing is loaded from another host, and the content security policy forbids it.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

PATH = "/inspect"
"""Path of the pages; the API is below it, at ``/inspect/api``."""

PAGE = Path(str(files("perdure.inspector"))) / "page"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class InspectorFiles(StaticFiles):
    """The pages' files. They contain no data, so anyone who reaches the server may load them."""

    def __init__(self) -> None:
        super().__init__(directory=PAGE, html=True)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
