"""A question that was shown in a chat is answered there, wherever its thread is and however old it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send, interrupt

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.engine.retention import queue_retention
from perdure.model.records import Partition
from perdure.testing.channels import TelegramDouble
from tests.channels.serving import Line, asking, at_work, telegram
from tests.channels.test_receiving import NOT_OPEN, requests, thread
from tests.runtime.graphs import Storage, eventually_stored, go, stored

HERE = Partition("", thread(1))


@asynccontextmanager
async def serving(double: TelegramDouble, database: perdure.SyncDatabase, graph: Any) -> AsyncIterator[Line]:
    async with at_work(database, graph, telegram(double)) as line:
        double.webhook = line.webhook
        yield line


async def until_settled(line: Line, replies: int) -> None:
    async def is_settled() -> bool:
        found = await line.runtime.replies(thread(1))
        return [reply.state for reply in found] == ["sent"] * replies

    await eventually_stored(is_settled)


@asynccontextmanager
async def moved(backend: str, kind: str, source: perdure.SyncDatabase) -> AsyncIterator[perdure.SyncDatabase]:
    """The database in which a thread goes on: one that it was copied to, or the same, with all removed from
    it that is over."""
    if kind == "kept":
        handle = handle_of(source)
        await handle.arun(queue_retention.forget(HERE, 1 << 62, handle.budget.ops))
        yield source
    else:
        with stored(backend) as storage:
            target = storage.database()
            admin.move(source, HERE, target)
            yield target


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@pytest.mark.parametrize("kind", ["copied", "kept"])
def test_a_text_answers_the_question(backend: str, kind: str) -> None:
    async def main(storage: Storage) -> None:
        async with TelegramDouble() as double:
            source, graph = storage.database(), asking("Which city?")
            async with serving(double, source, graph) as line:
                late = double.update(message=double.message(1, "book a hotel"))
                await double.say(1, "hello")
                await double.until_shown(1)
                await until_settled(line, 1)
            async with moved(backend, kind, source) as target, serving(double, target, graph):
                if kind == "copied":
                    # It was written before the question was shown.
                    await double.deliver(late)
                    await double.until_shown(2)
                    assert double.texts(1)[1] == "Which city?"
                await double.say(1, "Oslo")
                await double.until_shown(shown := 2 + (kind == "copied"))
                assert double.texts(1)[shown - 1] == "got Oslo"

    with stored(backend) as storage:
        go(main(storage))


@pytest.mark.parametrize("kind", ["copied", "kept"])
def test_a_button_decides_only_the_question_with_which_it_was_shown(kind: str) -> None:
    def ask(state: MessagesState) -> dict[str, Any]:
        interrupt(requests("first", "approve", "reject"))
        return {"messages": [AIMessage(f"got {interrupt(requests('second', 'approve', 'reject'))}")]}

    graph = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()

    async def main(storage: Storage) -> None:
        async with TelegramDouble() as double:
            source = storage.database()
            async with serving(double, source, graph) as line:
                await double.say(1, "hello")
                await double.until_shown(1)
                await double.press(double.shown[0], "Approve")
                await double.until_shown(2)
                await until_settled(line, 2)
            async with moved("memory", kind, source) as target, serving(double, target, graph):
                await double.press(double.shown[0], "Reject")
                await double.until_shown(3)
                assert double.texts(1)[2] == NOT_OPEN
                await double.press(double.shown[1], "Approve")
                await double.until_shown(4)
                assert double.texts(1)[3].startswith("got ")

    with stored("memory") as storage:
        go(main(storage))


@pytest.mark.parametrize("kind", ["copied", "kept"])
def test_the_second_of_two_questions_is_answered(kind: str) -> None:
    def ask(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{state['name']}: {interrupt(state['name'])}")]}

    def split(state: MessagesState) -> list[Send]:
        return [Send("ask", {"name": name}) for name in ("city?", "day?")]

    builder = StateGraph(MessagesState).add_node("ask", ask)
    graph = builder.add_conditional_edges(START, split, ["ask"]).compile()

    async def main(storage: Storage) -> None:
        async with TelegramDouble() as double:
            source = storage.database()
            async with serving(double, source, graph) as line:
                await double.say(1, "hello")
                await double.until_shown(2)
                await double.say(1, "Oslo")
                # The one that is left is shown again.
                await double.until_shown(3)
                await until_settled(line, 3)
            async with moved("memory", kind, source) as target, serving(double, target, graph):
                await double.say(1, "Monday")
                await double.until_shown(4)
                assert double.texts(1)[3] == "day?: Monday"

    with stored("memory") as storage:
        go(main(storage))
