"""Functions of a channel that fail: the run ends, and the thread goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from perdure.runtime import Agent
from tests.runtime.graphs import Post, Storage, Talk, eventually, go, settings, working


def raise_error(*args: Any) -> Any:
    raise RuntimeError("a bug of the application")


@pytest.mark.parametrize(
    ("split", "attempts", "error"),
    [
        (raise_error, 2, "RuntimeError: a bug of the application"),
        (lambda reply: None, 2, "TypeError: split=… of a channel returns a list of replies, not NoneType"),
        (lambda reply: "text", 2, "TypeError: split=… of a channel returns a list of replies, not str"),
        (lambda reply: [{1}], 1, "Unserialisable: a reply has to be plain JSON data"),
        (lambda reply: ["x" * 300_000], 1, "OverMaximum: a reply has"),
    ],
)
def test_a_run_whose_replies_cannot_be_divided_fails_and_apologises(
    near: Storage, split: Callable[[Any], Any], attempts: int, error: str
) -> None:
    post = Post()

    async def main() -> None:
        channels = {"post": post.channel(split=split)}
        agent = Agent(Talk().graph, apology="Sorry")
        options = {"channels": channels, "settings": settings(attempts=2)}
        async with working(near.database(), agent, **options) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "one", channel="post"), 30)
            assert (run.state, run.attempts) == ("failed", attempts)
            assert run.note["error"].startswith(error)
            plain = await runtime.wait(await runtime.accept("ada", "two"), 30)
            assert plain.state == "done"
            await eventually(lambda: post.texts == ["Sorry"])

    go(main())


@pytest.mark.parametrize("ask", [raise_error, lambda name, value: {1}])
def test_a_run_whose_question_cannot_be_asked_fails_with_the_error(
    near: Storage, ask: Callable[[str, Any], Any]
) -> None:
    async def main() -> None:
        channels = {"post": Post().channel(ask=ask)}
        options = {"channels": channels, "settings": settings(attempts=2)}
        async with working(near.database(), Talk().graph, **options) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "ask", channel="post"), 30)
            assert run.state == "failed"
            assert run.note["kind"] in ("RuntimeError", "Unserialisable")

    go(main())


def test_an_error_whose_text_cannot_be_made_ends_its_run_and_its_reply(near: Storage) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    async def main() -> None:
        post, talk = Post(refuse=lambda reply: Mute()), Talk(error=Mute())
        options = {"channels": {"post": post.channel(attempts=1)}, "settings": settings(attempts=2)}
        async with working(near.database(), talk.graph, **options) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "boom", channel="post"), 30)
            assert (run.state, run.attempts) == ("failed", 2)
            await eventually(lambda: post.tried)
            await runtime.wait(await runtime.accept("ada", "two", channel="post"), 30)
            await eventually(lambda: len(post.tried) == 2)

    go(main())


def test_a_person_learns_what_is_wrong_with_an_answer_and_answers_again(near: Storage) -> None:
    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(str(interrupt("how many?", response_schema=int) + 1))]}

    async def main() -> None:
        post = Post()
        channel = post.channel(ask=lambda name, value: {"content": value})
        graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
        async with working(near.database(), graph, channels={"post": channel}) as runtime:
            await runtime.wait(await runtime.accept("ada", "one", channel="post"), 30)
            failed = await runtime.wait(await runtime.answer("ada", "many"), 30)
            assert (failed.state, failed.attempts) == ("failed", 1)
            assert (await runtime.wait(await runtime.answer("ada", "3"), 30)).state == "done"
            await eventually(lambda: len(post.texts) == 3)
        asked, fault, reply = post.texts
        assert (asked, reply) == ("how many?", "4")
        assert fault.startswith("That answer does not fit the question. Input should be a valid integer")

    go(main())
