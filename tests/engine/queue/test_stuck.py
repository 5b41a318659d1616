"""What no worker does is found by its name, on every backend, however much else is due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure.engine.queue import due_pages
from perdure.engine.queue.stuck import Stuck
from perdure.model.ops import Commit, Now, Op, Put
from perdure.model.records import DOCUMENT, Partition
from perdure.model.runs.messages import OPEN, Message, Reply, Run
from perdure.model.runs.queue import LATER, Debounce, Lane
from tests.backends import BACKENDS
from tests.runtime.graphs import Storage, stored

MINUTE = 60_000_000


@pytest.fixture(params=BACKENDS)
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


def now(storage: Storage) -> int:
    return storage.driver.perform(Now())


def keep(storage: Storage, thread: str, *ops: Op, tenant: str = "") -> None:
    storage.driver.perform(Commit(Partition(tenant, thread), ops))


def message(graph: str, at: int) -> tuple[Op, ...]:
    """An inbox with a message that has been due since."""
    lane = Lane("inbox").accept(at, Debounce())
    return lane.put(1), Message("m", "hi", graph, seq=1, accepted_at=at).put()


def attempted(graph: str, attempts: int, again_at: int, age: int = 3 * MINUTE) -> tuple[Op, ...]:
    """An inbox with an open run that is to be tried again, begun before that time."""
    lane = Lane("inbox").accept(again_at, Debounce()).take("run", 1, None).postpone(again_at)
    run = Run("run", 1, 1, OPEN, graph, "", 1, attempts, None, again_at - age, again_at)
    return lane.put(1), run.put()


def reply(channel: str, at: int, attempts: int = 0) -> tuple[Op, ...]:
    lane = Lane("outbox").append(at, 1)
    return lane.put(1), Reply(1, "run", 0, channel, "hi", attempts=attempts, created_at=at - 3 * MINUTE).put()


def found(storage: Storage, *, most: int = 1000, **how: Any) -> tuple[Stuck, ...]:
    survey = storage.database().find_stuck(60, most=most, **how)
    assert survey.is_whole
    return survey.stuck


def test_what_waits_and_what_fails_is_counted_by_name(storage: Storage) -> None:
    start = now(storage)
    for n in range(3):
        keep(storage, f"renamed {n}", *message("chat v1", start - (10 + n) * MINUTE))
    keep(storage, "fresh", *message("chat v2", start))
    keep(storage, "tried", *attempted("agent", 4, start + MINUTE))
    keep(storage, "tried of late", *attempted("agent", 9, start + MINUTE, MINUTE + 3_000_000))
    keep(storage, "tried once", *attempted("agent", 1, start + MINUTE))
    keep(storage, "left", *attempted("gone", 3, start - 2 * MINUTE))
    keep(storage, "letter", *reply("pigeon", start - 5 * MINUTE))
    keep(storage, "call", *reply("phone", start + MINUTE, 7))
    keep(storage, "theirs", *message("chat v1", start - 99 * MINUTE), tenant="acme")

    def at(thread: str, tenant: str = "") -> Partition:
        return Partition(tenant, thread)

    assert found(storage) == (
        Stuck("waiting", "graph", "chat v1", 3, start - 12 * MINUTE, 0, at("renamed 2")),
        Stuck("waiting", "channel", "pigeon", 1, start - 5 * MINUTE, 0, at("letter")),
        Stuck("failing", "channel", "phone", 1, start - 2 * MINUTE, 7, at("call")),
        Stuck("failing", "graph", "agent", 1, start - 2 * MINUTE, 4, at("tried")),
        Stuck("waiting", "graph", "gone", 1, start - 2 * MINUTE, 3, at("left")),
    )
    everybody = found(storage, all_tenants=True)
    assert everybody[0] == Stuck(
        "waiting", "graph", "chat v1", 4, start - 99 * MINUTE, 0, at("theirs", "acme")
    )


def test_what_is_damaged_is_named_as_such(memory: Storage) -> None:
    start = now(memory)
    lane, _ = message("chat", start - 5 * MINUTE)
    keep(memory, "counted", lane)
    later = Lane(LATER, last=1, since=1, ready_at=start - 4 * MINUTE).put(1)
    keep(memory, "torn", later, Put(DOCUMENT, (LATER, "x"), {"updated_at": 1}, b"\xff", version=1))
    assert [(one.problem, one.what, one.example.thread) for one in found(memory)] == [
        ("damaged", "inbox", "counted"),
        ("damaged", "later", "torn"),
    ]


def test_all_of_it_is_counted_page_by_page(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_pages, "PAGE", 10)
    start = now(memory)
    for n in range(100):
        keep(memory, f"t{n}", *message("old", start - 5 * MINUTE - n // 40))
    (one,) = found(memory)
    assert one.threads == 100
    survey = memory.database().find_stuck(60, most=60)
    assert not survey.is_whole
    assert [one.threads for one in survey.stuck] == [60]
