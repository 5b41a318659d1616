"""Changes of messages that were answers, or were refused as answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure.channels import ChatAddress, ChatOptions
from perdure.channels.incoming import ChatAnswer
from perdure.testing.channels import TelegramDouble
from tests.channels.serving import Line, asking, at_work, telegram, telegram_at_work
from tests.channels.test_telegram import HITL
from tests.runtime.graphs import Storage, go, stored

THREAD = ChatAddress("telegram", "1").thread_id
NO_JSON = "That is not a JSON object."


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


def edited(amount: int) -> str:
    action = {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": amount}}}
    return f"got { ({'decisions': [action]}) }"


async def waiting_answers(line: Line) -> list[Any]:
    standing = await line.runtime.messages(THREAD)
    return [
        value
        for each in standing
        if each.run is None and not each.message.is_withdrawn
        for value in each.message.payload["resume"].values()
    ]


def test_a_refused_answer_is_mended_by_an_edit(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), asking(HITL)) as (double, _):
            await double.say(1, "pay")
            await double.until_shown(1)
            await double.press(double.shown[0], "Edit")
            await double.until_shown(2)
            message = await double.say(1, '{"amount": 13')
            await double.until_shown(3)
            worse = double.update(edited_message={**message, "text": '{"amount": 1'})
            await double.deliver(worse)
            await double.until_shown(4)
            assert all(text.startswith(NO_JSON) for text in double.texts(1)[2:])
            await double.edit(message, '{"amount": 13}')
            await double.until_shown(5)
            await double.deliver(worse)
            await double.say(1, "pay")
            await double.until_shown(6)
            assert double.texts(1)[4:] == [edited(13), "Pay 12 euros?"]

    go(main())


def test_an_edit_of_an_answer_that_waits_replaces_the_answer(memory: Storage) -> None:
    async def main() -> None:
        async with TelegramDouble() as double:
            async with at_work(memory.database(), asking("Which colour?"), telegram(double)) as line:
                double.webhook = line.webhook
                await double.say(1, "go")
                await double.until_shown(1)
            async with at_work(
                memory.database(), asking("Which colour?"), telegram(double), works=False
            ) as line:
                double.webhook = line.webhook
                message = await double.say(1, "red")
                first = double.update(edited_message={**message, "text": "dark red"})
                await double.deliver(first)
                assert await waiting_answers(line) == ["dark red"]
                await double.edit(message, "blue")
                await double.deliver(first)
                await double.edit(message, "blue")
                assert await waiting_answers(line) == ["blue"]
            async with at_work(memory.database(), asking("Which colour?"), telegram(double)) as line:
                double.webhook = line.webhook
                await double.until_shown(2)
                await double.edit(message, "blue")
                assert double.texts(1) == ["Which colour?", "got blue"]
                await double.edit(message, "green")
                await double.until_shown(3)
                newest = (await line.runtime.messages(THREAD))[0].message
                assert newest.payload["message"]["content"] == "(edited) green"

    go(main())


def test_changed_arguments_that_wait_are_replaced_and_an_answer_with_a_message_behind_it_stays(
    memory: Storage,
) -> None:
    async def main() -> None:
        async with TelegramDouble() as double:
            async with at_work(memory.database(), asking(HITL), telegram(double)) as line:
                double.webhook = line.webhook
                await double.say(1, "pay")
                await double.until_shown(1)
            async with at_work(memory.database(), asking(HITL), telegram(double), works=False) as line:
                double.webhook = line.webhook
                await double.press(double.shown[0], "Edit")
                await double.until_shown(2)
                message = await double.say(1, '{"amount": 13}')
                await double.edit(message, '{"amount": 14')
                await double.until_shown(3)
                assert double.texts(1)[2].startswith(NO_JSON)
                assert await waiting_answers(line) == []
                await double.edit(message, '{"amount": 15}')
                (answer,) = await waiting_answers(line)
                assert f"got {answer}" == edited(15)
                await double.say(1, "another message")
                await double.edit(message, '{"amount": 16}')
                waiting = [
                    each.message
                    for each in await line.runtime.messages(THREAD)
                    if each.run is None and not each.message.is_withdrawn
                ]
                assert [ChatAnswer.of(each) is not None for each in waiting] == [False, False, True]
                assert waiting[0].payload["message"]["content"] == '(edited) {"amount": 16}'

    go(main())


def test_an_edit_of_a_message_from_before_a_question_does_not_answer_it(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), asking(HITL)) as (double, line):
            message = await double.say(1, "pay")
            await double.until_shown(1)
            await double.press(double.shown[0], "Edit")
            await double.until_shown(2)
            await double.edit(message, '{"amount": 13}')
            await double.until_shown(3)
            newest = (await line.runtime.messages(THREAD))[0].message
            assert newest.payload["message"]["content"] == '(edited) {"amount": 13}'

    go(main())


def test_an_edit_that_removes_the_mention_is_still_an_edit(memory: Storage) -> None:
    async def main() -> None:
        options = ChatOptions(debounce=600.0, max_wait=600.0)
        async with telegram_at_work(memory.database(), asking("?"), options) as (double, line):
            message = await double.say(-5, "@perdure_bot teh cat")
            await double.edit(message, "the cat")
            await double.edit(await double.say(-5, "not for the bot"), "nor is this")
            standing = await line.runtime.messages(ChatAddress("telegram", "-5").thread_id)
            assert [each.message.payload["message"]["content"] for each in standing] == ["the cat", "teh cat"]

    go(main())
