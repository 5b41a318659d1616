"""What the check of parallel tools says is so: answers go by position in one task, not with a Send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt

import perdure
from perdure.audit import audit

THREAD: Any = {"configurable": {"thread_id": "ada"}}


@pytest.fixture(params=["langgraph", "perdure"])
def saver(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "langgraph":
        yield InMemorySaver()
        return
    with perdure.connect_sync("memory://") as db:
        yield db.checkpointer()


class Desk:
    """A graph whose model calls one tool twice; the second call asks before the first one."""

    def __init__(self, saver: Any, *, is_sent: bool) -> None:
        has_asked = threading.Event()

        @tool
        def pay(bill: str) -> str:
            """Pay a bill."""
            if bill == "rent":
                assert has_asked.wait(20)
            try:
                return f"{bill}: {interrupt(f'pay the {bill}?')}"
            finally:
                has_asked.set()

        calls = [
            {"name": "pay", "args": {"bill": bill}, "id": bill, "type": "tool_call"}
            for bill in ("rent", "power")
        ]
        builder: Any = StateGraph(MessagesState).add_node("tools", ToolNode([pay])).add_edge(START, "model")
        builder.add_node("model", lambda state: {"messages": [AIMessage("", tool_calls=calls)]})
        if is_sent:
            builder.add_conditional_edges(
                "model", lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls]
            )
        else:
            builder.add_edge("model", "tools")
        self.graph = builder.compile(checkpointer=saver)
        self._has_asked = has_asked

    def run(self, given: Any) -> None:
        self._has_asked.clear()
        self.graph.invoke(given, THREAD)

    def answer(self) -> None:
        asked = self.graph.get_state(THREAD).interrupts
        self.run(Command(resume={each.id: f"answer to {each.value}" for each in asked}))

    @property
    def results(self) -> list[Any]:
        return [each.content for each in self.graph.get_state(THREAD).values["messages"][1:]]


def test_an_answer_reaches_the_tool_that_asks_first(saver: Any) -> None:
    desk = Desk(saver, is_sent=False)
    desk.run({"messages": []})
    assert [each.value for each in desk.graph.get_state(THREAD).interrupts] == ["pay the rent?"]
    desk.answer()
    desk.answer()
    assert desk.results == ["rent: answer to pay the rent?", "power: answer to pay the rent?"]
    assert [each.check.id for each in audit(desk.graph).findings] == ["parallel-questions"]


def test_each_call_that_is_sent_on_its_own_gets_its_answer(saver: Any) -> None:
    desk = Desk(saver, is_sent=True)
    desk.run({"messages": []})
    desk.answer()
    assert desk.results == ["rent: answer to pay the rent?", "power: answer to pay the power?"]
    assert audit(desk.graph).is_sound


def test_the_finding_names_the_tool_and_the_way() -> None:
    (found,) = audit(Desk(None, is_sent=False).graph).findings
    assert found.detail == (
        "the tool 'pay' asks, and all calls of a message reach the node at once, by the edge from 'model'"
    )
    assert found.spot.file == __file__
