"""Histories of sessions as an application uses them: one read and one write a turn, and no turn is lost."""

from __future__ import annotations

import asyncio
import os
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
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import open_database
from perdure.engine.transfer import State
from perdure.errors import Conflict, Contention, Unserialisable
from perdure.history.histories import Histories, NewTurn, SessionHistory, SyncHistories, TaskBudget
from perdure.history.neutral_messages import to_langchain
from perdure.model.records import SESSIONS
from perdure.storage.dynamodb.driver import DynamoDriver
from perdure.storage.port import Driver
from tests import backends
from tests.servers import dynamodb
from tests.servers.dynamodb_wire import watched

RACERS = range(2, 17) if os.environ.get("PERDURE_CHAOS") == "full" else (2, 16)
CALL = AIMessage("", tool_calls=[{"name": "look", "args": {"at": ["Rome", 1.5]}, "id": "c1"}])


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
    assert (spent.left(5), spent.spend(3).left(5)) == (2, 0)
    assert spent.of(None) == spent.of("a") == spent
    assert spent.of("b") == TaskBudget("b", 0)


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
        assert target.history().commit(copied, [HumanMessage("on")]).version == copied.version + 1
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
        with closing(database), watched(driver) as wire:
            histories = database.history()
            for n in range(3):
                histories.commit(histories.load("s1"), [HumanMessage(f"q{n}"), AIMessage(f"a{n}")])
        assert wire.count() == {"GetItem": 1, "BatchGetItem": 2, "TransactWriteItems": 3}
        read, _, *more = wire.calls
        assert read.parameters["ConsistentRead"] is True
        for call in more:
            if call.operation == "BatchGetItem":
                ((asked),) = call.parameters["RequestItems"].values()
                assert asked["ConsistentRead"] is True
            else:
                actions = call.parameters["TransactItems"]
                assert all("ConditionExpression" in next(iter(action.values())) for action in actions)

    def test_a_turn_in_a_new_process_reads_the_row_of_the_session_besides(self, url: str) -> None:
        first, _ = self._open(url, migrate=True)
        with closing(first):
            first.history().commit(first.history().load("s1"), [HumanMessage("a")])
        second, driver = self._open(url)
        with closing(second), watched(driver) as wire:
            histories = second.history()
            histories.commit(histories.load("s1"), [HumanMessage("b")])
        assert wire.count() == {"GetItem": 1, "BatchGetItem": 1, "TransactWriteItems": 1}


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
