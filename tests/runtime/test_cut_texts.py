"""Text with half of a character, as models leave when they cut an emoji: kept in states, replaced in replies.

Covers perdure.model.runs.messages, perdure.runtime.worker.delivery.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from perdure.channels.questions import edit_prompt, make_question_reply
from perdure.errors import Unserialisable
from perdure.runtime import Options, Runtime, ask, effect
from tests.runtime.graphs import Post, Storage, advance, eventually, eventually_stored, go, settings, values

HALF = "cut \ud83d"
SHOWN = "cut \ufffd"


def graph_of(node: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    return builder.add_node("turn", node).add_edge(START, "turn").compile()


def texts_of(found: Any) -> list[str]:
    return [message.text for message in found["messages"]]


def test_a_reply_with_half_of_a_character_is_sent_and_kept_in_the_state(storage: Storage) -> None:
    calls: list[str] = []
    post = Post()

    async def charge() -> dict[Any, Any]:
        calls.append("charge")
        return {HALF: HALF, 1: 2}

    async def turn(state: MessagesState) -> dict[str, Any]:
        receipt = await effect(charge)
        assert receipt == {HALF: HALF, "1": 2}
        if calls == ["charge"]:
            calls.append("again")
            raise RuntimeError("the step fails after its effect")
        return {"messages": [AIMessage(HALF)]}

    async def main() -> None:
        database, graph = storage.database(), graph_of(turn)
        channels = {
            "post": post.channel(split=lambda reply: [reply, {"content": reply["content"].encode().decode()}])
        }
        async with Runtime(database, graph, settings=settings(), channels=channels, observers=()) as runtime:
            run = await runtime.wait(await runtime.accept("t", "hello", channel="post"))
            assert run.state == "done", run.note
            await eventually(lambda: len(post.sent) == 2)
        assert [text for _, text in post.sent] == [SHOWN, SHOWN]
        assert texts_of(await values(database, graph, "t")) == ["hello", HALF]
        assert calls == ["charge", "again"]

    go(main())


@pytest.mark.parametrize(
    ("made", "place"),
    [
        (AIMessage("", tool_calls=[{"name": "f", "args": {HALF: 1}, "id": "1"}]), "].tool_calls[0]['args']"),
        (AIMessage("", additional_kwargs={"a": {HALF: 1}}), "].additional_kwargs['a']"),
    ],
    ids=["call", "message"],
)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_half_of_a_character_in_a_key_fails_the_run_at_its_first_attempt_by_name(
    memory: Storage, made: AIMessage, place: str, durability: Any
) -> None:
    async def main() -> None:
        graph = graph_of(lambda state: {"messages": [made]})
        async with Runtime(memory.database(), graph, settings=settings(), observers=()) as runtime:
            given: Any = {"messages": [("user", "hello")]}
            run = await runtime.wait(await runtime.submit("t", given, options=Options(durability=durability)))
        assert (run.state, run.attempts, run.note["kind"]) == ("failed", 1, "Unserialisable")
        assert "channel 'messages'[" in run.note["error"]
        assert f"{place}: a lone surrogate" in run.note["error"]
        assert "correct them in the node" in run.note["error"]

    go(main())


@pytest.mark.parametrize("is_middleware", [False, True], ids=["text", "review"])
def test_a_question_with_half_of_a_character_is_asked_and_its_default_is_kept(
    near: Storage, *, is_middleware: bool
) -> None:
    post = Post()
    value: Any = HALF
    if is_middleware:
        value = {"action_requests": [{"name": "mail", "args": {"to": HALF}}], "review_configs": []}

    async def turn(state: MessagesState) -> dict[str, Any]:
        answer = ask(value, within=3600.0, default=[HALF], remind=1800.0)
        return {"messages": [AIMessage(answer[0])]}

    async def main() -> None:
        database, graph = near.database(), graph_of(turn)
        channels = {"post": post.channel(ask=make_question_reply)}
        async with Runtime(database, graph, settings=settings(), channels=channels, observers=()) as runtime:
            run = await runtime.wait(await runtime.accept("t", "hello", channel="post"))
            assert run.state == "waiting", run.note
            await eventually(lambda: len(post.sent) == 1)
            advance(runtime)

            async def is_done() -> bool:
                return (await runtime.runs("t"))[0].state == "done"

            await eventually_stored(is_done)
            await eventually(lambda: SHOWN in post.sent[-1][1])
        assert all(HALF not in text and "\ufffd" in text for _, text in post.sent)
        assert texts_of(await values(database, graph, "t")) == ["hello", HALF]

    go(main())


def test_the_example_of_changed_arguments_has_no_half_of_a_character() -> None:
    value = {"action_requests": [{"name": "mail", "args": {"to": HALF, "n": 1}}], "review_configs": []}
    assert SHOWN in edit_prompt(value)


def test_a_caller_gives_no_half_of_a_character(memory: Storage) -> None:
    async def turn(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(str(interrupt("why?")))]}

    async def main() -> None:
        async with Runtime(memory.database(), graph_of(turn), settings=settings(), observers=()) as runtime:
            await runtime.wait(await runtime.accept("t", "hello"))
            for call in (
                runtime.accept("other", HALF),
                runtime.submit("other", {"messages": [HALF]}),
                runtime.submit("other", {}, options=Options(config={"configurable": {"a": HALF}})),
                runtime.answer("t", [HALF]),
                runtime.signal("t", "paid", {HALF: 1}),
            ):
                with pytest.raises(Unserialisable, match="lone surrogate"):
                    await call
            assert not await runtime.runs("other")
            assert await runtime.question("t") is not None

    go(main())
