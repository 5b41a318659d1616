"""The chat page over connections that break, wait, or answer for the server: nothing that was sent is lost,
sent twice or out of order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.browsing import Site, answered, ask, bodies, browsing, wait_for
from tests.server.gates import GATES
from tests.server.typists import graphs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.timeout(240)
SIGN_IN = {"status": 200, "content_type": "text/html", "body": "<html>Sign in to the network</html>"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    GATES.clear()
    served = Site(f"sqlite:///{tmp_path / 'page.db'}", graphs())
    yield served
    served.stop()


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    with browsing(browser, viewport={"width": 1280, "height": 800}) as opened:
        opened.goto(site.page)
        opened.locator("#graph option").first.wait_for(state="attached")
        opened.select_option("#graph", "chat")
        ask(opened, "hello")
        answered(opened, 1)
        yield opened


def test_a_page_of_a_proxy_is_no_answer_of_the_server(page: Page, site: Site) -> None:
    page.route(f"http://127.0.0.1:{site.port}/threads/**", lambda route: route.fulfill(**SIGN_IN))
    page.route("**/ok?*", lambda route: route.fulfill(**SIGN_IN))
    ask(page, "are you there?")
    page.get_by_text("Waits for the server").wait_for()
    page.unroute_all()
    page.locator(".message", has_text="You said: are you there?").wait_for()
    answered(page, 2)
    assert site.said() == [bodies(page)]


def test_a_server_that_is_alive_and_refuses_is_asked_with_pauses(page: Page, site: Site) -> None:
    asked: list[Route] = []

    def refuse(route: Route) -> None:
        asked.append(route)
        route.fulfill(status=503, json={"detail": "busy"})

    page.route("**/runs/stream", refuse)
    ask(page, "are you there?")
    wait_for("a repetition", lambda: page.wait_for_timeout(20) is None and len(asked) > 1)
    page.wait_for_timeout(2000)
    assert len(asked) < 8
    page.unroute_all()
    page.locator(".message", has_text="You said: are you there?").wait_for()
    answered(page, 2)
    assert site.said() == [bodies(page)]
