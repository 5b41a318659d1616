"""The chat page in a real browser, over a server of this process that can go away and come back."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from fastapi import FastAPI

import perdure
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.identity import Gate, OpenGate
from perdure.server.config import Http, RequestLimits
from perdure.server.resources import ServerState
from perdure.web.connections import LimitedConnection
from tests.conftest import missing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_S = 60.0


class Site:
    """A server with the page, on a port that stays its own while it is away."""

    def __init__(
        self,
        database: str,
        graphs: Mapping[str, Any],
        gate: Gate | None = None,
        limits: RequestLimits | None = None,
    ) -> None:
        self._database, self._graphs, self._gate, self._limits = database, graphs, gate, limits
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.start()

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.port}/chat/"

    def start(self) -> None:
        config = uvicorn.Config(
            self._app(), http=LimitedConnection, log_level="error", timeout_graceful_shutdown=2, ws="none"
        )
        self._server = uvicorn.Server(config)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        wait_for("the server's start", lambda: self._server.started or not self._thread.is_alive())

    def stop(self) -> None:
        self.host.closing.set()
        self._server.should_exit = True
        self._thread.join(30)

    def ask(self, method: str, path: str, **how: Any) -> Any:
        """What the API answers."""
        with httpx.Client(trust_env=False, timeout=30) as client:
            answer = client.request(method, f"http://127.0.0.1:{self.port}{path}", **how)
        answer.raise_for_status()
        return answer.json()

    def said(self) -> list[list[str]]:
        """What stands in each thread, newest thread first."""
        return [
            [message["content"] for message in (thread["values"] or {}).get("messages", [])]
            for thread in self.ask("POST", "/threads/search", json={})
        ]

    def _app(self) -> FastAPI:
        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            settings = Settings(poll=0.2, lease=3.0, drain=0.0, shared_threads=True)
            async with (
                perdure.connect(self._database, migrate=True) as database,
                Runtime(database, self._graphs, settings=settings, all_tenants=True) as runtime,
            ):
                app.state.perdure = self.host = ServerState.over(
                    runtime, self._gate or OpenGate(), limits=self._limits
                )
                yield
                await self.host.close()

        return create_app(lifespan, Http(page=True, inspector=True))


@contextmanager
def launched(chromium: str) -> Iterator[Browser]:
    """A browser for the tests of one module: no event loop can run in its thread while it is open."""
    if importlib.util.find_spec("playwright") is None:
        missing("playwright", "pip install playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def browsing(browser: Browser, **how: Any) -> Iterator[Page]:
    """A page with a memory of its own, in which nothing may go wrong unnoticed."""
    with browser.new_context(**how) as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if "Content Security" in said.text else None)
        yield page
    assert faults == [], "\n".join(faults)


def wait_for(what: str, reached: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Ask until the answer is yes; fails with ``what`` when time is up."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(0.02)


def wait_on(page: Page, what: str, reached: Callable[[], object]) -> None:
    """Ask as ``wait_for`` does, and let the page's requests reach the handlers of the test in between."""

    def asked() -> object:
        page.wait_for_timeout(20)
        return reached()

    wait_for(what, asked)


def ask(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


def answered(page: Page, answers: int) -> None:
    """Wait until so many answers are there, and none is being written."""
    page.locator(".message.assistant").nth(answers - 1).wait_for()
    page.locator(".message.writing").wait_for(state="detached")
    page.locator("#stop").wait_for(state="hidden")
    # One that was only begun, and is gone, was no answer.
    assert page.locator(".message.assistant").count() >= answers


def written(page: Page, characters: int) -> str:
    """What is there of an answer that is being written, once there is so much."""
    body = page.locator(".message.writing .body")
    body.wait_for()
    wait_for("a streamed answer", lambda: len(body.inner_text()) >= characters)
    return body.inner_text()


def bodies(page: Page) -> list[str]:
    return [text.strip() for text in page.locator(".message .body").all_inner_texts()]


def act(message: Locator, name: str) -> None:
    """Press one of a message's buttons."""
    message.hover()
    message.locator(f'[data-act="{name}"]').click()
