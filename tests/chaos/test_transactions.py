"""Covers transacting.

Kill -9 between any two requests of steps that give statements on the application's own tables: a row is there
exactly if its step's writes are, and once. The same when answers are lost, and under load on few connections.

A part of the kill points is visited by default; with ``PERDURE_CHAOS=full`` each of a thread that is so long
that more than 2,000 steps are made on each database, in about a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import apsw
import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph

from perdure import connect
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import open_database
from perdure.errors import Unavailable
from perdure.runtime import transaction
from perdure.storage.sqlite.driver import file_of
from perdure.storage.url import open_driver
from tests.backends import EMPTY
from tests.chaos.transacting import INSERT, TABLES, Life, State, Zygote, graph_of
from tests.servers import postgres
from tests.servers.lossy import Lossy

FULL = os.environ.get("PERDURE_CHAOS") == "full"
STEPS = 6 if FULL else 3
EVERY = 1 if FULL else 13
"""The kill points that are visited: the first of so many."""

pytestmark = pytest.mark.timeout(3600 if FULL else 300)


class Application:
    """A database with the application's tables, which it reads with a client of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        open_driver(url, migrate=True).close()
        for table in TABLES:
            self.ask(table)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows."""
        if self.url.startswith("sqlite"):
            with closing(apsw.Connection(str(file_of(self.url)))) as connection:
                return list(connection.execute(sql))
        with psycopg.connect(self.url.partition("?")[0], autocommit=True) as server:
            cursor = server.execute(sql.encode())
            return [] if cursor.description is None else list(cursor)

    def rows(self, thread: str) -> tuple[list[int], int]:
        """Return the steps of a thread in its table, and their number by its total."""
        steps = self.ask(f"SELECT step FROM app_step WHERE thread = '{thread}' ORDER BY step")
        total = self.ask(f"SELECT steps FROM app_total WHERE thread = '{thread}'")
        return [step for (step,) in steps], total[0][0] if total else 0


@contextmanager
def application(empty: Callable[[], AbstractContextManager[str]]) -> Iterator[Application]:
    with empty() as url:
        app = Application(url)
        try:
            yield app
        finally:
            for table in ("app_step", "app_total"):
                app.ask(f"DROP TABLE {table}")


def steps_of(database: SyncDatabase, thread: str) -> list[int]:
    """Return the steps of a thread whose writes are stored, of those in a checkpoint or pending."""
    found = database.checkpointer().get_tuple({"configurable": {"thread_id": thread}})
    if found is None:
        return []
    held = list(found.checkpoint["channel_values"].get("steps", []))
    pending = [value for _, channel, value in found.pending_writes or () if channel == "steps"]
    # A run's input is a write of its own.
    return held + [step for value in pending for step in value]


def require_both_or_neither(app: Application, thread: str) -> list[int]:
    with closing(open_database(app.url)) as database:
        stored = steps_of(database, thread)
    rows, total = app.rows(thread)
    assert rows == stored == list(range(1, total + 1)), f"{thread}: rows {rows}, stored {stored}, {total}"
    return rows


@pytest.mark.parametrize(
    ("durability", "asynchronous"),
    [
        pytest.param("async", False, id="async-invoke"),
        pytest.param("async", True, id="async-ainvoke", marks=pytest.mark.slow),
        pytest.param("sync", False, id="sync-invoke", marks=pytest.mark.slow),
        pytest.param("sync", True, id="sync-ainvoke", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_kill_leaves_both_or_neither(
    backend: str, durability: Literal["sync", "async"], asynchronous: bool, tmp_path: Path
) -> None:
    with application(EMPTY[backend]) as app, Zygote() as zygote:
        report = tmp_path / "requests"
        whole = Life(app.url, "whole", STEPS, durability, 0, "before", asynchronous, str(report))
        assert zygote.live(whole) == (0, 0)
        assert require_both_or_neither(app, "whole") == list(range(1, STEPS + 1))
        requests = int(report.read_text())
        left: Counter[int] = Counter()
        # SQLite tells of a statement when it begins: after one is before the next.
        whens: tuple[Literal["before", "after"], ...] = (
            ("before",) if backend == "sqlite" else ("before", "after")
        )
        for at, when in itertools.product(range(1, requests + 1, EVERY), whens):
            life = replace(whole, thread=f"t{at}{when}", at=at, when=when)
            killed, code = zygote.live(life)
            # The number of requests varies by a few with the threads' order.
            assert (killed, code) in ((signal.SIGKILL, 0), (0, 0))
            left[len(require_both_or_neither(app, life.thread))] += 1
            assert zygote.live(replace(life, at=0)) == (0, 0)
            assert require_both_or_neither(app, life.thread) == list(range(1, STEPS + 1))
        print(f"{sum(left.values())} kills at {requests} requests of {STEPS} steps")
        assert len(left) > 1, f"the kills came all after the same step: {left}"


def test_an_answer_that_is_lost_makes_no_statement_twice() -> None:
    count = 300 if FULL else 10
    with application(lambda: postgres.empty(postgres.durable(), pool=2)) as app:
        relay = Lossy(postgres.durable().port)
        passed = app.url.replace(f":{postgres.durable().port}/", f":{relay.port}/")
        with closing(relay), closing(open_database(f"{passed}&sslmode=disable&gssencmode=disable")) as db:
            graph = graph_of(db.checkpointer(), 2)
            for number in range(count):
                config: Any = {"configurable": {"thread_id": f"t{number}"}}
                said: dict[str, Any] | None = {"steps": []}
                # The answers of one run are lost one after the other, a different one first each time.
                for skipped in itertools.count():
                    assert skipped < 50
                    relay.delay_s = 0.0005 * (number % 5)
                    relay.losing = 1 if skipped < 3 else 0
                    try:
                        graph.invoke(said, config, durability="sync")
                    except Unavailable:
                        relay.losing = 0
                        said = None if graph.get_state(config).metadata else said
                    else:
                        break
                relay.losing = 0
                assert require_both_or_neither(app, f"t{number}") == [1, 2]
            assert relay.lost >= count


def test_no_connection_is_held_while_models_are_called() -> None:
    asyncio.run(_call_models(60))


async def _call_models(threads: int) -> None:
    waiting = 0
    everybody = asyncio.Event()

    async def answer(state: State, config: RunnableConfig) -> dict[str, Any]:
        nonlocal waiting
        transaction().execute(INSERT, {"thread": config["configurable"]["thread_id"], "step": 1})
        waiting += 1
        if waiting == threads:
            everybody.set()
        # A model that answers when all are called: with a connection held by each no more than two would be.
        await asyncio.wait_for(everybody.wait(), 60)
        return {"steps": [1]}

    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    with application(lambda: postgres.empty(pool=2)) as app:
        async with connect(app.url) as database:
            graph = builder.compile(checkpointer=database.checkpointer())
            configs: list[RunnableConfig] = [{"configurable": {"thread_id": f"t{n}"}} for n in range(threads)]
            await asyncio.gather(*(graph.ainvoke({"steps": []}, config) for config in configs))
        assert app.ask("SELECT count(DISTINCT thread), count(*) FROM app_step") == [(threads, threads)]
