"""The middleware in LangChain's own agents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

import perdure.conversation
from perdure.conversation import Conversation, Limit
from perdure.errors import MissingExtra
from tests.conversation.models import Scripted

agents = pytest.importorskip("langchain.agents", reason="pip install langchain")
CONFIG = {"configurable": {"thread_id": "t"}}


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}" * 10


def agent(model: Scripted, policy: Conversation) -> Any:
    middleware = perdure.conversation.ConversationMiddleware(policy)
    return agents.create_agent(
        model, [look], system_prompt="Be brief.", middleware=[middleware], checkpointer=InMemorySaver()
    )


def test_an_agent_sees_windows_and_keeps_everything() -> None:
    calls = [
        AIMessage("", tool_calls=[{"name": "look", "args": {"at": "x"}, "id": f"c{n}"}]) for n in range(15)
    ]
    model = Scripted(answers=[*calls, AIMessage("done")])
    state = agent(model, Conversation(limit=350)).invoke({"messages": [HumanMessage("go")]}, CONFIG)
    assert len(state["messages"]) == 32
    assert max(map(len, model.sent)) < 20
    assert all(
        isinstance(sent[0], SystemMessage) and isinstance(sent[1], HumanMessage) for sent in model.sent
    )


def test_an_agent_summarises_after_the_reply() -> None:
    model = Scripted(answers=[AIMessage("y" * 60)])
    summarize = Scripted(answers=[AIMessage("so far")])
    policy = Conversation(limit=Limit(500, summary=100), summarize=summarize)
    compiled = agent(model, policy)

    async def talk() -> Any:
        for number in range(20):
            given = {"messages": [HumanMessage("x" * 60, id=f"h{number}")]}
            state = await compiled.ainvoke(given, CONFIG)
        return state, (await compiled.aget_state(CONFIG)).values

    state, held = asyncio.run(talk())
    assert len(state["messages"]) == 40
    assert "conversation_summary" not in state
    assert held["conversation_summary"]["text"] == "so far"
    assert [message.type for message in model.sent[-1]][:3] == ["system", "system", "human"]
    assert len(summarize.sent) >= 2


def test_a_cancelled_tool_does_not_end_the_thread() -> None:
    model = Scripted()
    compiled = agent(model, Conversation(limit=2_000))
    lost = AIMessage("", tool_calls=[{"name": "look", "args": {"at": "x"}, "id": "lost"}])
    compiled.update_state(CONFIG, {"messages": [HumanMessage("hi"), lost]})
    assert (
        compiled.invoke({"messages": [HumanMessage("still there?")]}, CONFIG)["messages"][-1].content
        == "fine"
    )


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "perdure.conversation.middleware", None)
    with pytest.raises(ModuleNotFoundError):
        _ = perdure.conversation.ConversationMiddleware
    monkeypatch.delitem(sys.modules, "perdure.conversation.middleware")
    for name in [name for name in sys.modules if name.split(".")[0] == "langchain"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain", None)
    with pytest.raises(MissingExtra, match=r"pip install 'perdure\[conversation\]'"):
        _ = perdure.conversation.ConversationMiddleware
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = perdure.conversation.nothing
