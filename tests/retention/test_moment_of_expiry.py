"""A thread reads as absent from the moment it expires, whatever this process knew of it before.

Covers perdure.retention.expiring_driver.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

import perdure
from perdure import Retention, RetentionRules
from perdure.engine import documents
from perdure.model.ops import Commit, Committed, Expect, Fetch, Get, Put
from perdure.model.records import EPOCH, OF_THREAD, Partition
from perdure.retention.expiring_driver import ExpiringDriver
from perdure.testing.conformance import rows
from tests.backends import BACKENDS
from tests.langgraph.session import config
from tests.retention.test_expired_listings import opened
from tests.retention.test_expiring_driver import HERE, Kept, give_ttl, talk, wait
from tests.runtime.graphs import Storage, Talk, eventually, go, spoken, stored, working

__all__ = ["wait"]
SECOND = 1 / 3600
WAYS = ("its own time", "the policy")


@pytest.fixture(params=BACKENDS)
def each_storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored(request.param) as storage:
        yield storage


@pytest.fixture
def near(wait: Callable[[float], None]) -> Iterator[Kept]:
    with perdure.connect_sync("memory://") as db:
        yield Kept(db, wait)


@pytest.fixture
def talk_of() -> Talk:
    return Talk()


@pytest.fixture(params=WAYS)
def brief(request: pytest.FixtureRequest, wait: Callable[[float], None]) -> Iterator[Kept]:
    """A database with a thread that expires after five seconds, by its own time to live or by the policy."""
    with perdure.connect_sync("memory://") as db:
        kept = Kept(db, wait, Retention(idle="5s" if request.param == "the policy" else "90d"))
        talk(kept.db)
        if request.param == "its own time":
            give_ttl(kept, 5 * SECOND)
        yield kept


def is_there(kept: Kept) -> bool:
    return kept.db.checkpointer().get_tuple(config("a")) is not None


def set_run(kept: Kept, run_id: str | None) -> None:
    """Let another process begin a run of the thread, or end it."""
    (found,) = kept.moved.perform(Fetch(HERE, (Get(EPOCH, ()),)))
    version = found[0].version if found else 0
    put = Put(EPOCH, (), {"open_run": run_id}, expect=version or Expect.ABSENT, version=version + 1)
    assert kept.moved.perform(Commit(HERE, (put,))) == Committed()


def set_due(kept: Kept, due_at: int | None) -> None:
    """Let another process leave a message that waits, or take it."""
    put = rows.lane("inbox", due_at)
    last = put.fields["bound"] if due_at is None else put.fields["last"]
    kept.moved.perform(Commit(HERE, (put._replace(fields={**put.fields, "last": last, "owner": None}),)))


@pytest.mark.parametrize("work", [set_run, set_due])
@pytest.mark.parametrize("looks", [1, 3])
def test_one_whose_work_ends_in_another_process_is_absent_from_then_on(
    brief: Kept, work: Callable[[Kept, object], None], looks: int
) -> None:
    work(brief, "run" if work is set_run else 1)
    for _ in range(looks):
        assert is_there(brief)
        brief.wait(2 * SECOND)
    brief.wait(4 * SECOND)
    if looks > 1:
        assert is_there(brief), "it is busy"
    work(brief, None)
    brief.wait(6 * SECOND)
    assert not is_there(brief)
    assert list(brief.db.threads()) == []


def test_one_that_is_busy_beyond_its_time_is_not_removed_by_a_write(brief: Kept) -> None:
    set_run(brief, "run")
    assert is_there(brief)
    brief.wait(6 * SECOND)
    brief.handle.run(documents.put(HERE, "any", "name", {}, 1, Expect.ANY, fresh=1))
    assert len(brief.whole.timeline("a")) == len(brief.db.timeline("a")) == 6


def test_a_shorter_time_that_this_process_sets_counts_at_once(wait: Callable[[float], None]) -> None:
    with perdure.connect_sync("memory://") as db:
        kept = Kept(db, wait, Retention(idle="90d"))
        talk(kept.db)
        give_ttl(kept, 5)
        assert is_there(kept)
        give_ttl(kept, SECOND)
        assert is_there(kept)
        kept.wait(2 * SECOND)
        assert not is_there(kept)
        talk(kept.db, turns=1)
        assert len(kept.whole.timeline("a")) == 3


def test_one_that_loses_its_tag_here_is_absent_at_once(wait: Callable[[float], None]) -> None:
    with perdure.connect_sync("memory://") as db:
        kept = Kept(db, wait, Retention(idle="5s"))
        talk(kept.db)
        kept.db.tag("a", "kept")
        kept.wait(6 * SECOND)
        assert is_there(kept)
        kept.db.untag("a", "kept")
        assert not is_there(kept)


def test_one_that_is_given_a_policy_here_is_absent_once_that_says_so(wait: Callable[[float], None]) -> None:
    rules = RetentionRules(Retention(idle="90d"), {"brief": Retention(idle="1s")})
    with perdure.connect_sync("memory://") as db:
        kept = Kept(db, wait, Retention(idle="90d"))
        driver = ExpiringDriver(kept.moved, rules)
        kept.handle.driver = driver
        talk(kept.db)
        assert is_there(kept)
        body = {"metadata": {"retention": "brief"}}
        now = time.time_ns() // 1000
        kept.handle.run(documents.put(HERE, *OF_THREAD, body, now, Expect.ANY, fresh=9))
        assert is_there(kept)
        kept.wait(2 * SECOND)
        assert not is_there(kept)


def test_threads_with_a_time_of_their_own_cost_no_further_request(near: Kept) -> None:
    for thread in ("a", "b"):
        talk(near.db, thread, 1)
        give_ttl(near, 5, thread=thread)
    near.handle.run(documents.get(HERE, "any", "name"))
    near.wait(30 * SECOND)
    near.moved.asked.clear()
    for thread in ("a", "b"):
        near.handle.run(documents.get(Partition("", thread), "any", "name"))
    assert [len(effect.items) for effect in near.moved.asked] == [4, 4]


@pytest.mark.each_backend
def test_it_is_absent_as_soon_as_a_run_has_ended_after_its_time(each_storage: Storage, talk_of: Talk) -> None:
    async def main() -> None:
        database, _ = opened(each_storage, RetentionRules(thread_ttl=True))
        async with working(database, talk_of.graph) as runtime:
            await runtime.threads.create("a", {}, {"ttl": 0.02})
            ticket = await runtime.accept("a", "hold")
            await eventually(lambda: talk_of.under_way)
            assert (await runtime.threads.get("a")).has_document
            await asyncio.sleep(1.3)
            talk_of.gate.set()
            await runtime.wait(ticket, 30)
            assert await spoken(database, talk_of.graph, "a") == []
            again = await runtime.accept("a", "hello")
            await runtime.wait(again, 30)
            assert await spoken(database, talk_of.graph, "a") == ["hello", "echo: hello"]

    go(main())


@pytest.mark.each_backend
def test_a_message_to_an_expired_thread_that_this_process_does_not_know_starts_anew(
    each_storage: Storage, talk_of: Talk
) -> None:
    async def main() -> None:
        database = each_storage.database()
        graph = talk_of.graph.copy(update={"checkpointer": database.checkpointer()})
        await graph.ainvoke({"messages": [("user", "before")]}, config("a"))
        await asyncio.sleep(1.1)
        database, _ = opened(each_storage, RetentionRules(Retention(idle="1s")))
        async with working(database, talk_of.graph) as runtime:
            ticket = await runtime.accept("a", "hello")
            await runtime.wait(ticket, 30)
            assert await spoken(database, talk_of.graph, "a") == ["hello", "echo: hello"]

    go(main())
