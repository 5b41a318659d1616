"""A small page at ``/`` on which an example is tried: a form, and what was said.

What is special to an example is in its ``page.js``; everything else is the same for all.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

_FILES = Path(__file__).parent
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}


def serve_page(app: FastAPI, script: Path) -> None:
    """Serve the page at ``/``. ``script`` is the example's ``page.js``: it exports what the page says, and
    functions that call the example's endpoints."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_FILES / "index.html", headers=_HEADERS)

    @app.get("/page/example.js", include_in_schema=False)
    async def example() -> FileResponse:
        return FileResponse(script, media_type="text/javascript", headers=_HEADERS)

    app.mount("/page", StaticFiles(directory=_FILES))


def own_page(file: str) -> Path:
    """Return the ``page.js`` beside a module, given its ``__file__``."""
    return Path(file).with_name("page.js")
