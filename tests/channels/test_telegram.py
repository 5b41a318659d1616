"""Telegram: the genuine aiogram against a double, over HTTP.

Covers perdure.channels.sessions, perdure.channels.telegram_updates, perdure.channels.webhook.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from perdure import channels
from perdure.channels import ChatAddress, ChatOptions
from perdure.channels.webhook import RejectedRequest, body_of
from perdure.model.runs.messages import SENT, UNKNOWN
from perdure.testing.channels import DeliveryFaults, ProviderFault, TelegramDouble
from perdure.testing.channels.telegram import SECRET, TOKEN
from tests.channels.serving import QUICK, WINDOW, asking, at_work, echo, telegram, telegram_at_work
from tests.runtime.graphs import Storage, advance, eventually, eventually_stored, go, stored


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


def thread(chat: int, topic: str = "", session: str = "") -> str:
    return ChatAddress("telegram", str(chat), topic, session).thread_id


def test_a_message_is_answered_in_its_chat_and_topic(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), echo()) as (double, line):
            await double.say(1, "hello")
            await double.say(1, "in a topic", topic=9)
            await double.until_shown(2)
            assert {(each.topic, each.text) for each in double.shown} == {("", "hello"), ("9", "in a topic")}
            (message,) = await line.runtime.messages(thread(1))
            about = message.message.payload["message"]["additional_kwargs"]["channel"]
            assert about["sender"] == "7"
            assert about["sender_name"] == "Ada"

    go(main())


def test_a_forged_a_malformed_and_an_oversized_request_are_refused(
    memory: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        options = ChatOptions(debounce=0.0, body_bytes=2000)
        async with telegram_at_work(memory.database(), echo(), options) as (double, line):
            good = double.update(message=double.message(1, "the text"))
            header = "X-Telegram-Bot-Api-Secret-Token"
            async with httpx.AsyncClient() as client:

                async def status(body: Any, headers: dict[str, str]) -> int:
                    return (await client.post(line.webhook, content=body, headers=headers)).status_code

                assert await status(good.body, {}) == 401
                assert await status(good.body, {header: "wrong"}) == 401
                assert await status(good.body, {header: SECRET + "x"}) == 401
                # Not parsed before the secret is checked, and not read to the end.
                assert await status(b"no json", {header: "wrong"}) == 401
                assert await status(b"no json", {header: SECRET}) == 400
                assert await status(b"[" * 2000, {header: SECRET}) == 400
                assert await status(b"x" * 2001, {header: SECRET}) == 413

                async def streamed() -> Any:
                    for _ in range(3):
                        yield b"x" * 1000

                assert await status(streamed(), {header: SECRET}) == 413
                assert (await client.get(line.webhook)).status_code == 405
            assert await line.runtime.messages(thread(1)) == ()

    with caplog.at_level(logging.DEBUG, "perdure"):
        go(main())
    assert "the text" not in caplog.text
    assert SECRET not in caplog.text
    assert TOKEN not in caplog.text


def test_a_message_with_half_of_a_surrogate_pair_is_answered(memory: Storage) -> None:
    """Refused, the provider would deliver it again and again."""

    async def main() -> None:
        async with telegram_at_work(memory.database(), echo()) as (double, _):
            assert await double.post(double.update(message=double.message(1, "cut \ud83d"))) == 200
            await double.until_shown(1)
            assert double.texts(1) == ["cut \ufffd"]

    go(main())


def test_an_update_that_is_sent_again_is_one_turn_also_after_a_restart(memory: Storage) -> None:
    async def main() -> None:
        async with TelegramDouble() as double:
            delivery = double.update(message=double.message(1, "once"))
            for _ in range(2):
                async with at_work(memory.database(), echo(), telegram(double)) as line:
                    double.webhook = line.webhook
                    for _ in range(3):
                        assert await double.deliver(delivery) == 200
                    await double.until_shown(1)
                    await double.say(2, "another chat")
                    await double.until_shown(1, 2)
            assert double.texts(1) == ["once"]

    go(main())


def test_messages_that_come_in_another_order_and_twice_are_each_one_turn(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), echo()) as (double, line):
            double.deliveries = DeliveryFaults(shuffle=4, copies=2, delay=0.01, seed=3)
            for text in "abcd":
                await double.say(1, text)
            while sorted("".join(double.texts(1)).replace(" + ", "")) != list("abcd"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            messages = await line.runtime.messages(thread(1))
            contents = [each.message.payload["message"]["content"] for each in reversed(messages)]
            assert contents != list("abcd")
            assert sorted(contents) == list("abcd")

    go(main())


def test_fragments_within_the_window_are_one_turn_by_default(memory: Storage) -> None:
    assert (ChatOptions().debounce, ChatOptions().max_wait) == (2.0, 10.0)

    async def main() -> None:
        async with telegram_at_work(memory.database(), echo(), WINDOW) as (double, line):
            for text in ("book", "a table", "for two"):
                await double.say(1, text)
            assert double.texts(1) == []
            advance(line.runtime)
            await double.until_shown(1)
            assert double.texts(1) == ["book + a table + for two"]

    go(main())


def test_a_long_reply_is_split_and_each_part_is_tried_again_by_itself(memory: Storage) -> None:
    words = " ".join(f"word{n:04}" for n in range(1000)) + " 🙂" * 500

    async def main() -> None:
        async with telegram_at_work(memory.database(), echo(lambda heard: words)) as (double, line):
            double.faults.append(ProviderFault("slow", seconds=0.0))
            double.faults.append(ProviderFault("fail", times=2))
            await double.say(1, "tell me more")
            await double.until_shown(3)

            async def is_sent() -> bool:
                return [each.state for each in await line.runtime.replies(thread(1))] == [SENT] * 3

            await eventually_stored(is_sent)
            assert " ".join(double.texts(1)) == words
            assert len(double.texts(1)) == 3

    go(main())


def test_a_reply_whose_answer_is_lost_is_sent_again_or_held(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), echo()) as (double, _):
            double.faults.append(ProviderFault("lose"))
            await double.say(1, "again")
            await double.until_shown(2)
            assert double.texts(1) == ["again", "again"]
        async with TelegramDouble() as double:
            bot = telegram(double, in_doubt="hold")
            async with at_work(memory.database(), echo(), bot) as line:
                double.webhook = line.webhook
                double.faults.append(ProviderFault("lose"))
                await double.say(3, "held")

                async def is_held() -> bool:
                    return [each.state for each in await line.runtime.replies(thread(3))] == [UNKNOWN]

                await eventually_stored(is_held)
                assert double.texts(3) == ["held"]

    go(main())


@pytest.mark.slow
def test_one_rate_limit_does_not_halt_all_chats(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), echo()) as (double, line):
            # Longer than a busy machine takes for the replies to all others; the second pause is short.
            limit = ProviderFault("limit", chat="1", times=2, seconds=10.0)
            double.faults.append(limit)
            await double.say(1, "limited")
            await eventually(lambda: limit.times == 1)
            limit.seconds = 0.1
            for chat in range(2, 12):
                await double.say(chat, "free")
            for chat in range(2, 12):
                await double.until_shown(1, chat)
            assert double.texts(1) == []
            sends = [call for call in double.calls if call[0] == "sendMessage" and call[1]["chat_id"] == "1"]
            assert len(sends) == 1, "a chat that has to wait is not asked about again"
            await double.until_shown(1, 1)
            (reply,) = await line.runtime.replies(thread(1))
            assert reply.attempts == 1, "a limit does not use up an attempt"

    go(main())


def test_a_chat_that_blocked_the_bot_gets_nothing_more_and_errors_have_no_text(memory: Storage) -> None:
    class Blocked(TelegramDouble):
        async def take(self, request: Any, shown: Any, accepted: Any, *, limited: Any) -> Any:
            from aiohttp import web

            body = {"ok": False, "error_code": 403, "description": f"Forbidden: {shown.text} {TOKEN}"}
            return web.json_response(body, status=403)

    async def main() -> None:
        async with Blocked() as double, at_work(memory.database(), echo(), telegram(double)) as line:
            double.webhook = line.webhook
            await double.say(1, "the text")

            async def is_dead() -> bool:
                return [each.state for each in await line.runtime.replies(thread(1))] == ["dead"]

            await eventually_stored(is_dead)
            (reply,) = await line.runtime.replies(thread(1))
            assert reply.error == "Undeliverable: Telegram refused it (TelegramForbiddenError)"

    go(main())


def test_typing_is_shown_while_a_run_is_open(memory: Storage) -> None:
    gate = asyncio.Event()

    async def main() -> None:
        from langchain_core.messages import AIMessage
        from langgraph.graph import START, MessagesState, StateGraph

        async def wait(state: MessagesState) -> dict[str, Any]:
            await gate.wait()
            return {"messages": [AIMessage("done")]}

        graph = StateGraph(MessagesState).add_node(wait).add_edge(START, "wait").compile()
        async with telegram_at_work(memory.database(), graph) as (double, _):
            await double.say(1, "work")
            await eventually(lambda: "sendChatAction" in [name for name, _ in double.calls])
            assert double.shown == []
            gate.set()
            await double.until_shown(1)

    go(main())


def test_groups_are_answered_when_the_bot_is_meant(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), echo()) as (double, _):
            await double.say(-5, "not for the bot")
            await double.say(-5, "nor @somebody for this")
            await double.say(-5, "@perdure_bot what is new?")
            await double.until_shown(1)
            bots = {"message_id": 99, "date": 1, "chat": {"id": -5, "type": "supergroup", "title": "Group"}}
            bots["from"] = {"id": 42, "is_bot": True, "first_name": "Bot"}
            await double.say(-5, "and yesterday?", reply_to_message=bots)
            await double.until_shown(2)
            assert double.texts(-5) == ["what is new?", "and yesterday?"]

    go(main())


def test_attachments_come_by_reference(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), echo()) as (double, line):
            sizes = [
                {"file_id": "small", "file_unique_id": "s", "width": 9, "height": 9, "file_size": 10},
                {"file_id": "large", "file_unique_id": "l", "width": 90, "height": 90, "file_size": 1000},
            ]
            await double.say(1, "", photo=sizes, caption="my cat")
            file = {
                "file_id": "pdf",
                "file_unique_id": "p",
                "file_name": "a.pdf",
                "mime_type": "application/pdf",
            }
            await double.say(2, "", document=file)
            await double.until_shown(2)
            assert double.texts(1) == ["my cat\n[attached: photo, image/jpeg, 1000 bytes]"]
            assert double.texts(2) == ["[attached: document, a.pdf, application/pdf]"]
            (message,) = await line.runtime.messages(thread(1))
            about = message.message.payload["message"]["additional_kwargs"]["channel"]
            assert about["attachments"][0]["reference"] == "large"

    go(main())


def test_new_begins_a_conversation_and_a_late_copy_of_an_old_message_stays_in_the_old_one(
    memory: Storage,
) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), echo()) as (double, line):
            old = double.update(message=double.message(1, "before"))
            await double.deliver(old)
            await double.until_shown(1)
            message = double.message(1, "/new")
            new = double.update(message=message)
            await double.deliver(new)
            await double.until_shown(2)
            await double.deliver(old)
            await double.deliver(new)
            await double.say(1, "after")
            await double.until_shown(3)
            assert double.texts(1) == ["before", QUICK.new_notice, "after"]
            assert len(await line.runtime.messages(thread(1))) == 1
            (standing,) = await line.runtime.messages(thread(1, session=str(message["message_id"])))
            assert standing.message.payload["message"]["content"] == "after"

    go(main())


def test_stop_ends_the_run_and_what_waits_but_a_late_copy_stops_nothing_newer(memory: Storage) -> None:
    gate = asyncio.Event()

    async def main() -> None:
        from langchain_core.messages import AIMessage
        from langgraph.graph import START, MessagesState, StateGraph

        async def wait(state: MessagesState) -> dict[str, Any]:
            if state["messages"][-1].text == "hold":
                await gate.wait()
            return {"messages": [AIMessage(state["messages"][-1].text)]}

        graph = StateGraph(MessagesState).add_node(wait).add_edge(START, "wait").compile()
        async with telegram_at_work(memory.database(), graph) as (double, line):
            await double.say(1, "hold")

            async def is_open() -> bool:
                runs = await line.runtime.runs(thread(1))
                return bool(runs) and runs[0].state == "open"

            await eventually_stored(is_open)
            await double.say(1, "waits")
            stop = double.update(message=double.message(1, "/stop"))
            await double.deliver(stop)
            await double.until_shown(1)
            await double.say(1, "hold")
            await eventually_stored(is_open)
            await double.deliver(stop)
            gate.set()
            await double.until_shown(3)
            assert double.texts(1) == [QUICK.stop_notice, QUICK.stop_notice, "hold"]

    go(main())


def test_a_message_edited_while_it_waits_is_replaced_and_later_it_is_a_new_one(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), echo(), WINDOW) as (double, line):
            message = await double.say(1, "teh cat")
            await double.edit(message, "the cat")
            advance(line.runtime)
            await double.until_shown(1)
            assert double.texts(1) == ["the cat"]
            await double.edit(message, "the dog")
            advance(line.runtime)
            await double.until_shown(2)
            assert double.texts(1)[1] == "(edited) the dog"

    go(main())


HITL = {
    "action_requests": [{"name": "pay", "args": {"amount": 12}, "description": "Pay 12 euros?"}],
    "review_configs": [{"action_name": "pay", "allowed_decisions": ["approve", "edit", "reject"]}],
}


def test_a_question_has_buttons_that_answer_it_once(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), asking(HITL)) as (double, _):
            await double.say(1, "pay")
            await double.until_shown(1)
            (question,) = double.shown
            assert question.text == "Pay 12 euros?"
            assert list(question.buttons) == ["Approve", "Edit", "Reject"]
            await double.press(question, "Approve")
            await double.until_shown(2)
            assert double.texts(1)[1] == "got {'decisions': [{'type': 'approve'}]}"
            assert "editMessageReplyMarkup" in [name for name, _ in double.calls]
            await double.press(question, "Reject")
            await double.until_shown(3)
            assert double.texts(1)[2] == "This question is not open any more."

    go(main())


def test_the_edit_button_asks_for_the_changed_arguments(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), asking(HITL)) as (double, _):
            await double.say(1, "pay")
            await double.until_shown(1)
            await double.press(double.shown[0], "Edit")
            await double.until_shown(2)
            assert '{"amount": 12}' in double.texts(1)[1]
            await double.say(1, "thirteen")
            await double.until_shown(3)
            assert double.texts(1)[2].startswith("That is not a JSON object.")
            await double.say(1, json.dumps({"amount": 13}))
            await double.until_shown(4)
            edited = {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 13}}}
            assert double.texts(1)[3] == f"got { ({'decisions': [edited]}) }"

    go(main())


def test_a_plain_question_is_answered_by_the_next_text(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), asking("Which size?")) as (double, _):
            await double.say(1, "a shirt")
            await double.until_shown(1)
            assert double.texts(1) == ["Which size?"]
            answer = double.update(message=double.message(1, "large"))
            await double.deliver(answer)
            await double.deliver(answer)
            await double.until_shown(2)
            await double.deliver(answer)
            assert double.texts(1) == ["Which size?", "got large"]

    go(main())


def test_a_chat_that_is_not_allowed_is_acknowledged_and_ignored(memory: Storage) -> None:
    async def main() -> None:
        options = ChatOptions(debounce=0.0, allowed=("2",))
        async with telegram_at_work(memory.database(), echo(), options) as (double, line):
            await double.say(1, "hello")
            await double.say(2, "hello")
            await double.until_shown(1)
            assert [each.chat for each in double.shown] == ["2"]
            assert await line.runtime.messages(thread(1)) == ()

    go(main())


def test_registering_sends_the_secret(memory: Storage) -> None:
    async def main() -> None:
        async with TelegramDouble() as double, telegram(double) as bot:
            await bot.register("https://example.org/channels/telegram")
            name, given = double.calls[0]
            assert (name, given["secret_token"]) == ("setWebhook", SECRET)

    go(main())


@pytest.mark.parametrize(
    ("token", "given", "wrong"),
    [
        ("x", {"secret": SECRET}, "the token of a Telegram bot"),
        (TOKEN, {"secret": "short"}, "16 to 256"),
        (TOKEN, {"secret": SECRET, "in_doubt": "reconcile"}, "'resend' or 'hold'"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(token: str, given: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        channels.TelegramBot(token, **given)


@pytest.mark.parametrize(
    ("declared", "is_refused"), [("1" * 5000, True), ("11", True), ("10", False), ("\xb2", False)]
)
def test_a_declared_length_of_any_form_is_understood(declared: str, is_refused: bool) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x"}

    header = (b"content-length", declared.encode("latin-1"))
    request = Request({"type": "http", "method": "POST", "headers": [header]}, receive)
    if not is_refused:
        assert asyncio.run(body_of(request, 10)) == b"x"
        return
    with pytest.raises(RejectedRequest):
        asyncio.run(body_of(request, 10))
