"""Databases for the applications of the tests, and an environment that says nothing about one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.runtime.conftest import memory, storage, talk
from tests.server.applications import PLACES, VARIABLES, Place, sqlite
from tests.server.browsing import launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["memory", "storage", "talk"]


@pytest.fixture
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with PLACES[request.param]() as found:
        yield found


@pytest.fixture
def near() -> Iterator[str]:
    """The URL of a migrated database in a file."""
    with sqlite() as found:
        yield found.migrated().url


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A browser, for one module only: see ``launched``."""
    with launched(chromium) as opened:
        yield opened
