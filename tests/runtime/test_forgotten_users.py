"""Users who are forgotten while their turns are extracted, and roots that keep users apart.

Covers perdure.runtime.agent_memory.memory_lane, perdure.runtime.runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.messages import AIMessage

import perdure
from perdure.errors import Unavailable
from perdure.memory import Memory
from perdure.runtime import Agent, Runtime
from perdure.runtime.agent_memory.memory_turns import lane_of
from tests.conversation.models import Scripted
from tests.runtime.agent_memory.test_run_memory import (
    Noting,
    graph,
    noted,
    of,
    policy,
    removed,
    say,
    working,
)
from tests.runtime.graphs import Storage, advance, eventually, eventually_stored, stored, vanish


@pytest.mark.timeout(600)
def test_wherever_a_worker_ends_nothing_is_left_of_a_user_who_was_forgotten() -> None:
    """The user is forgotten, as by the command, before one of the worker's commits, with which the worker
    ends. The lane is gone by then, so nobody repeats the run that stored something."""

    async def summarize(summary: str, messages: Sequence[Any]) -> str:
        return "They sang."

    def remembering() -> Agent:
        model = Scripted(answers=[AIMessage("Noted.")])
        return Agent(graph(model), memory=policy(summarize=summarize))

    async def left(at: int) -> tuple[bool, list[str]]:
        with stored("memory") as storage:
            (database, line), other = storage.open(), storage.database()
            async with working(other, remembering(), works=False) as front:
                await front.accept("t", "I sing\nI dance", config=of("ada"))

            def strike(number: int, when: str) -> None:
                if number == at and when == "before":
                    other.checkpointer().delete_thread(lane_of("ada"))
                    Memory(other.store(), "ada").forget()
                elif number == at:
                    line.is_dead = True
                    raise Unavailable("this process is gone")

            line.on_commit = strike
            async with working(database, remembering()) as app:

                async def has_ended() -> bool:
                    with suppress(Unavailable):
                        turns = await app.messages(lane_of("ada"))
                        return bool(turns) and all(each.is_over for each in turns)
                    return True

                await eventually_stored(has_ended)
                has_died = line.is_dead
                line.on_commit = lambda number, when: None
                if has_died:
                    vanish(app, line)
            async with working(storage.database(), remembering(), works=False) as app:
                advance(app)
                for thread in ("t", lane_of("ada")):
                    await app.run_until_idle(thread, within=60.0)
            memory = Memory(other.store(), "ada")
            known: list[Any] = [*memory.facts(history=True), *memory.summaries()]
            return has_died, [each.text for each in known]

    at = 1
    while (ended := asyncio.run(left(at)))[0]:
        assert ended[1] == [], at
        at += 1
    assert at > 10
    assert ended[1] == ["I sing", "I dance", "They sang."]


@pytest.mark.parametrize("on", ["memory", "sqlite", "postgresql"])
def test_a_turn_that_comes_after_its_user_was_forgotten_goes_with_its_lane(on: str) -> None:
    """The command that forgets the user removes the lane before the turn is there, and no later turn follows,
    with which the lane's messages would go."""
    noting = Noting()

    async def main(storage: Storage) -> None:
        lane = lane_of("ada")
        agent = Agent(
            graph(Scripted(answers=[AIMessage("Noted.")])), memory=policy(extract=noting, debounce=2)
        )
        async with working(storage.database(), agent) as app:
            await say(app, "t", "I sing")
            await noted(app, "ada", 1)
            await Memory(app.store(), "ada").aforget()
            await removed(app, "ada")
            await eventually(lambda: storage.rows(lane) == [])

    with stored(on) as storage:
        asyncio.run(main(storage))
    assert noting.requests == []


def test_memories_of_one_agent_within_those_of_another_are_refused() -> None:
    def remembering(*root: str) -> Agent:
        return Agent(graph(Scripted()), memory=policy(root=root))

    with perdure.connect_sync("memory://") as db:
        Runtime(db, {"a": remembering("memories", "a"), "b": remembering("memories", "b")})
        with pytest.raises(ValueError, match=r"root=\('memories', 'a'\)\) lies within root=\('memories',\)"):
            Runtime(db, {"a": remembering("memories", "a"), "b": remembering("memories")})
