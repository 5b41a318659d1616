"""The Redis driver keeps the contract of the storage port, through both doors, on a server and a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from perdure.storage.kv import redis as backend
from perdure.storage.kv.redis import RedisDriver
from perdure.storage.port import Driver
from perdure.testing.conformance import Awaited, Blocking, DriverContract
from tests.servers import valkey


@contextmanager
def opened(url: str) -> Iterator[RedisDriver]:
    """A migrated driver."""
    backend.migrate(url)
    with closing(backend.open_driver(url)) as driver:
        yield driver


class TestRedis(DriverContract):
    @pytest.fixture(params=[Blocking, Awaited])
    def driver(self, request: pytest.FixtureRequest) -> Iterator[Driver]:
        with valkey.empty() as url, opened(url) as driver:
            yield request.param(driver)


class TestCluster(DriverContract):
    @pytest.fixture(params=[Blocking, Awaited])
    def driver(self, request: pytest.FixtureRequest) -> Iterator[Driver]:
        with valkey.empty_on_cluster() as url, opened(url) as driver:
            yield request.param(driver)
