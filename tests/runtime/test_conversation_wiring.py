"""Each part of a thread's conversation, unplugged by itself: the check of the whole has to notice it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from perdure.conversation import Conversation, Limit, Summary, repair
from perdure.conversation.compaction import compact
from perdure.runtime import Agent, Runtime
from perdure.runtime.agent_memory import conversation_windows
from tests.conversation.models import Scripted
from tests.runtime.agent_memory.test_conversation_windows import (
    REPLY,
    Summaries,
    accounted,
    graph,
    run,
    say,
    stored,
)

pytestmark = pytest.mark.slow

TURNS = 14


def whole() -> None:
    """A thread with a call that has no result goes on, within its limit, and its summary is handed over."""
    model, summaries = Scripted(answers=[AIMessage(REPLY)]), Summaries()
    limit = Limit(700, summary=350)
    policy = Conversation(limit=limit, summarize=summaries)
    call = {"name": "look", "args": {}, "id": "lost"}

    async def body(app: Runtime) -> None:
        broken = [HumanMessage("hi", id="first"), AIMessage("", tool_calls=[call], id="second")]
        config: RunnableConfig = {"configurable": {"thread_id": "t"}}
        await app.graph("agent").aupdate_state(config, {"messages": broken}, as_node="answer")
        for _ in range(TURNS):
            assert await say(app) == "done"
        messages = await stored(app)
        texts = accounted(messages)
        assert len(texts) == len(set(texts))
        assert {"first", "second"} <= set(texts)
        assert max(map(len, model.sent)) < 24
        assert all(policy.counter(sent) <= limit.tokens for sent in model.sent)
        summary = Summary.of(messages)
        assert summary is not None
        assert summary.text
        assert any("first" in str(sent[0].content) for sent in model.sent)

    run(Agent(graph(model), conversation=policy), body)


async def _given(self: Any, conversation: Any, graph: Any, config: Any, held: Any, given: Any) -> Any:
    return given


async def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _untrimmed(conversation: Any, messages: Any, made: Any = None) -> Any:
    changed = compact(conversation, messages, made)
    return changed and replace(changed, messages=repair(messages).messages)


def _unrepaired(conversation: Any, messages: Any, made: Any = None, real: Any = compact) -> Any:
    changed = real(conversation, messages, made)
    return None if changed is None or (changed.repairs and not changed.left_out) else changed


async def _lost(self: Any, held: Any, before: Any, made: Any, found: Any) -> bool:
    return True


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "all of it": (conversation_windows.Conversations, "prepare_input", _given),
    "trim": (conversation_windows, "compact", _untrimmed),
    "repair": (conversation_windows, "compact", _unrepaired),
    "summary": (conversation_windows.Conversations, "note_reply", _nothing),
    "storing of the summary": (conversation_windows.Conversations, "_store", _lost),
    "hand-over of the summary": (conversation_windows.Conversations, "_load_summary", _nothing),
}


def test_the_whole_works() -> None:
    whole()


@pytest.mark.parametrize("name", MUTANTS)
def test_an_unplugged_part_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, replacement = MUTANTS[name]
    monkeypatch.setattr(where, attribute, replacement)
    with pytest.raises(AssertionError):
        whole()
