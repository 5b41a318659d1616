"""Every backend, each handing out empty databases by URL. The suites run on all of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from perdure.storage.port import Driver
from perdure.storage.url import open_driver
from perdure.testing.conformance import Awaited, Blocking
from tests.servers import d1, dynamodb, postgres, valkey


@contextmanager
def _memory() -> Iterator[str]:
    yield "memory://"


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{Path(folder) / 'threads.db'}"


EMPTY: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": postgres.empty,
    "redis": valkey.empty,
    "d1": d1.empty,
    "dynamodb": dynamodb.empty,
}
"""What gives the URL of a database that nobody has used, by the backend's name."""
if os.environ.get("PERDURE_CHAOS") == "full":
    EMPTY["redis-cluster"] = valkey.empty_on_cluster

BACKENDS = tuple(EMPTY)
"""The names of all backends; "memory" is the model that the others are held to."""


FACES_OVER_A_NETWORK = (
    pytest.param(Blocking, id="Blocking", marks=pytest.mark.slow),
    pytest.param(Awaited, id="Awaited"),
)
"""Both ways to call a driver. The blocking one is shown in the quick run by the saver's contract."""


@contextmanager
def fresh(backend: str) -> Iterator[Driver]:
    """A migrated, empty driver."""
    with EMPTY[backend]() as url:
        driver = open_driver(url, migrate=True)
        try:
            yield driver
        finally:
            driver.close()
