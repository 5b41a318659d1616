"""Summaries of a user's threads: stored with the turn that ends, or made on the user's lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from perdure.conversation import Conversation, Limit, Summary
from perdure.memory import RECALL_ID, Memory
from perdure.runtime import Agent, Runtime
from tests.conversation.models import Scripted
from tests.runtime.agent_memory.test_run_memory import QUICK, Events, Noting, graph, policy, run, say, settled


def test_the_running_summary_of_a_thread_reaches_the_users_next_thread() -> None:
    model = Scripted(answers=[AIMessage("y" * 60)])

    def summarize(summary: str, messages: Sequence[Any]) -> str:
        return "They counted words together \ud83d."

    async def body(app: Runtime) -> None:
        for number in range(14):
            await say(app, "one", f"{number} " + "x" * 60)
            await app._worker.runner.conversations.wait_for_summaries()
        memory = Memory(app.store(), "ada")
        (summary,) = await memory.asummaries()
        assert (summary.thread, summary.text) == ("one", "They counted words together \ufffd.")
        await say(app, "two", "Hello")

    conversation = Conversation(limit=Limit(700, summary=350), summarize=summarize)
    run(Agent(graph(model), conversation=conversation, memory=policy(extract=None)), body)
    recalled, hello = model.sent[-1]
    assert recalled.id == RECALL_ID
    assert "They counted words together \ufffd." in recalled.text
    assert hello.text == "Hello"


@pytest.mark.parametrize("fault", [None, ConnectionError("no embeddings")])
def test_a_finished_summary_is_there_with_the_turn_that_ends(
    monkeypatch: pytest.MonkeyPatch, fault: Exception | None
) -> None:
    model, events = Scripted(answers=[AIMessage("y" * 60)]), Events()
    real = Memory.asummarise
    faults = [fault] if fault is not None else []

    async def summarise(memory: Memory, *given: Any, **how: Any) -> Any:
        if faults:
            raise faults.pop()
        return await real(memory, *given, **how)

    def summarize(summary: str, messages: Sequence[Any]) -> str:
        return "They counted words together."

    async def body(app: Runtime) -> None:
        monkeypatch.setattr(Memory, "asummarise", summarise)
        memory = Memory(app.store(), "ada")
        while True:
            assert await say(app, "one", "x" * 60) == "done"
            if Summary.of(model.sent[-1]) is not None:
                break
            assert await memory.asummaries() == []
            await app._worker.runner.conversations.wait_for_summaries()
        if fault is not None:
            assert events.named("memory.summary_waits")[0]["error"] == "ConnectionError"
            return
        (summary,) = await memory.asummaries()
        assert (summary.thread, summary.text) == ("one", "They counted words together.")

    conversation = Conversation(limit=Limit(700, summary=350), summarize=summarize)
    failing = Noting(ValueError("it has no form"))
    told = policy(extract=failing, debounce=0.0 if fault else 600.0, max_wait=600.0)
    run(Agent(graph(model), conversation=conversation, memory=told), body, events)


def test_a_failing_extractor_keeps_no_summary_from_the_store() -> None:
    model, seen = Scripted(answers=[AIMessage("Noted.")]), []
    failing = Noting(ValueError("it has no form"))

    async def summarize(summary: str, messages: Sequence[Any]) -> str:
        seen.append((summary, [message.text for message in messages]))
        return f"{summary} {messages[0].text}".strip()

    async def body(app: Runtime) -> None:
        memory = Memory(app.store(), "ada")
        await say(app, "one", "Hello")
        await settled(app, "ada", 1)
        assert [each.text for each in await memory.asummaries()] == ["Hello"]
        failing.error = None
        await say(app, "one", "I sing")
        await settled(app, "ada", 2)
        assert [each.text for each in await memory.asummaries()] == ["Hello I sing"]
        assert [each.text for each in await memory.afacts()] == ["I sing"]

    run(Agent(graph(model), memory=policy(extract=failing, summarize=summarize)), body)
    assert seen == [("", ["Hello", "Noted."]), ("Hello", ["I sing", "Noted."])]
    assert len(failing.requests) >= QUICK.attempts


def test_short_threads_are_summarised_on_the_lane_and_each_summary_extends_the_last() -> None:
    model, seen = Scripted(answers=[AIMessage("Noted.")]), []

    async def summarize(summary: str, messages: Sequence[Any]) -> str:
        seen.append((summary, [message.text for message in messages]))
        return f"{summary} {messages[0].text}".strip()

    async def body(app: Runtime) -> None:
        await say(app, "one", "Hello")
        await settled(app, "ada", 1)
        await say(app, "one", "Again")
        await settled(app, "ada", 2)
        (summary,) = await Memory(app.store(), "ada").asummaries()
        assert summary.text == "Hello Again"

    run(Agent(graph(model), memory=policy(extract=None, summarize=summarize)), body)
    assert seen == [("", ["Hello", "Noted."]), ("Hello", ["Again", "Noted."])]
