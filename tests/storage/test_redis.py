"""The Redis driver keeps the contract of the storage port, through both doors, on a server and a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from perdure.model.ops import Range
from perdure.model.records import CHECKPOINT
from perdure.storage.kv import redis as backend
from perdure.storage.kv.redis import RedisDriver
from perdure.storage.port import Driver
from perdure.testing.conformance import Awaited, Blocking, DriverContract, rows
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


def test_a_page_by_a_field_begins_with_an_empty_id() -> None:
    with valkey.empty() as url, opened(url) as driver:
        rows.stored(driver, *(rows.checkpoint(name, seq) for seq, name in enumerate(("a", "", "b"), 1)))
        pages = [rows.keys(driver, Range(CHECKPOINT, ("",), "seq", after=seq)) for seq in (0, 1, 2)]
        assert pages == [[("", "a"), ("", ""), ("", "b")], [("", ""), ("", "b")], [("", "b")]]
