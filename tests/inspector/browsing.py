"""The inspector served to a real browser, and axe's findings on what it shows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from perdure.inspector.access import Access
from perdure.inspector.web import create_app
from perdure.web.connections import LimitedConnection
from tests.server.browsing import wait_for
from tests.servers import npm

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

JS = Path(__file__).parent / "js"
SERIOUS = ("serious", "critical")
PHONE: ViewportSize = {"width": 390, "height": 844}


@contextmanager
def served(access: Access) -> Iterator[str]:
    """The address of the pages of an inspector with these rights."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(
            create_app(access), http=LimitedConnection, log_level="error", lifespan="off", ws="none"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_for("the server's start", lambda: server.started or not thread.is_alive())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/inspect/"
        finally:
            server.should_exit = True
            thread.join(30)


def findings(page: Page) -> list[str]:
    """What axe finds on a page, of the kinds that keep people out."""
    npm.need(JS)
    source = (JS / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    # Through the debugger, as the page's policy lets no other script in.
    page.evaluate(f"() => {{ {source} }}")
    result: dict[str, Any] = page.evaluate("() => axe.run(document)")
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:200]}"
        for each in result["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


def sound(page: Page) -> None:
    """Check that nothing that people wrote has become markup or script, and that everybody can use the page,
    on a phone, too."""
    assert page.title() == "Perdure inspector"
    assert page.locator("main img, main script").count() == 0
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert findings(page) == []
    page.set_viewport_size(PHONE)
    assert findings(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
    page.set_viewport_size({"width": 1280, "height": 800})
