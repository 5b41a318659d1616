"""Pages in a real browser that use LangGraph's React hooks as they are, of another origin than the server."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.server.js.node import FOLDER, node

if TYPE_CHECKING:
    from playwright.sync_api import Page

_PATIENCE_MS = 60_000
_HTML = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><div id="root"></div>'


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Nobody reads what was asked for."""


@contextmanager
def bundled(folder: Path) -> Iterator[str]:
    """The pages, bundled into a folder, and the address of their own server."""
    subprocess.run([node(), "bundle.mjs", str(folder)], cwd=FOLDER, check=True)
    for script in folder.glob("*.js"):
        script.with_suffix(".html").write_text(f'{_HTML}<script src="{script.name}"></script>')
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{served.server_address[1]}"
        finally:
            served.shutdown()


class Chat:
    """A page with a chat of one graph."""

    def __init__(self, page: Page, pages: str, kind: str) -> None:
        self.page = page
        self._address = f"{pages}/{kind}.html"
        self.asked: list[str] = []
        self.faults: list[str] = []
        page.set_default_timeout(_PATIENCE_MS)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: self.asked.append(f"{request.method} {request.url}"))

    def open(self, api: str, graph: str, **more: str) -> None:
        self.page.goto(f"{self._address}?{urlencode({'api': api, 'graph': graph, **more})}")
        self.page.locator("#send").wait_for()

    def reload(self) -> None:
        self.page.reload()
        self.page.locator("#send").wait_for()

    @property
    def thread_id(self) -> str:
        """The thread that the page is on, as its address says."""
        return parse_qs(urlsplit(self.page.url).query)["thread"][0]

    def send(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.click("#send")

    def edit(self, index: int, text: str) -> None:
        """Say something else in the place of what was said."""
        self.page.fill("#text", text)
        self.page.locator(".message .edit").nth(index).click()

    def answer(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.click("#question .answer")

    def shows(self, *texts: str) -> None:
        """Wait until these are the messages."""
        from playwright.sync_api import expect

        expect(self.page.locator(".message .body")).to_have_text(list(texts), timeout=_PATIENCE_MS)

    def watches(self) -> None:
        """Keep the messages of every moment from now on, however short it is."""
        self.page.evaluate(
            """() => {
              const bodies = document.getElementsByClassName("body");
              const look = () => [...bodies].map((body) => body.textContent);
              window.showed = [look()];
              const observer = new MutationObserver(() => window.showed.push(look()));
              observer.observe(document.body, { subtree: true, childList: true, characterData: true });
            }"""
        )

    def showed(self) -> list[list[str]]:
        """The messages of each moment since :meth:`watches`."""
        return self.page.evaluate("window.showed")

    def has(self, selector: str, text: str) -> None:
        """Wait until an element has a text."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_text(text, timeout=_PATIENCE_MS)

    def begins(self, characters: int) -> str:
        """Wait until an answer has so many characters; what there is of it."""
        self.page.wait_for_function(
            "n => (document.querySelector('.message.ai .body')?.textContent.length ?? 0) >= n", arg=characters
        )
        return self.page.locator(".message.ai .body").inner_text()
