"""The saver keeps its contract on every driver, sealed or in the clear, and where little fits at once."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver, Limits
from perdure.storage.sealed import Keyring
from perdure.storage.sql import sqlite
from perdure.testing.conformance import Backend, Narrow, SaverContract

KEY = bytes(range(32))


def memory(_: Path) -> Driver:
    return MemoryDriver()


def on_sqlite(folder: Path) -> Driver:
    path = folder / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    return sqlite.SqliteDriver(path)


def narrow(_: Path) -> Driver:
    return Narrow(MemoryDriver(), Limits(ops=16, bytes=24_000))


class TestContract(SaverContract):
    @pytest.fixture(params=[memory, on_sqlite, narrow])
    def opened(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
        open_driver: Callable[[Path], Driver] = request.param
        driver = open_driver(tmp_path)
        yield driver
        driver.close()

    @pytest.fixture(params=["clear", "sealed"])
    def backend(self, request: pytest.FixtureRequest, opened: Driver) -> Backend:
        return Backend(opened, Keyring.of(KEY) if request.param == "sealed" else None)
