"""Memory in runs although the store fails, holds foreign items, or cannot name the user: the reply comes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.store.base import Op, SearchOp

from perdure.errors import Unavailable
from perdure.langgraph.store import PerdureStore
from perdure.memory import Memory
from perdure.runtime import Agent, Runtime
from perdure.runtime.agent_memory import run_memory
from tests.conversation.models import Scripted
from tests.runtime.agent_memory.test_run_memory import Events, graph, policy, run, say
from tests.runtime.graphs import WITHIN_S


class Hanging(PerdureStore):
    """Store whose searches fail, or take forever."""

    fails = False

    async def abatch(self, ops: Iterable[Op]) -> list[Any]:
        ops = list(ops)
        if any(isinstance(op, SearchOp) for op in ops):
            if self.fails:
                raise Unavailable("the provider's own words")
            await asyncio.Event().wait()
        return await super().abatch(ops)


@pytest.mark.parametrize("fails", [True, False])
def test_a_store_that_fails_or_hangs_costs_no_reply(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, events = Scripted(answers=[AIMessage("Hi.")]), Events()
    monkeypatch.setattr(run_memory, "_PATIENCE_S", WITHIN_S if fails else 0.1)
    monkeypatch.setattr(Hanging, "fails", fails)

    async def body(app: Runtime) -> None:
        store = app.store()
        await Memory(store, "ada").aremember("She sings.")
        store.__class__ = Hanging
        monkeypatch.setattr(app._worker.runner.memories, "_store", lambda tenant: store)
        async with asyncio.timeout(WITHIN_S):
            assert await say(app, "t", "Hello") == "done"

    run(Agent(graph(model), memory=policy(extract=None)), body, events)
    assert [message.type for message in model.sent[0]] == ["human"]
    (failed,) = events.named("memory.recall_failed")
    assert failed["error"] == ("Unavailable" if fails else "TimeoutError")


def test_a_foreign_item_hides_nothing_that_is_known() -> None:
    model = Scripted(answers=[AIMessage("Hi.")])

    async def body(app: Runtime) -> None:
        memory = Memory(app.store(), "ada")
        fact = await memory.aremember("She sings.")
        await app.store().aput((*memory.namespace, "facts"), "odd", {"current": True})
        local = {**fact.dump(), "known_from": "2026-01-01T00:00:00"}
        await app.store().aput((*memory.namespace, "facts"), "local", local)
        await app.store().aput(memory.namespace, "note", {"current": True})
        assert await say(app, "t", "Hello") == "done"

    run(Agent(graph(model), memory=policy(extract=None)), body)
    assert model.sent[0][0].text.count("She sings.") == 1


@pytest.mark.parametrize("user", ["u" * 201, "a\0b", "a\ud800"])
def test_a_user_whom_no_memory_can_name_is_answered_without_one(user: str) -> None:
    model, events = Scripted(answers=[AIMessage("Hi.")]), Events()

    async def body(app: Runtime) -> None:
        assert await say(app, "t", "Hello") == "done"
        assert await app.replies("t") == ()

    run(Agent(graph(model), memory=policy(user=lambda _: user)), body, events)
    (refused,) = events.named("memory.user_refused")
    assert user not in repr(refused)
