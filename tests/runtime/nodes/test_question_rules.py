"""Rules for questions of graphs that stay as they are: by node, by tool, and of LangChain's middleware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from perdure.config.settings import SETTINGS
from perdure.runtime import Agent, Question, Runtime
from tests.runtime.graphs import Storage, advance, go, settings, values
from tests.runtime.nodes.test_waiting import HOUR, reach

sent: list[str] = []


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    sent.append(to)
    return "sent"


@tool
def ask_person(text: str) -> str:
    """Ask a person."""
    return str(interrupt(text))


class Scripted(FakeMessagesListChatModel):
    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self


def agent(*calls: tuple[str, dict[str, Any]], middleware: Sequence[Any] = ()) -> Pregel[Any, Any, Any, Any]:
    """An agent that calls these tools at once, and then says that it is done."""
    asked = [{"name": name, "args": args, "id": f"c{n}"} for n, (name, args) in enumerate(calls)]
    model = Scripted(responses=[AIMessage("", tool_calls=asked), AIMessage("done")])
    return create_agent(model, [send_mail, ask_person], middleware=list(middleware))


def reviewed() -> Pregel[Any, Any, Any, Any]:
    review = HumanInTheLoopMiddleware(interrupt_on={"send_mail": True})
    return agent(("send_mail", {"to": "ada"}), ("send_mail", {"to": "bob"}), middleware=[review])


def asking() -> Pregel[Any, Any, Any, Any]:
    return agent(("ask_person", {"text": "which?"}))


def node() -> Pregel[Any, Any, Any, Any]:
    def inner(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("who?"))]}

    below = StateGraph(MessagesState).add_node(inner).add_edge(START, "inner").compile()
    return StateGraph(MessagesState).add_node("outer", below).add_edge(START, "outer").compile()


@pytest.mark.parametrize(
    ("made", "rule", "said"),
    [
        (reviewed, {"tool": "send_mail", "default": "reject"}, "done"),
        (reviewed, {"tool": "send_mail", "default": "approve"}, "done"),
        (asking, {"tool": "ask_person", "default": "this one"}, "done"),
        (asking, {"node": "tools", "default": "this one"}, "done"),
        (node, {"node": "inner", "default": "ada"}, "ada"),
        (node, {"node": "outer", "default": "bob"}, "bob"),
        (node, {"default": "anybody"}, "anybody"),
    ],
)
def test_a_rule_gives_a_question_of_an_unmodified_graph_a_deadline(
    memory: Storage, made: Callable[[], Pregel[Any, Any, Any, Any]], rule: dict[str, Any], said: str
) -> None:
    sent.clear()
    rules = [
        Question(node="another", within=1, default="never"),
        Question(tool="another", within=1, default="never"),
        Question(within=HOUR, **rule),
    ]

    async def main() -> None:
        database, graph = memory.database(), made()
        asked = Agent(graph, questions=rules)
        async with Runtime(database, asked, settings=settings()) as runtime:
            await runtime.wait(await runtime.submit("t", {"messages": [{"role": "user", "content": "go"}]}))
            (run,) = await runtime.runs("t")
            assert len(run.note["waits"]) == 1
            advance(runtime)
            await reach(runtime, 2, "done")
        held = (await values(database, graph, "t"))["messages"]
        assert held[-1].text == said
        if made is asking:
            assert "this one" in [message.text for message in held]

    go(main())
    assert sorted(sent) == (["ada", "bob"] if rule["default"] == "approve" else [])


def test_rules_are_read_from_a_configuration() -> None:
    kind = SETTINGS["questions"].kind
    rules = kind.check(
        kind.read(
            '[{"graph": "a", "tool": "send_mail", "within": "1d", "default": "reject", "remind": ["1h"]},'
            ' {"node": "n", "remind": 60}]'
        )
    )
    assert rules == (
        ("a", Question(tool="send_mail", within=86400.0, default="reject", remind=[3600.0])),
        (None, Question(node="n", remind=60.0)),
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["x"], "rule 1 is not a table"),
        ([{"tol": "x"}], "rule 1 has 'tol'"),
        ([{"node": 1}], "node of rule 1"),
        ([{"within": "soon", "default": 1}], "rule 1"),
        ([{"within": 5}], "rule 1: a rule for questions with within"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SETTINGS["questions"].kind.check(given)
