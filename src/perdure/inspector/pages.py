"""Addresses and headers of the inspector's pages."""

from __future__ import annotations

from perdure.web.pages import Pages, find_page_folder, make_page_headers

PATH = "/inspect"
"""Path of the pages; the API is below it, at ``/inspect/api``."""

HEADERS = make_page_headers("no-store")


def make_inspector_pages() -> Pages:
    """Return the application that serves the pages' files."""
    return Pages(find_page_folder("perdure.inspector"), HEADERS)
