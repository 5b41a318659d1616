"""Cloudflare D1 keeps the driver's contract, on D1's own engine behind the shape of its REST API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from perdure.storage.port import Driver
from perdure.storage.url import open_driver
from perdure.testing.conformance import DriverContract
from tests.backends import FACES_OVER_A_NETWORK
from tests.servers import d1


class TestContract(DriverContract):
    @pytest.fixture(params=FACES_OVER_A_NETWORK)
    def driver(self, request: pytest.FixtureRequest) -> Iterator[Driver]:
        with d1.empty() as url, closing(open_driver(url, migrate=True)) as driver:
            yield request.param(driver)
