"""Databases in which samples of the interleavings are repeated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.storage.port import Driver
from tests.backends import fresh


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "redis"])
def stored(request: pytest.FixtureRequest) -> Iterator[Driver]:
    with fresh(request.param) as driver:
        yield driver
