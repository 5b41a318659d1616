"""Statements on the application's own tables are made when the checkpoint of their step is durable: until
then a crash repeats the step under another id, and they would be made twice."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest
from langchain_core.runnables import RunnableConfig

from perdure.database.opening import open_database
from perdure.errors import Unavailable
from perdure.model.ops import Commit, Put
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, WRITE
from perdure.storage.port import Driver, WrappingDriver
from perdure.testing.faults import Fault, FaultyDriver, fail
from tests.chaos.transacting import TABLES, graph_of

R = TypeVar("R")
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}


class SlowCheckpoints(WrappingDriver):
    """Stores checkpoints late, and notes which were durable when a commit with statements began."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.stored: set[str] = set()
        self.early: list[str] = []
        self.with_statements = 0

    def perform(self, effect: Effect[R]) -> R:
        if _puts(effect):
            time.sleep(0.05)
        self._begin(effect)
        answer = self._inner.perform(effect)
        self.stored |= _puts(effect)
        return answer

    async def aperform(self, effect: Effect[R]) -> R:
        if _puts(effect):
            await asyncio.sleep(0.05)
        self._begin(effect)
        answer = await self._inner.aperform(effect)
        self.stored |= _puts(effect)
        return answer

    def _begin(self, effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and effect.statements:
            self.with_statements += 1
            on = {op.key[1] for op in effect.ops if isinstance(op, Put) and op.kind is WRITE}
            self.early += on - self.stored - _puts(effect)


def _puts(effect: Effect[Any]) -> set[str]:
    ops = effect.ops if isinstance(effect, Commit) else ()
    return {op.key[1] for op in ops if isinstance(op, Put) and op.kind is CHECKPOINT}


def _create_tables(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        for table in TABLES:
            connection.execute(table)


def _fail_at(at: int, driver: Driver) -> Driver:
    return FaultyDriver(driver, Fault(at, fail("unavailable")), counts=[Commit])


@pytest.mark.parametrize("is_asynchronous", [False, True])
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_no_statement_is_made_before_the_checkpoint_of_its_step(
    durability: Any, is_asynchronous: bool, tmp_path: Path
) -> None:
    made: list[SlowCheckpoints] = []

    def wrap(driver: Driver) -> Driver:
        made.append(SlowCheckpoints(driver))
        return made[0]

    with closing(open_database(f"sqlite:///{tmp_path / 't.db'}", migrate=True, wrap=wrap)) as database:
        _create_tables(tmp_path / "t.db")
        graph = graph_of(database.checkpointer(), 6)
        if is_asynchronous:
            state = asyncio.run(graph.ainvoke({"steps": []}, CONFIG, durability=durability))
        else:
            state = graph.invoke({"steps": []}, CONFIG, durability=durability)
        assert state == {"steps": [1, 2, 3, 4, 5, 6]}
    assert made[0].with_statements >= 6
    assert made[0].early == []


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_statements_end_with_the_error_of_the_checkpoint_that_they_wait_for(
    is_asynchronous: bool, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    open_database(url, migrate=True).close()
    _create_tables(tmp_path / "t.db")
    for at in range(1, 8):
        config: RunnableConfig = {"configurable": {"thread_id": f"t{at}"}}
        with closing(open_database(url, wrap=partial(_fail_at, at))) as database:
            graph = graph_of(database.checkpointer(), 3)
            try:
                if is_asynchronous:
                    run = graph.ainvoke({"steps": []}, config, durability="async")
                    asyncio.run(asyncio.wait_for(run, 30))
                else:
                    graph.invoke({"steps": []}, config, durability="async")
            except Unavailable:
                state = graph.get_state(config)
                graph.invoke(None if state.metadata else {"steps": []}, config)
            assert graph.get_state(config).values == {"steps": [1, 2, 3]}
        with closing(apsw.Connection(str(tmp_path / "t.db"))) as connection:
            rows = connection.execute("SELECT step FROM app_step WHERE thread = ? ORDER BY 1", (f"t{at}",))
            assert [step for (step,) in rows] == [1, 2, 3]
