"""Sending of replies through a chat channel."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

import perdure
from perdure import channels
from perdure.channels import ChatAddress
from perdure.channels.chat_channel import ChatChannel
from perdure.channels.incoming import ChatMessage
from perdure.channels.receiving import Receiver
from perdure.model.records import Partition
from perdure.model.runs.messages import Reply
from perdure.runtime import NotSent, Runtime, Undeliverable
from perdure.testing.channels import ProviderFault, TelegramDouble
from perdure.testing.channels.telegram import SECRET, TOKEN
from tests.channels.serving import asking, echo, telegram
from tests.channels.test_slack import slack_at_work
from tests.channels.test_slack import thread as slack_thread
from tests.channels.test_whatsapp import ADA, whatsapp_at_work
from tests.channels.test_whatsapp import thread as whatsapp_thread
from tests.runtime.graphs import Storage, eventually_stored, go, stored

LONG = {
    "action_requests": [{"name": "sql", "args": {"query": "x" * 2500}}],
    "review_configs": [{"action_name": "sql", "allowed_decisions": ["approve"]}],
}


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


def test_a_long_question_is_stored_in_parts_of_which_the_last_has_the_buttons(memory: Storage) -> None:
    async def main() -> None:
        async with whatsapp_at_work(memory, asking(LONG)) as (double, line):
            await double.say(ADA, "go")
            await double.until_shown(3)
            assert "".join(each.text for each in double.shown).count("x") == 2500
            assert [list(each.buttons) for each in double.shown] == [[], [], ["Approve"]]

            async def is_sent() -> bool:
                replies = await line.runtime.replies(whatsapp_thread(ADA))
                return [each.state for each in replies] == ["sent"] * 3

            await eventually_stored(is_sent)

    go(main())


def test_a_reply_that_was_not_stored_in_parts_is_given_up_rather_than_repeated() -> None:
    async def main() -> None:
        async with TelegramDouble() as double, telegram(double) as bot:
            reply = Reply(1, "run", 0, "telegram", {"role": "assistant", "content": "x" * 9000})
            send: Any = bot.channels["telegram"].send_in

            async def sent(chat: str) -> None:
                await send(Partition("", ChatAddress("telegram", chat).thread_id), reply)

            await sent("1")
            assert [len(text) for text in double.texts(1)] == [4096, 4096, 808]
            double.faults.append(ProviderFault("limit", chat="2"))
            with pytest.raises(NotSent):
                await sent("2")
            # A fault concerns the next message: the first one is taken, and the second one limited.
            double.faults += [ProviderFault("slow", chat="3", seconds=0.0), ProviderFault("limit", chat="3")]
            with pytest.raises(Undeliverable, match="1 of its 3 parts were sent"):
                await sent("3")
            assert len(double.texts(3)) == 1

    asyncio.run(main())


def test_a_search_that_slack_limits_uses_up_no_attempt(memory: Storage) -> None:
    async def main() -> None:
        async with slack_at_work(memory, echo()) as (double, line):
            double.faults.append(ProviderFault("lose", chat="D1"))
            double.search_limits = [0, 0]
            await double.say("D1", "once")

            async def is_sent() -> bool:
                return [each.state for each in await line.runtime.replies(slack_thread("D1"))] == ["sent"]

            await eventually_stored(is_sent)
            (reply,) = await line.runtime.replies(slack_thread("D1"))
            assert double.search_limits == []
            assert (reply.attempts, double.texts("D1")) == (1, ["once"])

    go(main())


def test_what_is_posted_to_slack_has_no_control_sequence(memory: Storage) -> None:
    async def main() -> None:
        async with slack_at_work(memory, echo()) as (double, line):
            await double.say("D1", "&lt;!channel&gt; a &amp;amp; b")
            await double.until_shown(1)
            (posted,) = [given["text"] for name, given in double.calls if name == "chat.postMessage"]
            assert posted == "&lt;!channel&gt; a &amp;amp; b"
            assert double.texts("D1") == ["<!channel> a &amp; b"]
            assert line.bot.measure("<") == 4

    go(main())


def test_a_channel_that_cannot_search_for_replies_refuses_to_reconcile() -> None:
    with pytest.raises(ValueError, match="which Silent cannot do; choose 'resend' or 'hold'"):
        Silent("silent", None, "reconcile")


class Silent(ChatChannel):
    """A provider that cannot be asked for a reply."""

    length = question_length = 100

    async def handle(self, request: Request, receiver: Receiver) -> Response:
        return Response()

    async def deliver(self, address: ChatAddress, text: str, reply: Reply) -> str | None:
        return None


def test_a_bot_keeps_nothing_of_a_runtime_that_it_has_served() -> None:
    def serve(bot: ChatChannel) -> weakref.ref[Runtime]:
        async def main() -> weakref.ref[Runtime]:
            async with (
                perdure.connect("memory://") as database,
                Runtime(database, echo(), channels=bot.channels) as runtime,
            ):
                message = ChatMessage(chat="1", position=1, key="1", text="hello", sender="7")
                assert (await bot._receiver(runtime).accept_message(message)).ticket_id
                return weakref.ref(runtime)

        return asyncio.run(main())

    bot = channels.TelegramBot(TOKEN, secret=SECRET, api_url="http://127.0.0.1:9")
    served = [serve(bot) for _ in range(3)]
    gc.collect()
    assert [one() for one in served] == [None] * 3
    assert len(bot._locks) == 0


def test_deliveries_for_one_chat_are_accepted_one_by_one(memory: Storage) -> None:
    async def main() -> None:
        bot = channels.TelegramBot(TOKEN, secret=SECRET, api_url="http://127.0.0.1:9")
        async with Runtime(memory.database(), echo(), works=False) as runtime:
            first, second = bot._receiver(runtime), bot._receiver(runtime)
            async with first._lock_chat("1", ""):
                async with second._lock_chat("2", ""):
                    assert len(bot._locks) == 2
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05), second._lock_chat("1", ""):
                        pass

    go(main())
