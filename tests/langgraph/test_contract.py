"""The saver keeps its contract on every backend, sealed or in the clear, and where little fits at once.

Covers perdure.engine.threads.tags, perdure.engine.threads.chunk_reads, perdure.langgraph.saver_programs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.storage.encryption import DataKeys, Keyring
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import CommitLimits, Driver
from perdure.testing.conformance import Backend, Narrow, SaverContract
from tests.backends import BACKENDS, fresh

# They look for chunks in records of their own.
pytestmark = pytest.mark.packs_late


class TestOnEveryBackend(SaverContract):
    @pytest.fixture(params=BACKENDS)
    def backend(self, request: pytest.FixtureRequest) -> Iterator[Backend]:
        with fresh(request.param) as driver:
            yield Backend(driver, None)


class TestSealed(SaverContract):
    """Sealing is below the saver and above the driver, so that one backend that keeps bytes shows it."""

    @pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.slow), "sqlite"])
    def backend(self, request: pytest.FixtureRequest) -> Iterator[Backend]:
        with fresh(request.param) as driver:
            yield Backend(driver, Keyring(DataKeys.create(0)))


class TestNarrow(SaverContract):
    @pytest.fixture
    def opened(self) -> Iterator[Driver]:
        driver = Narrow(MemoryDriver(), CommitLimits(ops=16, bytes=24_000))
        yield driver
        driver.close()

    @pytest.fixture(params=[pytest.param("clear", marks=pytest.mark.slow), "sealed"])
    def backend(self, request: pytest.FixtureRequest, opened: Driver) -> Backend:
        return Backend(opened, Keyring(DataKeys.create(0)) if request.param == "sealed" else None)
