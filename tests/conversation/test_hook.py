"""Hook and node, in plain graphs."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from perdure.conversation import Conversation, Limit, fit_model, pre_model_hook, summary_node
from perdure.conversation.hook import make_next_summary, make_next_summary_sync
from tests.conversation.models import Scripted


class State(MessagesState):
    conversation_summary: dict[str, Any]
    llm_input_messages: list[BaseMessage]


def graph(model: Scripted, policy: Conversation) -> Any:
    async def answer(state: State) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["llm_input_messages"])]}

    builder = StateGraph(State)
    builder.add_node("window", pre_model_hook(policy))
    builder.add_node("answer", answer)
    builder.add_node("summary", summary_node(policy))
    builder.add_edge(START, "window")
    builder.add_edge("window", "answer")
    builder.add_edge("answer", "summary")
    return builder.compile(checkpointer=InMemorySaver())


def talk(turns: int, policy: Conversation) -> tuple[Scripted, dict[str, Any]]:
    model = Scripted(answers=[AIMessage("y" * 60)])
    compiled = graph(model, policy)
    config = {"configurable": {"thread_id": "t"}}

    async def all_turns() -> dict[str, Any]:
        for number in range(turns):
            await compiled.ainvoke({"messages": [HumanMessage("x" * 60, id=f"h{number}")]}, config)
        return (await compiled.aget_state(config)).values

    return model, asyncio.run(all_turns())


def test_the_state_keeps_everything_and_the_model_sees_a_window() -> None:
    folded: list[list[str | None]] = []

    def summarize(summary: str, messages: Any) -> str:
        folded.append([message.id for message in messages])
        return f"summary {len(folded)}"

    model, state = talk(30, Conversation(limit=Limit(400, summary=60), summarize=summarize))
    assert len(state["messages"]) == 60
    assert all(len(sent) < 24 for sent in model.sent)
    # Each message that left was folded once, in order, and before it left.
    order = [message.id for message in state["messages"]]
    assert [each for part in folded for each in part] == order[: sum(map(len, folded))]
    assert len(folded) > 2
    assert state["conversation_summary"] == {
        "text": f"summary {len(folded)}",
        "covers": folded[-1][-1],
        "keeps": [],
    }
    assert f"summary {len(folded)}" in model.sent[-1][0].text
    seen = {message.id for message in model.sent[-1]}
    assert set(order[sum(map(len, folded)) :]) - {order[-1]} <= seen


def test_a_summary_that_fails_costs_nothing_but_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def summarize(summary: str, messages: Any) -> str:
        raise ConnectionError("the model says: secret")

    with caplog.at_level(logging.WARNING, "perdure.conversation"):
        model, state = talk(20, Conversation(limit=Limit(400, summary=60), summarize=summarize))
    assert len(state["messages"]) == 40
    assert len(model.sent) == 20
    assert "conversation_summary" not in state
    assert "ConnectionError" in caplog.text
    assert "secret" not in caplog.text


def test_a_sync_graph_summarises_too() -> None:
    policy = Conversation(limit=Limit(400, summary=60), summarize=lambda summary, messages: "short")
    messages = [
        m for n in range(9) for m in (HumanMessage("x" * 90, id=f"h{n}"), AIMessage("y" * 90, id=f"a{n}"))
    ]
    update = summary_node(policy).invoke({"messages": messages})
    assert update["conversation_summary"]["text"] == "short"
    assert summary_node(policy).invoke({"messages": messages[:2]}) == {}


def test_a_node_without_a_summary_is_refused() -> None:
    with pytest.raises(ValueError, match="summarize"):
        summary_node(Conversation(limit=100))


def pairs(number: int) -> list[BaseMessage]:
    made: list[BaseMessage] = []
    for each in range(number):
        made += [HumanMessage("x" * 60, id=f"h{each}"), AIMessage("y" * 60, id=f"a{each}")]
    return made


def test_summaries_of_a_synchronous_graph_share_one_loop() -> None:
    loops: list[int] = []

    async def summarize(summary: str, messages: Any) -> str:
        loops.append(id(asyncio.get_running_loop()))
        return f"summary {len(loops)}"

    policy = Conversation(limit=Limit(400, summary=60), summarize=summarize)
    messages: list[BaseMessage] = []
    state: dict[str, Any] = {"messages": messages}
    for number in range(40):
        messages += [HumanMessage("x" * 60, id=f"h{number}"), AIMessage("y" * 60, id=f"a{number}")]
        state |= make_next_summary_sync(policy, state) or {}
    assert len(loops) >= 3
    assert len(set(loops)) == 1
    assert state["conversation_summary"]["text"] == f"summary {len(loops)}"


def test_a_model_summarises_for_a_synchronous_caller_without_any_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Scripted(answers=[AIMessage("made at once")])
    messages = pairs(40)
    policy = Conversation(limit=Limit(400, summary=60), summarize=model)
    monkeypatch.setattr(asyncio, "new_event_loop", None)
    made = make_next_summary_sync(policy, {"messages": messages})
    assert made is not None
    assert made["conversation_summary"]["text"] == "made at once"


def test_a_counter_that_takes_long_does_not_stop_the_event_loop() -> None:
    callers: set[int] = set()

    def slow(messages: list[BaseMessage]) -> int:
        callers.add(threading.get_ident())
        return 20 * len(messages)

    async def main() -> int:
        policy = Conversation(limit=Limit(400, summary=60), counter=slow)
        messages = pairs(40)
        hook = pre_model_hook(policy)
        await hook.ainvoke({"messages": messages})
        model = fit_model(Scripted(answers=[AIMessage("yes")]), Limit(400), counter=slow)
        await model.ainvoke(messages)
        [each async for each in model.astream(messages)]
        await model.bind_tools([]).ainvoke(messages)
        for summarize in (lambda summary, messages: "short", Scripted(answers=[AIMessage("short")])):
            made = await make_next_summary(replace(policy, summarize=summarize), {"messages": messages})
            assert made is not None
        return threading.get_ident()

    loop = asyncio.run(main())
    assert callers
    assert loop not in callers
