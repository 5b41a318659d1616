"""What the tests of the JavaScript clients share: a server on each of two backends, and Node.js."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.backends import EMPTY
from tests.server.acceptance.serving import Server
from tests.server.gates import GATES
from tests.server.js.browsing import Chat, bundled
from tests.server.js.node import Client, Node

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server over a database that other servers may share."""
    with EMPTY[request.param]() as url:
        served = Server(url)
        try:
            yield served
        finally:
            served.stop()


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """Node.js with LangGraph's clients."""
    started = Node()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def js(node: Node, server: Server) -> Client:
    """LangGraph's client in JavaScript, as it is, of a server."""
    return Client(node, server.url)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the pages, which is not the server's."""
    with bundled(tmp_path_factory.mktemp("pages")) as address:
        yield address


@pytest.fixture
def chat(browser: Browser, pages: str, request: pytest.FixtureRequest) -> Iterator[Chat]:
    """The page that the module names in ``PAGE``, in which nothing may go wrong unseen."""
    GATES.clear()
    with browser.new_context() as context:
        opened = Chat(context.new_page(), pages, request.module.PAGE)
        yield opened
    assert opened.faults == []
