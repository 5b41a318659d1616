"""The memory driver keeps the contract of the storage port, through both of its doors.

Covers perdure.storage.evaluation.
"""

import time
from collections.abc import Iterator

import pytest

from perdure.model.ops import Now
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver
from perdure.testing.conformance import Awaited, Blocking, DriverContract


class TestMemory(DriverContract):
    @pytest.fixture(params=[Blocking, Awaited])
    def driver(self, request: pytest.FixtureRequest) -> Iterator[Driver]:
        driver = MemoryDriver()
        yield request.param(driver)
        driver.close()


def test_the_time_goes_on_when_the_hosts_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = MemoryDriver()
    began = driver.perform(Now())
    assert abs(began - time.time_ns() // 1000) < 60_000_000
    real = time.time_ns
    for hours in (1, -1):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: real() + hours * 3600 * 10**9)
        assert 0 <= driver.perform(Now()) - began < 60_000_000
