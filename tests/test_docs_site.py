"""The site, built strictly: its search finds what people look for, and its pages can be read."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.docs_pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SOUGHT = {
    "jupyter": {"faq/"},
    "GDPR": {"cookbook/delete-a-user/", "faq/"},
    "retry": {"cookbook/retry/"},
    "faq": {"faq/"},
    "rate limit": {"cookbook/rate-limits/"},
    "deep agents": {"deep-agents/"},
    "langgraph dev": {"langgraph-dev/"},
    "MemorySaver": {"memory-saver/"},
    "multi-tenant": {"cookbook/multi-tenant/"},
    "human in the loop": {"cookbook/human-in-the-loop/"},
    "threads retry": {"commands/", "cookbook/retry/"},
    "nonces": {"decisions/0004-nonces/"},
    "DBOS": {"compared/"},
    "human-in-the-loop": {"cookbook/human-in-the-loop/"},
    "HeadConflict": {"errors/", "troubleshooting/", "reference/errors/"},
}
"""What readers type, and the pages of which one has to be among the first results."""
FIRST = 4
PAGE_MAX = 60_000
"""Characters of text that a page of the reference may have."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


def documents(site: Path) -> list[dict[str, Any]]:
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    assert isinstance(found, list)
    return found


TRIES = 100
"""Each takes a second; a page reads the index first, which takes a busy machine half a minute or more."""


@pytest.fixture(scope="module")
def found(site: Path, chromium: str) -> Iterator[dict[str, list[str]]]:
    """The first results of the site's own search for each text, as a reader gets them in a browser."""
    from playwright.sync_api import sync_playwright

    class Quiet(SimpleHTTPRequestHandler):
        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            results = {}
            for text in SOUGHT:
                page = browser.new_page()
                page.goto(address)
                page.locator(".md-search__input").click()
                links = page.locator(".md-search-result__item > a")
                hrefs: list[str] = []
                # What is typed before the index has been read is answered late or never: it is typed again.
                # The links are read in one step, as late answers to what was typed before replace them.
                for _ in range(TRIES):
                    page.locator(".md-search__input").fill("")
                    page.locator(".md-search__input").fill(text)
                    page.wait_for_timeout(1000)
                    hrefs = links.evaluate_all("links => links.map(link => link.href)")[:FIRST]
                    if hrefs:
                        break
                results[text] = [href.partition("?")[0].removeprefix(address) for href in hrefs]
                page.close()
            browser.close()
        yield results
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("text", SOUGHT)
def test_the_search_finds_a_fitting_page(text: str, found: dict[str, list[str]]) -> None:
    pages = {href.partition("#")[0] for href in found[text]}
    assert pages & SOUGHT[text], found[text]


def test_each_page_of_the_reference_can_be_read(site: Path) -> None:
    sizes: dict[str, int] = {}
    for document in documents(site):
        page = document["location"].partition("#")[0]
        if page.startswith("reference/"):
            sizes[page] = sizes.get(page, 0) + len(document["text"])
    assert len(sizes) >= 9
    assert {page: size for page, size in sizes.items() if size > PAGE_MAX} == {}


def test_the_changelog_is_a_page_of_the_site(site: Path) -> None:
    text = (site / "changelog" / "index.html").read_text(encoding="utf-8")
    assert "Unreleased" in text
    assert 'href="../deployment/#earlier-layouts"' in text, "its links lead to pages of the site"


def test_decisions_are_found_but_not_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert "decisions/0004-nonces" not in home
    index = (site / "decisions" / "index.html").read_text(encoding="utf-8")
    decisions = sorted(path.stem for path in (ROOT / "docs" / "decisions").glob("0*.md"))
    assert [name for name in decisions if f'href="{name}/"' not in index] == []


def test_programs_around_blocks_are_not_shown(site: Path) -> None:
    shown = (site / "faq" / "index.html").read_text(encoding="utf-8")
    searched = " ".join(document["text"] for document in documents(site))
    assert "connect_sync" in shown
    assert "async def cell" not in searched
