"""Static pages of a package, with the headers that keep stored text from ever becoming a program.

Nothing is loaded from another host, and the content security policy forbids it.
"""

from __future__ import annotations

import mimetypes
from importlib.resources import files
from pathlib import Path
from typing import Literal

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

# Otherwise the first response with a file reads the system's tables of types in the event loop.
mimetypes.init()

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src {images}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def make_page_headers(
    caching: Literal["no-cache", "no-store"], *, embedded_images: bool = False
) -> dict[str, str]:
    """Return the headers of a page and of its data.

    Args:
        caching: With ``no-cache`` browsers ask each time whether their copy is current, with ``no-store``
            they keep none.
        embedded_images: Permit images whose data is in their address, as those of a message are.
    """
    return {
        "Content-Security-Policy": _POLICY.format(images="'self' data:" if embedded_images else "'self'"),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": caching,
    }


def find_page_folder(package: str, name: str = "page") -> Path:
    """Return the folder of a package's pages."""
    return Path(str(files(package))) / name


class Pages(StaticFiles):
    """The files of a folder, each with the given headers. They contain no data, so anyone may load them. With
    ``is_html`` a path that names a folder is its ``index.html``."""

    def __init__(self, folder: Path, headers: dict[str, str], *, is_html: bool = True) -> None:
        super().__init__(directory=folder, html=is_html)
        self._headers = headers

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file of the folder."""
        response = await super().get_response(path, scope)
        response.headers.update(self._headers)
        return response
