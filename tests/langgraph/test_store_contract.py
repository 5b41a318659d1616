"""The store keeps its contract on every backend, sealed or in the clear, and where little fits at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.storage.encryption import DataKeys, Keyring
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import CommitLimits, Driver
from perdure.testing.conformance import Awaited, Backend, Narrow, StoreContract
from tests.backends import BACKENDS, fresh

KEYRING = Keyring(DataKeys.create(0))

REMOVES_BY_ITSELF = {"dynamodb"}
"""Backends that remove expired items unasked, so that a sweep finds none."""


class TestOnEveryBackend(StoreContract):
    @pytest.fixture(params=BACKENDS)
    def backend(self, request: pytest.FixtureRequest) -> Iterator[Backend]:
        with fresh(request.param) as driver:
            yield Backend(driver, finds_expired=request.param not in REMOVES_BY_ITSELF)


class TestSealed(StoreContract):
    @pytest.fixture(params=["memory", "sqlite"])
    def backend(self, request: pytest.FixtureRequest) -> Iterator[Backend]:
        with fresh(request.param) as driver:
            yield Backend(driver, KEYRING)


class TestAwaited(StoreContract):
    @pytest.fixture
    def backend(self) -> Iterator[Backend]:
        with fresh("sqlite") as driver:
            yield Backend(Awaited(driver))


class TestNarrow(StoreContract):
    @pytest.fixture(params=[None, KEYRING], ids=["clear", "sealed"])
    def backend(self, request: pytest.FixtureRequest) -> Backend:
        driver: Driver = Narrow(MemoryDriver(), CommitLimits(ops=4, bytes=400))
        return Backend(driver, request.param)
