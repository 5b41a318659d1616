"""Summaries of conversations that are slow: few at once, and each given up in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from perdure.runtime import Agent, Runtime
from perdure.runtime.agent_memory import conversation_windows
from tests.conversation.models import Scripted
from tests.runtime.agent_memory.test_conversation_windows import REPLY, Seen, graph, policy, run
from tests.runtime.graphs import WITHIN_S


def test_slow_summaries_are_few_at_once_and_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_windows, "_AT_ONCE", 2)
    monkeypatch.setattr(conversation_windows, "_PATIENCE_S", 0.2)
    seen, busy, most = Seen(), 0, 0

    async def forever(summary: str, messages: Sequence[BaseMessage]) -> str:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        try:
            await asyncio.Event().wait()
        finally:
            busy -= 1
        raise AssertionError("it never ends")

    async def body(app: Runtime) -> None:
        for _ in range(10):
            tickets = [await app.accept(f"t{number}", "x" * 60) for number in range(5)]
            for ticket in tickets:
                await app.wait(ticket)
        async with asyncio.timeout(WITHIN_S):
            await app._worker.runner.conversations.wait_for_summaries()

    run(Agent(graph(Scripted(answers=[AIMessage(REPLY)])), conversation=policy(forever)), body, seen)
    assert most == 2
    assert set(seen.errors) == {"TimeoutError"}
