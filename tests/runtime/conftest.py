"""Where a runtime's tests keep their threads, and the graph that most of them run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from perdure.runtime.agent_memory import run_memory
from tests.backends import BACKENDS
from tests.runtime.graphs import WITHIN_S, Storage, Talk, stored


@pytest.fixture(autouse=True)
def patient_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply waits for what is recalled, however slow the machine is."""
    monkeypatch.setattr(run_memory, "_PATIENCE_S", WITHIN_S)


@pytest.fixture(params=["asyncio", "uvloop"])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what a test runs on the event loop of asyncio, and on that of ``perdure serve``. The timers of the
    two differ."""
    if request.param == "uvloop":
        if sys.platform == "win32":
            pytest.skip("uvloop does not exist on Windows")
        import uvloop

        monkeypatch.setattr(asyncio.events, "new_event_loop", uvloop.new_event_loop)


@pytest.fixture(params=BACKENDS)
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


@pytest.fixture(params=["memory", "sqlite"])
def near(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


@pytest.fixture
def talk() -> Talk:
    return Talk()
