"""Pytest fixtures to import into your own ``conftest.py``: ``from perdure.testing.fixtures import cold``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.database.blocking import SyncDatabase
from perdure.database.opening import connect_sync

__all__ = ["Cold", "cold"]

Cold = Callable[..., AbstractContextManager[SyncDatabase]]


@pytest.fixture
def cold(tmp_path: Path) -> Cold:
    """Open one SQLite database again and again, each time cold: ``with cold() as db: …``.

    Nothing in memory outlives a block: compile your graph with ``db.checkpointer()`` inside it, run half of
    it, leave, and resume in the next block, as a restarted process would. Options go to ``connect_sync``.
    """
    url = f"sqlite:///{tmp_path / 'threads.db'}"

    @contextmanager
    def open_database(**options: Any) -> Iterator[SyncDatabase]:
        with connect_sync(url, migrate=True, **options) as database:
            yield database

    return open_database
