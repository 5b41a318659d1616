"""A page of an interface in a browser, and what became of its requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from playwright.sync_api import Request as Asked

PATIENCE_S = 90.0
_OWN = "127.0.0.1"


class Unfulfilled(Exception):
    """Something that an interface should have shown or done, and has not."""


@dataclass(slots=True)
class Failures:
    """What failed, by whose doing: requests to the server, requests elsewhere, and errors of the page."""

    server: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    page: list[str] = field(default_factory=list)


class Visit:
    """An interface at ``address``, open in a browser of its own memory, over the server at ``server``."""

    def __init__(self, page: Page, address: str, server: str, failures: Failures) -> None:
        self.page, self.address, self.server = page, address, server
        self.failures = failures

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What the server answers.

        Raises:
            Unfulfilled: It refuses.
        """
        sent = None if body is None else json.dumps(body).encode()
        request = Request(self.server + path, sent, {"content-type": "application/json"}, method=method)  # noqa: S310
        try:
            with urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310 - a server of ours, on loopback
                return json.load(answer)
        except HTTPError as error:
            raise Unfulfilled(f"{method} {path}: {error}") from error

    def threads(self) -> list[dict[str, Any]]:
        """All threads of the server, the latest first."""
        found: list[dict[str, Any]] = self.ask("POST", "/threads/search", {"limit": 1000})
        return found

    def statuses(self, thread_id: str) -> list[str]:
        """Of the runs of a thread, the oldest first."""
        return [run["status"] for run in reversed(self.ask("GET", f"/threads/{thread_id}/runs"))]

    def sees(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.page.get_by_text(text).first.wait_for()

    def until(self, what: str, reached: Callable[[], object]) -> None:
        """Wait until something that has to be asked for is true.

        Raises:
            Unfulfilled: It is not, for as long as one may wait.
        """
        end = time.monotonic() + PATIENCE_S
        while not reached():
            if time.monotonic() > end:
                raise Unfulfilled(f"{what}: not within {PATIENCE_S:.0f} s")
            self.page.wait_for_timeout(50)


@contextmanager
def open_visit(browser: Browser, address: str, server: str, failures: Failures) -> Iterator[Visit]:
    """A visit whose failures are noted in ``failures``; nothing but this machine is reached."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        context.route(lambda url: urlsplit(url).hostname != _OWN, lambda route: route.abort())
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.on("pageerror", lambda error: failures.page.append(str(error).splitlines()[0]))
        page.on(
            "response",
            lambda answer: (
                _note(failures, server, answer.request, str(answer.status)) if answer.status >= 400 else None
            ),
        )
        page.on("requestfailed", lambda asked: _note(failures, server, asked, asked.failure or "failed"))
        yield Visit(page, address, server, failures)


def _note(failures: Failures, server: str, asked: Asked, reason: str) -> None:
    # The page has ended the request itself: by stopping, by a reload, or with its own end.
    if reason == "net::ERR_ABORTED":
        return
    told = f"{reason} {asked.method} {asked.url}"
    (failures.server if asked.url.startswith(server) else failures.elsewhere).append(told)
