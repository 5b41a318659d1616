"""Calls of SQLite's driver in an event loop's own thread: those that the documentation names, not hidden.

Covers perdure.storage.sqlite.file_identity.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perdure

NAMES = ("stat", "listdir", "scandir", "mkdir", "rename", "replace", "unlink", "rmdir")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of the operating system in the thread of a running loop, as a tool counts that replaces them."""
    found: Counter[str] = Counter()

    def watching(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **given: Any) -> Any:
            # A thread of the driver has no loop.
            if asyncio._get_running_loop() is not None:
                found[name] += 1
            return call(*args, **given)

        return watched

    for name in NAMES:
        monkeypatch.setattr(os, name, watching(name, getattr(os, name)))
    return found


def test_a_read_on_a_loop_is_seen_and_a_commit_is_not_made_there(seen: Counter[str], tmp_path: Path) -> None:
    async def main() -> None:
        async with perdure.connect(f"sqlite:///{tmp_path / 'items.db'}", migrate=True) as db:
            store = db.store()
            await store.aput(("a",), "k", {})
            # The first read looks at the file once more, as it was written to.
            await store.aget(("a",), "k")
            seen.clear()
            assert await store.aget(("a",), "k") is not None
            assert set(seen) == {"stat"}, "not what the documentation names"
            seen.clear()
            await store.aput(("a",), "k", {"n": 1})
            await store.asearch(("a",))
            assert set(seen) <= {"stat"}

    asyncio.run(main())
