"""The leases of ended processes end, those of others stay, however many there are.

Covers perdure.engine.queue.due_pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from perdure.engine.queue import due_pages, ended_leases
from perdure.model.ops import Commit, Fetch, Get, Now
from perdure.model.records import LANE, Partition
from perdure.model.runs.messages import OPEN, Run
from perdure.model.runs.queue import IN, OUT, Debounce, Lane
from perdure.storage.port import run
from tests.backends import BACKENDS
from tests.runtime.graphs import Line, Storage, stored

TTL = 600_000_000


@pytest.fixture(params=BACKENDS)
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


def now(storage: Storage) -> int:
    return storage.driver.perform(Now())


def held(storage: Storage, thread: str, owner: str, until: int, *, tenant: str = "", name: str = IN) -> None:
    """Store a queue with a run, or replies, that a process holds."""
    lane = Lane(name).accept(1, Debounce()).take("run", 1, None)
    lane = lane._replace(owner=owner, epoch=7, lease_until=until)
    run = Run("run", 1, 1, OPEN, "graph", "", 1, 1, None, 1, 1)
    storage.driver.perform(Commit(Partition(tenant, thread), (lane.put(1), run.put())))


def lane(storage: Storage, thread: str, *, tenant: str = "", name: str = IN) -> Lane:
    (found,) = storage.driver.perform(Fetch(Partition(tenant, thread), (Get(LANE, (name,)),)))
    return Lane.read(name, found)


def test_the_leases_of_ended_processes_end(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_pages, "PAGE", 2)
    start = now(storage)
    for n in range(5):
        # Several at the same time: a page cannot end within them.
        held(storage, f"dead {n}", "dead", start + TTL - 10_000_000)
        held(storage, f"alive {n}", "alive", start + TTL - n * 1_000_000)
    held(storage, "other", "dead too", start + 100_000_000, tenant="acme")
    held(storage, "replies", "dead", start + 100_000_000, name=OUT)
    held(storage, "before", "dead", start - 1)
    before = lane(storage, "dead 0")
    assert run(ended_leases.end(["dead", "dead too"], None, TTL), storage.driver) == 7
    after = now(storage)
    for n in range(5):
        assert start <= (lane(storage, f"dead {n}").lease_until or 0) <= after
        assert lane(storage, f"alive {n}").lease_until == start + TTL - n * 1_000_000
    ended = lane(storage, "dead 0")
    assert ended.is_due(after)
    # All else is as it would be after the lease had expired.
    assert ended._replace(lease_until=before.lease_until, version=before.version) == before
    assert lane(storage, "other", tenant="acme").is_due(after)
    assert lane(storage, "replies", name=OUT).is_due(after)
    assert lane(storage, "before").lease_until == start - 1
    assert run(ended_leases.end(["dead", "dead too"], None, TTL), storage.driver) == 0


def test_a_tenant_s_leases_alone_end() -> None:
    with stored("memory") as storage:
        start = now(storage)
        held(storage, "ada", "dead", start + 1_000_000, tenant="acme")
        held(storage, "ada", "dead", start + 1_000_000, tenant="other")
        assert run(ended_leases.end(["dead"], "acme", TTL), storage.driver) == 1
        assert lane(storage, "ada", tenant="other").lease_until == start + 1_000_000


def test_a_lease_ends_whose_process_took_the_time_to_be_later() -> None:
    with stored("memory") as storage:
        held(storage, "ada", "dead", now(storage) + TTL + 500_000)
        assert run(ended_leases.end(["dead"], None, TTL), storage.driver) == 1


def before_the_first_commit(storage: Storage, change: Callable[[Lane], Lane]) -> None:
    """Store another queue of the thread ``ada`` when the next commit is about to be made."""

    line = storage.driver
    assert isinstance(line, Line)
    commit = line.on_commit

    def on_commit(number: int, when: str) -> None:
        line.on_commit = commit
        line.perform(Commit(Partition("", "ada"), (change(lane(storage, "ada")).put(1),)))

    line.on_commit = on_commit


def test_a_message_that_comes_meanwhile_does_not_keep_a_lease() -> None:
    with stored("memory") as storage:
        held(storage, "ada", "dead", now(storage) + 1_000_000)
        before_the_first_commit(storage, lambda lane: lane.accept(1, Debounce()))
        assert run(ended_leases.end(["dead"], None, TTL), storage.driver) == 1
        found = lane(storage, "ada")
        assert found.last == 2
        assert found.is_due(now(storage))


def test_a_run_that_another_process_takes_meanwhile_is_left_to_it() -> None:
    with stored("memory") as storage:
        held(storage, "ada", "dead", now(storage) + 1_000_000)
        before_the_first_commit(storage, lambda lane: lane.hold("alive", 8, now(storage), TTL))
        assert run(ended_leases.end(["dead"], None, TTL), storage.driver) == 0
        assert lane(storage, "ada").owner == "alive"
