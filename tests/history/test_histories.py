"""Histories of sessions as an application uses them: one read and one write a turn, and no turn is lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import open_database
from perdure.engine.transfer.transfer_terms import State
from perdure.errors import Conflict, Contention, Unserialisable
from perdure.history.histories import Histories, NewTurn, SessionHistory, SyncHistories, TaskBudget
from perdure.history.neutral_messages import to_langchain
from perdure.model.ops import Fetch, Range
from perdure.model.records import ITEM, SESSIONS, Partition, Record
from perdure.storage.dynamodb.driver import DynamoDriver
from perdure.storage.port import Driver
from tests import backends
from tests.servers import dynamodb
from tests.servers.dynamodb_wire import watched

ROOT = Path(__file__).parents[2]
RACERS = range(2, 17) if os.environ.get("PERDURE_CHAOS") == "full" else (2, 16)
CALL = AIMessage("", tool_calls=[{"name": "look", "args": {"at": ["Rome", 1.5]}, "id": "c1"}])


_FRESH = """
import json, sys
from perdure.database import opening
from langchain_core.messages import HumanMessage
from tests.servers.dynamodb_wire import watched
from perdure.storage.dynamodb import client, table
from types import SimpleNamespace

made, of_url = [], client.Client.__init__
opened = []
def init(self, *args, **options):
    of_url(self, *args, **options)
    opened.append(watched(SimpleNamespace(client=self)))
    made.append(opened[-1].__enter__())
client.Client.__init__ = init
database = opening.open_database(sys.argv[1])
(wire,) = made
first = dict(wire.count())
wire.calls.clear()
histories = database.history()
after = histories.commit(histories.load("s1"), [HumanMessage("q" + sys.argv[2])])
read, write = wire.calls
conditions = [a["ConditionExpression"] for each in write.parameters["TransactItems"] for a in each.values()]
print(json.dumps({"opening": first, "turn": wire.count(), "texts": [m["content"] for m in after.messages],
    "strong": read.parameters["ConsistentRead"] and all(conditions)}))
"""
"""A process that makes one turn, and prints its requests to the table: those of opening it, and those of the
turn."""


def _items(database: SyncDatabase, session_id: str) -> tuple[Record, ...]:
    (found,) = handle_of(database).driver.perform(Fetch(Partition("", session_id, SESSIONS), (Range(ITEM),)))
    return found


@pytest.fixture
def db(tmp_path: Path) -> Iterator[SyncDatabase]:
    with perdure.connect_sync(f"sqlite:///{tmp_path / 'threads.db'}", migrate=True) as database:
        yield database


def texts(history: SessionHistory) -> list[Any]:
    return [message["content"] for message in history.messages]


def test_a_turn_is_one_call_to_load_and_one_to_commit(tmp_path: Path) -> None:
    asyncio.run(_a_turn(tmp_path))


async def _a_turn(tmp_path: Path) -> None:
    async with perdure.connect(f"sqlite:///{tmp_path / 'threads.db'}", migrate=True) as database:
        histories = database.history()
        assert isinstance(histories, Histories)
        history = await histories.load("s1")
        assert (history.messages, history.version, history.budget) == ([], 0, TaskBudget())
        after = await histories.commit(
            history, [HumanMessage("hi"), CALL], budget=TaskBudget("t", 2), key="k"
        )
        assert await histories.load("s1") == after
        assert to_langchain(after.messages) == [HumanMessage("hi"), CALL]
        assert (after.has_turn("k"), after.has_turn("other")) == (True, False)
        with pytest.raises(Conflict, match=r"'s1'.*load it again"):
            await histories.commit(history, [HumanMessage("lost")])
        assert [s async for s in histories.sessions()] == ["s1"]
        with pytest.raises(Conflict, match="not at version"):
            await histories.delete("s1", version=history.version)
        await histories.delete("s1", version=after.version)
        assert (await histories.load("s1")).version == 0
        assert await histories.sweep() == 0


def test_the_blocking_form_does_the_same(db: SyncDatabase) -> None:
    histories = db.history()
    assert isinstance(histories, SyncHistories)
    first = histories.commit(histories.load("s1"), [{"role": "human", "content": "hi"}])
    assert first.messages == [{"role": "user", "content": "hi"}]
    with pytest.raises(Conflict):
        histories.commit(SessionHistory("s1", [], 0, TaskBudget(), 0, histories.load("s2").held), [])
    histories.delete("s1")
    assert list(histories.sessions()) == []


def test_a_budget_belongs_to_its_task() -> None:
    spent = TaskBudget("a", 3)
    assert (spent.rest_of(5), spent.spend(3).rest_of(5)) == (2, 0)
    assert spent.of(None) == spent.of("a") == spent
    assert spent.of("b") == TaskBudget("b", 0)
    assert TaskBudget("a", -5).rest_of(5) == 5


@pytest.mark.parametrize(
    ("task", "used", "error"),
    [("a", "x", TypeError), ("a", True, TypeError), (5, 5, TypeError), ("a", -5, ValueError)],
)
def test_a_budget_that_cannot_be_used_is_not_stored(
    db: SyncDatabase, task: Any, used: Any, error: type[Exception]
) -> None:
    histories = db.history()
    history = histories.load("s1")
    with pytest.raises(error, match="of a budget is"):
        histories.commit(history, [HumanMessage("hi")], budget=TaskBudget(task, used))
    assert histories.load("s1").messages == []


def test_a_repeated_request_makes_no_second_turn(db: SyncDatabase) -> None:
    calls = 0

    def turn(history: SessionHistory) -> NewTurn:
        nonlocal calls
        calls += 1
        return NewTurn([HumanMessage("hi")])

    histories = db.history()
    first = histories.update("s1", turn, key="k")
    assert histories.update("s1", turn, key="k") == first
    assert (calls, texts(first)) == (1, ["hi"])
    assert histories.update("s1", lambda _: None) == first


def test_an_update_that_always_loses_gives_up(db: SyncDatabase) -> None:
    histories = db.history()

    def late(history: SessionHistory) -> NewTurn:
        histories.commit(history, [HumanMessage("first")])
        return NewTurn([HumanMessage("late")])

    with pytest.raises(Contention, match="3 attempts"):
        histories.update("s1", late, attempts=3)
    assert texts(histories.load("s1")) == ["first"] * 3


@pytest.mark.parametrize("racers", RACERS)
@pytest.mark.parametrize("backend", ["sqlite", "dynamodb"])
def test_racing_requests_lose_nothing(backend: str, racers: int) -> None:
    with backends.EMPTY[backend]() as url, closing(open_database(url, migrate=True)) as database:
        histories = database.history()

        def ask(n: int) -> None:
            histories.update(
                "s1",
                lambda history: NewTurn(
                    [HumanMessage(f"q{n}"), AIMessage(f"after {len(history.messages)}")],
                    history.budget.spend(),
                ),
                attempts=racers,
            )

        with ThreadPoolExecutor(racers) as pool:
            list(pool.map(ask, range(racers)))
        history = histories.load("s1")
        assert sorted(texts(history)[::2]) == sorted(f"q{n}" for n in range(racers))
        assert texts(history)[1::2] == [f"after {2 * n}" for n in range(racers)], "each saw all before it"
        assert history.budget.used == racers


def test_a_racer_without_retries_is_refused_and_overwrites_nothing(db: SyncDatabase) -> None:
    histories = db.history()
    seen = [histories.load("s1") for _ in range(8)]
    outcomes: list[SessionHistory | None] = []
    for n, history in enumerate(seen):
        try:
            outcomes.append(histories.commit(history, [HumanMessage(str(n))]))
        except Conflict:
            outcomes.append(None)
    assert [o is None for o in outcomes] == [False, *[True] * 7]
    assert texts(histories.load("s1")) == ["0"]


def test_an_expired_session_reads_as_absent(db: SyncDatabase) -> None:
    brief = db.history(ttl=timedelta(microseconds=1))
    brief.commit(brief.load("s1"), [HumanMessage("old")])
    assert db.history().load("s1").version == 0
    assert list(brief.sessions()) == []
    assert brief.sweep() == 1
    with pytest.raises(ValueError, match="above 0"):
        db.history(ttl=timedelta())


def test_tenants_and_ids_are_apart(db: SyncDatabase) -> None:
    mine, theirs = db.history(tenant="a"), db.history(tenant="b")
    mine.commit(mine.load("s"), [HumanMessage("mine")])
    assert theirs.load("s").version == 0
    assert mine.load("s ").version == 0
    for bad in ("", None, 7):
        with pytest.raises(ValueError, match="session id"):
            mine.load(bad)  # type: ignore[arg-type]


def test_a_refused_message_changes_nothing(db: SyncDatabase) -> None:
    histories = db.history()
    with pytest.raises(Unserialisable, match="message 1"):
        histories.commit(histories.load("s"), [HumanMessage("a"), {"role": "nobody", "content": "b"}])
    assert histories.load("s").version == 0


def test_a_history_is_copied_to_another_backend_and_encrypted_there(db: SyncDatabase, tmp_path: Path) -> None:
    histories = db.history()
    for n in range(4):
        histories.commit(histories.load("s1"), [HumanMessage(f"{n} secret " * 6000), CALL], key=f"k{n}")
    path = tmp_path / "sealed.db"
    with closing(open_database(f"sqlite:///{path}", migrate=True, encryption_key=b"k" * 32)) as target:
        (partition,) = [p for p in admin.partitions(db, "") if p.space == SESSIONS]
        assert admin.move(db, partition, target).found is State.ABSENT
        assert admin.move(db, partition, target).found is State.SAME
        assert admin.digest_of(target, partition).items == admin.digest_of(db, partition).items == 2
        copied = target.history().load("s1")
        assert copied.messages == histories.load("s1").messages
        assert copied.has_turn("k3")
        assert target.history().commit(copied, [HumanMessage("on")]).version > copied.version
    assert b"secret" not in path.read_bytes()


class TestOnDynamoDB:
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with dynamodb.empty() as url:
            yield url

    def _open(self, url: str, *, migrate: bool = False) -> tuple[SyncDatabase, DynamoDriver]:
        made: list[Driver] = []

        def keep(driver: Driver) -> Driver:
            made.append(driver)
            return driver

        database = open_database(url, migrate=migrate, wrap=keep)
        driver: Any = made[0]
        return database, driver._inner

    def test_a_turn_is_one_strong_read_and_one_conditional_write(self, url: str) -> None:
        database, driver = self._open(url, migrate=True)
        with closing(database), watched(driver, weigh=True) as wire:
            histories = database.history()
            for n in range(3):
                histories.commit(histories.load("s1"), [HumanMessage(f"q{n}"), AIMessage(f"a{n}")])
        assert wire.count() == {"GetItem": 3, "TransactWriteItems": 3}
        for call in wire.calls:
            if call.operation == "GetItem":
                assert call.parameters["ConsistentRead"] is True
            else:
                ((action,),) = (each.values() for each in call.parameters["TransactItems"])
                assert action["ConditionExpression"]
        assert wire.reads == 3
        assert wire.writes <= 3 * 2 + 1, "one item of under 1 KB each, and its entry in the catalogue once"

    def test_a_turn_of_a_long_history_is_two_reads_and_one_write(self, url: str) -> None:
        database, driver = self._open(url, migrate=True)
        with closing(database):
            histories = database.history()
            histories.commit(histories.load("s1"), [HumanMessage(f"{n}" * 100_000) for n in range(4)])
            with watched(driver) as wire:
                after = histories.commit(histories.load("s1"), [HumanMessage("next")])
        assert len(after.held.segments) == 3
        assert wire.count() == {"GetItem": 1, "BatchGetItem": 1, "TransactWriteItems": 1}
        ((asked),) = wire.calls[1].parameters["RequestItems"].values()
        assert asked["ConsistentRead"] is True

    @pytest.mark.slow
    def test_the_first_turn_of_a_process_reads_no_more_than_later_ones(self, url: str) -> None:
        self._open(url, migrate=True)[0].close()
        for n in range(3):
            done = subprocess.run(
                [sys.executable, "-c", _FRESH, url, str(n)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            )
            assert json.loads(done.stdout) == {
                "opening": {"GetItem": 2},
                "turn": {"GetItem": 1, "TransactWriteItems": 1},
                "strong": True,
                "texts": [f"q{before}" for before in range(n + 1)],
            }

    def test_a_history_that_was_removed_and_made_again_shows_nothing_of_the_first(self, url: str) -> None:
        first, _ = self._open(url, migrate=True)
        second, _ = self._open(url)
        with closing(first), closing(second):
            mine, theirs = first.history(), second.history()
            old = mine.commit(mine.load("s1"), [HumanMessage(f"old {n}" * 20_000) for n in range(3)])
            assert len(old.held.segments) == 2
            assert theirs.load("s1").messages == old.messages, "both processes know the incarnation now"
            theirs.delete("s1")
            assert mine.load("s1").version == 0
            theirs.commit(theirs.load("s1"), [HumanMessage("new")])
            with pytest.raises(Conflict):
                mine.commit(old, [HumanMessage("late")])
            assert texts(mine.load("s1")) == ["new"]
            assert [record.body for record in _items(first, "s1")] == [
                record.body for record in _items(second, "s1")
            ]
            assert b"old" not in b"".join(record.body for record in _items(first, "s1"))


def test_awaited_requests_lose_nothing(tmp_path: Path) -> None:
    asyncio.run(_awaited_requests(tmp_path))


async def _awaited_requests(tmp_path: Path) -> None:
    async with perdure.connect(f"sqlite:///{tmp_path / 'threads.db'}", migrate=True) as database:
        histories = database.history()

        async def ask(n: int) -> None:
            async def turn(history: SessionHistory) -> NewTurn:
                await asyncio.sleep(0)
                return NewTurn([HumanMessage(f"q{n}")])

            await histories.update("s1", turn, key=f"k{n}")

        await asyncio.gather(*(ask(n % 6) for n in range(12)))
        assert sorted(texts(await histories.load("s1"))) == [f"q{n}" for n in range(6)]
