"""Addresses and headers of the inspector's pages."""

from __future__ import annotations

from perdure.web.pages import Pages, page_folder, page_headers

PATH = "/inspect"
"""Path of the pages; the API is below it, at ``/inspect/api``."""

HEADERS = page_headers("no-store")


def inspector_pages() -> Pages:
    """Return the application that serves the pages' files."""
    return Pages(page_folder("perdure.inspector"), HEADERS)
