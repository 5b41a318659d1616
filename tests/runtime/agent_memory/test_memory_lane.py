"""Lane of a user: turns that find it full wait, and a known fact still corrects another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from perdure.errors import QueueFull
from perdure.memory import Memory
from perdure.model.records import Partition
from perdure.model.runs.messages import Reply
from perdure.runtime import Agent, NotSent, Runtime
from perdure.runtime.agent_memory.memory_lane import make_lane_channel
from perdure.runtime.agent_memory.memory_turns import MEMORY
from tests.conversation.models import Scripted
from tests.runtime.agent_memory.test_run_memory import graph, policy, run, say, settled


def test_a_turn_that_finds_its_lane_full_is_handed_over_later_without_an_attempt() -> None:
    async def full(*_: Any) -> Any:
        raise QueueFull("128 messages wait")

    payload = {"user": "ada", "turn": {"agent": "agent"}}
    reply = Reply(1, "run", 0, MEMORY, payload)
    channel = make_lane_channel(full, {}, 1.0)
    with pytest.raises(NotSent) as refused:
        asyncio.run(channel.send_in(Partition("", "one"), reply))  # type: ignore[arg-type, misc]
    assert refused.value.retry_after is not None


def test_a_known_fact_that_corrects_another_still_closes_it() -> None:
    model = Scripted(answers=[AIMessage("Noted.")])

    async def body(app: Runtime) -> None:
        memory = Memory(app.store(), "ada")
        porto = await memory.aremember("I live in Porto")
        lisbon = await memory.aremember("I live in Lisbon")
        await say(app, "one", "I live in Porto")
        await settled(app, "ada", 1)
        assert [fact.id for fact in await memory.afacts()] == [porto.id]
        assert (await memory.afacts(history=True))[1].id == lisbon.id

    run(Agent(graph(model), memory=policy()), body)
