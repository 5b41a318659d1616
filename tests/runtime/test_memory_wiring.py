"""Each part of the memory, unplugged by itself: the check of the whole has to notice it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.langgraph.search.index import SearchIndex
from perdure.memory import Memory, memory
from perdure.memory.policy import MemoryPolicy
from perdure.model.ops import Fetch, Range
from perdure.model.program import ask
from perdure.model.records import ITEM, STORE
from perdure.model.runs.messages import SENT
from perdure.runtime import Agent, Runtime
from perdure.runtime.agent_memory import memory_lane, run_memory
from perdure.runtime.agent_memory.memory_turns import MEMORY, lane_of
from tests.conversation.models import Scripted
from tests.runtime.agent_memory.test_run_memory import graph, policy, say, settled, working
from tests.runtime.graphs import eventually_stored


async def whole() -> None:
    """Two users teach an agent something; each next thread knows its own user's, and items expire."""
    model = Scripted(answers=[AIMessage("Noted.")])

    async def summarize(summary: str, messages: Sequence[Any]) -> str:
        return "They talked about songs. Cut: \ud83d"

    agent = Agent(graph(model), memory=policy(summarize=summarize))
    ttl: Any = {"default_ttl": 60.0}
    index: Any = {"text": True, "fields": ["text"]}
    async with (
        perdure.connect("memory://") as db,
        working(db, agent, store_ttl=ttl, store_index=index) as app,
    ):
        for user, text in (("a.b", "I sing"), ("a_b", "I dance")):
            await say(app, f"first of {user}", text, user)
            await extracted(app, f"first of {user}", user)
        for user, text in (("a.b", "I sing"), ("a_b", "I dance")):
            await say(app, f"second of {user}", "Hello", user)
            recalled = str(model.sent[-1][0].text)
            assert text in recalled
            assert "They talked about songs." in recalled
            assert "I sing I dance".replace(text, "").strip() not in recalled
            assert len(await Memory(app.store(), user).afacts()) == 1
        # Older than the newest that are recalled, and near to what is asked.
        cat = await Memory(app.store(), "a.b").aremember("Her cat is called Moss.")
        for number in range(6):
            await Memory(app.store(), "a.b").aremember(f"Song number {number}.")
        await say(app, "third of a.b", "What does my cat eat?", "a.b")
        assert cat.text in str(model.sent[-1][0].text)
        records = [record async for record in expiring(db)]
        assert records
        assert all(record is not None for record in records)


async def extracted(app: Runtime, thread: str, user: str) -> None:
    """Wait until the turn that a thread has handed over is extracted.

    It is handed over in the commit that ends its run, and is in the lane of its user once it is delivered.
    """

    async def is_delivered() -> bool:
        turns = [each for each in await app.replies(thread) if each.channel == MEMORY]
        assert turns
        return all(turn.state == SENT for turn in turns)

    await eventually_stored(is_delivered)
    assert await app.messages(lane_of(user))
    await settled(app, user, 1)


async def expiring(db: perdure.Database) -> Any:
    """Yield the time to live of each stored item."""
    for place in admin.partitions(db, ""):
        if place.space == STORE:
            (found,) = await handle_of(db).arun(ask(Fetch(place, (Range(ITEM),))))
            for record in found:
                yield record.fields["ttl"]


async def _given(self: Any, policy: Any, graph: Any, config: Any, held: Any, given: Any) -> Any:
    return given


async def _nothing(*args: Any, **kwargs: Any) -> Any:
    return ()


async def _no_facts(policy: Any, memory: Any, turns: Any, *, has_index: bool) -> list[Any]:
    return []


async def _no_summary(policy: Any, memory: Any, turns: Any) -> None:
    return None


def _no_candidates(*args: Any, **kwargs: Any) -> Any:
    return ()
    yield


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "recall": (run_memory.Memories, "prepare_input", _given),
    "hand-over": (run_memory.Memories, "end_turn", _nothing),
    "extraction": (memory_lane, "_facts", _no_facts),
    "summary": (memory_lane, "_summary", _no_summary),
    "index": (SearchIndex, "candidates", _no_candidates),
    "time to live": (memory, "_add_ttl", lambda store, ops: list(ops)),
    "user isolation": (
        memory,
        "namespace_of",
        lambda user, root: (*root, user.replace(".", "_")),
    ),
    "identity": (MemoryPolicy, "user_of", lambda self, configurable: "a_b"),
}


def test_the_whole_works() -> None:
    asyncio.run(whole())


@pytest.mark.parametrize("name", MUTANTS)
def test_an_unplugged_part_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, replacement = MUTANTS[name]
    monkeypatch.setattr(where, attribute, replacement)
    with pytest.raises(AssertionError):
        asyncio.run(whole())
