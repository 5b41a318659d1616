"""Turns that are extracted although storage fails, or the process ends, at any effect: each fact once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage

import perdure
from perdure.errors import PerdureError, Unavailable
from perdure.memory import Memory
from perdure.runtime import Agent, Runtime, Settings
from perdure.runtime.agent_memory.memory_turns import lane_of
from perdure.testing.faults import WRITES, Fault, fail, faulty
from tests.backends import BACKENDS, EMPTY
from tests.conversation.histories import how_many
from tests.conversation.models import Scripted
from tests.runtime.agent_memory.test_run_memory import Events, graph, of, policy, settled

TURNS = (("one", "I sing"), ("two", "I live in Lisbon"), ("one", "I live in Porto"))
WHOLE = 10_000
"""No run has so many effects: it is not cut off."""
BRIEF = Settings(lease=1.0, backoff=0.02, max_backoff=0.05, poll=0.1, attempts=6, drain=0.2)


def agent() -> Agent:
    return Agent(graph(Scripted(answers=[AIMessage("Noted.")])), memory=policy())


async def talk(db: perdure.Database | perdure.SyncDatabase) -> None:
    """Say each turn, however often it takes, and wait until all are extracted."""
    async with asyncio.timeout(90), Runtime(db, agent(), settings=BRIEF, observers=[Events()]) as app:
        for number, (thread, text) in enumerate(TURNS, 1):
            while True:
                try:
                    ticket = await app.accept(thread, text, config=of("ada"), dedupe_key=str(number))
                    assert (await app.wait(ticket)).state == "done"
                    await settled(app, "ada", number)
                    break
                except Unavailable:
                    await asyncio.sleep(0.02)


async def check(db: perdure.Database | perdure.SyncDatabase) -> None:
    """Fail unless each fact is stored once, and the correction has closed what it corrects."""
    async with Runtime(db, agent(), works=False) as app:
        facts = await Memory(app.store(), "ada").afacts(history=True)
        assert sorted(fact.text for fact in facts) == ["I live in Lisbon", "I live in Porto", "I sing"]
        assert {fact.text for fact in facts if fact.is_current} == {"I sing", "I live in Porto"}
        assert len(await app.messages(lane_of("ada"))) == len(TURNS)


def battery(places: list[int], few: int) -> list[int]:
    step = max(1, len(places) // how_many(few, len(places)))
    return places[step - 1 :: step]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("on", BACKENDS)
def test_a_failure_of_any_write_costs_no_fact_and_doubles_none(on: str) -> None:
    def tried(*faults: Fault) -> tuple[int, int]:
        began: list[int] = []
        with EMPTY[on]() as url, faulty(url, *faults, counts=WRITES, migrate=True) as (db, driver):
            began.append(driver.count)

            async def whole() -> None:
                await talk(db)
                await check(db)

            asyncio.run(whole())
            return began[0], driver.count

    first, last = tried()
    for at in battery(list(range(first + 1, last + 1)), 4):
        for when in ("before", "after"):
            tried(Fault(at, fail("unavailable"), when))


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "on",
    [
        "sqlite",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in BACKENDS
            if each not in ("memory", "sqlite")
        ),
    ],
)
def test_a_process_that_ends_at_any_write_costs_no_fact_and_doubles_none(on: str, when: Any) -> None:
    """From one effect on everything fails, as for a process that is gone; then another one continues."""

    def ended(at: int) -> int:
        last = how_many(200, 400)
        faults = [Fault(n, fail("unavailable"), when if n == at else "before") for n in range(at, at + last)]
        with EMPTY[on]() as url:
            with faulty(url, *faults, counts=WRITES, migrate=True) as (db, driver):

                async def cut_off() -> None:
                    try:
                        async with asyncio.timeout(1.5 if at < WHOLE else 60):
                            await talk(db)
                    except (PerdureError, TimeoutError):
                        return

                asyncio.run(cut_off())
                count = driver.count

            async def rest() -> None:
                async with perdure.connect(url) as again:
                    await talk(again)
                    await check(again)

            asyncio.run(rest())
            return count

    whole = ended(WHOLE)
    for at in battery(list(range(2, whole + 1)), 2):
        ended(at)
