"""Where a runtime's tests keep their threads, and the graph that most of them run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.runtime.agent_memory import run_memory
from tests.backends import BACKENDS
from tests.runtime.graphs import WITHIN_S, Storage, Talk, stored


@pytest.fixture(autouse=True)
def patient_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply waits for what is recalled, however slow the machine is."""
    monkeypatch.setattr(run_memory, "_PATIENCE_S", WITHIN_S)


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
