"""Replies of a run, from the messages of the state in whichever form a graph keeps them."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph

from perdure.model.runs.messages import Message
from perdure.runtime.agents.agent import to_replies
from tests.runtime.graphs import Post, Storage, eventually, go, working

OWN = Message("own", {}, "g")


@pytest.mark.parametrize(
    "answer",
    [
        AIMessage("x"),
        ("ai", "x"),
        ("assistant", "x"),
        {"role": "assistant", "content": "x"},
        {"type": "ai", "content": "x"},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
    ],
    ids=repr,
)
def test_the_reply_is_the_last_answer_in_any_form_of_messages(answer: Any) -> None:
    before = {"role": "assistant", "content": "before"}
    for question in (HumanMessage("q", id="own"), {"role": "user", "content": "q", "id": "own"}):
        (reply,) = to_replies({"messages": [before, question, answer]}, [OWN])
        assert (reply["role"], reply["content"]) == ("assistant", "x")
        assert to_replies({"messages": [answer, question]}, [OWN]) == []
    (reply,) = to_replies({"messages": [answer]}, [OWN])
    assert reply["content"] == "x", "the graph replaces its messages"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"messages": None},
        {"messages": "text"},
        {"messages": [None, 5, "x", {"a": 1}, ("ai",), ["ai", "x", "y"], {"role": "odd", "content": "x"}]},
        {"messages": [{"role": "assistant", "content": ""}, {"role": "user", "content": "x"}]},
        "text",
        None,
        [AIMessage("x")],
    ],
    ids=repr,
)
def test_what_is_no_answer_is_no_reply(values: Any) -> None:
    assert list(to_replies(values, [OWN])) == []


class Plain(TypedDict):
    messages: list[Any]


def test_a_graph_with_plain_messages_answers_on_its_channel(near: Storage) -> None:
    def answer(state: Plain) -> Plain:
        return {"messages": [*state["messages"], {"role": "assistant", "content": "plain"}]}

    async def main() -> None:
        post = Post()
        graph = StateGraph(Plain).add_node("answer", answer).add_edge(START, "answer").compile()
        async with working(near.database(), graph, channels={"post": post.channel()}) as runtime:
            await runtime.wait(await runtime.accept("ada", "one", channel="post"), 30)
            await eventually(lambda: post.texts == ["plain"])

    go(main())


def test_a_graph_whose_result_is_no_mapping_ends_without_a_reply(memory: Storage) -> None:
    @entrypoint()
    async def count(given: Any) -> int:
        return len(given["messages"])

    async def main() -> None:
        async with working(memory.database(), count, channels={"post": Post().channel()}) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "one", channel="post"), 30)
            assert (run.state, run.attempts) == ("done", 1)
            assert await runtime.replies("ada") == ()

    go(main())
