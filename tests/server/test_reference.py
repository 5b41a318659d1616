"""The page of the routes: nothing of it comes from elsewhere, as a token may be kept on its origin.

Covers perdure.server.routes.reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from perdure.server.app import create_app
from perdure.server.config import Http
from perdure.server.hosting.embedding import perdure_app
from tests.server.browsing import Site, browsing
from tests.server.hosting import graphs

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def _links(text: str) -> list[str]:
    return re.findall(r'(?:src|href)="([^"]*)"', text)


@pytest.mark.parametrize("prefix", ["", "/agents"])
def test_its_files_are_the_server_s_own_and_cannot_be_framed(prefix: str) -> None:
    app = create_app(None)
    if prefix:
        outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        outer.mount(prefix, perdure_app(outer))
        app = outer
    client = TestClient(app)
    for path in ("/docs", "/redoc"):
        page = client.get(f"{prefix}{path}")
        assert page.status_code == 200
        assert page.url.path == f"{prefix}/docs"
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert len(_links(page.text)) > 4
        for link in _links(page.text):
            assert "//" not in link
            part = client.get(f"{prefix}/{link}")
            assert part.status_code == 200, link
            assert not re.search(r"https?://(?!www\.w3\.org/)", part.text) or link == "openapi.json"


def test_without_a_description_there_is_no_page() -> None:
    client = TestClient(create_app(None, Http(disable_meta=True)))
    for path in ("/docs", "/redoc", "/docs/reference.js", "/openapi.json"):
        assert client.get(path).status_code == 404


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    served = Site(f"sqlite:///{tmp_path / 'page.db'}", graphs())
    yield served
    served.stop()


def test_it_shows_the_routes(browser: Browser, site: Site) -> None:
    described = site.ask("GET", "/openapi.json")["paths"]
    with browsing(browser) as page:
        foreign: list[str] = []
        page.on(
            "request", lambda asked: foreign.append(asked.url) if site.page[:16] not in asked.url else None
        )
        page.goto(site.page.partition("/chat")[0] + "/docs")
        page.wait_for_selector(".route")
        assert page.locator(".route").count() == sum(map(len, described.values()))
        page.fill("#find", "store items put")
        assert page.locator(".route:visible").count() == 1
        page.locator(".route:visible summary").click()
        page.wait_for_selector(".route:visible table")
        shown = page.locator(".route:visible").inner_text()
        assert "namespace" in shown
        assert "204" in shown
        assert foreign == []
