"""The memory driver keeps the contract of the storage port, through both of its doors."""

from collections.abc import Iterator

import pytest

from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver
from perdure.testing.conformance import Awaited, Blocking, DriverContract


class TestMemory(DriverContract):
    @pytest.fixture(params=[Blocking, Awaited])
    def driver(self, request: pytest.FixtureRequest) -> Iterator[Driver]:
        driver = MemoryDriver()
        yield request.param(driver)
        driver.close()
