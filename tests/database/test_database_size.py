"""The size of a database, as its backend tells it without reading the data."""

from __future__ import annotations

import asyncio

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import open_for_reading
from tests.backends import BACKENDS, EMPTY
from tests.database.test_database import talk


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_told_where_that_is_cheap(backend: str) -> None:
    with EMPTY[backend]() as url:
        with perdure.connect_sync(url, migrate=True) as db:
            talk(db, "ada", "one", "x" * 100_000)
            size = asyncio.run(handle_of(db).acount_bytes())
            measured = db.measure("ada").total
        if backend in ("sqlite", "postgresql"):
            assert size is not None
            assert size > measured
            reading = open_for_reading(url)
            assert asyncio.run(handle_of(reading).acount_bytes())
            reading.close()
        elif backend == "dynamodb":
            # AWS counts every six hours.
            assert size is not None
        else:
            assert size is None
