"""An expired thread reads as absent to every call, swept or not, and starts anew."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import id as ids

import perdure
from perdure import Retention, RetentionRules
from perdure.database.base import handle_of
from perdure.database.handle import DatabaseHandle
from perdure.engine import documents
from perdure.model.ops import Commit, Delete, Drop, Expect, Fetch, FindThreads, Get, Now, Range
from perdure.model.records import CHECKPOINT, CHUNK, GC, HEAD, OF_THREAD, SERVER, WRITE, Kind, Partition
from perdure.retention.expiring_driver import ExpiringDriver, with_expired
from tests import backends
from tests.langgraph import graphs
from tests.langgraph.graphs import STATES
from tests.langgraph.session import config

HOUR_NS = 3_600_000_000_000
IDLE = Retention(idle="1h")
HERE = Partition("", "a")


class Moved:
    """A driver whose database has the clock of the test, and another process between two requests."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked: list[Any] = []
        self.between: Callable[[Any], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def perform(self, effect: Any) -> Any:
        self.asked.append(effect)
        answer = time.time_ns() // 1000 if isinstance(effect, Now) else self._inner.perform(effect)
        if self.between is not None:
            self.between(effect)
        return answer

    async def aperform(self, effect: Any) -> Any:
        self.asked.append(effect)
        return time.time_ns() // 1000 if isinstance(effect, Now) else await self._inner.aperform(effect)


class Kept:
    """A database whose threads expire an hour after their last activity, and what is stored in it."""

    def __init__(
        self, db: perdure.SyncDatabase, wait: Callable[[float], None], policy: Retention = IDLE
    ) -> None:
        rules = RetentionRules(policy)
        opened = handle_of(db)
        self.moved = Moved(with_expired(opened.driver))
        self.whole = perdure.SyncDatabase(DatabaseHandle(self.moved, tenant="", digest=opened.digest))
        expiring = ExpiringDriver(self.moved, rules)
        self.handle = DatabaseHandle(expiring, tenant="", digest=opened.digest, retention=rules)
        self.db = perdure.SyncDatabase(self.handle)
        self.wait = wait


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move all clocks on by hours, also that of checkpoint ids."""
    ahead, real = 0, time.time_ns
    monkeypatch.setattr(ids, "_last_v6_timestamp", None)
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead)

    def move(hours: float) -> None:
        nonlocal ahead
        ahead += round(hours * HOUR_NS)

    return move


@pytest.fixture(params=backends.BACKENDS)
def kept(request: pytest.FixtureRequest, wait: Callable[[float], None]) -> Iterator[Kept]:
    with (
        backends.EMPTY[request.param]() as url,
        perdure.connect_sync(url, migrate=True, retention=IDLE) as db,
    ):
        yield Kept(db, wait)


@pytest.fixture
def near(wait: Callable[[float], None]) -> Iterator[Kept]:
    with perdure.connect_sync("memory://", retention=IDLE) as db:
        yield Kept(db, wait)


def talk(db: perdure.SyncDatabase, thread: str = "a", turns: int = 2) -> None:
    graph = graphs.chat(db.checkpointer())
    for n in range(turns):
        graph.invoke(graphs.message(n), config(thread))


def test_it_is_absent_to_every_call_and_starts_anew(kept: Kept) -> None:
    db = kept.db
    talk(db)
    talk(db, "b", 1)
    first = db.timeline("a")[-1].checkpoint_id
    kept.wait(0.9)
    assert db.checkpointer().get_tuple(config("a")) is not None
    kept.wait(0.2)
    saver = db.checkpointer(may_list_all_threads=True)
    at_first: RunnableConfig = {"configurable": {"thread_id": "a", "checkpoint_id": first}}
    for at in (config("a"), at_first):
        assert saver.get_tuple(at) is None
    assert list(saver.list(config("a"))) == []
    assert list(saver.list(None)) == []
    assert list(db.threads()) == []
    assert db.tags("a") == {}
    for look in (db.timeline, db.show, db.export):
        with pytest.raises(perdure.NotFound):
            look("a")
    with pytest.raises(perdure.NotFound):
        db.tag("a", "late")
    assert db.fsck() == []
    assert graphs.chat(saver).get_state(config("a")).values == {}
    # Nothing was removed yet: it is the answer that is empty.
    assert len(kept.whole.timeline("a")) == 6
    talk(db, turns=1)
    assert len(db.timeline("a")) == 3
    assert len(db.checkpointer().get_tuple(config("a")).checkpoint["channel_values"]["messages"]) == 2  # type: ignore[union-attr]
    assert len(kept.whole.timeline("a")) == 3
    assert db.fsck("a") == []
    assert [t.thread_id for t in db.threads()] == ["a"]


def test_a_thread_that_is_removed_while_it_is_looked_at_reads_as_absent(near: Kept) -> None:
    talk(near.db)
    near.wait(2)

    def between(effect: Any) -> None:
        near.moved.between = None
        near.moved.perform(Drop(HERE))

    near.moved.between = between
    assert near.db.checkpointer().get_tuple(config("a")) is None


def test_a_write_that_finds_a_removal_under_way_starts_anew(near: Kept) -> None:
    """The other writer has taken the thread's generation away, and its other records are still there."""
    talk(near.db)
    near.wait(2)
    saver = near.db.checkpointer()
    assert saver.get_tuple(config("a")) is None

    def between(effect: Any) -> None:
        if isinstance(effect, Fetch) and Get(GC, ()) in effect.items:
            near.moved.between = None
            ((generation,),) = near.moved.perform(Fetch(HERE, (Get(GC, ()),)))
            near.moved.perform(Commit(HERE, (Delete(GC, (), generation.version),)))

    near.moved.between = between
    saver.put_writes(config("a", checkpoint_ns="", checkpoint_id="first"), [("said", "hello")], "task")
    assert near.moved.between is None
    heads, writes = near.moved.perform(Fetch(HERE, (Range(HEAD), Range(WRITE))))
    assert (heads, len(writes)) == ((), 1)


def test_a_saver_that_knew_the_thread_starts_anew_too(near: Kept) -> None:
    graph = graphs.chat(near.db.checkpointer())
    graph.invoke(graphs.message(0), config("a"))
    near.wait(2)
    assert graph.get_state(config("a")).values == {}
    graph.invoke(graphs.message(1), config("a"))
    assert len(graph.get_state(config("a")).values["messages"]) == 2
    assert near.db.fsck("a") == []


async def expired_async(near: Kept) -> None:
    graph = graphs.chat(near.db.checkpointer())
    await graph.ainvoke(graphs.message(0), config("a"))
    near.wait(2)
    assert (await graph.aget_state(config("a"))).values == {}
    assert [t async for t in perdure.Database(near.handle).threads()] == []


@pytest.mark.anyio
async def test_it_is_absent_to_awaited_calls(near: Kept) -> None:
    await expired_async(near)


def test_its_question_expires_with_it(near: Kept) -> None:
    graph = graphs.asking(near.db.checkpointer(), STATES["delta"])
    graph.invoke({"said": ["turn"]}, config("a"))
    near.wait(0.9)
    assert graph.get_state(config("a")).interrupts
    near.wait(0.2)
    assert not graph.get_state(config("a")).interrupts


def test_a_tag_keeps_it(near: Kept) -> None:
    talk(near.db)
    near.db.tag("a", "kept")
    near.wait(2)
    assert len(near.db.timeline("a")) == 6
    assert [t.thread_id for t in near.db.threads()] == ["a"]


def test_its_own_time_to_live_comes_first(near: Kept) -> None:
    talk(near.db)
    body = {
        "metadata": {},
        "ttl": {"strategy": "delete", "expires_at": (time.time_ns() // 1000) + 5 * HOUR_NS // 1000},
    }
    near.handle.run(documents.put(HERE, *OF_THREAD, body, (time.time_ns() // 1000), Expect.ANY, fresh=1))
    near.wait(2)
    assert len(near.db.timeline("a")) == 6
    near.wait(4)
    with pytest.raises(perdure.NotFound):
        near.db.timeline("a")
    assert near.handle.run(documents.get(HERE, *OF_THREAD)) is None


def give_ttl(
    kept: Kept, hours: float, metadata: Mapping[str, Any] | None = None, *, thread: str = "a"
) -> None:
    """Give a thread a time to live of its own, as a client of a server does."""
    now = time.time_ns() // 1000
    ttl = {"strategy": "delete", "expires_at": now + round(hours * HOUR_NS) // 1000}
    body = {"metadata": metadata or {}, "ttl": ttl}
    fresh = kept.handle.draw_version()
    place = Partition("", thread)
    kept.handle.run(documents.put(place, *OF_THREAD, body, now, Expect.ANY, fresh=fresh))


def test_one_whose_policy_does_not_exist_is_removed_once_its_own_time_is_over(kept: Kept) -> None:
    talk(kept.db)
    give_ttl(kept, 5, {"retention": "of another deployment"})
    kept.wait(4)
    done = kept.db.apply_retention()
    assert done is not None
    assert (done.expired, done.failed) == (0, 1)
    kept.wait(2)
    require_removal(kept)


@pytest.mark.parametrize("lost", [HEAD, CHECKPOINT, CHUNK])
def test_a_damaged_one_is_removed_once_its_own_time_is_over(near: Kept, lost: Kind) -> None:
    talk(near.db)
    give_ttl(near, 5)
    (records,) = near.moved.perform(Fetch(HERE, (Range(lost),)))
    near.moved.perform(Commit(HERE, tuple(Delete(lost, each.key, each.version) for each in records)))
    near.wait(6)
    require_removal(near)


def require_removal(kept: Kept) -> None:
    """Require that the expired thread reads as absent, and that the next sweep removes it."""
    assert kept.db.checkpointer().get_tuple(config("a")) is None
    done = kept.db.apply_retention()
    assert done is not None
    assert (done.expired, done.failed) == (1, 0)
    assert list(kept.whole.threads()) == []


@pytest.mark.parametrize("table", ["perdure_chunk", "perdure_checkpoint"])
@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "encrypted"])
def test_one_whose_bodies_were_changed_is_removed_once_it_is_idle(
    tmp_path: Path, wait: Callable[[float], None], table: str, key: bytes | None
) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    with perdure.connect_sync(url, migrate=True, encryption_key=key) as db:
        talk(db)
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection, connection:
        newest = "seq = (SELECT max(seq) FROM perdure_checkpoint)"
        which = "1" if table == "perdure_chunk" else f"NOT {newest}"
        assert connection.execute(f"UPDATE {table} SET body = x'00ff' WHERE {which}").rowcount
    with perdure.connect_sync(url, retention=IDLE, encryption_key=key) as db:
        wait(2)
        require_removal(Kept(db, wait))


def test_a_live_thread_costs_no_further_request(near: Kept) -> None:
    talk(near.db)
    counts = list[int]()
    for db in (near.whole, near.db):
        near.moved.asked.clear()
        db.checkpointer().get_tuple(config("a"))
        counts.append(len(near.moved.asked))
    assert counts[0] == counts[1]
    near.wait(0.5)
    near.moved.asked.clear()
    near.handle.run(documents.get(HERE, "any", "name"))
    (asked,) = near.moved.asked
    assert len(asked.items) == 4
    near.moved.asked.clear()
    near.handle.run(documents.get(HERE, "any", "name"))
    assert [len(effect.items) for effect in near.moved.asked] == [1]


def test_pages_of_a_listing_are_full_although_threads_are_left_out(near: Kept) -> None:
    for n in range(7):
        talk(near.db, f"t{n}", 1)
    near.wait(2)
    for n in (1, 4, 6):
        talk(near.db, f"t{n}", 1)
    found = near.handle.driver.perform(FindThreads("", limit=2))
    assert [hit.partition.thread for hit in found] == ["t1", "t4"]
    found = near.handle.driver.perform(FindThreads("", after=found[-1].partition, limit=2))
    assert [hit.partition.thread for hit in found] == ["t6"]


def test_the_sweep_removes_it_with_its_entry_in_an_index(near: Kept) -> None:
    talk(near.db)
    index = Partition("", "threads", SERVER)
    near.handle.run(documents.put(index, "threads", "a", {"metadata": {}}, 1, Expect.ANY, fresh=1))
    near.wait(2)
    done = near.db.apply_retention()
    assert done is not None
    assert (done.expired, done.checkpoints) == (1, 6)
    assert list(near.whole.threads()) == []
    assert near.handle.run(documents.get(index, "threads", "a")) is None
