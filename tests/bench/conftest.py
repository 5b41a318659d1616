"""Loads that take no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.served import load, rooms, tested
from tests.bench.small_servers import Easy, databases


@pytest.fixture
def easy(monkeypatch: pytest.MonkeyPatch) -> list[Easy]:
    """Servers, environments and loads that take no time; those that were begun."""
    begun: list[Easy] = []

    class Known(Easy):
        def __init__(self, *_: object) -> None:
            super().__init__()
            begun.append(self)

    async def threads(_: int, count: int) -> list[str]:
        return ["a"] * count

    async def seen(*_: object) -> load.Seen:
        return load.Seen([1.0, 2.0], 1.0, 0.5)

    async def crowd(_: int, clients: int, __: float) -> load.CrowdSeen:
        return load.CrowdSeen([1.0, 2.0], 1.0, 0.5, refused=clients - 2)

    async def idle(*_: object) -> tuple[int, int]:
        return 100, 200

    monkeypatch.setattr(tested, "Served", Known)
    monkeypatch.setattr(tested, "KEEPERS", dict.fromkeys(tested.KEEPERS, databases))
    monkeypatch.setattr(rooms, "programs", lambda _: Path())
    monkeypatch.setattr(rooms, "versions", lambda *_: ("3.12.0", {}))
    for name, work in {
        "threads": threads,
        "waits": seen,
        "streams": seen,
        "lone_runs": seen,
        "crowd": crowd,
        "idle": idle,
    }.items():
        monkeypatch.setattr(load, name, work)
    return begun
