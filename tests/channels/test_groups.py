"""What is accepted in the groups, topics and threads of a provider."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure.channels import ChatOptions
from perdure.testing.channels.telegram import BOT
from tests.channels.serving import QUICK, asking, echo, telegram_at_work
from tests.channels.test_slack import slack_at_work
from tests.channels.test_telegram import HITL
from tests.runtime.graphs import Storage, go, stored


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


def test_in_a_thread_that_a_mention_began_no_further_mention_is_needed(memory: Storage) -> None:
    async def main() -> None:
        async with slack_at_work(memory, asking("Which colour?")) as (double, _):
            ts, others = double.next_ts(), double.next_ts()
            await double.say("C1", "<@UBOT> go", kind="app_mention", ts=ts)
            await double.until_shown(1)
            await double.say("C1", "not for the bot", ts=others)
            await double.say("C1", "nor is this", thread_ts=others)
            await double.say("C1", "red", thread_ts=ts)
            await double.until_shown(2)
            await double.say("C1", "/stop", thread_ts=ts)
            await double.until_shown(3)
            await double.say("C1", "why?", thread_ts=others, parent_user_id="UBOT")
            await double.until_shown(4)
            assert [(each.topic, each.text) for each in double.shown] == [
                (ts, "Which colour?"),
                (ts, "got red"),
                (ts, QUICK.stop_notice),
                (others, "Which colour?"),
            ]

    go(main())


def test_a_thread_of_people_is_not_the_bot_s_because_it_was_mentioned_there(memory: Storage) -> None:
    async def main() -> None:
        async with slack_at_work(memory, echo()) as (double, _):
            ts = double.next_ts()
            await double.say("C1", "among people", ts=ts)
            await double.say("C1", "<@UBOT> one", thread_ts=ts)
            await double.until_shown(1)
            await double.say("C1", "among people again", thread_ts=ts)
            await double.say("C1", "<@UBOT> two", thread_ts=ts)
            await double.until_shown(2)
            assert double.texts("C1") == ["one", "two"]

    go(main())


def test_a_command_to_another_bot_is_not_obeyed(memory: Storage) -> None:
    async def main() -> None:
        options = ChatOptions(debounce=0.0, groups="all")
        async with telegram_at_work(memory.database(), echo(), options) as (double, _):
            await double.say(-5, "/new@another_bot")
            await double.until_shown(1)
            await double.say(-5, f"/new@{BOT['username']}")
            await double.until_shown(2)
            assert double.texts(-5) == ["/new@another_bot", QUICK.new_notice]

    go(main())


def test_people_who_write_as_a_chat_are_answered_and_bots_are_not(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), echo()) as (double, _):
            from_bot: Any = {"from": {"id": 1087968824, "is_bot": True, "first_name": "Group"}}
            group = {"id": -5, "type": "supergroup", "title": "Group"}
            await double.say(-5, "@perdure_bot one", **from_bot)
            await double.say(-5, "@perdure_bot two", **from_bot, sender_chat=group)
            await double.until_shown(1)
            assert double.texts(-5) == ["two"]

    go(main())


def test_a_button_of_a_message_that_is_inaccessible_decides_the_question_of_its_topic(
    memory: Storage,
) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), asking(HITL)) as (double, _):
            await double.say(-5, "@perdure_bot go", topic=9)
            await double.until_shown(1)
            (question,) = double.shown
            chat = {"id": -5, "type": "supergroup", "title": "Group"}
            query = {
                "id": "99",
                "from": {"id": 7, "is_bot": False, "first_name": "Ada"},
                "chat_instance": "1",
                "message": {"message_id": int(question.id), "date": 0, "chat": chat},
                "data": question.buttons["Approve"],
            }
            assert len(question.buttons["Approve"]) <= 64
            await double.deliver(double.update(callback_query=query))
            await double.until_shown(2)
            assert (double.shown[1].topic, double.shown[1].text) == (
                "9",
                "got {'decisions': [{'type': 'approve'}]}",
            )

    go(main())
