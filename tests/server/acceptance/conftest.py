"""The servers that the acceptance tests share: one on each of two backends, for as long as the tests last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends import EMPTY
from tests.server.acceptance.serving import Server


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server over a database that other servers may share."""
    with EMPTY[request.param]() as url:
        served = Server(url)
        try:
            yield served
        finally:
            served.stop()
