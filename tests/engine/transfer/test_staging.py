"""A first write that is larger than a commit, while somebody deletes its thread: planned anew, and whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.langgraph.saver import PerdureSaver
from perdure.model.ops import Commit, Stage
from perdure.model.program import Effect
from perdure.storage.port import CommitLimits
from perdure.testing.conformance import Backend, Narrow
from perdure.testing.conformance.backend import THREAD, at, load, long, put
from perdure.testing.faults import FaultyDriver
from tests.backends import BACKENDS, fresh

BIG = [long(f"item {n}") for n in range(100)]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with fresh(request.param) as driver:
        yield Backend(driver)


def put_first(saver: PerdureSaver) -> None:
    put(saver, at(), "c1", {"x": BIG})


def put_writes_first(saver: PerdureSaver) -> None:
    saver.put_writes(at("c1"), [("x", BIG)], "t")


@pytest.mark.parametrize("write", [put_first, put_writes_first])
def test_a_thread_that_is_deleted_while_its_first_values_are_staged_is_written_anew(
    backend: Backend, write: Callable[[PerdureSaver], None]
) -> None:
    staged, due = 0, [THREAD]

    def hook(_: int, effect: Effect[Any]) -> None:
        nonlocal staged
        staged += isinstance(effect, Stage)
        if staged and isinstance(effect, Commit) and due:
            backend.saver().delete_thread(due.pop())

    narrow = CommitLimits(ops=8, bytes=20_000)
    write(backend.saver(wrap=lambda driver: Narrow(FaultyDriver(driver, on_effect=hook), narrow)))
    assert staged
    assert not due
    reader = backend.saver()
    if write is put_first:
        assert load(reader).checkpoint["channel_values"] == {"x": BIG}
    else:
        put(reader, at(), "c1")
        assert load(reader).pending_writes == [("t", "x", BIG)]
